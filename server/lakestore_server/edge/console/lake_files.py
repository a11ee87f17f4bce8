"""The files of the lake that one query may read: those that its plans lead to, and no other file of the warehouse.

A plan names a metadata file and a snapshot. The metadata file names the snapshot's manifest list, the list names
manifests, and manifests name data files and delete files. A file is opened once a file above has named it, and if it
lies in the table's own folder: whoever commits to a table of the catalog chooses these names, and must not have the
server read other tables, or files of its machine, for a viewer.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import orjson

from lakestore.errors import Denied, Unavailable
from lakestore.lake import places
from lakestore.lake.manifest_entries import Entries
from lakestore.lake.manifest_lists import Manifest, read_list
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import piped
from lakestore.wire.piped import Frame, Kind
from lakestore_server.iceberg import locations

_OPEN_MAX = 16
_GZIP = b"\x1f\x8b"
Reader = Callable[[bytes], None]


class LakeFiles:
    """The files of one query. For one thread."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader | None] = {}
        """Location to the function that takes the names out of the file, until it was called; None for data files."""
        self._open: OrderedDict[str, Any] = OrderedDict()

    def add_plan(self, plan: pb.PlanAnswer) -> None:
        """Admit the metadata files of a plan that the server made for the query."""
        for table in plan.tables:
            if place := table.metadata_location:
                self._readers.setdefault(place, partial(self._metadata, table.snapshot_id))

    def answer(self, frame: Frame) -> Frame:
        """The answer to SIZE or READ; `Denied` for a file that nothing has named."""
        is_part = frame.kind is Kind.READ
        head = piped.FILE_PART.size if is_part else 0
        location = frame.payload[head:].decode()
        if location not in self._readers:
            raise Denied("a query reads files that its plan names, and no others")
        try:
            stream = self._opened(location)
            if not is_part:
                return Frame(Kind.ANSWER, piped.FILE_SIZE.pack(stream.size()))
            begin, size = piped.FILE_PART.unpack_from(frame.payload)
            data: bytes = stream.read_at(min(size, piped.FILE_PART_BYTES_MAX), begin)
            return Frame(Kind.ANSWER, data)
        except FileNotFoundError:
            return Frame(Kind.END)
        except OSError as error:
            raise Unavailable(f"file {location} cannot be read: {error}", applied="no") from error

    def close(self) -> None:
        """Close the files that are open."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _opened(self, location: str) -> Any:
        stream = self._open.pop(location, None)
        if stream is None:
            filesystem, path = places.place(location)
            stream = filesystem.open_input_file(path)
            if len(self._open) >= _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
            if (reader := self._readers[location]) is not None:
                reader(stream.read_at(stream.size(), 0))
                self._readers[location] = None
        self._open[location] = stream
        return stream

    def _admit(self, folder: str, names: Iterable[str], reader: Reader | None = None) -> None:
        for name in names:
            if not locations.is_file_of(name, folder):
                raise Denied("a file of this table's lake lies outside the table's folder: a query does not read it")
            self._readers.setdefault(name, reader)

    def _metadata(self, number: int, data: bytes) -> None:
        document = orjson.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
        folder = document["location"]
        for snapshot in document.get("snapshots", ()):
            if snapshot["snapshot-id"] == number:
                listed = snapshot["manifest-list"]
                self._admit(folder, [listed], partial(self._list, folder, listed))

    def _list(self, folder: str, listed: str, data: bytes) -> None:
        for manifest in read_list(data, listed):
            self._admit(folder, [manifest.path], partial(self._manifest, folder, manifest))

    def _manifest(self, folder: str, manifest: Manifest, data: bytes) -> None:
        entries = Entries(data, manifest)
        self._admit(folder, entries.paths(np.arange(len(entries))))

"""The lake files of one query. The server opens a file if the query's own plans lead to it, and no other file."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import orjson

from lakestore.errors import Denied, Unavailable
from lakestore.iceberg import places
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import Manifest, read_list
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe
from lakestore.wire.pipe import Verb
from lakestore_server.catalog import locations

_OPEN_MAX = 16
_GZIP = b"\x1f\x8b"
Reader = Callable[[bytes], None]


class LakeFiles:
    """The lake files of one query. Not thread-safe."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader | None] = {}
        """Location to the function that collects the file names in it; None once it was called, and for data files."""
        self._open: OrderedDict[str, Any] = OrderedDict()

    def add_plan(self, plan: pb.PlanAnswer) -> None:
        """Admit the metadata files of a plan that the server made for the query."""
        for table in plan.tables:
            if place := table.metadata_location:
                self._readers.setdefault(place, partial(self._metadata, table.snapshot_id))

    def answer(self, verb: Verb, question: bytes) -> bytes | None:
        """The answer to SIZE or READ; None if the file is gone. Raises `Denied` for a file that nothing named."""
        is_part = verb is Verb.READ
        head = pipe.FILE_PART.size if is_part else 0
        location = question[head:].decode()
        try:
            self._follow_plans(location)
            if location not in self._readers:
                raise Denied("a query reads files that its plan names, and no others")
            stream = self._open_file(location)
            if not is_part:
                return pipe.FILE_SIZE.pack(stream.size())
            begin, size = pipe.FILE_PART.unpack_from(question)
            data: bytes = stream.read_at(min(size, pipe.FILE_PART_BYTES_MAX), begin)
            return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"file {location} cannot be read: {error}", applied="no") from error

    def _follow_plans(self, location: str) -> None:
        """Read what the plans lead to until it names the file.

        A process that has answered a question keeps manifests in memory, and begins its next one with a data file.
        """
        while location not in self._readers:
            unread = [name for name, reader in self._readers.items() if reader is not None]
            if not unread:
                return
            for name in unread:
                self._open_file(name)

    def close(self) -> None:
        """Close all open files."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _open_file(self, location: str) -> Any:
        stream = self._open.pop(location, None)
        if stream is None:
            stream = places.open_file(location)
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

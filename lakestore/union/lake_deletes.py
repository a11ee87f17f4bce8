"""Deleted positions of data files, out of position deletes and deletion vectors; each file is read once in a read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakestore.lake import places, position_deletes, puffin
from lakestore.lake.manifests import File
from lakestore.lake.puffin import Positions
from lakestore.union.figures import Figures
from lakestore.union.file_list import FileList
from lakestore.union.lake_snapshot import PlannedFile, named

_PARQUET, _PUFFIN = "PARQUET", "PUFFIN"


@dataclass(slots=True)
class _Shared:
    """A delete file of a whole partition."""

    left: int
    """Data files that will still ask for it."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: Mapping[str, Positions] | None = None


class Deletes:
    """The deletes of the data files of one read. Thread-safe.

    What a file says of several data files is kept until the last of them has asked; most are of one alone.
    """

    def __init__(self, files: FileList, figures: Figures) -> None:
        self._figures = figures
        asked = Counter(_place(each.file) for each in files.shared_deletes())
        self._shared = {place: _Shared(count) for place, count in asked.items()}

    def of(self, planned: PlannedFile) -> Positions:
        """The deleted positions of a data file, in any order."""
        parts = [self._positions(each, planned.file.path) for each in planned.deletes]
        known = [part for part in parts if part is not None and len(part)]
        return np.concatenate(known) if known else np.empty(0, dtype=np.int64)

    def _positions(self, deletes: File, path: str) -> Positions | None:
        shared = self._shared.get(_place(deletes))
        if shared is None:
            return self._read(deletes).get(path)
        with shared.lock:
            if shared.found is None:
                shared.found = self._read(deletes)
            found = shared.found
            shared.left -= 1
            if not shared.left:
                shared.found = {}
        return found.get(path)

    def _read(self, file: File) -> Mapping[str, Positions]:
        with named(file.path):
            found, size = decoded(file)
        self._figures.add(delete_files=1, delete_bytes=size)
        return found


def _place(file: File) -> tuple[str, int | None]:
    return file.path, file.content_offset


def decoded(file: File) -> tuple[Mapping[str, Positions], int]:
    """The deleted positions that a delete file says, by data file, and the bytes that were read for it."""
    if file.format == _PUFFIN and file.referenced_data_file is not None and file.content_offset is not None:
        data = places.read_part(file.path, file.content_offset, file.content_size or 0)
        return {file.referenced_data_file: puffin.positions(data, file.path)}, len(data)
    if file.format in (_PUFFIN, _PARQUET):
        data = places.read(file.path)
        decode = puffin.vectors if file.format == _PUFFIN else position_deletes.decode
        return decode(data, file.path), len(data)
    from lakestore.lake import other_formats  # seldom needed, and slow to import

    with other_formats.opened_at(file.path, file.format) as other:
        batches = list(other.batches(position_deletes.COLUMNS))
    found = position_deletes.decode(pa.Table.from_batches(batches), file.path) if batches else {}
    return found, file.bytes

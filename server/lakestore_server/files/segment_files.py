"""Segments by name, as a checkpoint has them, and the files that these are in, opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.model.table import Table
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS, SHARED
from lakestore_server.files.extent import KeptFiles
from lakestore_server.files.segment import Part, Segment
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import Disk

LONE_MAPS_MAX = 16_384
"""With more segments in files of their own, as earlier releases made them, the small ones are read and not mapped."""
READ_BYTES_MAX = 16 << 10
"""The size of a small one. Later checkpoints put these together."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment that a checkpoint names."""

    name: str
    """The file's name, in its table's folder or in that of shared files."""
    size: int
    """In bytes."""
    at: int | None = None
    """Its first byte in a shared file."""

    @property
    def is_shared(self) -> bool:
        """Whether other segments may lie in the same file."""
        return self.at is not None


class SegmentFiles:
    """The files with segments of a data folder; each shared or kept one is mapped once."""

    def __init__(self, disk: Disk, folder: Path, *, is_crowded: bool) -> None:
        """With `is_crowded`, files of few pages are read: a process may have some 65,000 maps only."""
        self._disk, self._place, self._is_crowded = disk, folder / SEGMENTS, is_crowded
        self._shared: dict[str, SharedFile] = {}
        self._kept = KeptFiles(disk, self._place / EXTENTS)

    def segment(self, table: Table, stored: Callable[[int], pa.Schema], file: SegmentFile) -> Segment:
        """A segment of a table, of which `stored` gives the schema of each version; or `Corrupt`."""
        path = self._place / (SHARED if file.is_shared else table.uuid) / file.name
        part = self._part(path, file)
        return Segment(self._disk, path, stored, keyed=table.keyed, part=part, kept=self._kept)

    def _part(self, path: Path, file: SegmentFile) -> Part | None:
        if file.at is not None:
            return self._shared_file(path).part(file.at, file.size)
        if self._disk.size(path) != file.size:
            raise Corrupt(f"segment file {file.name} is missing or cut short: restore it from a copy or a backup")
        if self._is_crowded and file.size <= READ_BYTES_MAX:
            data = pa.py_buffer(self._disk.read(path))
            return Part(data, data)
        return None

    def _shared_file(self, path: Path) -> SharedFile:
        if path.name not in self._shared:
            if self._disk.size(path) is None:
                raise Corrupt(f"shared segment file {path.name} is missing: restore it from a copy or a backup")
            self._shared[path.name] = SharedFile(self._disk, path)
        return self._shared[path.name]

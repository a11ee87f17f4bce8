"""Segments as a checkpoint names them, and the open files in which they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.model.table import Table
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS, SHARED
from lakestore_server.files.extent import KeptFiles
from lakestore_server.files.segment import Segment, SegmentBytes
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import Disk

LONE_MAPS_MAX = 16_384
"""If more segments than this have files of their own, as earlier releases wrote them, small ones are read and not
mapped.
"""
READ_BYTES_MAX = 16 << 10
"""The largest file that counts as small. Later checkpoints join such segments in shared files."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment that a checkpoint names."""

    name: str
    """The file's name, in its table's folder or in the folder of shared files."""
    size: int
    """Its size in bytes."""
    at: int | None = None
    """Position of its first byte in a shared file."""

    @property
    def is_shared(self) -> bool:
        """True if the segment is a part of a shared file."""
        return self.at is not None


class SegmentFiles:
    """The segment files of a data folder. Each shared or kept file is mapped once."""

    def __init__(self, disk: Disk, folder: Path, *, is_crowded: bool) -> None:
        """With `is_crowded`, small files are read instead of mapped: Linux allows about 65,000 maps for each
        process.
        """
        self._disk, self._place, self._is_crowded = disk, folder / SEGMENTS, is_crowded
        self._shared: dict[str, SharedFile] = {}
        self._kept = KeptFiles(disk, self._place / EXTENTS)

    def segment(self, table: Table, stored: Callable[[int], pa.Schema], file: SegmentFile) -> Segment:
        """A segment of a table. `stored` returns the schema of a schema version. Raises `Corrupt` if the segment is
        damaged.
        """
        path = self._place / (SHARED if file.is_shared else table.uuid) / file.name
        part = self._part(path, file)
        return Segment(self._disk, path, stored, keyed=table.keyed, part=part, kept=self._kept)

    def _part(self, path: Path, file: SegmentFile) -> SegmentBytes | None:
        if file.at is not None:
            return self._shared_file(path).part(file.at, file.size)
        if self._disk.size(path) != file.size:
            raise Corrupt(f"segment file {file.name} is missing or cut short: restore it from a copy or a backup")
        if self._is_crowded and file.size <= READ_BYTES_MAX:
            data = pa.py_buffer(self._disk.read(path))
            return SegmentBytes(data, data)
        return None

    def _shared_file(self, path: Path) -> SharedFile:
        if path.name not in self._shared:
            if self._disk.size(path) is None:
                raise Corrupt(f"shared segment file {path.name} is missing: restore it from a copy or a backup")
            self._shared[path.name] = SharedFile(self._disk, path)
        return self._shared[path.name]

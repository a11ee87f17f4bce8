"""Extents: rows of a log that stay where the journal wrote them, and the journal files that are kept for them.

A kept file is a second name (a hard link) of a journal file, in a folder beside those of segments: the journal drops
its own name as ever, and reads no kept file when a server starts. It lives as a segment file does, which is as long as
a checkpoint names it. An extent is one record batch in such a file, just as the journal wrote it; the segment that
names it has the CRC32C of each 64 KB of it. Frames around it are of no use any more, and are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore_server.host.disk import Disk

SUFFIX = ".journal"


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A mapped journal file that is kept."""

    path: Path
    data: pa.Buffer

    @property
    def name(self) -> str:
        """The name in its folder."""
        return self.path.name


class KeptFiles:
    """The kept files of a folder; each one is mapped once."""

    def __init__(self, disk: Disk, folder: Path, mapped: Iterable[KeptFile] = ()) -> None:
        """The folder is that of kept files alone; some may be mapped already."""
        self._disk, self._folder = disk, folder
        self._mapped = {file.name: file for file in mapped}

    def file(self, name: str) -> KeptFile:
        """The file of that name; `Corrupt` if it is missing."""
        found = self._mapped.get(name)
        if found is None:
            path = self._folder / name
            if not self._disk.size(path):
                raise missing(name)
            found = self._mapped[name] = KeptFile(path, self._disk.map(path))
        return found


def missing(name: str) -> Corrupt:
    """The error of a kept file that is not there, or is shorter than it was."""
    return Corrupt(f"kept journal file {name} is missing or cut short: restore it from a copy or a backup")


@dataclass(frozen=True, slots=True)
class Extent:
    """One record batch in a kept file."""

    file: KeptFile
    at: int
    """Its first byte."""
    size: int
    """In bytes."""
    rows: int
    crcs: npt.NDArray[np.uint32]
    """The checksum of each block, counted from its first byte."""

    @property
    def data(self) -> pa.Buffer:
        """Its bytes."""
        return self.file.data.slice(self.at, self.size)

"""Extents: rows of a log table that stay where the journal wrote them, in journal files that are kept for this.

- A kept file is a hard link to a journal file, in a folder beside the segment folders. The journal removes its own name
  as always, and reads no kept file at a start.
- A kept file lives as long as a checkpoint names it, like a segment file.
- An extent is one record batch in a kept file, exactly as the journal wrote it. The segment that names it has the
  CRC32C of each 64 KB of it. The journal's frames around it have no meaning any more and are not checked.
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
    """A kept journal file, mapped."""

    path: Path
    data: pa.Buffer

    @property
    def name(self) -> str:
        """The name in its folder."""
        return self.path.name


class KeptFiles:
    """The kept files of a folder. Each file is mapped once."""

    def __init__(self, disk: Disk, folder: Path, mapped: Iterable[KeptFile] = ()) -> None:
        """`folder` holds kept files only. `mapped` are files that are mapped already."""
        self._disk, self._folder = disk, folder
        self._mapped = {file.name: file for file in mapped}

    def file(self, name: str) -> KeptFile:
        """The file of that name. Raises `Corrupt` if it is missing."""
        found = self._mapped.get(name)
        if found is None:
            path = self._folder / name
            if not self._disk.size(path):
                raise missing(name)
            found = self._mapped[name] = KeptFile(path, self._disk.map(path))
        return found


def missing(name: str) -> Corrupt:
    """The error for a kept file that is missing or shorter than it was."""
    return Corrupt(f"kept journal file {name} is missing or cut short: restore it from a copy or a backup")


@dataclass(frozen=True, slots=True)
class Extent:
    """One record batch in a kept file."""

    file: KeptFile
    at: int
    """Position of its first byte."""
    size: int
    """Its size in bytes."""
    rows: int
    crcs: npt.NDArray[np.uint32]
    """The checksum of each block, counted from the extent's first byte."""

    @property
    def data(self) -> pa.Buffer:
        """Its bytes."""
        return self.file.data.slice(self.at, self.size)

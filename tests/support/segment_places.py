"""Where the segments of a table lie: in files of their own, or in shared ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lakestore_server.files.data_folder import SEGMENTS, SHARED
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import RealDisk


def places(folder: Path, uuid: str) -> Iterator[tuple[Path, int, int]]:
    """(file, first byte, bytes) of each segment of a table that lies in a data folder."""
    for path in sorted((folder / SEGMENTS / uuid).glob("*.seg")):
        yield path, 0, path.stat().st_size
    for path in sorted((folder / SEGMENTS / SHARED).glob("*.seg")):
        for at, entry in SharedFile(RealDisk(), path).entries.items():
            if entry.table == uuid:
                yield path, at, entry.size


def damage_segment(folder: Path, uuid: str) -> Path:
    """Flip a bit in the body of a segment, in the file that a server has mapped; the file."""
    path, at, size = next(places(folder, uuid))
    raw = bytearray(path.read_bytes())
    raw[at + size // 2] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    return path

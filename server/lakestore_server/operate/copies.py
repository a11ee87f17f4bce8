"""Files written and read piece by piece, with their checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.host.disk import PIECE_BYTES, Disk


def pieces_of(data: Any) -> Iterator[pa.Buffer]:
    """Bytes in memory, or a map, in pieces."""
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return (whole.slice(at, min(PIECE_BYTES, whole.size - at)) for at in range(0, whole.size, PIECE_BYTES))


def written(disk: Disk, path: Path, pieces: Iterable[Any]) -> tuple[int, int]:
    """Write a new file and sync it; its bytes and their checksum. The folder is the caller's to sync."""
    size = crc = 0
    file = disk.create(path)
    try:
        for piece in pieces:
            crc = crc32c(piece, crc)
            size += file.write([piece])
        file.sync()
    finally:
        file.close()
    return size, crc


def crc_of(disk: Disk, path: Path) -> int:
    """The checksum of a whole file."""
    crc = 0
    for piece in disk.pieces(path):
        crc = crc32c(piece, crc)
    return crc

"""The manifest of a backup: its files with their checksums, so that a restore knows a whole backup.

Magic u32 · version u16 · flags u16 · bytes u64 · crc32c u32 of the JSON that follows. The manifest is written
last: a folder without one is a backup that was not finished. The files named lie beside it, as in a data folder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import orjson

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.host import versions

NAME = "MANIFEST"
MAGIC = 0x4C534231
VERSION, READ = 2, (1, 2)
"""The version that is written, and those that are read; release 0.2 wrote 1."""
WAREHOUSE = "warehouse"
"""The folder of the lake's files in a backup."""
_HEADER = struct.Struct("<IHHQI")


class LakePlace(StrEnum):
    """The place of the lake's files, as far as a backup is concerned."""

    INSIDE = "inside"
    """In the backup, as they were at its commit."""
    OUTSIDE = "outside"
    """Where the warehouse is, which is not part of the data folder."""
    LEFT_OUT = "left out"
    """Nowhere but in the data folder that was backed up: they were left out when asked."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    path: str
    """Below the folder, with `/`."""
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup."""

    release: str
    """The release that wrote the backup."""
    time_us: int
    """The time of the newest commit in the backup."""
    timeline: str
    lsn: int
    """Everything up to this commit is in it, and nothing else."""
    checkpoint: str
    """Name of the checkpoint file."""
    files: tuple[Entry, ...]
    pointers: Mapping[str, str]
    """Table name to its current metadata in the warehouse."""
    warehouse: str = ""
    """URI of the warehouse; empty in a backup of a release that did not note it."""
    lake: LakePlace = LakePlace.OUTSIDE
    """The place of the lake's files."""

    def encode(self) -> bytes:
        """The file's bytes."""
        body = orjson.dumps(asdict(self))
        return _HEADER.pack(MAGIC, VERSION, 0, len(body), crc32c(body)) + body

    @staticmethod
    def decode(raw: bytes, name: str) -> Manifest:
        """The manifest in a file's bytes, or `Corrupt`."""
        damaged = Corrupt(f"{name} is damaged: this backup cannot be trusted, take another one")
        if len(raw) < _HEADER.size:
            raise damaged
        magic, version, _, size, crc = _HEADER.unpack_from(raw)
        if magic != MAGIC:
            raise damaged
        versions.check(version, READ, name)
        body = raw[_HEADER.size :]
        if len(body) != size or crc32c(body) != crc:
            raise damaged
        data: dict[str, Any] = orjson.loads(body)
        files = tuple(Entry(**entry) for entry in data.pop("files"))
        lake = LakePlace(data.pop("lake", LakePlace.OUTSIDE))
        return Manifest(**data, files=files, lake=lake)

"""The manifest of a backup: its files with their checksums, so that a restore can tell a complete backup.

Magic u32 · version u16 · flags u16 · bytes u64 · crc32c u32 of the JSON that follows. The manifest is written last: a
folder without one is an unfinished backup. The listed files lie beside it, arranged as in a data folder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import orjson

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.host import versions

NAME = "MANIFEST"
MAGIC = 0x4C534231
VERSION, READ = 2, (1, 2)
"""The version that is written, and the versions that are read. Release 0.2 wrote 1."""
WAREHOUSE = "warehouse"
"""The folder with the lake's files in a backup."""
_HEADER = struct.Struct("<IHHQI")


class LakePlace(StrEnum):
    """Where the lake's files are, from the backup's point of view."""

    INSIDE = "inside"
    """In the backup, as of its commit."""
    OUTSIDE = "outside"
    """In the warehouse, which is outside of the data folder."""
    LEFT_OUT = "left out"
    """Only in the data folder that was backed up: the user asked to leave them out."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of a backup."""

    path: str
    """The path in the folder, with `/`."""
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of a backup."""

    release: str
    """The release that wrote the backup."""
    time_us: int
    """The time of the newest commit in the backup."""
    timeline: str
    lsn: int
    """The newest commit in the backup. The backup contains all commits up to it and no later one."""
    checkpoint: str
    """Name of the checkpoint file."""
    files: tuple[BackupFile, ...]
    pointers: Mapping[str, str]
    """Table name to its current metadata file in the warehouse."""
    warehouse: str = ""
    """URI of the warehouse; empty in a backup of an older release, which did not record it."""
    lake: LakePlace = LakePlace.OUTSIDE
    """Where the lake's files are."""

    def encode(self) -> bytes:
        """The file's bytes."""
        body = orjson.dumps(self)
        return _HEADER.pack(MAGIC, VERSION, 0, len(body), crc32c(body)) + body

    @staticmethod
    def decode(raw: bytes, name: str) -> BackupManifest:
        """The manifest in a file's bytes. Raises `Corrupt` if they are damaged."""
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
        versions.check_keys(data, [part.name for part in fields(BackupManifest)], name)
        for entry in data["files"]:
            versions.check_keys(entry, [part.name for part in fields(BackupFile)], f"a file of {name}")
        if data.get("lake", LakePlace.OUTSIDE) not in list(LakePlace):
            raise versions.newer(f"{name}, with the lake {data['lake']},")
        files = tuple(BackupFile(**entry) for entry in data.pop("files"))
        lake = LakePlace(data.pop("lake", LakePlace.OUTSIDE))
        return BackupManifest(**data, files=files, lake=lake)

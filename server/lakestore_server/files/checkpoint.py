"""The checkpoint file `checkpoint-<lsn>`: everything that is not rows, and the list of segment files.

Magic u32 · version u16 · flags u16 · bytes u64 · crc32c u32, then JSON. Written aside, synced, renamed, the
folder synced: it is there whole or not at all.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import orjson

from lakestore.errors import Corrupt, NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore_server.files import versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk

MAGIC = 0x4C534350
VERSION = 1
PREFIX = "checkpoint-"
_HEADER = struct.Struct("<IHHQI")


def name_of(lsn: int) -> str:
    """File name; sorts by LSN."""
    return f"{PREFIX}{lsn:020d}"


def encode(data: dict[str, Any]) -> bytes:
    """The file's bytes."""
    body = orjson.dumps(data)
    return _HEADER.pack(MAGIC, VERSION, 0, len(body), crc32c(body)) + body


def decode(raw: bytes, name: str) -> dict[str, Any]:
    """The data of a checkpoint file, or `Corrupt`."""
    damaged = Corrupt(f"checkpoint file {name} is damaged")
    if len(raw) < _HEADER.size:
        raise damaged
    magic, version, _, size, crc = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    if magic != MAGIC:
        raise damaged
    versions.check(version, VERSION, f"checkpoint file {name}")
    if len(body) != size or crc32c(body) != crc:
        raise damaged
    data: dict[str, Any] = orjson.loads(body)
    return data


def write(disk: Disk, folder: Path, lsn: int, data: dict[str, Any]) -> None:
    """Make a checkpoint durable."""
    temporary = folder / f"{name_of(lsn)}.tmp"
    if temporary.name in disk.list(folder):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write([encode(data)])
        disk.reach(CrashPoint.CHECKPOINT_WRITTEN)
        file.sync()
        disk.reach(CrashPoint.CHECKPOINT_SYNCED)
    finally:
        file.close()
    disk.rename(temporary, folder / name_of(lsn))
    disk.reach(CrashPoint.CHECKPOINT_RENAMED)
    disk.sync_folder(folder)
    disk.reach(CrashPoint.CHECKPOINT_DURABLE)


def newest(disk: Disk, folder: Path) -> dict[str, Any] | None:
    """The newest valid checkpoint; None for an empty folder, `Corrupt` when there are only damaged ones."""
    names = [name for name in disk.list(folder) if name.startswith(PREFIX) and not name.endswith(".tmp")]
    damage: Corrupt | None = None
    for name in reversed(names):
        try:
            return decode(disk.read(folder / name), name)
        except NewerFormat:
            raise  # an older checkpoint is not what the newer release would go on from
        except Corrupt as error:
            damage = error
    if damage:
        raise damage
    return None

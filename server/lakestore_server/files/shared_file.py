"""The shared file's format: small segments of many buckets in one file, written and synced once.

Header (64 bytes): magic u32 · version u16 · flags u16 · directory bytes u32 · file bytes u64 · crc32c u32 of header and
directory. Then the directory (JSON) and the segments, each at a multiple of 64 and encoded as in a file of its own. By
table uuid, the directory has for each segment: bucket, first offset, offset after the last, position after the
directory, bytes, crc32c. A checkpoint names the segments that it needs. The file is removed with the last of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files.segment import SegmentBytes
from lakestore_server.host import even_writes, versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk

MAGIC = 0x4C535346
VERSION = 1
BYTES_MAX = 32 << 20
"""The approximate largest size of a shared file. Its segments are in memory until it is written."""
_HEADER = struct.Struct("<IHHIQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = 64
_POINTS = CrashPoint.SHARED_WRITTEN, CrashPoint.SHARED_SYNCED


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment in a directory."""

    table: str
    """The table's uuid."""
    bucket: int
    start: int
    end: int
    at: int
    """Position of its first byte in the file."""
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment to be written to a shared file."""

    table: str
    bucket: int
    start: int
    end: int
    data: pa.Buffer


class SharedFile:
    """A mapped shared file."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Raises `Corrupt` if header or directory are damaged."""
        self.path = path
        self.data = disk.map(path)
        self.entries = _parsed(self.data, path)
        """By position of the first byte."""

    def part(self, at: int, size: int) -> SegmentBytes:
        """The segment at a position. Raises `Corrupt` if the directory has no such segment there."""
        entry = self.entries.get(at)
        if entry is None or entry.size != size:
            raise Corrupt(f"shared segment file {self.path.name} has no segment at {at}: restore it from a copy")
        return SegmentBytes(self.data.slice(at, size), self.data, at)


def damage_of(data: pa.Buffer, path: Path) -> str:
    """The damage of a mapped file's header and directory; empty if there is none."""
    try:
        _parsed(data, path)
    except Corrupt as error:
        return error.message
    return ""


def is_shared(data: pa.Buffer | bytes) -> bool:
    """Whether the bytes are a shared file, by its magic number."""
    return len(data) >= _CRC.size and _CRC.unpack_from(data) == (MAGIC,)


def write(disk: Disk, path: Path, parts: Sequence[NewSegment]) -> int:
    """Write segments as one synced file. Returns its size. The caller syncs the folder."""
    directory: dict[str, list[list[int]]] = {}
    body: list[Any] = []
    at = 0
    for part in parts:
        size, crc = part.data.size, crc32c(part.data)
        directory.setdefault(part.table, []).append([part.bucket, part.start, part.end, at, size, crc])
        body += [part.data, bytes(-size % 64)]
        at += size + -size % 64
    known = orjson.dumps(directory)
    body_at = _body_at(len(known))
    header = _HEADER.pack(MAGIC, VERSION, 0, len(known), body_at + at)
    crc = crc32c(known, crc32c(header))
    head = (header + _CRC.pack(crc)).ljust(_HEADER_BYTES, b"\0") + known
    return even_writes.write(disk, path, [head, bytes(body_at - len(head)), *body], _POINTS)


def _body_at(directory_bytes: int) -> int:
    return _HEADER_BYTES + directory_bytes + -directory_bytes % 64


def _parsed(data: pa.Buffer, path: Path) -> Mapping[int, SegmentEntry]:
    damaged = Corrupt(f"shared segment file {path.name} is damaged in its directory: restore it from a copy")
    if data.size < _HEADER_BYTES:
        raise damaged
    magic, version, _, directory_bytes, size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise damaged
    versions.check(version, (VERSION,), f"shared segment file {path.name}")
    if size != data.size or _body_at(directory_bytes) > size:
        raise damaged
    known = data.slice(_HEADER_BYTES, directory_bytes)
    if (crc32c(known, crc32c(data.slice(0, _HEADER.size))),) != _CRC.unpack_from(data, _HEADER.size):
        raise damaged
    first = _body_at(directory_bytes)
    entries = (
        SegmentEntry(table, bucket, start, end, first + at, size, crc)
        for table, parts in orjson.loads(memoryview(known)).items()
        for bucket, start, end, at, size, crc in parts
    )
    return {entry.at: entry for entry in sorted(entries, key=lambda entry: entry.at)}

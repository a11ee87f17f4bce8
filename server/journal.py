"""The journal's format: frames, each a whole commit, numbered by LSN without gaps.

Frame: magic u32 · version u16 · flags u16 · lsn u64 · meta bytes u32 · body bytes u64 · crc32c u32 of all but
itself, padding to 64, meta (JSON), padding to 64, then parts, each at a multiple of 64. Keys of the meta: t (time
in µs), rows [[table, bucket, start, rows, part offset, part bytes, live sum, live rows]], producers, create, drop,
catalog, tierer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows import crc32c

MAGIC = 0x4C534A31
VERSION = 1
_HEADER = struct.Struct("<IHHQIQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = 64
_PADDING = bytes(64)


@dataclass(slots=True)
class RowsPart:
    """The rows that one commit adds to one bucket."""

    table: str
    bucket: int
    start: int
    batch: pa.RecordBatch
    live_sum: int
    """Of the bucket after these rows."""
    live_rows: int


@dataclass(slots=True)
class Frame:
    """One commit."""

    lsn: int
    time_us: int
    rows: list[RowsPart] = field(default_factory=list)
    producers: list[list[Any]] = field(default_factory=list)
    """[id, epoch, sequence, answer results, progress]"""
    create: list[dict[str, Any]] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    catalog: list[dict[str, Any]] = field(default_factory=list)
    """Changes as `server.catalog_log` writes them."""
    tierer: list[Any] | None = None
    """[epoch, holder]"""


def encode(frame: Frame) -> list[Any]:
    """The frame as parts to write one after the other."""
    parts: list[Any] = []
    rows_meta: list[list[Any]] = []
    at = 0
    for rows in frame.rows:
        buffer = rows.batch.serialize()
        rows_meta.append(
            [rows.table, rows.bucket, rows.start, rows.batch.num_rows, at, buffer.size, rows.live_sum, rows.live_rows]
        )
        parts += [buffer, _PADDING[: -buffer.size % 64]]
        at += buffer.size + -buffer.size % 64
    meta = orjson.dumps(_meta(frame, rows_meta))
    header = _HEADER.pack(MAGIC, VERSION, 0, frame.lsn, len(meta), at)
    crc = crc32c(meta, crc32c(header))
    for part in parts:
        crc = crc32c(part, crc)
    head = (header + _CRC.pack(crc)).ljust(HEADER_BYTES, b"\0")
    return [head, meta, _PADDING[: -len(meta) % 64], *parts]


def _meta(frame: Frame, rows: list[list[Any]]) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "rows": rows,
        "producers": frame.producers,
        "create": frame.create,
        "drop": frame.drop,
        "catalog": frame.catalog,
        "tierer": frame.tierer,
    }
    return {"t": frame.time_us} | {name: section for name, section in sections.items() if section}


@dataclass(slots=True)
class RawFrame:
    """A frame read back; its rows stay bytes until the table's schema is known."""

    lsn: int
    meta: dict[str, Any]
    body: pa.Buffer
    end: int
    """Place of the next frame in the file."""

    def batch(self, row: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        """The batch of one entry of `meta["rows"]`."""
        return pa.ipc.read_record_batch(self.body.slice(row[4], row[5]), schema)


def frames(data: bytes, name: str, *, last: bool) -> Iterator[RawFrame]:
    """The frames of a journal file. A torn tail ends the last file; anything else damaged is `Corrupt`."""
    buffer = pa.py_buffer(data)
    at = 0
    while at < len(data):
        frame = _frame_at(buffer, data, at)
        if frame is None:
            if last and not _frame_follows(data, at):
                return
            raise Corrupt(f"journal file {name} is damaged at byte {at}: restore it from a copy; nothing was changed")
        yield frame
        at = frame.end


def _frame_at(buffer: pa.Buffer, data: bytes, at: int) -> RawFrame | None:
    if at + HEADER_BYTES > len(data):
        return None
    magic, version, _, lsn, meta_bytes, body_bytes = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        return None
    if version != VERSION:
        raise Corrupt(f"journal version {version} is not known to this release: run the release that wrote it")
    meta_at = at + HEADER_BYTES
    body_at = meta_at + meta_bytes + -meta_bytes % 64
    end = body_at + body_bytes
    if end > len(data):
        return None
    (stored,) = _CRC.unpack_from(data, at + _HEADER.size)
    crc = crc32c(buffer.slice(at, _HEADER.size))
    crc = crc32c(buffer.slice(meta_at, meta_bytes), crc)
    if crc32c(buffer.slice(body_at, body_bytes), crc) != stored:
        return None
    meta = orjson.loads(data[meta_at : meta_at + meta_bytes])
    return RawFrame(lsn, meta, buffer.slice(body_at, body_bytes), end)


def _frame_follows(data: bytes, at: int) -> bool:
    """Whether a whole frame lies behind a damaged one: then this is damage, not a torn tail."""
    buffer = pa.py_buffer(data)
    magic = struct.pack("<I", MAGIC)
    at = data.find(magic, at + 1)
    while at >= 0:
        if _frame_at(buffer, data, at) is not None:
            return True
        at = data.find(magic, at + 1)
    return False

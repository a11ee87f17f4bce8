"""The journal's format: a file header, then frames. A frame is one commit; LSNs have no gaps.

- File header, 64 bytes: magic u32 · version u16 · flags u16 · salt u64 · crc32c u32.
- Frame: header of 64 bytes (magic u32 · version u16 · unsynced u16 · lsn u64 · meta bytes u32 · body bytes u64 ·
  salt u64 · crc32c u32 of the rest of the frame), meta (JSON), then batches, each part padded to 64 bytes.
- The salt tells this file's frames from look-alikes in users' rows. `unsynced`: see `_was_durable`.
- Meta: t (time in µs), rows [[table, bucket, start, rows, part offset, part bytes, live sum, live rows, schema
  version]], producers, create, alter, drop, catalog, tierer, starts, subscriptions, slots [[part, row, slot, link]],
  registers [[names, [epoch, owner]] | [names, values, mark] | [names]], parts (ids), rename [[table, name]],
  truncate [[table, number]], shelve [[table, until in µs]], undrop [[table, name]], rescale [[source, copy,
  ends, offsets, kind] | [source]], swap [[source, copy, until in µs, apart]], erase (files/erasure_entry.py).
- Version 4 added the last seven. In version 2 (release 0.2) `unsynced` is 0. Zeros may fill a file's last block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files import checkpoint
from lakestore_server.files.erasure_entry import erasure_list, erasure_of
from lakestore_server.host import versions
from lakestore_server.host.uncached_file import BLOCK
from lakestore_server.state.commit_record import (
    Buffer,
    CommitRecord,
    KeySlot,
    LogStart,
    Plain,
    Rename,
    RowsPart,
    Shelving,
    SubscriptionChange,
    TiererClaim,
    Truncation,
    Undrop,
    plain,
)
from lakestore_server.state.rescale import Swap
from lakestore_server.state.subscription import MovedMark, SubscriptionDrop, SubscriptionMove

MAGIC = 0x4C534A31
FILE_MAGIC = 0x4C534A46
VERSION, READ = 4, (2, 4)
"""The version that is written, and the versions that are read."""
_FILE = struct.Struct("<IHHQ")
HEADER = struct.Struct("<IHHQIQQ")
CRC = struct.Struct("<I")
HEADER_BYTES = 64
"""Every frame begins at a multiple of this."""
_SALT_WORDS = slice(7, 9)
"""The 32-bit words of a frame's header that hold the salt."""
FILE_HEADER_BYTES = 64
PADDING = bytes(64)


def file_header(salt: int) -> bytes:
    """The first bytes of a journal file. They are synced before the first frame is written."""
    header = _FILE.pack(FILE_MAGIC, VERSION, 0, salt)
    return (header + CRC.pack(crc32c(header))).ljust(FILE_HEADER_BYTES, b"\0")


def encode(record: CommitRecord) -> list[Buffer]:
    """The record as buffers for a journal: its meta, then the batches, each padded to 64 bytes."""
    parts: list[Buffer] = []
    rows_meta: list[list[Any]] = []
    at = 0
    for rows in record.rows:
        buffer: Buffer = rows.batch.serialize() if rows.message is None else rows.message
        size = len(buffer)
        about = [rows.table, rows.bucket, rows.start, rows.batch.num_rows, at, size]
        rows_meta.append([*about, rows.live_sum, rows.live_rows, rows.schema_id])
        parts += [buffer, PADDING[: -size % 64]]
        at += size + -size % 64
    return [orjson.dumps(_meta(record, rows_meta)), *parts]


def nbytes_of(record: Sequence[Buffer]) -> int:
    """The total size of the buffers."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in record)


def _meta(record: CommitRecord, rows: list[list[Any]]) -> dict[str, Any]:
    sections = _sections(record, rows)
    return {"t": record.time_us} | {name: section for name, section in sections.items() if section}


def _sections(record: CommitRecord, rows: list[list[Any]]) -> dict[str, Any]:
    claim = record.tierer
    return {
        "rows": rows,
        "producers": [checkpoint.producer_change_list(commit) for commit in record.producers],
        "create": [table.as_dict() for table in record.create],
        "alter": [table.as_dict() for table in record.alter],
        "drop": record.drop,
        "catalog": [checkpoint.encode_catalog_change(change) for change in record.catalog],
        "tierer": None if claim is None else [claim.epoch, claim.holder],
        "starts": [[start.table, start.lsn] for start in record.starts],
        "subscriptions": [_subscription_list(change) for change in record.subscriptions],
        "slots": [
            [at, slot.row, slot.slot, int(slot.is_link)] for at, part in enumerate(record.rows) for slot in part.slots
        ],
        "beside": record.beside_us,
        "doubt": record.in_doubt,
        "registers": [checkpoint.registers_list(change) for change in record.registers],
        "parts": record.parts,
        "rename": [[each.table, each.name] for each in record.rename],
        "truncate": [[each.table, each.number] for each in record.truncate],
        "shelve": [[each.table, each.until_us] for each in record.shelve],
        "undrop": [[each.table, each.name] for each in record.undrop],
        "rescale": [checkpoint.rescale_list(each) for each in record.rescale],
        "swap": [[each.source, each.copy, each.until_us, each.apart] for each in record.swap],
        "erase": [erasure_list(each) for each in record.erase],
    }


SECTIONS = frozenset({"t", *_sections(CommitRecord(0, 0), [])})
"""Every section of a record. A record with another one is of a newer release."""


def _subscription_list(change: SubscriptionChange) -> list[Any]:
    """The stored form of a subscription change. The length tells the forms apart: a dropped name; a name with its
    moved marks and maybe refusals; a whole subscription.
    """
    if isinstance(change, SubscriptionDrop):
        return [change.name]
    if isinstance(change, SubscriptionMove):
        marks = [[moved.table, moved.bucket, *checkpoint.mark_list(moved.mark)] for moved in change.marks]
        refusals = [checkpoint.refusals_list(change.refusals)] if change.refusals else []
        return [change.name, change.acked_us, marks, *refusals]
    return checkpoint.subscription_list(change)


def _subscription_of(data: Sequence[Any]) -> SubscriptionChange:
    if len(data) == 1:
        return SubscriptionDrop(data[0])
    if len(data) <= 4:
        marks = (MovedMark(table, bucket, checkpoint.mark_of(mark)) for table, bucket, *mark in data[2])
        refusals = checkpoint.refusals_of(data[3]) if len(data) > 3 else ()
        return SubscriptionMove(data[0], data[1], tuple(marks), refusals)
    return checkpoint.subscription_of(data)


@dataclass(frozen=True, slots=True)
class RowsHead:
    """One entry of a frame's rows section: which rows the batch has, and where its bytes lie in the frame's body."""

    table: str
    bucket: int
    start: int
    count: int
    """Number of rows."""
    at: int
    nbytes: int
    live_sum: int
    live_rows: int
    schema_id: int = 0


_HEAD_ENTRIES = len(fields(RowsHead))


def rows_of(meta: Mapping[str, Any]) -> list[RowsHead]:
    """The heads of a frame's batches. Fields that a later release added are ignored."""
    return [RowsHead(*entry[:_HEAD_ENTRIES]) for entry in meta.get("rows", ())]


Schemas = Callable[[str, int], pa.Schema]
"""(table uuid, schema version) to the schema of stored batches."""


@dataclass
class RawFrame:
    """A frame that was read. Its rows stay bytes until the table's schema is known."""

    lsn: int
    head: Plain
    """The meta as stored."""
    body: pa.Buffer
    end: int = 0
    """Position of the next frame in the file."""
    version: int = VERSION
    salt: int = 0
    unsynced: int = 0
    """The number of frames before this one that were not durable when it was written."""

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The sections other than batches."""
        return dict(orjson.loads(memoryview(self.head)))

    @property
    def time_us(self) -> int:
        """The commit's time."""
        return int(self.meta["t"])

    @property
    def sections(self) -> list[str]:
        """The names of the sections other than time and rows, sorted. Unknown sections of other releases are
        included.
        """
        return sorted(set(self.meta) - {"t", "rows"})

    def rows(self) -> list[RowsHead]:
        """The heads of the stored batches."""
        return rows_of(self.meta)

    def batch(self, rows: RowsHead, schema: pa.Schema) -> pa.RecordBatch:
        """One of the stored batches."""
        return pa.ipc.read_record_batch(self.body.slice(rows.at, rows.nbytes), schema)

    def definitions(self) -> list[dict[str, Any]]:
        """The table definitions of the commit as stored. Other releases may store them differently."""
        return [*self.meta.get("create", ()), *self.meta.get("alter", ())]


def raw_of(lsn: int, record: Sequence[Buffer]) -> RawFrame:
    """A record in the form in which a journal returns it."""
    head, *parts = map(plain, record)
    body = parts[0] if len(parts) == 1 and isinstance(parts[0], pa.Buffer) else pa.py_buffer(b"".join(parts))
    return RawFrame(lsn, head, body)


_LENGTHS = {
    "rows": _HEAD_ENTRIES,
    "slots": 4,
    "starts": 2,
    "rename": 2,
    "truncate": 2,
    "shelve": 2,
    "undrop": 2,
    "rescale": 5,
    "swap": 4,
}
"""Entries of a list in these sections. The decoders of other sections check theirs."""


def check_known(raw: RawFrame) -> None:
    """`NewerFormat` if the record has sections or longer entries than this release writes. A server that skipped a part
    would have another state than the one that wrote it."""
    what = f"the record at LSN {raw.lsn}"
    versions.check_keys(raw.meta, SECTIONS, what)
    for section, length_max in _LENGTHS.items():
        for entry in raw.meta.get(section, ()):
            versions.checked_entry(entry, length_max, f"{what}, section {section},")


def decode(raw: RawFrame, schemas: Schemas) -> CommitRecord:
    """The record of a frame that `check_known` has passed. `schemas` must know every table that has rows in it."""
    meta = raw.meta
    slots: dict[int, list[KeySlot]] = {}
    for part, row, slot, link in meta.get("slots", []):
        slots.setdefault(part, []).append(KeySlot(row, slot, bool(link)))
    claim = meta.get("tierer")
    return CommitRecord(
        raw.lsn,
        raw.time_us,
        [_rows_part(raw, rows, schemas, slots.get(part, [])) for part, rows in enumerate(raw.rows())],
        list(map(checkpoint.producer_change_of, meta.get("producers", []))),
        [checkpoint.table_of(data) for data in meta.get("create", [])],
        [checkpoint.table_of(data) for data in meta.get("alter", [])],
        meta.get("drop", []),
        [checkpoint.decode_catalog_change(data) for data in meta.get("catalog", [])],
        TiererClaim(*versions.checked_entry(claim, 2, "a tierer's claim")) if claim else None,
        [LogStart(*data) for data in meta.get("starts", [])],
        [_subscription_of(data) for data in meta.get("subscriptions", [])],
        meta.get("beside", 0),
        meta.get("doubt", False),
        list(map(checkpoint.registers_of, meta.get("registers", []))),
        meta.get("parts", []),
        [Rename(*data) for data in meta.get("rename", [])],
        [Truncation(*data) for data in meta.get("truncate", [])],
        [Shelving(*data) for data in meta.get("shelve", [])],
        [Undrop(*data) for data in meta.get("undrop", [])],
        list(map(checkpoint.rescale_of, meta.get("rescale", []))),
        [Swap(*data) for data in meta.get("swap", [])],
        list(map(erasure_of, meta.get("erase", []))),
    )


def _rows_part(raw: RawFrame, rows: RowsHead, schemas: Schemas, slots: Sequence[KeySlot]) -> RowsPart:
    return RowsPart(
        rows.table,
        rows.bucket,
        rows.start,
        raw.batch(rows, schemas(rows.table, rows.schema_id)),
        rows.live_sum,
        rows.live_rows,
        rows.schema_id,
        slots,
        raw.body.slice(rows.at, rows.nbytes),
    )


@dataclass(frozen=True, slots=True)
class FileHead:
    """The decoded header of a journal file."""

    version: int
    salt: int


def head_of(data: bytes, name: str) -> FileHead | None:
    """The header of a journal file; None if it is torn or damaged. Raises `Invalid` for a file of release 0.1."""
    if len(data) >= 4 and struct.unpack_from("<I", data)[0] == MAGIC:
        raise versions.of_first_release(f"journal file {name}")
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, flags, salt = _FILE.unpack_from(data)
    if magic != FILE_MAGIC or CRC.unpack_from(data, _FILE.size) != (crc32c(data[: _FILE.size]),):
        return None
    versions.check(version, READ, f"journal file {name}")
    if flags:
        raise versions.newer(f"journal file {name} with flags {flags:#x}")
    return FileHead(version, salt)


def frames(data: bytes, name: str, *, last: bool) -> Iterator[RawFrame]:
    """The frames of a journal file. A torn tail ends the last file; any other damage raises `Corrupt`."""
    head = head_of(data, name)
    if head is None:
        # The header is synced before the first frame. A file without a frame was never finished.
        is_unfinished = last and data.count(0, FILE_HEADER_BYTES) == max(len(data) - FILE_HEADER_BYTES, 0)
        if data and not is_unfinished:
            raise damaged(name, 0)
        return
    buffer = pa.py_buffer(data)
    at, lsn = FILE_HEADER_BYTES, 0
    while at < len(data):
        frame = frame_at(buffer, data, at)
        if frame is None or frame.salt != head.salt or frame.version != head.version:
            if is_filling(data[at : at + BLOCK], len(data)) or (last and not _was_durable(data, at, head, lsn + 1)):
                return
            raise damaged(name, at)
        yield frame
        at, lsn = frame.end, frame.lsn


def is_filling(rest: bytes, size: int) -> bool:
    """Whether the bytes after a frame only fill up the file's last block. `rest` is at most one block, `size` the
    file's size.
    """
    return len(rest) < BLOCK and size % BLOCK == 0 and not any(rest)


def damaged(name: str, at: int) -> Corrupt:
    """The error for a file with damage at byte `at`."""
    remedy = "restore it from a copy or a backup, `lakestore inspect` shows what is whole; nothing was changed"
    return Corrupt(f"journal file {name} is damaged at byte {at}: {remedy}")


def frame_at(buffer: pa.Buffer, data: bytes | memoryview, at: int) -> RawFrame | None:
    """The complete frame at a position; None if there is none. `buffer` and `data` are the same bytes."""
    head = frame_head(data, at)
    if head is None:
        return None
    meta_at = at + HEADER_BYTES
    body_at = meta_at + head.meta_bytes + head.padding
    end = body_at + head.body_bytes
    if end > len(data):
        return None
    meta, body = buffer.slice(meta_at, head.meta_bytes), buffer.slice(body_at, head.body_bytes)
    if crc32c(body, crc32c(meta, head.crc)) != head.stored_crc:
        return None
    return RawFrame(head.lsn, meta, body, end, head.version, head.salt, head.unsynced)


class FrameHead(NamedTuple):
    """The header of a frame. Its checksum also covers meta and body."""

    lsn: int
    meta_bytes: int
    body_bytes: int
    version: int
    salt: int
    crc: int
    """The checksum of the header alone."""
    stored_crc: int
    """The checksum of the whole frame."""
    unsynced: int

    @property
    def padding(self) -> int:
        """Bytes between meta and body."""
        return -self.meta_bytes % 64


def frame_head(data: bytes | memoryview, at: int) -> FrameHead | None:
    """The header of the frame at a position; None if there is none."""
    if at + HEADER_BYTES > len(data):
        return None
    magic, version, unsynced, lsn, meta_bytes, body_bytes, salt = HEADER.unpack_from(data, at)
    if magic != MAGIC or version not in READ:
        return None
    (stored,) = CRC.unpack_from(data, at + HEADER.size)
    crc = crc32c(bytes(data[at : at + HEADER.size]))
    return FrameHead(lsn, meta_bytes, body_bytes, version, salt, crc, stored, unsynced)


def _was_durable(data: bytes, at: int, head: FileHead, lsn: int) -> bool:
    """Whether frame `lsn`, which is damaged at `at`, was durable once: then a later frame was written after its
    sync.

    Example: frames 2, 3 and 4 share one sync, and a power cut leaves 3 and 4 complete and 2 torn. Their `unsynced` is 1
    and 2, so nobody had an answer for 2, and the journal ends after frame 1. If a complete frame 5 has `unsynced` 0,
    frame 2 was durable, and the file is damaged.

    Checksums are computed only for frames with this file's salt and a later LSN. Users do not know the salt, so header
    look-alikes in rows cost nothing; a stale copy of this file has older LSNs.
    """
    words = np.frombuffer(data, "<u4", len(data) // HEADER_BYTES * (HEADER_BYTES // 4)).reshape(-1, HEADER_BYTES // 4)
    first = -(-at // HEADER_BYTES)
    wanted = np.frombuffer(HEADER.pack(MAGIC, head.version, 0, 0, 0, 0, head.salt), "<u4")
    is_own = (words[first:, 0] == wanted[0]) & (words[first:, _SALT_WORDS] == wanted[_SALT_WORDS]).all(axis=1)
    buffer = pa.py_buffer(data)
    for place in (HEADER_BYTES * (first + np.flatnonzero(is_own))).tolist():
        header = frame_head(data, place)
        if header is not None and header.lsn - header.unsynced > lsn and frame_at(buffer, data, place) is not None:
            return True
    return False

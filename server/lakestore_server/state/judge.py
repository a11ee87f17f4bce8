"""Which messages of a shared journal count: one rule for leader, follower, recovery and checker. Pure.

A journal in Kafka or in an object store is a log into which several servers can write. No server holds a lock, so the
log may have messages of a server that no longer leads, messages twice, and gaps. `docs/internals/replication.md` has an
example. Every reader of the log decides alike:

- A claim counts if its epoch is the current one plus 1 and its number is the next one, so it is void if the claimant
  had not read everything. From then on only messages of the claim's writer count.
- Another message counts if epoch and writer are the current ones, its number is the next one, and `chain` is the
  checksum of the message that counted before it. A long record has parts; it counts at its last part.
- Everything else is void, and everything behind the end of a journal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

import pyarrow as pa

from lakestore.errors import Corrupt, NewerFormat
from lakestore.rows.ipc import crc32c

MAGIC = 0x4C534B31
VERSION = 1
HEADER = struct.Struct("<IBBHIQQQQIIIII")
"""A message is a header and bytes. Header: magic u32 · version u8 · kind u8 · flags u16 · shard u32 · epoch u64 ·
number u64 · writer u64 · lsn u64 · chain u32 · part u32 · parts u32 · meta bytes u32 · crc32c u32 of all but itself.
The bytes of all parts together are the record: its meta, then its other pieces. The header of later versions has the
same length and its checksum at the same place, so a reader can tell damage from a newer release."""
_CRC = struct.Struct("<I")
_CRC_AT = HEADER.size - _CRC.size
ALIGNMENT = 64
"""Bytes; Arrow's own buffers are aligned to this."""
NOBODY = 0
"""The writer of a log that nobody leads: before the first claim, and after a leader has left."""


Bytes: TypeAlias = bytes | memoryview | pa.Buffer


class Kind(IntEnum):
    """The kinds of messages."""

    RECORD = 1
    CLAIM = 2
    """The writer of this message leads from here on. Its bytes are its report."""
    BEAT = 3
    """The writer still leads. A beat changes nothing. Its bytes are a report."""
    LEAVE = 4
    """The writer leads no more, so nobody needs to wait for its lease."""
    REPORT = 5
    """A server says where it is reached and what it still needs of the log. A report never counts, so any server may
    write one."""
    END = 6
    """The writer has continued the journal elsewhere: nothing counts behind this message, and every other server stops
    at it. Its bytes are an id, by which its writer knows it again."""


class ForeignLog(Corrupt):
    """The log is not the one that was followed: it was created again, cut, or its messages are damaged."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a log after a message: where a reader continues, and how it judges the next messages."""

    epoch: int = 0
    number: int = 0
    """Number of the last message that counts."""
    writer: int = NOBODY
    """The random id of the claim that counts."""
    chain: int = 0
    """Checksum of the last part of the last message that counts."""
    position: int = 0
    """Position of the next message in the log."""

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}.{self.writer:016x}.{self.chain:08x}.{self.position}"

    @classmethod
    def parse(cls, text: str) -> Standing:
        """Read the form that `str` writes."""
        epoch, number, writer, chain, position = text.split(".")
        return cls(int(epoch), int(number), int(writer, 16), int(chain, 16), int(position))


@dataclass(frozen=True, slots=True)
class CountedMessage:
    """A message that counts."""

    kind: Kind
    lsn: int
    """LSN of a record; 0 for other messages."""
    parts: tuple[pa.Buffer, ...]
    """The bytes of its parts."""
    meta_bytes: int
    after: Standing
    """The standing after this message."""

    def record(self) -> tuple[pa.Buffer, pa.Buffer]:
        """The first piece of the record, and the other pieces as one copy at an address as Arrow wants it."""
        skipped = -self.meta_bytes % ALIGNMENT
        content = pa.allocate_buffer(skipped + sum(part.size for part in self.parts))
        view, at = memoryview(content), skipped
        for part in self.parts:
            view[at : at + part.size] = memoryview(part)
            at += part.size
        return content.slice(skipped, self.meta_bytes), content.slice(skipped + self.meta_bytes)


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a message to write."""

    kind: Kind
    lsn: int = 0
    meta: bytes = b""
    body: Sequence[Bytes] = ()


class Judge:
    """One reader's judgement of a log, message by message. Not thread-safe."""

    def __init__(
        self, standing: Standing | None = None, shard: int = 0, reported: Callable[[bytes], object] = lambda _: None
    ) -> None:
        """`reported` gets the bytes of reports."""
        self._reported = reported
        self.standing = standing or Standing()
        """The standing after the last message that counts; its `position` is that of the next message to judge."""
        self.void = 0
        """Number of messages that do not count, reports among them."""
        self.reports = 0
        """Number of reports."""
        self._shard = shard
        self._parts: list[pa.Buffer] = []
        """The parts of a record whose last part did not come yet."""
        self._has_ended = False

    def take(self, position: int, data: bytes | None) -> CountedMessage | None:
        """Judge the message at a position of the log; None if it is void or a part before the last one.

        Positions only grow. A log may skip some of them, so only the numbers tell whether a message is missing.
        """
        if position < self.standing.position:
            raise ForeignLog(
                f"position {position} came after {self.standing.position - 1}: the log was created again or cut"
            )
        head = None if data is None else _head(position, data, self._shard)
        counted = None
        if data is not None and head is not None and head.kind is Kind.REPORT:
            self.void += 1
            self.reports += 1
            self._reported(data[HEADER.size :])
        elif data is None or head is None or not self._is_next(head):
            self.void += 1
            if data is not None and head is not None and head.kind is Kind.CLAIM:
                self._reported(data[HEADER.size :])  # a server that cannot lead still needs the log
        else:
            counted = self._next(head, data, position)
        self.standing = replace(self.standing, position=position + 1) if counted is None else counted.after
        return counted

    def _is_next(self, head: _Head) -> bool:
        standing = self.standing
        if self._has_ended:
            return False
        if head.kind is Kind.CLAIM:
            return head.epoch == standing.epoch + 1 and head.number == standing.number + 1
        return (
            standing.writer != NOBODY
            and (head.epoch, head.writer) == (standing.epoch, standing.writer)
            and (head.number, head.chain) == (standing.number + 1, standing.chain)
            and head.part == len(self._parts)
        )

    def _next(self, head: _Head, data: bytes, position: int) -> CountedMessage | None:
        """The message that `head` completes; None if further parts follow."""
        piece = pa.py_buffer(data).slice(HEADER.size)
        if head.kind is Kind.CLAIM:
            self.void += len(self._parts)
            self._parts = []
        if head.part + 1 < head.parts:
            self._parts.append(piece)
            return None
        parts, self._parts = [*self._parts, piece], []
        self._has_ended = head.kind is Kind.END
        writer = NOBODY if head.kind in (Kind.LEAVE, Kind.END) else head.writer
        after = Standing(head.epoch, head.number, writer, head.crc, position + 1)
        return CountedMessage(head.kind, head.lsn, tuple(parts), head.meta_bytes, after)


@dataclass(frozen=True, slots=True)
class _Head:
    kind: Kind
    epoch: int
    number: int
    writer: int
    lsn: int
    chain: int
    part: int
    parts: int
    meta_bytes: int
    crc: int


_KINDS = {int(kind): kind for kind in Kind}


def _head(position: int, data: bytes, shard: int) -> _Head | None:
    """The header of a message of this shard; None for any other message."""
    if len(data) < HEADER.size:
        return None
    values = HEADER.unpack_from(data)
    magic, version, kind, flags, of, epoch, number, writer, lsn, chain, part, parts, meta_bytes, crc = values
    if magic != MAGIC:
        return None
    if crc != crc32c(pa.py_buffer(data).slice(HEADER.size), crc32c(data[:_CRC_AT])):
        raise ForeignLog(f"the message at position {position} is damaged: its checksum does not fit")
    if version > VERSION or kind not in _KINDS or flags:
        about = f"version {version}, kind {kind}, flags {flags:#x}"
        raise NewerFormat(f"the message at position {position} is of a newer release ({about})")
    if of != shard:
        return None
    return _Head(_KINDS[kind], epoch, number, writer, lsn, chain, part, parts, meta_bytes, crc)


def report_in(position: int, data: bytes | None, shard: int = 0) -> tuple[Kind, bytes] | None:
    """The report in a message, whether the message counts or not; None for a message without one."""
    head = None if data is None else _head(position, data, shard)
    if data is None or head is None or head.kind not in (Kind.CLAIM, Kind.BEAT, Kind.REPORT):
        return None
    return head.kind, data[HEADER.size :]


def messages(
    standing: Standing, content: Content, writer: int, part_bytes: int, shard: int = 0
) -> tuple[list[bytes], Standing]:
    """The messages that write a content after a standing, and the standing after them if they count, except for its
    position. A claim begins the next epoch."""
    is_claim = content.kind is Kind.CLAIM
    epoch, number = standing.epoch + is_claim, standing.number + 1
    chain = 0 if is_claim else standing.chain
    pieces = list(_pieces([content.meta, *content.body], part_bytes))
    texts: list[bytes] = []
    crc = 0
    for part, piece in enumerate(pieces):
        about = epoch, number, writer, content.lsn, chain, part, len(pieces), len(content.meta)
        head = HEADER.pack(MAGIC, VERSION, content.kind, 0, shard, *about, 0)[:_CRC_AT]
        crc = crc32c(head)
        for chunk in piece:
            crc = crc32c(chunk, crc)
        texts.append(b"".join((head, _CRC.pack(crc), *piece)))
    return texts, Standing(epoch, number, writer, crc, standing.position)


def _pieces(buffers: Sequence[Bytes], part_bytes: int) -> Iterator[list[pa.Buffer]]:
    """The bytes of all buffers in pieces of `part_bytes`, each of several slices. One empty piece if there are none."""
    piece: list[pa.Buffer] = []
    room = part_bytes
    for whole in map(pa.py_buffer, buffers):
        at = 0
        while at < whole.size:
            if not room:
                yield piece
                piece, room = [], part_bytes
            piece.append(whole.slice(at, min(room, whole.size - at)))
            at += piece[-1].size
            room -= piece[-1].size
    yield piece

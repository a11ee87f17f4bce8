"""Commits whose large rows stand beside the message: copied once on their way out, and not at all on their way in.

protobuf copies a field of bytes when it is set, when its message is put into another one, when that is serialised, and
twice when it is parsed and read. On the wire a message is its fields one after the other, in any order. So the message
of large rows is put together here around them, and taken apart; both ends are well with one that protobuf has made.
`Change.pad` puts rows at a multiple of 8 bytes of the message, for what works on their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from lakestore.v1 import lakestore_pb2 as pb

COUNTS: tuple[str, ...] = tuple(
    field.name for field in pb.ChangeResult.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_UINT64
)


ROWS_MIN = 64 << 10
"""Shorter rows stay in the message."""
ALIGNED = 8
FIELDS_MAX = 1_000
"""Fields of a message that are looked at one by one."""
Rows: TypeAlias = Sequence[bytes | pa.Buffer]
"""The parts of an Arrow IPC stream."""
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a value, by the kind of its field."""
_CHANGES = pb.CommitRequest.DESCRIPTOR.fields_by_name["changes"].number
_ROWS, _PAD = (pb.Change.DESCRIPTOR.fields_by_name[name].number for name in ("rows", "pad"))


@dataclass(slots=True)
class CommitMessage:
    """A commit request with the rows of some of its changes beside it, which have none inside."""

    request: pb.CommitRequest
    rows: dict[int, Rows] = field(default_factory=dict)
    """By the number of the change."""

    @property
    def sequence(self) -> int:
        """The request's."""
        return self.request.sequence

    @property
    def nbytes(self) -> int:
        """About the bytes of it all."""
        return self.request.ByteSize() + sum(map(_size, self.rows.values()))

    def rows_of(self, change: int) -> pa.Buffer | None:
        """The rows of a change in one piece; None if they are inside."""
        parts = self.rows.get(change)
        if parts is None:
            return None
        return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))

    def encoded(self) -> bytes:
        """The message's bytes."""
        if not self.rows:
            data: bytes = self.request.SerializeToString()
            return data
        head = pb.CommitRequest()
        head.CopyFrom(self.request)
        del head.changes[:]
        parts: list[bytes | pa.Buffer] = [head.SerializeToString()]
        at = len(parts[0])
        for number, change in enumerate(self.request.changes):
            rows, data = self.rows.get(number, ()), change.SerializeToString()
            opening = _opening(data, _size(rows), at) if rows else _tag(_CHANGES) + _varint(len(data)) + data
            parts += [opening, *rows]
            at += len(opening) + _size(rows)
        return b"".join(parts)


Sent: TypeAlias = pb.CommitRequest | CommitMessage
"""A commit as it is handed to a stream of them."""


def beside(sent: Sent) -> CommitMessage:
    """A commit as one that may have rows beside it."""
    return sent if isinstance(sent, CommitMessage) else CommitMessage(sent)


def encoded(sent: Sent) -> bytes:
    """The bytes of a commit for the wire."""
    return beside(sent).encoded()


def taken_apart(data: bytes | pa.Buffer) -> tuple[bytes, dict[int, Rows]]:
    """The bytes of a commit's message without the rows that are most of it, and these by the number of their change.

    All of it, and none, for a message without such rows, and for bytes that protobuf is to judge.
    """
    number, view = -1, memoryview(data).cast("B")
    for each in _fields(view, 0, len(view)) if len(view) >= ROWS_MIN else ():
        if (each.number, each.kind) == (_CHANGES, _BYTES):
            number += 1
            rows = _large_rows(view, each)
            if rows is not None:
                return _without(view, each, rows), {number: (_aligned(data, rows),)}
    return bytes(data), {}


class _Field(NamedTuple):
    """A field in a message's bytes."""

    number: int
    kind: int
    at: int
    """The first byte, of its tag."""
    start: int
    """The first byte of its value; of bytes behind their length."""
    end: int


def _large_rows(data: memoryview, change: _Field) -> _Field | None:
    """The rows of a change if they are most of the message, and the change has none besides."""
    least = max(ROWS_MIN, len(data) // 2)
    if change.end - change.start < least:
        return None
    rows = [each for each in _fields(data, change.start, change.end) if each.number == _ROWS]
    return rows[0] if len(rows) == 1 and rows[0].kind == _BYTES and rows[0].end - rows[0].start >= least else None


def _without(data: memoryview, change: _Field, rows: _Field) -> bytes:
    """A message without the rows of one of its changes."""
    left = b"".join((data[change.start : rows.at], data[rows.end : change.end]))
    return b"".join((data[: change.at], _tag(_CHANGES), _varint(len(left)), left, data[change.end :]))


def _aligned(data: bytes | pa.Buffer, rows: _Field) -> pa.Buffer:
    found = pa.py_buffer(data).slice(rows.start, rows.end - rows.start)
    return found if found.address % ALIGNED == 0 else pa.py_buffer(bytes(found))


def _fields(data: memoryview, at: int, end: int) -> Sequence[_Field]:
    """The fields of the message between two places; none where protobuf is to judge."""
    found: list[_Field] = []
    try:
        while at < end:
            tag, start = _read_varint(data, at)
            kind = tag & 7
            if kind == _BYTES:
                size, start = _read_varint(data, start)
                after = start + size
            elif kind == _VARINT:
                _, after = _read_varint(data, start)
            else:
                after = start + _FIXED[kind]
            found.append(_Field(tag >> 3, kind, at, start, after))
            if after > end or len(found) > FIELDS_MAX:
                return ()
            at = after
    except (IndexError, KeyError):
        return ()
    return found


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and the place behind it; `IndexError` where there is none of ten bytes or fewer."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _tag(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)


def _opening(change: bytes, size: int, at: int) -> bytes:
    """The bytes before the rows of a change, which begins at a place: so many that the rows lie at a multiple of 8."""
    before_rows = _tag(_ROWS) + _varint(size)
    for pad in range(2 * ALIGNED):
        inside = b"".join((change, _tag(_PAD), _varint(pad), bytes(pad), before_rows))
        opening = _tag(_CHANGES) + _varint(len(inside) + size) + inside
        if (at + len(opening)) % ALIGNED == 0:
            break
    return opening


def _size(rows: Rows) -> int:
    return sum(map(len, rows))

"""Commit requests whose large rows are kept outside the protobuf message, so that their bytes are copied less often.

- protobuf copies a bytes field three times while it writes a message and twice while it reads one. This module copies
  the rows once while it writes, and not at all while it reads.
- The bytes on the wire are an ordinary `CommitRequest`, because a message is its fields in any order. Either end may
  use protobuf alone.
- `Change.pad` fills up to a multiple of 8 bytes before the rows, because Arrow computes on aligned values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from lakestore.model.varint import varint
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.fields import (
    ALIGNED,
    BYTES,
    ROWS_MIN,
    Field,
    Rows,
    aligned,
    fields,
    only_bytes,
    size_of,
    tag,
    whole,
)

COUNTS: tuple[str, ...] = tuple(
    field.name for field in pb.ChangeResult.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_UINT64
)

_CHANGES = pb.CommitRequest.DESCRIPTOR.fields_by_name["changes"].number
_ROWS, _PAD = (pb.Change.DESCRIPTOR.fields_by_name[name].number for name in ("rows", "pad"))


@dataclass(slots=True)
class CommitMessage:
    """A commit request, and the rows of the changes whose rows are outside the request."""

    request: pb.CommitRequest
    rows: dict[int, Rows] = field(default_factory=dict)
    """Number of the change to its rows."""

    @property
    def sequence(self) -> int:
        """The sequence of the request."""
        return self.request.sequence

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the request with all rows."""
        return self.request.ByteSize() + sum(map(size_of, self.rows.values()))

    def rows_of(self, change: int) -> pa.Buffer | None:
        """The rows of a change as one buffer; None if they are in the request."""
        parts = self.rows.get(change)
        return None if parts is None else pa.py_buffer(whole(parts))

    def encoded(self) -> bytes:
        """The bytes for the wire."""
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
            opening = _opening(data, size_of(rows), at) if rows else tag(_CHANGES) + varint(len(data)) + data
            parts += [opening, *rows]
            at += len(opening) + size_of(rows)
        return b"".join(parts)


Sent: TypeAlias = pb.CommitRequest | CommitMessage
"""A commit as a stream of commits takes it."""


def beside(sent: Sent) -> CommitMessage:
    """The commit as a `CommitMessage`."""
    return sent if isinstance(sent, CommitMessage) else CommitMessage(sent)


def encoded(sent: Sent) -> bytes:
    """The bytes of a commit for the wire."""
    return beside(sent).encoded()


def taken_apart(data: bytes | pa.Buffer) -> tuple[bytes, dict[int, Rows]]:
    """Separate the rows of one change from a message if they are at least half of it.

    Returns the message without these rows, and the rows by the number of their change. If no rows are that large, or
    the bytes are no valid message, it returns all bytes and no rows; protobuf then reads or refuses them.
    """
    number, view = -1, memoryview(data).cast("B")
    for each in fields(view, 0, len(view)) if len(view) >= ROWS_MIN else ():
        if (each.number, each.kind) == (_CHANGES, BYTES):
            number += 1
            rows = _large_rows(view, each)
            if rows is not None:
                return _without(view, each, rows), {number: (aligned(data, rows),)}
    return bytes(data), {}


def _large_rows(data: memoryview, change: Field) -> Field | None:
    """The rows field of a change if it is its only one and at least half of the message."""
    least = max(ROWS_MIN, len(data) // 2)
    if change.end - change.start < least:
        return None
    rows = only_bytes(fields(data, change.start, change.end), _ROWS)
    return rows if rows is not None and rows.end - rows.start >= least else None


def _without(data: memoryview, change: Field, rows: Field) -> bytes:
    """The bytes of a message without the rows of one change."""
    left = b"".join((data[change.start : rows.at], data[rows.end : change.end]))
    return b"".join((data[: change.at], tag(_CHANGES), varint(len(left)), left, data[change.end :]))


def _opening(change: bytes, size: int, at: int) -> bytes:
    """The bytes before the rows of a change that begins at `at`, padded so that the rows begin at a multiple of 8."""
    before_rows = tag(_ROWS) + varint(size)
    for pad in range(2 * ALIGNED):
        inside = b"".join((change, tag(_PAD), varint(pad), bytes(pad), before_rows))
        opening = tag(_CHANGES) + varint(len(inside) + size) + inside
        if (at + len(opening)) % ALIGNED == 0:
            break
    return opening

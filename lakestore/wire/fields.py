"""The fields of a protobuf message as places in its bytes: large rows are then used where they lie, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from lakestore.model.varint import read, varint

Rows: TypeAlias = Sequence[bytes | pa.Buffer]
"""The parts of an Arrow IPC stream. Each part has whole messages of Arrow."""
ROWS_MIN = 64 << 10
"""Rows of fewer bytes stay in the message."""
ALIGNED = 8
"""Arrow computes on values whose address is a multiple of so many bytes."""
FIELDS_MAX = 1_000
"""A message with more fields is left to protobuf."""
VARINT, BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Wire type of a field to the bytes of its value."""


class Field(NamedTuple):
    """The place of a field in the bytes of a message."""

    number: int
    kind: int
    at: int
    """First byte of the tag."""
    start: int
    """First byte of the value, after the length if it has one."""
    end: int


def fields(data: memoryview, at: int, end: int) -> Sequence[Field]:
    """The fields of the message in `data[at:end]`; none if the bytes are invalid or the fields are too many."""
    found: list[Field] = []
    try:
        while at < end:
            field_tag, start = read(data, at)
            kind = field_tag & 7
            if kind == BYTES:
                size, start = read(data, start)
                after = start + size
            elif kind == VARINT:
                _, after = read(data, start)
            else:
                after = start + _FIXED[kind]
            found.append(Field(field_tag >> 3, kind, at, start, after))
            if after > end or len(found) > FIELDS_MAX:
                return ()
            at = after
    except (ValueError, KeyError):
        return ()
    return found


def only_bytes(found: Sequence[Field], number: int) -> Field | None:
    """The bytes field of a number; None unless exactly one field has the number."""
    same = [each for each in found if each.number == number]
    return same[0] if len(same) == 1 and same[0].kind == BYTES else None


def aligned(data: bytes | pa.Buffer, field: Field) -> pa.Buffer:
    """The value of a field as a buffer, copied only if its address is not aligned."""
    found = pa.py_buffer(data).slice(field.start, field.end - field.start)
    return found if found.address % ALIGNED == 0 else pa.py_buffer(bytes(found))


def tag(number: int) -> bytes:
    """The tag of a bytes field."""
    return varint(number << 3 | BYTES)


def whole(rows: Rows) -> bytes | pa.Buffer:
    """The rows in one piece. Several parts are copied."""
    return rows[0] if len(rows) == 1 else b"".join(rows)


def size_of(rows: Rows) -> int:
    """The bytes of rows."""
    return sum(map(len, rows))

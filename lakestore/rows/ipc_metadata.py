"""The metadata of an Arrow stream's messages, looked at before Arrow makes arrays of them.

The metadata of a message is a flatbuffer, verified by Arrow when the message is read: a schema with its fields, or the
nodes and buffers of a batch. Six kilobytes of zstd can unfold to 200 MB, and a hundred columns that all name one buffer
of 31 MB to 3 GB: so rows from outside come uncompressed, and no two buffers of a message share a byte.
"""

from __future__ import annotations

import struct
import sys

import numpy as np
import pyarrow as pa

from lakestore.errors import Corrupt, Invalid
from lakestore.limits import Limits

MESSAGES_MAX = 10_000
"""Batches and dictionaries of one stream."""
FIELDS_MAX = 100_000
"""Fields of a schema, at every depth."""
FRAME = struct.Struct("<Ii")
"""The mark and the length before a message's metadata."""
CONTINUES = 0xFFFFFFFF
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_DICTIONARY_DATA, _COMPRESSION = 1, 3
_LENGTH, _NODES, _BUFFERS = 0, 1, 2
_SCHEMA_ENDIANNESS, _SCHEMA_FIELDS, _FIELD_CHILDREN = 0, 1, 5
_PAIR_BYTES = 16
"""Bytes of a node and of a buffer: two whole numbers each."""
_FEW = 64
"""Buffers up to which a loop is faster than arrays."""


def check_stream(data: bytes | pa.Buffer, limits: Limits) -> None:
    """`Invalid` for a stream whose messages are too many, compressed, or unfold when they are read."""
    rows = 0
    try:
        for count, message in enumerate(pa.ipc.MessageReader.open_stream(data)):
            if count > MESSAGES_MAX:
                raise Invalid(f"the rows come in more than {MESSAGES_MAX} batches: send fewer, larger ones")
            body = message.body
            rows += check_message(bytes(message.metadata), body.size if body else 0, limits)
            if rows > limits.batch_rows:
                raise Invalid(f"more than {limits.batch_rows} rows in one change: send smaller batches")
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message's metadata is damaged: {error}") from error


def rows_of(data: bytes) -> int:
    """The rows of a stream by its metadata alone, or `Corrupt`; nothing is checked that this does not need."""
    rows = at = 0
    try:
        while at < len(data):
            mark, size = FRAME.unpack_from(data, at)
            if mark != CONTINUES or size <= 0:
                break
            metadata = data[at + FRAME.size : at + FRAME.size + size]
            root = struct.unpack_from("<I", metadata)[0]
            kind, body = _field(metadata, root, _HEADER_TYPE), _field(metadata, root, _BODY_BYTES)
            if kind and metadata[kind] == _RECORD_BATCH:
                length = _field(metadata, _table(metadata, root, _HEADER), _LENGTH)
                rows += int(struct.unpack_from("<q", metadata, length)[0]) if length else 0
            at += FRAME.size + size + (int(struct.unpack_from("<Q", metadata, body)[0]) if body else 0)
    except (struct.error, IndexError) as error:
        raise Corrupt("rows were damaged on their way: read again") from error
    return rows


def is_native(schema: bytes) -> bool:
    """Whether the values behind a schema message, by its metadata, are as this machine has them."""
    header = _table(schema, struct.unpack_from("<I", schema)[0], _HEADER)
    place = _field(schema, header, _SCHEMA_ENDIANNESS)
    is_big = bool(place and schema[place])
    return is_big == (sys.byteorder == "big")


def message_end(data: pa.Buffer, at: int) -> int:
    """The place behind the batch's message that begins at a place; 0 if it is another kind of message."""
    mark, size = FRAME.unpack_from(data, at)
    metadata = bytes(data[at + FRAME.size : at + FRAME.size + size])
    if mark != CONTINUES or size <= 0 or len(metadata) != size:
        return 0
    root = struct.unpack_from("<I", metadata)[0]
    kind, body = _field(metadata, root, _HEADER_TYPE), _field(metadata, root, _BODY_BYTES)
    if not kind or metadata[kind] != _RECORD_BATCH:
        return 0
    return int(at + FRAME.size + size + (struct.unpack_from("<Q", metadata, body)[0] if body else 0))


def check_message(metadata: bytes, body_bytes: int, limits: Limits) -> int:
    """The rows that a message adds; `Invalid` if it is compressed or unfolds."""
    root = struct.unpack_from("<I", metadata)[0]
    place = _field(metadata, root, _HEADER_TYPE)
    kind = metadata[place] if place else 0
    header = _table(metadata, root, _HEADER)
    if kind == _SCHEMA:
        _check_fields(metadata, header, limits)
        return 0
    if kind == _DICTIONARY_BATCH:
        header = _table(metadata, header, _DICTIONARY_DATA)
    elif kind != _RECORD_BATCH:
        return 0
    if _field(metadata, header, _COMPRESSION):
        raise Invalid("the rows are compressed: send Arrow IPC without compression")
    at = _field(metadata, header, _LENGTH)
    rows = int(struct.unpack_from("<q", metadata, at)[0]) if at else 0
    if not 0 <= rows <= limits.batch_rows:
        raise Invalid(f"more than {limits.batch_rows} rows in one change: send smaller batches")
    _check_buffers(metadata, header, body_bytes)
    return rows if kind == _RECORD_BATCH else 0


def _check_buffers(metadata: bytes, header: int, body_bytes: int) -> None:
    """Refuse buffers outside of the message's body, and two that share bytes of it."""
    at, count = _vector(metadata, header, _BUFFERS)
    if not count:
        return
    if count <= _FEW:
        end = 0
        places = struct.unpack_from(f"<{2 * count}q", metadata, at)
        for offset, size in zip(places[::2], places[1::2], strict=True):
            if size < 0 or offset < 0 or offset + size > body_bytes:
                raise _damaged()
            if size and offset < end:
                break  # not in the order of the fields: seen below whether they share bytes
            end = max(end, offset + size)
        else:
            return
    pairs = np.frombuffer(metadata, dtype="<i8", count=2 * count, offset=at).reshape(-1, 2)
    held = pairs[pairs[:, 1] != 0]
    starts, sizes = held[:, 0], held[:, 1]
    if ((sizes < 0) | (starts < 0) | (starts > body_bytes) | (sizes > body_bytes - starts)).any():
        raise _damaged()
    order = np.argsort(starts, kind="stable")
    if (starts[order][1:] < (starts + sizes)[order][:-1]).any():
        raise Invalid("the rows are not a valid Arrow IPC stream: two buffers of a message share bytes")


def _check_fields(metadata: bytes, header: int, limits: Limits) -> None:
    """Refuse a schema of too many columns or fields."""
    at, count = _vector(metadata, header, _SCHEMA_FIELDS)
    if count > limits.columns:
        raise Invalid(f"the rows have {count} columns, where at most {limits.columns} are taken")
    waiting, seen = [(at, count)], 0
    while waiting:
        at, count = waiting.pop()
        seen += count
        if seen > FIELDS_MAX:
            raise Invalid(f"the rows have more than {FIELDS_MAX} fields inside their columns")
        for place in range(at, at + 4 * count, 4):
            children = _vector(metadata, place + int(struct.unpack_from("<I", metadata, place)[0]), _FIELD_CHILDREN)
            if children[1]:
                waiting.append(children)


def _damaged() -> Invalid:
    return Invalid("the rows are not a valid Arrow IPC stream: a buffer lies outside of its message")


def _vector(metadata: bytes, table: int, number: int) -> tuple[int, int]:
    """The place of the first entry of a vector, and how many it has; none when it is absent."""
    place = _field(metadata, table, number)
    if not place:
        return 0, 0
    at = place + int(struct.unpack_from("<I", metadata, place)[0])
    return at + 4, int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int:
    """The place of a field of a flatbuffer table; 0 when it is absent."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    size = struct.unpack_from("<H", metadata, vtable)[0]
    at = 4 + 2 * number
    offset = int(struct.unpack_from("<H", metadata, vtable + at)[0]) if at < size else 0
    return table + offset if offset else 0


def _table(metadata: bytes, table: int, number: int) -> int:
    """The place of the table that a field points to."""
    place = _field(metadata, table, number)
    return place + int(struct.unpack_from("<I", metadata, place)[0])

"""Encodes and decodes Arrow rows as messages, and conforms them to a table's columns.

Bytes from outside are not trusted. Decoded rows are fully validated before any other use. A cast to the table's types
loses nothing, or the rows are refused with column, row and rule.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Corrupt, Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.model.columns import Column
from lakestore.model.names import no_column
from lakestore.model.nested_fields import is_same_inside
from lakestore.model.table import Table
from lakestore.rows.casting import Budget, refuse
from lakestore.rows.projection import convert_column, fill_column

MESSAGES_MAX = 10_000
"""Most batches and dictionaries of one stream."""
FIELDS_MAX = 100_000
"""Most fields of a schema, at every depth."""
FRAME = struct.Struct("<Ii")
"""The marker and the length before a message's metadata."""
CONTINUES = 0xFFFFFFFF
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_DICTIONARY_DATA, _COMPRESSION = 1, 3
_LENGTH, _NODES, _BUFFERS = 0, 1, 2
_SCHEMA_ENDIANNESS, _SCHEMA_FIELDS, _FIELD_CHILDREN = 0, 1, 5
_PAIR_BYTES = 16
"""Bytes of a node or a buffer entry: two 64-bit integers."""
_FEW = 64
"""Up to this many buffers a loop is faster than arrays."""


def check_stream(data: bytes | pa.Buffer, limits: Limits) -> None:
    """Raises `Invalid` for a stream with too many messages, with compression, or with buffers that unfold."""
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


def rows_of(data: bytes | pa.Buffer) -> int:
    """The number of rows of a stream, from its metadata alone. Raises `Corrupt`. Nothing else is checked."""
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
    """True if a schema message declares this machine's byte order."""
    header = _table(schema, struct.unpack_from("<I", schema)[0], _HEADER)
    place = _field(schema, header, _SCHEMA_ENDIANNESS)
    is_big = bool(place and schema[place])
    return is_big == (sys.byteorder == "big")


def message_end(data: pa.Buffer, at: int) -> int:
    """The end of the batch message at `at`; 0 for another kind of message."""
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
    """The number of rows of a message. Raises `Invalid` if it is compressed or unfolds."""
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
    """Refuse buffers outside of the message's body, and buffers that share bytes."""
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
                break  # not in the order of the fields: shared bytes are found below
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
    """Refuse a schema with too many columns or fields."""
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
    """The offset of the first entry of a vector and the number of entries; no entries if it is absent."""
    place = _field(metadata, table, number)
    if not place:
        return 0, 0
    at = place + int(struct.unpack_from("<I", metadata, place)[0])
    return at + 4, int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int:
    """The offset of a field of a flatbuffer table; 0 if it is absent."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    size = struct.unpack_from("<H", metadata, vtable)[0]
    at = 4 + 2 * number
    offset = int(struct.unpack_from("<H", metadata, vtable + at)[0]) if at < size else 0
    return table + offset if offset else 0


def _table(metadata: bytes, table: int, number: int) -> int:
    """The offset of the table that a field points to."""
    place = _field(metadata, table, number)
    return place + int(struct.unpack_from("<I", metadata, place)[0])


SMALL_BYTES_MAX = 64 << 10
"""The longest stream with a known schema that is read without Arrow's stream reader."""
SCHEMA_BYTES_MAX, SCHEMAS_KEPT = 4 << 10, 512
FRAME_BYTES_MAX = 4 << 10
"""Bytes that the message of a batch may have beyond its values: its metadata."""
STREAM_END = FRAME.pack(CONTINUES, 0)
"""The last bytes of an Arrow IPC stream."""
_KNOWN: dict[bytes, pa.Schema] = {}
"""Checked schema messages, by their bytes."""
_TRUSTED: dict[bytes, pa.Schema] = {}
"""Schema messages from servers, by their bytes."""


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC32C of read-only bytes or an Arrow buffer."""
    return int(google_crc32c.extend(crc, data))


def crc32c_of(parts: Iterable[Any]) -> int:
    """CRC32C of the concatenation of read-only bytes or Arrow buffers."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Encode rows as one Arrow IPC stream."""
    parts = encoded_parts(schema, batches)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


def encoded_parts(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Sequence[bytes | pa.Buffer]:
    """Encode rows as one Arrow IPC stream, in consecutive parts."""
    batches = list(batches)
    if len(batches) == 1 and not has_dictionary(schema):
        # The same bytes as a stream writer's, in a third of the time.
        return schema.serialize(), batches[0].serialize(), STREAM_END
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return (sink.getvalue(),)


def message_size(batch: pa.RecordBatch) -> int:
    """Bytes of a batch as one message: its values, and some for each column. `nbytes` takes ten times as long, because
    it looks at each column from Python.
    """
    return int(pa.ipc.get_record_batch_size(batch))


def has_dictionary(schema: pa.Schema) -> bool:
    """True if a column has dictionary values, which a stream holds outside of the batch."""
    return any(map(_has_dictionary, schema.types))


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


class DecodedRows(NamedTuple):
    """Rows from outside as one validated batch."""

    batch: pa.RecordBatch
    message: pa.Buffer | None = None
    """The original Arrow message of the batch, if it is not much larger than the values. Otherwise None."""


def decode(data: bytes, *, crc: int | None = None, limits: Limits = DEFAULT) -> pa.RecordBatch:
    """Decode an Arrow IPC stream to one validated batch. Raises `Invalid`."""
    return decoded(data, crc=crc, limits=limits).batch


def decoded(data: bytes | pa.Buffer, *, crc: int | None = None, limits: Limits = DEFAULT) -> DecodedRows:
    """Decode an Arrow IPC stream to one validated batch. Raises `Invalid`."""
    if crc is not None:
        check_crc(crc32c(data), crc)
    try:
        known = _decoded_as_before(data, limits)
        if known is not None:
            return DecodedRows(known, _message_of(data, known))
        check_stream(data, limits)
        with pa.ipc.open_stream(data) as reader:
            schema = reader.schema
            _check_names(schema)
            batches = _read_bounded(reader, limits)
        for batch in batches:
            batch.validate(full=True)
        _remember(data, schema)
        if len(batches) == 1:
            # concat_batches() would copy a single batch.
            return DecodedRows(batches[0], _message_of(data, batches[0]))
        return DecodedRows(pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema))
    except (pa.ArrowException, OSError, ValueError, MemoryError, IndexError, EOFError, struct.error) as error:
        raise Invalid(f"the rows are not a valid Arrow IPC stream: {error}") from error


def check_crc(found: int, said: int) -> None:
    """Raises `Invalid` if the checksum of the rows differs from the one sent with them."""
    if found != said:
        raise Invalid("the rows do not match their checksum: send them again")


def batch_span(data: bytes | pa.Buffer) -> tuple[int, int]:
    """(start, end) of the bytes between a stream's schema and its end marker. All bytes if the schema is not readable.

    The span is one message if `DecodedRows` has a message.
    """
    at, end = _schema_end(data), len(data)
    return (at, end - len(STREAM_END)) if at else (0, end)


def _message_of(data: bytes | pa.Buffer, batch: pa.RecordBatch) -> pa.Buffer | None:
    """The message of a stream's only batch, if it is not much larger than the values."""
    at, buffer = _schema_end(data), pa.py_buffer(data)
    end = buffer.size - len(STREAM_END)
    if not at or buffer.size <= SMALL_BYTES_MAX or bytes(buffer[end:]) != STREAM_END:
        return None
    if not is_native(bytes(buffer[FRAME.size : at])) or message_end(buffer, at) != end:
        return None
    values = int(batch.nbytes)
    return buffer.slice(at, end - at) if end - at <= values + values // 8 + FRAME_BYTES_MAX else None


def _schema_end(data: bytes | pa.Buffer) -> int:
    """The end of the schema, the stream's first message; 0 if the stream is too short."""
    if len(data) < FRAME.size:
        return 0
    mark, size = FRAME.unpack_from(data)
    end = int(FRAME.size + size)
    return end if mark == CONTINUES and 0 < size <= SCHEMA_BYTES_MAX and end + FRAME.size <= len(data) else 0


def _remember(data: bytes | pa.Buffer, schema: pa.Schema) -> None:
    """Keep a checked schema by its bytes. Producers and look-ups send the same schema again and again."""
    end = _schema_end(data)
    if end:
        _keep(_KNOWN, bytes(data[:end]), schema)


def _keep(known: dict[bytes, pa.Schema], head: bytes, schema: pa.Schema) -> None:
    if not is_native(head[FRAME.size :]):
        return  # only Arrow's stream reader swaps byte order, and its schema does not show that
    if not any(pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type) for field in schema):
        if len(known) >= SCHEMAS_KEPT:
            known.clear()
        known[head] = schema


def _decoded_as_before(data: bytes | pa.Buffer, limits: Limits) -> pa.RecordBatch | None:
    """The only batch of a stream with a known schema, validated. None for all other streams.

    Arrow's stream reader releases the interpreter's lock nine times a batch, and waits for it as often. This function
    releases it three times. These waits were the largest delay of a server that gets 1 MB messages.
    """
    at = _schema_end(data)
    schema = _KNOWN.get(bytes(data[:at])) if at else None
    if schema is None:
        return None
    mark, size = FRAME.unpack_from(data, at)
    if mark != CONTINUES or size <= 0:
        return None
    message = pa.ipc.read_message(pa.py_buffer(data)[at:])
    end = at + FRAME.size + size + (message.body.size if message.body else 0)
    if message.type != "record batch" or bytes(data[end : end + len(STREAM_END) + 1]) != STREAM_END:
        return None
    check_message(bytes(message.metadata), message.body.size if message.body else 0, limits)
    batch = pa.ipc.read_record_batch(message, schema)
    if batch.num_rows > limits.batch_rows or batch.get_total_buffer_size() > limits.batch_memory_bytes:
        return None
    batch.validate(full=True)
    return batch


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Read all names: Arrow decodes a name when it is read, and a damaged one raises."""
    for field in fields:
        assert isinstance(field.name, str)
        kind = field.type
        _check_names(kind.field(i) for i in range(kind.num_fields))


def _read_bounded(reader: pa.RecordBatchStreamReader, limits: Limits) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    total_bytes = total_rows = 0
    for batch in reader:
        total_bytes += batch.get_total_buffer_size()  # `nbytes` follows offsets, which are not validated yet
        total_rows += batch.num_rows
        if total_bytes > limits.batch_memory_bytes:
            raise Invalid(f"the rows take more than {limits.batch_memory_bytes} bytes: send smaller batches")
        if total_rows > limits.batch_rows:
            raise Invalid(f"more than {limits.batch_rows} rows in one change: send smaller batches")
        batches.append(batch)
    return batches


def decode_server_rows(data: bytes | pa.Buffer, *, crc: int) -> list[pa.RecordBatch]:
    """Decode rows from the server. The checksum is checked, the values are not."""
    if crc32c(data) != crc:
        raise Corrupt("rows were damaged on their way: read again")
    at = _schema_end(data)
    head = bytes(data[:at])
    schema = _TRUSTED.get(head) if at and len(data) <= SMALL_BYTES_MAX else None
    if schema is not None and bytes(data[-len(STREAM_END) :]) == STREAM_END:
        message = pa.ipc.read_message(pa.py_buffer(data)[at:])
        end = at + FRAME.size + FRAME.unpack_from(data, at)[1] + (message.body.size if message.body else 0)
        if message.type == "record batch" and end + len(STREAM_END) == len(data):
            return [pa.ipc.read_record_batch(message, schema)]
    with pa.ipc.open_stream(data) as reader:
        if at:
            _keep(_TRUSTED, head, reader.schema)
        return list(reader)


def conform(
    batch: pa.RecordBatch,
    table: Table,
    *,
    keys_only: bool = False,
    only: Sequence[str] = (),
    source: Table | None = None,
    limits: Limits = DEFAULT,
    claim: Callable[[int], None] | None = None,
) -> pa.RecordBatch:
    """The batch with exactly the table's columns and types. Raises `Invalid`.

    A delete has only the key's columns, or the columns `only`. `source` is the version in which fields inside columns
    were sent. `claim` gets the number of bytes before they unfold.
    """
    if not keys_only and batch.schema.equals(table.nullable_schema) and _is_whole(batch, table):
        return batch
    names = only or table.primary_key
    wanted = [table.column(name) for name in names] if keys_only else table.columns
    if not keys_only:
        known = [column.name for column in wanted]
        for name in batch.schema.names:
            if name not in known:
                raise Invalid(no_column(f"table {table.name}", name, known))
    if len(set(batch.schema.names)) != len(batch.schema.names):
        raise Invalid(f"table {table.name}: the rows have a column twice")
    budget = Budget(table.name, limits, claim)
    sent = {} if source is None or source is table else {column.id: column for column in source.columns}
    arrays = [_conform_column(batch, column, sent.get(column.id, column), table, budget) for column in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=_nullable(pa.schema([column.arrow for column in wanted])))


def _is_whole(batch: pa.RecordBatch, table: Table) -> bool:
    """True if rows of the right types need no check inside and no required value is null."""
    held = zip(table.columns, batch.columns, strict=True)
    return all(
        not pa.types.is_nested(column.type) and not (wanted.required and column.null_count) for wanted, column in held
    )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _conform_column(batch: pa.RecordBatch, wanted: Column, sent: Column, table: Table, budget: Budget) -> pa.Array:
    field = wanted.arrow
    at = batch.schema.get_field_index(field.name)
    if at < 0:
        if not field.nullable and wanted.default is None:
            raise Invalid(f"table {table.name}: required column {field.name!r} is missing")
        budget.pay(batch.num_rows, field.type, field.name, fill_column(wanted, 1, "default").nbytes)
        return fill_column(wanted, batch.num_rows, "default")
    if wanted.nested and not is_same_inside(sent, wanted):
        as_sent = refuse(batch.column(at), sent.arrow.with_name(field.name), table=table.name, budget=budget)
        column = convert_column(as_sent, sent, wanted)
    else:
        column = refuse(batch.column(at), field, table=table.name, budget=budget)
    if not field.nullable and column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise Invalid(f"table {table.name}: required column {field.name!r} is null in row {row}")
    return column

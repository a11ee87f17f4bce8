"""Arrow streams of rows."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence

import pyarrow as pa
import pytest

from lakestore.rows import ipc

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_stream_without_batches_is_no_rows() -> None:
    assert ipc.decode(ipc.encode(SCHEMA, [])).num_rows == 0


def test_a_stream_of_one_batch_is_as_a_writer_makes_it() -> None:
    coded = pa.array(["a", "b", "a"]).dictionary_encode()
    nested = pa.array([[{"d": value}] for value in ("x", "y", "x")])
    for column in (pa.array([1, None, 3]), pa.array(["a", "é", None]), nested, coded, pa.array([[1], None, []])):
        batch = pa.record_batch([column], names=["c"]).slice(1)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        assert ipc.encode(batch.schema, [batch]) == sink.getvalue().to_pybytes()


def stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None = None) -> bytes:
    return ipc.encode(schema or batches[0].schema, batches)


def test_a_batch_is_given_with_its_message_where_that_says_nothing_else() -> None:
    """The message is stored as it came: it must read as the batch, and hold little beside it."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("flag", pa.bool_())], {"pandas": "x" * 100})
    batch = pa.record_batch(
        [list(range(9_000)), [f"row {i}" if i % 3 else None for i in range(9_000)], [True] * 9_000], schema=schema
    )
    for data in (stream([batch]), pa.py_buffer(stream([batch]))):
        found = ipc.decoded(data)
        assert found.message is not None
        assert pa.ipc.read_record_batch(found.message, schema.remove_metadata()).equals(batch)
        assert found.message.equals(batch.serialize())
    sliced = ipc.decoded(stream([batch.slice(100, 8_000)]))
    assert sliced.message is not None
    assert pa.ipc.read_record_batch(sliced.message, schema).equals(batch.slice(100, 8_000))
    assert ipc.decoded(stream([batch, batch])).message is None, "several batches are no message"
    assert ipc.decoded(stream([batch]) + b"more").message is None
    assert ipc.decoded(stream([batch]) + ipc.STREAM_END).message is None
    assert ipc.decoded(stream([batch.slice(0, 3)])).message is None, "a small one is made anew as fast"


def test_hidden_bytes_of_a_client_are_not_stored() -> None:
    """An offset names one byte of two hundred thousand: the rows are put together anew, of what they say."""
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    schema = pa.schema([("value", pa.binary())])
    body = [pa.array([0, 200_000], pa.int32()).buffers()[1], pa.py_buffer(bytes(200_000))]
    message = pa.record_batch([pa.Array.from_buffers(pa.binary(), 1, [None, *body])], schema).serialize().to_pybytes()
    at = message.rindex(memoryview(body[0]).tobytes())
    message = message[:at] + memoryview(offsets).tobytes() + message[at + 8 :]
    found = ipc.decoded(schema.serialize().to_pybytes() + message + ipc.STREAM_END)
    assert found.batch.to_pydict() == {"value": [b"\0"]}
    assert found.message is None


def test_values_of_another_machine_are_not_kept_as_they_came() -> None:
    order = 1 if sys.byteorder == "little" else 0
    for other in (order, 1 - order):
        table = struct.pack("<IHHHHHHiIHHHHiHH", 16, 10, 8, 0, 0, 4, 0, 12, 12, 6, 8, 4, 0, 8, other, 0)
        assert ipc.is_native(table) == (other != order)
    assert ipc.is_native(pa.schema([("id", pa.int64())]).serialize().to_pybytes()[8:])


@pytest.mark.parametrize("rows", [3, 90_000])
def test_a_stream_of_a_known_schema_opens_no_reader(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gives the interpreter's lock up nine times, and others of a busy server take it each time."""
    data = pa.py_buffer(stream([pa.record_batch([list(range(rows))], names=["known"])]))
    first = ipc.decoded(data)
    monkeypatch.delattr(pa.ipc, "open_stream")
    monkeypatch.delattr(pa.ipc, "MessageReader")
    again = ipc.decoded(data)
    assert again.batch.equals(first.batch)
    assert (again.message is None) == (first.message is None)


def big_endian(schema: pa.Schema, *columns: pa.Array) -> bytes:
    """A stream as a machine with big-endian numbers writes it, of columns of whole numbers without nulls."""
    head = bytearray(schema.serialize().to_pybytes())
    metadata = bytes(head[8:])
    root = struct.unpack_from("<I", metadata)[0]
    header = ipc._table(metadata, root, ipc._HEADER)
    vtable = header - struct.unpack_from("<i", metadata, header)[0]
    # The number of fields is 1, as BIG is: the field for the endianness, which is absent, may point there.
    fields, count = ipc._vector(metadata, header, ipc._SCHEMA_FIELDS)
    assert count == 1
    struct.pack_into("<H", head, 8 + vtable + 4, fields - 4 - header)
    message: bytes = pa.record_batch(list(columns), schema=schema).serialize().to_pybytes()
    for column in columns:
        values = column.to_numpy()
        message = message.replace(values.tobytes(), values.byteswap().tobytes())
    return b"".join((head, message, ipc.STREAM_END))


def test_numbers_of_a_big_endian_machine_are_swapped_in_every_message() -> None:
    schema = pa.schema([("v", pa.int64())])
    for values in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
        data = big_endian(schema, pa.array(values, pa.int64()))
        assert pa.ipc.open_stream(data).read_all()["v"].to_pylist() == values, "the stream is what it claims to be"
        assert ipc.decode(data)["v"].to_pylist() == values
        (trusted,) = ipc.decode_server_rows(data, crc=ipc.crc32c(data))
        assert trusted["v"].to_pylist() == values

"""Arrow messages that say more than they hold: refused before anything unfolds, in small streams as in large ones."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakestore as ls
from lakestore.errors import Corrupt, Invalid, LakestoreError
from lakestore.limits import DEFAULT
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb

COLUMNS = 100
SCHEMA = pa.schema([(f"c{i}", pa.int64()) for i in range(COLUMNS)])
Buffers = Sequence[tuple[int, int]]


def _forged(schema: pa.Schema, rows: int, buffers: Callable[[int], tuple[int, int]], body: bytes) -> bytes:
    """A stream of one batch whose buffers lie where the test says; nodes are of so many rows."""
    batch = pa.record_batch([pa.array([1], field.type) for field in schema], schema=schema)
    data = batch.serialize().to_pybytes()
    (size,) = struct.unpack_from("<i", data, 4)
    metadata = bytearray(data[8 : 8 + size])
    root = struct.unpack_from("<I", metadata)[0]
    header = ipc._table(bytes(metadata), root, ipc._HEADER)
    at = ipc._field(bytes(metadata), root, ipc._BODY_BYTES)
    struct.pack_into("<q", metadata, at, len(body))
    struct.pack_into("<q", metadata, ipc._field(bytes(metadata), header, ipc._LENGTH), rows)
    at, count = ipc._vector(bytes(metadata), header, ipc._NODES)
    for i in range(count):
        struct.pack_into("<qq", metadata, at + 16 * i, rows, 0)
    at, count = ipc._vector(bytes(metadata), header, ipc._BUFFERS)
    for i in range(count):
        struct.pack_into("<qq", metadata, at + 16 * i, *buffers(i))
    return b"".join((schema.serialize(), data[:8], bytes(metadata), body, ipc.STREAM_END))


ROWS = 64
BODY = bytes(ROWS * 8)
FORGERIES: dict[str, Callable[[pa.Schema], bytes]] = {
    "one buffer for all": lambda s: _forged(s, ROWS, lambda i: (0, len(BODY) if i % 2 else 0), BODY),
    "half of a buffer": lambda s: _forged(s, ROWS, lambda i: (i * 8, len(BODY) if i % 2 else 0), BODY * 2 * len(s)),
    "behind the body": lambda s: _forged(s, ROWS, lambda i: (len(BODY) * i, len(BODY)), BODY),
    "before the body": lambda s: _forged(s, ROWS, lambda i: (-64, len(BODY)), BODY),
    "too long": lambda s: _forged(s, ROWS, lambda i: (0, 2**62), BODY),
    "overflowing": lambda s: _forged(s, ROWS, lambda i: (2**62, 2**62), BODY),
    "negative": lambda s: _forged(s, ROWS, lambda i: (8, -8), BODY),
    "rows of the future": lambda s: _forged(s, 2**60, lambda i: (0, 0), BODY),
    "rows below zero": lambda s: _forged(s, -1, lambda i: (0, 0), BODY),
}


@pytest.mark.parametrize("columns", [2, COLUMNS])
@pytest.mark.parametrize("name", FORGERIES)
def test_buffers_that_are_forged_are_refused_on_every_way(name: str, columns: int) -> None:
    schema = pa.schema(list(SCHEMA)[:columns])
    data = FORGERIES[name](schema)
    ipc.decode(ipc.encode(schema, [pa.record_batch([pa.array([1])] * columns, schema=schema)]))  # the schema is known
    with pytest.raises(Invalid):
        ipc.decode(data)
    ipc._KNOWN.clear()
    with pytest.raises(Invalid):
        ipc.decode(data)


def test_good_buffers_may_lie_in_any_order() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    body = struct.pack("<2q", 1, 2).ljust(64, b"\0") + struct.pack("<2q", 3, 4).ljust(64, b"\0")
    data = _forged(schema, 2, lambda i: {1: (64, 16), 3: (0, 16)}.get(i, (0, 0)), body)
    assert ipc.decode(data).to_pydict() == {"a": [3, 4], "b": [1, 2]}


def test_streams_of_very_many_parts_are_refused_soon() -> None:
    empty = pa.record_batch([pa.array([], pa.int64())], names=["v"])
    wide = pa.schema([(f"c{i}", pa.int64()) for i in range(DEFAULT.columns + 1)])
    inner = pa.struct([(f"f{i}", pa.int8()) for i in range(60_000)])
    deep = pa.schema([("a", inner), ("b", inner)])
    streams = [
        empty.schema.serialize().to_pybytes() + empty.serialize().to_pybytes() * 20_000 + ipc.STREAM_END,
        wide.serialize().to_pybytes() + ipc.STREAM_END,
        deep.serialize().to_pybytes() + ipc.STREAM_END,
    ]
    for data in streams:
        with pytest.raises(Invalid):
            ipc.decode(data)


@pytest.mark.parametrize("value", [b"", b"\0", b"\1" + bytes(7), b"\xff" * 8, b"\1" + bytes(11)])
def test_bytes_that_are_no_bitmap_are_invalid(tmp_path: Path, value: bytes) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("bm", pa.binary())])
    rows: Any = pa.table({"k": pa.array([1]), "bm": pa.array([value], pa.binary())})
    data = ipc.encode(rows.schema, rows.to_batches())
    with ls.open(tmp_path) as lake:
        lake.create_table("z.agg", schema, primary_key=["k"], merge=ls.aggregate({"bm": "bitmap"}))
        change = pb.Change(table="z.agg", kind=pb.UPSERT, rows=data, crc32c=ipc.crc32c(data))
        with pytest.raises(LakestoreError) as refused:
            lake.transport.commit(pb.CommitRequest(changes=[change]))
        assert (refused.value.kind, refused.value.applied) == ("Invalid", "no")


def streamed(parts: list[list[str | None]]) -> bytes:
    """A stream of batches, whose column is written as a dictionary as well."""
    schema = pa.schema([("a", pa.string()), ("d", pa.dictionary(pa.int32(), pa.string()))])
    column = [pa.array(part, pa.string()) for part in parts]
    return ipc.encode(schema, [pa.record_batch([each, each.dictionary_encode()], schema=schema) for each in column])


@given(st.lists(st.lists(st.none() | st.text(max_size=5), max_size=9), max_size=4))
def test_the_metadata_tells_the_number_of_rows(parts: list[list[str | None]]) -> None:
    assert ipc.rows_of(streamed(parts)) == sum(map(len, parts))
    plain = [pa.record_batch({"a": pa.array(part, pa.string())}) for part in parts]
    assert ipc.rows_of(ipc.encode(pa.schema([("a", pa.string())]), plain)) == sum(map(len, parts))


@given(st.integers(0, 2_000), st.integers(0, 255), st.integers(0, 2_000))
def test_the_number_of_rows_of_damaged_bytes_is_some_number_or_corrupt(at: int, byte: int, end: int) -> None:
    data = bytearray(streamed([["x", None], ["y"]]))
    data[at % len(data)] = byte
    with contextlib.suppress(Corrupt):
        ipc.rows_of(bytes(data[: end or None]))

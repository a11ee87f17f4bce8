"""Rows that are gathered from many batches are those that Arrow takes, and nothing is read that was not told of."""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore_server.arrays import flat_batch
from lakestore_server.arrays.flat_batch import FlatBatch
from lakestore_server.arrays.gather import LONG_BYTES, Plan
from tests.support.seeds import examples

Ints = npt.NDArray[np.int64]
SCHEMA = pa.schema(
    [
        ("change", pa.int8()),
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("short", pa.int32()),
        ("is_so", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("amount", pa.decimal128(38, 2)),
        ("tag", pa.binary(5)),
        ("id", pa.binary(16)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("ratio", pa.float32()),
    ]
)


class Watched:
    """Memory of which only that is shown which was told of."""

    is_needless = False

    def __init__(self, buffer: pa.Buffer) -> None:
        self._hidden = np.frombuffer(buffer, dtype=np.uint8)
        self.shown = np.full(len(self._hidden) + -len(self._hidden) % 8, 0xAA, dtype=np.uint8)

    def touch(self, first: Ints, last: Ints) -> None:
        """Show these ranges."""
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            self.shown[low : high + 1] = self._hidden[low : high + 1]


def _values(chance: np.random.Generator, count: int, kind: pa.DataType, nulls: float) -> pa.Array:
    texts = ["x" * int(n) for n in chance.integers(0, 40, count)]
    made: dict[pa.DataType, list[object]] = {
        pa.bool_(): [bool(each) for each in chance.integers(0, 2, count)],
        pa.string(): list(texts),
        pa.binary(): [text.encode() for text in texts],
        pa.decimal128(38, 2): [decimal.Decimal(int(each)) for each in chance.integers(-99, 99, count)],
        pa.binary(5): [chance.bytes(5) for _ in range(count)],
        pa.binary(16): [chance.bytes(16) for _ in range(count)],
    }
    if kind == pa.date32():
        return pa.array(chance.integers(0, 100, count).astype(np.int32), mask=chance.random(count) < nulls).view(kind)
    values = made.get(kind) or chance.integers(0, 100, count).tolist()
    return pa.array(values if kind in made else pa.array(values).cast(kind), kind, mask=chance.random(count) < nulls)


def _stored(batch: pa.RecordBatch) -> tuple[FlatBatch, pa.RecordBatch]:
    """The batch as a segment has it: of its bytes only the head is readable before it is told of others."""
    data = batch.serialize()
    watched = Watched(data)
    head = 8 + int.from_bytes(memoryview(data)[4:8], "little")
    watched.touch(np.array([0]), np.array([head - 1]))
    memory = pa.py_buffer(watched.shown)
    return FlatBatch(pa.ipc.read_record_batch(memory, batch.schema), memory, watched), batch


def _batches(seed: int, counts: Sequence[int]) -> list[pa.RecordBatch]:
    chance = np.random.default_rng(seed)
    return [
        pa.record_batch(
            [_values(chance, count, kind, chance.choice([0, 0.3, 1])) for kind in SCHEMA.types], schema=SCHEMA
        )
        for count in counts
    ]


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    names=st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True),
)
def test_rows_are_those_that_arrow_takes(seed: int, counts: list[int], names: list[str]) -> None:
    chance = np.random.default_rng(seed)
    batches = _batches(seed, counts)
    rows = [chance.integers(0, count, chance.integers(1, 20)) for count in counts]
    gathered = Plan(SCHEMA, names).gather(
        [_stored(batch)[0] for batch in batches], [*map(len, rows)], np.concatenate(rows)
    )
    wanted = pa.concat_batches([b.select(names).take(pa.array(r)) for b, r in zip(batches, rows, strict=True)])
    found = gathered.batch()
    found.validate(full=True)
    assert found.to_pydict() == wanted.to_pydict()
    assert gathered.sizes().tolist() == flat_batch.of_rows(wanted, np.arange(wanted.num_rows)).tolist()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 30), nested=st.booleans())
def test_touched_rows_are_readable(seed: int, nested: bool) -> None:
    chance = np.random.default_rng(seed)
    [batch] = _batches(seed, [50])
    if nested:
        batch = batch.append_column("list", pa.array([[1, None], None] * 25, pa.list_(pa.int64())))
    flat, _ = _stored(batch)
    rows = chance.integers(0, 50, 3)
    flat.touch_rows(rows, list(range(batch.num_columns)))
    assert flat.batch.take(pa.array(rows)).to_pylist() == batch.take(pa.array(rows)).to_pylist()


def test_long_texts_are_copied_by_arrow() -> None:
    texts = pa.array(["a" * (2 * LONG_BYTES), None, "b" * (3 * LONG_BYTES)])
    flat, batch = _stored(pa.record_batch([texts], names=["text"]))
    found = Plan(batch.schema, ["text"]).gather([flat, flat], [1, 2], np.array([2, 0, 1])).batch()
    assert found.column(0).to_pylist() == [texts[2].as_py(), texts[0].as_py(), None]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())])
def test_nested_columns_are_not_flat(kind: pa.DataType) -> None:
    assert not Plan.is_plain(pa.schema([("a", pa.int8()), ("n", kind)]), ["a", "n"])
    assert Plan.is_plain(pa.schema([("a", pa.int8()), ("n", kind)]), ["a"])

"""Batches joined to one message: what Arrow would make of them, without a copy of values that have one width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakestore.errors import Internal
from lakestore_server.files import new_segment
from lakestore_server.files.new_segment import joined_message
from tests.support.seeds import seeded

FLAT = pa.schema([("number", pa.int64()), ("text", pa.string()), ("octets", pa.binary()), ("seven", pa.binary(7))])
SCHEMA = pa.schema(
    [
        *FLAT,
        ("small", pa.int8()),
        ("money", pa.decimal128(20, 3)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("truth", pa.bool_()),
        ("list", pa.list_(pa.string())),
        ("pair", pa.struct([("left", pa.int64())])),
        ("map", pa.map_(pa.string(), pa.int32())),
        ("long", pa.large_string()),
        ("nothing", pa.null()),
    ],
    {b"of": b"the table"},
)


def rows(count: int, missing: float, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Random rows, of which so large a part of the values is missing."""
    chance = seeded(5)

    def column(kind: pa.DataType) -> list[object]:
        made = [_value(kind, chance.randrange(1 << 30)) for _ in range(count)]
        return [None if chance.random() < missing else value for value in made]

    return pa.record_batch([pa.array(column(field.type), field.type) for field in schema], schema=schema)


def _value(kind: pa.DataType, n: int) -> object:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "é" * (n % 5)
    if pa.types.is_fixed_size_binary(kind):
        return bytes([n % 256] * 7)
    return {
        pa.binary(): bytes(n % 9),
        pa.int8(): n % 128,
        pa.decimal128(20, 3): Decimal(n) / 1000,
        pa.bool_(): bool(n % 2),
        pa.list_(pa.string()): ["a"] * (n % 3),
        pa.struct([("left", pa.int64())]): {"left": n},
        pa.map_(pa.string(), pa.int32()): [("k", n)],
        pa.null(): None,
    }.get(kind, n)


def read(parts: Sequence[pa.Buffer], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a message."""
    data = pa.py_buffer(b"".join(parts))
    assert data.size % 64 == 0
    found = pa.ipc.read_record_batch(data, schema)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("short", [1, new_segment.SHORT], ids=["long pieces", "short pieces"])
@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("counts", [[5], [0], [0, 3, 0], [300, 1, 77], [40] * 20])
def test_the_message_has_the_rows_of_all_batches(
    counts: list[int], missing: float, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_segment, "SHORT", short)
    whole = rows(500, missing)
    batches = [rows(count, missing) for count in counts]
    for several in (batches, [*batches, whole.slice(7, 130), whole.slice(499)], [whole.slice(500), *batches]):
        assert read(joined_message(several), SCHEMA).equals(pa.concat_batches(several))


def test_rows_with_and_without_missing_values_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_segment, "SHORT", 1)
    several = [rows(9, 0.0), rows(9, 0.5), rows(9, 0.0)]
    assert read(joined_message(several), SCHEMA).equals(pa.concat_batches(several))


def test_values_in_long_pieces_are_not_copied_but_offsets_of_texts_are_made() -> None:
    several = [rows(20_000, 0.0, FLAT), rows(20_000, 0.0, FLAT).slice(100, 19_000)]
    ours = {(b.address, b.address + b.size) for batch in several for c in batch.columns for b in c.buffers() if b}
    before = pa.total_allocated_bytes()
    parts = joined_message(several)
    assert pa.total_allocated_bytes() - before < 4_096, "Arrow has made a copy"
    inside = [part for part in parts if any(low <= part.address < high for low, high in ours)]
    texts = sum(pc.sum(pc.binary_length(batch[name])).as_py() for batch in several for name in ("text", "octets"))
    assert sum(part.size for part in inside) == texts + (8 + 7) * sum(batch.num_rows for batch in several)


def test_texts_of_more_than_two_gigabytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_segment, "SHORT", 1)
    several = [pa.record_batch({"text": ["abcd", "e"]})] * 2
    monkeypatch.setattr(new_segment, "_OFFSET_MAX", 10)
    joined_message(several)
    monkeypatch.setattr(new_segment, "_OFFSET_MAX", 9)
    with pytest.raises(pa.ArrowInvalid, match="2 GB"):
        joined_message(several)


@pytest.mark.parametrize("short", [1, new_segment.SHORT])
@pytest.mark.parametrize(
    "other",
    [
        pa.record_batch({"a": [1.5], "b": [2]}),
        pa.record_batch({"a": pa.array([5], pa.timestamp("us")), "b": [2]}),
        pa.record_batch({"b": [1], "a": [2]}),
        pa.record_batch({"a": [1], "b": [2], "c": [3]}),
        pa.record_batch({"a": [1], "b": pa.array([2], pa.int32())}),
    ],
)
def test_batches_of_other_columns_are_refused(
    other: pa.RecordBatch, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_segment, "SHORT", short)
    with pytest.raises(pa.ArrowInvalid, match=r"(?i)schema"):
        joined_message([pa.record_batch({"a": [1], "b": [2]}), other])


@pytest.mark.parametrize("made", [lambda data: pa.py_buffer(bytes(data)), lambda data: data.slice(0, data.size - 8)])
def test_places_that_arrow_copies_or_cuts_are_told(
    made: Callable[[pa.Buffer], pa.Buffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_segment, "SHORT", 1)
    write = new_segment._Sink.write

    def written(sink: object, data: pa.Buffer) -> int:
        return write(sink, made(data) if len(data) > 1_000 else data)  # type: ignore[arg-type]

    monkeypatch.setattr(new_segment._Sink, "write", written)
    with pytest.raises(Internal, match=r"Arrow (wrote|copied)"):
        joined_message([pa.record_batch({"a": range(1000)})] * 2)

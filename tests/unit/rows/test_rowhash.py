"""Row hashes: equal rows have equal hashes however they lie in memory; different rows have not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakestore.rows import row_hash

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [1, -1, 0, None]),
    (pa.int16(), [1, -1, 300]),
    (pa.int64(), [1, 2, -(2**63), None]),
    (pa.float32(), [1.5, -1.5, None]),
    (pa.float64(), [0.0, 1.0, float("nan"), None]),
    (pa.string(), ["", "a", "b", "ab", "ba", "a\x00", None, "ü", "aa"]),
    (pa.binary(), [b"", b"\x00", b"\x00\x00", b"\xff"]),
    (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]),
    (pa.decimal128(12, 2), [Decimal("1.00"), Decimal("-1.00"), None, Decimal("100.00")]),
    (pa.decimal128(38, 0), [Decimal(10**30), Decimal(10**30 + 1)]),
    (pa.uint32(), [0, 1, 2**32 - 1, None]),
    (pa.time64("us"), [dt.time(), dt.time(12), None]),
    (pa.binary(2), [b"\x00\x00", b"ab", b"ba", None]),
    (pa.list_(pa.int64()), [[], [0], [0, 0], [1, 2], [2, 1], [None], [None, None], [1, None], [None, 1], None]),
    (pa.list_(pa.string()), [["a", "b"], ["ab"], ["", "ab"], ["ab", ""], ["b", "a"], [""], []]),
    (pa.struct([("a", pa.int8()), ("b", pa.int8())]),
     [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": None, "b": None}, {"a": 0, "b": 0}, {"a": 0, "b": None}, None]),
    (pa.map_(pa.string(), pa.int8()), [[], [("a", 1)], [("a", None)], [("b", 1)], [("a", 1), ("b", 1)], None]),
    (pa.list_(pa.list_(pa.int8())), [[], [[]], [[], []], [None], [[1], [2]], [[1, 2]], [[2], [1]], None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_values_differ_and_slices_agree(kind: pa.DataType, values: list[Any]) -> None:
    whole = row_hash.column(pa.array(values, kind)).tolist()
    assert len(set(whole)) == len(values)
    padded = pa.array([values[0], *values, values[0]], kind).slice(1, len(values))
    assert row_hash.column(padded).tolist() == whole
    assert [int(row_hash.column(pa.array([value], kind))[0]) for value in values] == whole


def test_columns_do_not_trade_places() -> None:
    a, b = (row_hash.column(pa.array(values)) for values in ([1, 2], [2, 1]))
    assert row_hash.hashes([a, b]).tolist() != row_hash.hashes([b, a]).tolist()


def test_no_rows() -> None:
    for kind, _ in COLUMNS:
        assert not len(row_hash.column(pa.array([], kind)))


def test_the_order_of_a_maps_entries_and_what_lies_under_nulls_do_not_count() -> None:
    kind = pa.map_(pa.string(), pa.int8())
    one, other = (row_hash.column(pa.array([m], kind)) for m in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]))
    assert one.tolist() == other.tolist()
    nulls = pa.array([False, True])
    for hidden in (7, 8):
        inside = pa.StructArray.from_arrays([pa.array([1, hidden])], names=["a"], mask=nulls)
        assert row_hash.column(inside).tolist() == row_hash.column(pa.array([{"a": 1}, None])).tolist()
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([1, hidden]), mask=nulls)
        assert row_hash.column(lists).tolist() == row_hash.column(pa.array([[1], None])).tolist()

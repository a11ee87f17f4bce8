"""Values as a column's type: exact, or refused row by row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.model.types import arrow_type
from lakestore.rows.casting import RECORDS, Rules, mask, why
from lakestore.rows.scalar_casts import Mask
from tests.support.seeds import examples

NOON = datetime(2026, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=UTC)


How = tuple[pa.Field, Rules]


def rule(kind: str, unit: str = "", zone: str = "") -> How:
    return pa.field("value", arrow_type(kind)), RECORDS.read_as(unit, zone)


def cast(array: pa.Array, how: How) -> tuple[pa.Array, Mask | None]:
    return mask(array, *how)


@pytest.mark.parametrize(
    ("source", "how", "value"),
    [
        (pa.array(["12"]), rule("int32"), 12),
        (pa.array([b"12"]), rule("int64"), 12),
        (pa.array([12.0]), rule("int8"), 12),
        (pa.array([Decimal("12.00")]), rule("int8"), 12),
        (pa.array(["1e3"]), rule("float64"), 1000.0),
        (pa.array([0.1]), rule("float32"), pa.scalar(0.1, pa.float32()).as_py()),
        (pa.array([3]), rule("decimal(5,2)"), Decimal("3.00")),
        (pa.array([0.1]), rule("decimal(5,2)"), Decimal("0.10")),
        (pa.array(["1.250"]), rule("decimal(5,2)"), Decimal("1.25")),
        (pa.array(["-125e-2"]), rule("decimal(5,2)"), Decimal("-1.25")),
        (pa.array(["0." + "0" * 90]), rule("decimal(5,2)"), Decimal("0.00")),
        (pa.array(["1.5" + "0" * 90]), rule("decimal(5,2)"), Decimal("1.50")),
        (pa.array(["1e37"]), rule("decimal(38,0)"), Decimal(10**37)),
        (pa.array(["true"]), rule("bool"), True),
        (pa.array([b"\xc3\xa9"]), rule("string"), "é"),
        (pa.array([1.5]), rule("string"), "1.5"),
        (pa.array([Decimal("1.50")]), rule("string"), "1.50"),
        (pa.array([True]), rule("string"), "true"),
        (pa.array([{"a": 1}]), rule("string"), '{"a":1}'),
        (pa.array(["é"]), rule("binary"), b"\xc3\xa9"),
        (pa.array([b"ab"]), rule("fixed(2)"), b"ab"),
        (pa.array(["2026-01-01T12:00:00Z"]), rule("timestamptz"), NOON_UTC),
        (pa.array(["2026-01-01t12:00:00z"]), rule("timestamptz"), NOON_UTC),
        (pa.array([" 2026-01-01 12:00:00 Z "]), rule("timestamptz"), NOON_UTC),
        (pa.array(["2026-01-01T13:00:00.0000009+0100"]), rule("timestamptz"), NOON_UTC),
        (pa.array(["2026-01-01T12:00"]), rule("timestamp"), NOON),
        (pa.array(["2026-01-01T12:00:00.123456789"]), rule("timestamp"), NOON.replace(microsecond=123456)),
        (pa.array(["2026-01-01T13:00:00"]), rule("timestamptz", zone="Europe/Berlin"), NOON_UTC),
        (pa.array(["2026-01-01T12:00:00Z"]), rule("timestamp", zone="Europe/Berlin"), NOON.replace(hour=13)),
        (pa.array([1_767_268_800_000]), rule("timestamptz"), NOON_UTC),
        (pa.array(["1767268800000"]), rule("timestamptz"), NOON_UTC),
        (pa.array([1_767_268_800]), rule("timestamp", "s"), NOON),
        (pa.array(["1767268800.5"]), rule("timestamp", "s"), NOON.replace(microsecond=500_000)),
        (pa.array([1_767_268_800.25]), rule("timestamp", "s"), NOON.replace(microsecond=250_000)),
        (pa.array([1_767_268_800_000_000_999]), rule("timestamp", "ns"), NOON),
        (pa.array([-1]), rule("timestamp", "ns"), datetime(1969, 12, 31, 23, 59, 59, 999_999)),
        (pa.array([NOON_UTC], pa.timestamp("ns", "UTC")), rule("timestamptz"), NOON_UTC),
        (pa.array([date(2026, 1, 1)]), rule("timestamp"), datetime(2026, 1, 1)),
        (pa.array(["2026-01-01"]), rule("date"), date(2026, 1, 1)),
        (pa.array([86_400_000]), rule("date"), date(1970, 1, 2)),
        (pa.array(["-86400"]), rule("date", "s"), date(1969, 12, 31)),
        (pa.array([datetime(2026, 1, 1)]), rule("date"), date(2026, 1, 1)),
        (pa.array(["12:34:56.789"]), rule("time"), time(12, 34, 56, 789_000)),
        (pa.array([1_000]), rule("time"), time(0, 0, 1)),
        (pa.array([{"t": "1000", "n": 1}]), rule("struct<t: timestamp>"), {"t": datetime(1970, 1, 1, 0, 0, 1)}),
        (pa.array([["1000"]]), rule("list<timestamp>"), [datetime(1970, 1, 1, 0, 0, 1)]),
        (pa.nulls(1), rule("int64"), None),
        (pa.array(["12"]).dictionary_encode(), rule("int64"), 12),
    ],
    ids=lambda value: str(value).replace("\n", "")[:40],
)
def test_value_fits(source: pa.Array, how: How, value: Any) -> None:
    made, bad = cast(source, how)
    assert made.type == how[0].type
    assert bad is None or not bad.any()
    assert made.to_pylist() == [value]
    doubled, bad = cast(pa.concat_arrays([source, pa.nulls(1, source.type), source]), how)
    assert bad is None or not bad.any()
    assert doubled.to_pylist() == [value, None, value]


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (pa.array(["x"]), rule("int64")),
        (pa.array(["0x1F"]), rule("int64")),
        (pa.array(["1.5"]), rule("int64")),
        (pa.array([1.5]), rule("int64")),
        (pa.array([300]), rule("int8")),
        (pa.array([True]), rule("int64")),
        (pa.array([b"\xff"]), rule("string")),
        (pa.array([b"\xff"]), rule("int64")),
        (pa.array([2**53 + 1]), rule("float64")),
        (pa.array([1e300]), rule("float32")),
        (pa.array(["1e400"]), rule("float64")),
        (pa.array(["1.255"]), rule("decimal(5,2)")),
        (pa.array(["12345"]), rule("decimal(5,2)")),
        (pa.array([12345]), rule("decimal(5,2)")),
        (pa.array([Decimal("12345")]), rule("decimal(5,2)")),
        (pa.array(["1e-999999"]), rule("decimal(38,0)")),
        (pa.array(["1e-60"]), rule("decimal(38,9)")),
        (pa.array(["1e38"]), rule("decimal(38,0)")),
        (pa.array(["0." + "0" * 90 + "1"]), rule("decimal(38,9)")),
        (pa.array([5e-324]), rule("decimal(38,9)")),
        (pa.array(["yes"]), rule("bool")),
        (pa.array([1]), rule("bool")),
        (pa.array([b"abc"]), rule("fixed(2)")),
        (pa.array(["2026-01-01T12:00:00"]), rule("timestamptz")),
        (pa.array(["2026-01-01T12:00:00Z"]), rule("timestamp")),
        (pa.array(["2026-10-25T02:30:00"]), rule("timestamptz", zone="Europe/Berlin")),
        (pa.array(["2026-03-29T02:30:00"]), rule("timestamptz", zone="Europe/Berlin")),
        (pa.array(["2026-02-30"]), rule("timestamp")),
        (pa.array(["0000-01-01"]), rule("timestamptz")),
        (pa.array([2**62]), rule("timestamp", "s")),
        (pa.array(["1" * 60]), rule("timestamp")),
        (pa.array(["2026-01-01T00:00:00"]), rule("date")),
        (pa.array([1]), rule("date")),
        (pa.array([86_400_000]), rule("time")),
        (pa.array(["25:00"]), rule("time")),
        (pa.array([True]), rule("timestamp")),
        (pa.array([[1]]), rule("int64")),
        (pa.array([1]), rule("list<int64>")),
        (pa.array([{"t": "x"}]), rule("struct<t: timestamp>")),
        (pa.array([{"t": None}]), rule("struct<t: int64 not null>")),
    ],
    ids=lambda value: str(value).replace("\n", "")[:40],
)
def test_value_does_not_fit(source: pa.Array, how: How) -> None:
    """And takes no row beside it along."""
    made, bad = cast(pa.concat_arrays([pa.nulls(1, source.type), source, pa.nulls(1, source.type)]), how)
    assert bad is not None
    assert bad.tolist() == [False, True, False]
    assert made.to_pylist() == [None] * 3
    assert made.type == how[0].type
    assert why(source, *how)


TEXTS = st.one_of(
    st.text(max_size=6),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"),
    st.sampled_from(["true", "12:30", "2026-01-01", "1e5", "0"]),
)
KINDS = ["int8", "int64", "float32", "float64", "decimal(9,3)", "bool", "timestamp", "timestamptz", "date", "time"]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), TEXTS), max_size=8), st.sampled_from(KINDS), st.sampled_from(["", "s", "ns"]))
def test_rows_are_cast_alike_together_and_alone(values: list[str | None], kind: str, unit: str) -> None:
    how = rule(kind, unit)
    together, bad = cast(pa.array(values, pa.string()), how)
    together.validate(full=True)
    for row, value in enumerate(values):
        alone, wrong = cast(pa.array([value], pa.string()), how)
        assert (bad is not None and bool(bad[row])) == (wrong is not None and bool(wrong[0]))
        assert together.slice(row, 1).equals(alone) or str(alone[0]) == "nan"


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (
            {"items": [{"price": "1"}, {"price": "2"}, None, {"price": "x"}]},
            "struct<items: list<struct<price: int8>>>",
            "order.items[3].price: it is no int8",
        ),
        ({"items": [[1], [2, 300]]}, "struct<items: list<list<int8>>>", "order.items[1][1]: Integer value 300 not in"),
        (
            [("a", {"n": 1}), ("b", {"n": None})],
            "map<string, struct<n: int64 not null>>",
            "order['b'].n is required, but null",
        ),
        ([("a", ["1"]), ("b", ["2", "x"])], "map<string, list<int64>>", "order['b'][1]: it is no int64"),
        ({"a": [1, None]}, "struct<a: list<int64 not null>>", "order.a[1] is required, but null"),
        ({"b": 1}, "struct<a: int64 not null>", "order.a is required, but missing"),
        ([[("x", 1)], [("y", 1), ("y", 2)]], "list<map<string, int64>>", "order[1] has the key 'y' twice"),
        ({"a": True}, "struct<a: date>", "order.a: bool is no time"),
        ("x", "int8", "it is no int8"),
    ],
)
def test_a_reason_names_the_place_of_a_nested_value(value: Any, kind: str, reason: str) -> None:
    kinds: dict[str, pa.DataType] = {
        "map<string, struct<n: int64 not null>>": pa.map_(pa.string(), pa.struct([("n", pa.int64())])),
        "map<string, list<int64>>": pa.map_(pa.string(), pa.list_(pa.string())),
        "list<map<string, int64>>": pa.list_(pa.map_(pa.string(), pa.int64())),
    }
    array = pa.array([value], kinds.get(kind))
    field = pa.field("order", arrow_type(kind))
    assert why(array, field, RECORDS).startswith(reason)
    later = pa.concat_arrays([pa.nulls(1, array.type), array]).slice(1)
    assert why(later, field, RECORDS).startswith(reason), "of a slice"

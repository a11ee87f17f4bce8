"""Conditions: bounded, exact, and refused when they are read rather than on a row."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.model.table import Table, define
from lakestore.model.types import arrow_type
from lakestore.rows import condition_text
from tests.support.seeds import examples

_NUMBERS: Mapping[str, list[Any]] = {
    "int8": [-128, 0, 1, 127],
    "int16": [-(2**15), 0, 1, 2**15 - 1],
    "int32": [-(2**31), 0, 1, 2**24 + 1, 2**31 - 1],
    "int64": [-(2**63), 0, 1, 2**53 + 1, 2**63 - 1],
    "uint8": [0, 1, 255],
    "uint16": [0, 1, 2**16 - 1],
    "uint32": [0, 1, 2**32 - 1],
    "float32": [-math.inf, -0.5, 0.0, 1.0, 2.0**24, 2.0**127, math.inf],
    "float64": [-math.inf, 0.35, 1.0, 2.0**53, 1e300, math.inf],
    "decimal(12,2)": [Decimal("-9999999999.99"), Decimal("0.35"), Decimal(1), Decimal("9999999999.99")],
    "decimal(38,0)": [Decimal(-(10**38) + 1), Decimal(1), Decimal(10**38 - 1)],
    "decimal(38,38)": [Decimal("-0." + "9" * 38), Decimal("0.35"), Decimal("0." + "9" * 38)],
}
_OTHERS: Mapping[str, list[Any]] = {
    "bool": [True, False],
    "string": ["", "a", "12", "\x00"],
    "binary": [b"", b"abcd", b"abce"],
    "fixed(4)": [b"abcd", b"\xff\xff\xff\xff"],
    "date": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "time": [],
    "timestamp": [datetime(1, 1, 1), datetime(1969, 12, 31, 23), datetime(9999, 12, 31)],
    "timestamptz": [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)],
}
_TYPES = {**_NUMBERS, **_OTHERS}
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CASTS: tuple[str, ...] = (
    "TINYINT",
    "BIGINT",
    "UINTEGER",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(5,2)",
    "DECIMAL(38,0)",
    "DECIMAL(38,10)",
)
_CASTS += ("VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "BOOLEAN")


def _table(*kinds: str) -> Table:
    return define("t.t", pa.schema([(f"c{i}", arrow_type(kind)) for i, kind in enumerate(kinds)]))


def _kept(text: str, table: Table, *columns: list[Any]) -> list[tuple[Any, ...]]:
    made = condition_text.parse(text, table)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, table.schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
    return [tuple(row.values()) for row in made.apply(batch).to_pylist()]


_BOMBS = {
    "or-chain": "c0=1" + " OR c0=1" * 5_000,
    "and-chain": "c0=1" + " AND c0=1" * 1_001,
    "parens": "(" * 10_000 + "c0=1" + ")" * 10_000,
    "few parens": "(" * 100 + "c0=1" + ")" * 100,
    "not": "NOT " * 10_000 + "c0=1",
    "few nots": "NOT " * 300 + "c0=1",
    "minus": "c0=" + "- " * 5_000 + "1",
    "alternating": "".join("(c0=1 AND (c0=2 OR " for _ in range(150)) + "c0=3" + "))" * 150,
    "casts": "CAST(" * 200 + "c0" + " AS BIGINT)" * 200 + "=1",
    "values": "c0 IN (" + ",".join(map(str, range(100_000))) + ")",
    "inexact values": "c0 IN (" + ",".join(f"{i}.5" for i in range(10_001)) + ")",
    "like": "c1 LIKE '" + "%a_" * 80_000 + "'",
    "number": "c0=" + "9" * 200_000,
    "exponent": "c0=1e" + "9" * 100_000,
    "a large float": "c1 = 'x' OR c0=1e999",
    "tokens": "a " * 20_000,
    "comment": "c0=1 " + "/*" * 20_000,
    "text": "c1 = '" + "x" * (1 << 18) + "'",
    "refused deep": "foo(c0=1" + " OR c0=1" * 2_000 + ")",
    "half a character": "c1 = '\ud800'",
    "bytes": "c1 = x'abc'",
    "date": "c2 = DATE '9999999-01-01'",
    "types": "DATE(" * 60 + "c0" + ")" * 60 + " = 1",
    "rows": "ROW(" * 28 + "c0" + ")" * 28 + " = 1",
    "many types": " OR ".join(["DECIMAL(" * 12 + "c0" + ")" * 12 + " = 1"] * 100),
    "sum": "c0" + " + c0" * 12_000 + " > 1",
    "elements": "c1" + "[1]" * 9_000 + " = 1",
    "chains of elements": " OR ".join(["c1" + "[1]" * 100 + " = 1"] * 90),
    "interval": "c2 > c2 + INTERVAL '" + "1d" * 110_000 + " '",
    "constants": " AND ".join(
        ["c1 = replace(replace('" + "a" * 250 + "','a','" + "b" * 250 + "'),'b','" + "c" * 1_000 + "')"] * 100
    ),
}


@pytest.mark.parametrize("name", _BOMBS)
def test_a_condition_too_large_is_refused_soon(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        condition_text.parse(_BOMBS[name], _table("int64", "string", "date"))
    assert len(refused.value.message) < 500


def test_large_conditions_within_the_bounds_are_read() -> None:
    table, rows = _table("int64"), [*range(2_000)]
    assert len(_kept("c0=1" + " OR c0=1" * 998, table, rows)) == 1
    assert len(_kept(f"c0 IN ({','.join(map(str, range(10_000)))})", table, rows)) == 2_000
    assert _kept("c0 NOT IN (1, 2, 2000)", table, [1, 2, 3]) == [(3,)]
    assert len(_kept("(" * 40 + "c0=1" + ")" * 40, table, rows)) == 1


def _exact(value: Any, other: str) -> Any:
    if type(value) is date and other == "timestamp":
        return datetime(value.year, value.month, value.day)
    return Decimal(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


@pytest.mark.parametrize("a", _TYPES)
def test_columns_are_compared_exactly_or_refused(a: str) -> None:
    for b, (sign, means) in itertools.product(_TYPES, _SIGNS.items()):
        table, pairs = _table(a, b), [*itertools.product(_TYPES[a], _TYPES[b])]
        try:
            kept = _kept(f"c0 {sign} c1", table, [x for x, _ in pairs], [y for _, y in pairs])
        except Invalid as refused:
            assert "column 'c0'" in refused.message
            continue
        assert kept == [(x, y) for x, y in pairs if means(_exact(x, b), _exact(y, a))], (b, sign)


def _written(number: int | Decimal) -> str:
    return f"{number:f}" if isinstance(number, Decimal) else str(number)


@settings(max_examples=examples(40))
@given(
    st.sampled_from([kind for kind in _NUMBERS if not kind.startswith("float")]),
    st.sampled_from(list(_SIGNS)),
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.decimals(-(10**20), 10**20, places=3),
        st.sampled_from([x for values in _NUMBERS.values() for x in values if not isinstance(x, float)]),
    ),
)
def test_numbers_are_compared_exactly_with_literals(kind: str, sign: str, literal: int | Decimal) -> None:
    rows = _NUMBERS[kind]
    wanted = [(x,) for x in rows if _SIGNS[sign](Decimal(x), Decimal(literal))]
    assert _kept(f"c0 {sign} {_written(literal)}", _table(kind), rows) == wanted
    inside = [(x,) for x in rows if x == literal]
    assert _kept(f"c0 IN ({_written(literal)}, {_written(literal)})", _table(kind), rows) == inside
    assert _kept(f"NOT c0 IN ({_written(literal)})", _table(kind), rows) == [(x,) for x in rows if (x,) not in inside]


def test_a_decimal_is_never_rounded_to_a_float() -> None:
    table, rows = _table("decimal(12,2)", "float64"), ([Decimal("0.35"), Decimal("0.50")], [0.35, 0.5])
    for text in ("c0 = c1", "c0 = 0.35e0", "c0 IN (3.5e-1)"):
        with pytest.raises(Invalid, match="column 'c0'"):
            _kept(text, table, *rows)
    assert _kept("CAST(c0 AS DOUBLE) = c1", table, *rows) == list(zip(*rows, strict=True))  # as was asked for
    assert _kept("c0 = 5e-1", table, *rows) == [(Decimal("0.50"), 0.5)]
    assert _kept("c1 = 0.35", table, *rows) == [(Decimal("0.35"), 0.35)]


@pytest.mark.parametrize("kind", _TYPES)
def test_a_cast_that_may_fail_on_a_row_is_refused_when_it_is_read(kind: str) -> None:
    table, taken = _table(kind), []
    for target in _CASTS:
        try:
            _kept(f"CAST(c0 AS {target}) IS NOT NULL AND c0 IS NOT NULL", table, _TYPES[kind])
            taken.append(target)
        except Invalid as refused:
            assert "column 'c0'" in refused.message or "not understood" in refused.message
    assert taken or kind == "decimal(38,38)"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamptz", "c0 >= TIMESTAMP '2026-01-01 00:00:00'"),
        ("timestamp", "c0 >= TIMESTAMPTZ '2026-01-01 00:00:00+00'"),
        ("string", "CAST(c0 AS INT) = 3"),
        ("decimal(12,2)", "CAST(c0 AS INT) = 10"),
        ("date", "c0 = 'soon'"),
        ("int64", "c0 = 'x'"),
        ("int64", "c0 = CAST('x' AS INT)"),
        ("bool", "c0 = 1"),
        ("string", "c0 = 1"),
        ("time", "c0 = '25:00'"),
    ],
)
def test_types_that_do_not_fit_are_refused_by_name(kind: str, text: str) -> None:
    with pytest.raises(Invalid):
        condition_text.parse(text, _table(kind))


def test_numbers_beyond_the_largest_float_are_not_infinity() -> None:
    table, rows = _table("float32"), [-math.inf, -1.0, 2.0**127, math.inf]
    assert _kept("c0 = 1e300", table, rows) == []
    assert _kept("c0 > 1e300", table, rows) == [(math.inf,)]
    assert _kept("c0 < 1e300", table, rows) == [(row,) for row in rows[:3]]
    assert _kept("c0 < -1e300", table, rows) == [(-math.inf,)]
    assert _kept("c0 IN (1e300, -1)", table, rows) == [(-1.0,)]


def test_texts_and_days_stand_for_times() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 12, tzinfo=UTC)]
    assert len(_kept("c0 >= DATE '2026-01-02'", _table("timestamptz"), moments)) == 1
    assert len(_kept("c0 >= '2026-01-02 12:00'", _table("timestamptz"), moments)) == 1
    days = [date(2026, 1, 1), date(2026, 1, 2)]
    assert len(_kept("c0 > TIMESTAMP '2026-01-01 12:00:00'", _table("date"), days)) == 1
    assert len(_kept("c0 <= TIMESTAMP '2026-01-01 12:00:00'", _table("date"), days)) == 1
    assert not _kept("c0 = TIMESTAMP '2026-01-01 12:00:00'", _table("date"), days)
    assert len(_kept("CAST(c0 AS DATE) = DATE '2026-01-02'", _table("timestamptz"), moments)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a BETWEEN SYMMETRIC 2 AND 0",
        "a NOT BETWEEN SYMMETRIC 2 AND 0",
        "a + 0 BETWEEN SYMMETRIC 2 AND 0",
        "round(a, 1, 2) = 1",
        "ceil(a, 1) = 1",
        "ceil(a TO DAY) = 1",
        "date_trunc('month', t, 'Europe/Berlin') = TIMESTAMP '2026-01-01'",
        "t > TIMESTAMP '2026-01-01' + INTERVAL '1' DAY TO HOUR",
        "t > TIMESTAMP '2026-01-01' + INTERVAL '1-2' YEAR TO MONTH",
        "TRY_CAST(s AS INT) = 1",
        "a IN l",
        "a IN (SELECT 1)",
        "abs(DISTINCT a) = 1",
        "abs(a) OVER () = 1",
        "abs(a) FILTER (WHERE a > 1) = 1",
        "coalesce(a, a IGNORE NULLS) = 1",
        "upper(s ORDER BY a) = 'A'",
        "s COLLATE nocase = 'A'",
        "s LIKE ANY ('a%', 'b')",
        "l[1:2] = 1",
        "left(s, 1, 2) = 'a'",
        "contains(s, 'a', 'b')",
    ],
)
def test_an_argument_that_no_reader_knows_is_refused(text: str) -> None:
    """The reader skipped such arguments and gave the answer of another condition."""
    fields = {"a": pa.int64(), "s": pa.string(), "t": pa.timestamp("us"), "l": pa.list_(pa.int64())}
    table = define("s.t", pa.schema(list(fields.items())))
    with pytest.raises(Invalid):
        condition_text.parse(text, table)
    condition_text.parse("a BETWEEN 0 AND 2 AND round(a, 1) = 1 AND date_trunc('month', t) IS NOT NULL", table)

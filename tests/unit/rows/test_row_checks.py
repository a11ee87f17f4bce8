"""Rules over batches: nulls as in SQL, types, renames, repeated values, conditions that cannot be computed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model.contract.rules import Rule
from lakestore.model.table import Table, define
from lakestore.rows.row_checks import KeptValues, RowChecks

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("word", pa.string()),
        ("n", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("flag", pa.bool_()),
    ]
)
TABLE = define("d.t", SCHEMA, primary_key=["id"])
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 0},
    {"id": 1, "word": "", "n": 0, "price": Decimal("0.00"), "ratio": 0.0, "day": dt.date(2020, 1, 1), "at": NOON},
    {
        "id": 2,
        "word": "äöü",
        "n": 9,
        "price": Decimal("9.99"),
        "ratio": float("nan"),
        "raw": b"abc",
        "tags": ["x", "y"],
    },
    {"id": 3, "word": "it's", "n": -3, "price": Decimal("-0.01"), "ratio": -1e300, "tags": [], "flag": True},
    {"id": 4, "word": "n/a", "n": 2**31 - 1, "price": Decimal("1000.00"), "ratio": 7.5, "day": dt.date(2031, 1, 1)},
]


def batch(rows: list[dict[str, Any]] = ROWS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def bad(kind: str, column: str, argument: Any = None, table: Table = TABLE) -> list[int]:
    rule = Rule("r", kind, (column,) if column else (), argument)
    found = RowChecks([rule], table).violations(batch())
    return found[0].rows.tolist() if found else []


@pytest.mark.parametrize(
    ("kind", "column", "argument", "rows"),
    [
        ("required", "word", None, [0]),
        ("missingValues", "word", ("", "n/a"), [0, 1, 4]),
        ("missingValues", "word", (), [0]),
        ("enum", "word", ("", "it's"), [2, 4]),
        ("enum", "n", (0, 9), [3, 4]),
        ("enum", "price", (0, 9.99, "1000"), [3]),
        ("enum", "flag", (False,), [3]),
        ("enum", "word", (), [1, 2, 3, 4]),
        ("pattern", "word", "^[a-z']+$", [1, 2, 4]),
        ("pattern", "word", "a", [1, 2, 3]),
        ("minLength", "word", 3, [1]),
        ("maxLength", "word", 3, [3]),
        ("maxLength", "raw", 2, [2]),
        ("minItems", "tags", 1, [3]),
        ("maxItems", "tags", 1, [2]),
        ("minimum", "n", 0, [3]),
        ("exclusiveMinimum", "n", 0, [1, 3]),
        ("maximum", "n", 9, [4]),
        ("exclusiveMaximum", "n", 9.5, [4]),
        ("minimum", "price", 0, [3]),
        ("maximum", "price", 9.99, [4]),
        ("maximum", "ratio", 100, [2]),
        ("minimum", "ratio", -1.5e10, [3]),
        ("minimum", "day", "2020-01-02", [1]),
        ("maximum", "at", "2026-01-02T11:00:00Z", [1]),
        ("multipleOf", "n", 9, [3, 4]),
        ("sql", "", "n < 0 OR word = 'n/a'", [3, 4]),
        ("sql", "", "price * 100 > 999", [4]),
        ("sql", "", "n + 1 > 9 AND length(word) = 3", [2, 4]),
    ],
)
def test_rules_name_the_rows_that_break_them(kind: str, column: str, argument: Any, rows: list[int]) -> None:
    assert bad(kind, column, argument) == rows


def test_conditions_mean_what_duckdb_says() -> None:
    rows = pa.Table.from_batches([batch()])
    oracle = duckdb.connect()
    oracle.execute("CREATE TABLE t AS SELECT * FROM rows")
    for where in ("n % 2 = 1", "NOT (n > 0)", "word LIKE '%a%' OR price > 5", "ratio > 1", "day IS NULL AND n > 1"):
        told = oracle.execute(f"SELECT id FROM t WHERE {where} ORDER BY id").fetchall()
        assert bad("sql", "", where) == [row[0] for row in told], where
    assert len(rows) == len(ROWS)


def test_several_rules_are_told_in_their_order_each_with_its_rows() -> None:
    checks = RowChecks(
        [Rule("b", "minimum", ("n",), 0), Rule("a", "required", ("word",)), Rule("c", "sql", (), "n > 100")], TABLE
    )
    found = checks.violations(batch())
    assert [(each.rule.name, each.rows.tolist()) for each in found] == [("b", [3]), ("a", [0]), ("c", [4])]
    assert checks.violations(batch().slice(1, 2)) == []
    assert checks.violations(batch().slice(0, 0)) == []


def test_a_row_on_which_a_condition_cannot_be_computed_breaks_the_rule() -> None:
    rows = [{"id": number, "n": number} for number in range(1, 9)]
    rows[5]["id"] = 2**62
    rule = Rule("r", "sql", (), "id * 4 < 0")
    found = RowChecks([rule, Rule("s", "minimum", ("n",), 2)], TABLE).violations(batch(rows))
    assert [(each.rule.name, each.rows.tolist()) for each in found] == [("r", [5]), ("s", [0])]


def test_a_rename_keeps_a_rule() -> None:
    renamed = define("d.t", pa.schema([pa.field("id", pa.int64()), ("amount", pa.int32())]), primary_key=["id"])
    checks = RowChecks([Rule("r", "sql", (), "n < 0"), Rule("u", "unique", ("n",))], renamed, {"n": "amount"})
    rows = pa.record_batch({"id": [1, 2, 3], "amount": pa.array([-1, 5, 5], pa.int32())})
    assert [(each.rule.name, each.rows.tolist()) for each in checks.violations(rows)] == [("r", [0]), ("u", [2])]
    assert checks.bad_value(checks.rules[0], rows, 0) == "amount = -1"


def test_repeated_values_are_of_other_keys_and_never_null() -> None:
    def repeated(rows: list[dict[str, Any]], columns: tuple[str, ...], table: Table) -> list[int]:
        found = RowChecks([Rule("u", "unique", columns)], table).violations(batch(rows))
        return found[0].rows.tolist() if found else []

    log = define("d.l", SCHEMA)
    rows: list[dict[str, Any]] = [
        {"id": 1, "word": "a"},
        {"id": 2, "word": "a"},
        {"id": 1, "word": "b"},
        {"id": 3},
        {"id": 4},
    ]
    assert repeated(rows, ("word",), log) == [1]
    assert repeated(rows, ("word",), TABLE) == [], "row 0 is replaced by row 2, which has the same key"
    assert repeated(rows[:2], ("word",), TABLE) == [1]
    assert repeated(rows, ("id",), TABLE) == [], "the key of a table holds this by itself"
    assert repeated(rows, ("id", "word"), TABLE) == []
    assert repeated(rows, ("id",), log) == [2]
    assert repeated([*rows, {"id": 2, "word": "a", "n": 1}], ("id", "word"), log) == [5]


def test_rows_that_are_not_stored_repeat_no_value() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "word": "a", "n": 1},
        {"id": 1, "word": "b", "n": -1},
        {"id": 2, "word": "a", "n": 1},
        {"id": 3, "word": "c", "n": -1},
        {"id": 4, "word": "c", "n": 1},
        {"id": 5, "word": "d", "n": 1},
        {"id": 6, "word": "d", "n": 1},
    ]
    for action, repeated in (("dead_letter", [2, 6]), ("count", [4, 6])):
        rules = [Rule("u", "unique", ("word",)), Rule("n", "minimum", ("n",), 0, action)]
        found = {each.rule.name: each.rows.tolist() for each in RowChecks(rules, TABLE).violations(batch(rows))}
        assert found == {"u": repeated, "n": [1, 3]}
    only = RowChecks([Rule("u", "unique", ("word",))], TABLE)
    assert [each.rows.tolist() for each in only.violations(batch(rows), gone=np.array([1, 5]))] == [[2, 4]]


@pytest.mark.parametrize("engine", ["first_row", "versioned(n)", "partial"])
def test_any_row_of_a_key_may_be_stored_where_the_last_one_does_not_win(engine: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "word": "a", "n": 2},
        {"id": 1, "word": "b", "n": 1},
        {"id": 2, "word": "a", "n": 1},
    ]
    again: list[dict[str, Any]] = [{"id": 1, "word": "a", "n": 1}, {"id": 1, "word": "a", "n": 2}, {"id": 2, "n": 1}]
    checks = RowChecks([Rule("u", "unique", ("word",))], define("d.t", SCHEMA, primary_key=["id"], merge=engine))
    assert [each.rows.tolist() for each in checks.violations(batch(rows))] == [[2]]
    assert checks.violations(batch(again)) == []


def test_zero_repeats_minus_zero() -> None:
    rows = [{"id": 1, "ratio": 0.0}, {"id": 2, "ratio": -0.0}, {"id": 3, "ratio": 1.0}]
    [found] = RowChecks([Rule("u", "unique", ("ratio",))], TABLE).violations(batch(rows))
    assert found.rows.tolist() == [1]


def test_a_new_column_with_the_old_name_of_a_renamed_one_is_another_column() -> None:
    both = define("d.t", pa.schema([("id", pa.int64()), ("n", pa.int32()), ("amount", pa.int32())]), primary_key=["id"])
    rows = pa.record_batch({"id": [1, 2], "n": pa.array([-1, 1], pa.int32()), "amount": pa.array([1, -1], pa.int32())})
    for rule in (Rule("r", "sql", (), "n < 0"), Rule("r", "minimum", ("n",), 0)):
        [found] = RowChecks([rule], both, {"n": "amount"}).violations(rows)
        assert found.rows.tolist() == [1]


def test_columns_that_a_row_does_not_bring_are_not_asked() -> None:
    rules = [Rule("w", "required", ("word",)), Rule("n", "required", ("n",))]
    checks = RowChecks(rules, TABLE)
    rows = batch([{"id": 1}, {"id": 2}])
    assert [each.rule.name for each in checks.violations(rows)] == ["w", "n"]
    assert [each.rule.name for each in checks.violations(rows, given=["id", "n"])] == ["n"]
    keeps = [KeptValues(frozenset(["word"]), np.array([True, False]))]
    found = {each.rule.name: each.rows.tolist() for each in checks.violations(rows, kept=keeps)}
    assert found == {"w": [1], "n": [0, 1]}
    both = RowChecks([Rule("b", "sql", (), "word IS NULL AND n IS NULL")], TABLE)
    keeps = [KeptValues(frozenset(["word"]), np.array([True, False]))]
    assert both.violations(batch([{"id": 1}, {"id": 2}]), kept=keeps)[0].rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "column", "argument", "said"),
    [
        ("minimum", "flag", 3, "cannot be checked at a write"),
        ("enum", "n", ("x",), "cannot be checked at a write"),
        ("pattern", "n", "x", "a pattern is for texts"),
        ("pattern", "word", "(?=x)", "cannot be checked at a write"),
        ("minLength", "n", 1, "minLength is not for a column of int32"),
        ("minLength", "word", -1, "is a number from 0 to 2^63"),
        ("maxLength", "word", 10**30, "is a number from 0 to 2^63"),
        ("multipleOf", "ratio", 2, "is for integers"),
        ("multipleOf", "price", 2, "is for integers"),
        ("multipleOf", "n", 0, "is a number above 0"),
        ("unique", "tags", None, "is not for a column of list"),
        ("sql", "", "__offset > 1", "has no value before the commit"),
        ("sql", "", "n > (SELECT 1)", "cannot be checked at a write"),
        ("sql", "", "absent > 1", "has no column 'absent'"),
        ("required", "absent", None, "has no column 'absent'"),
    ],
)
def test_a_rule_that_cannot_be_checked_is_refused(kind: str, column: str, argument: Any, said: str) -> None:
    with pytest.raises(Invalid, match="rule 'r'") as refused:
        bad(kind, column, argument)
    assert said in refused.value.message


def test_rules_over_several_columns_are_refused_where_a_row_brings_some_of_them() -> None:
    partial = define("d.p", SCHEMA, primary_key=["id"], merge="partial")
    for rule in (Rule("r", "sql", (), "n > 1 AND word = 'x'"), Rule("u", "unique", ("n", "word"))):
        with pytest.raises(Invalid, match="brings some of them"):
            RowChecks([rule], partial)
    RowChecks([Rule("r", "sql", (), "n > 1 AND id > 5")], partial)
    sums = define("d.s", SCHEMA, primary_key=["id"], merge={"aggregate": {"n": "sum", "word": "last"}})
    RowChecks([Rule("r", "required", ("word",))], sums)
    with pytest.raises(Invalid, match="is the sum of many rows"):
        RowChecks([Rule("r", "minimum", ("n",), 0)], sums)

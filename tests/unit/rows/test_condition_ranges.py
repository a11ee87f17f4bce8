"""Conditions against brute force: the rows that they keep, and what ranges of values say of runs of rows."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.model.table import define
from lakestore.rows import condition_text, pushdown
from lakestore.rows.ranges import Range, all_meet, may_meet
from tests.support.condition_cases import SCHEMA, VALUES, Case, Row, comparisons, conditions, narrowed, rows, rows_of
from tests.support.seeds import examples

TABLE = define("t.t", SCHEMA, primary_key=["id"])
WITHOUT_FLOATS = ("i", "s", "d", "t", "n", "day", "b", "bin")


@settings(max_examples=examples(60))
@given(rows(), conditions())
def test_a_condition_keeps_the_rows_for_which_it_is_true(made: list[Row], case: Case) -> None:
    kept = condition_text.parse(case.text, TABLE).apply(narrowed(made))
    assert kept.column("id").to_pylist() == [row["id"] for row in made if case.holds(row) is True], case.text


@pytest.mark.parametrize("name", VALUES)
def test_every_comparison_of_every_value(name: str) -> None:
    made = rows_of(name)
    batch = narrowed(made)
    for case in comparisons(name):
        kept = condition_text.parse(case.text, TABLE).apply(batch)
        assert kept.column("id").to_pylist() == [row["id"] for row in made if case.holds(row) is True], case.text


@pytest.mark.parametrize("name", WITHOUT_FLOATS)
def test_ranges_of_every_pair_of_values(name: str) -> None:
    runs = [[a, b] for a in rows_of(name) for b in rows_of(name)]
    ranges = [_range(run, name) for run in runs]
    decided = 0
    for case in comparisons(name):
        skip = condition_text.parse(case.text, TABLE).skip
        for run, range_ in zip(runs, ranges, strict=True):
            held = [case.holds(row) is True for row in run]
            known = dict.fromkeys([name], range_).__getitem__
            may, every = may_meet(skip, known), all_meet(skip, known)
            assert may or not any(held), case.text
            assert not every or all(held), case.text
            decided += every or not may
    assert decided > len(runs)


def _range(made: list[Row], name: str) -> Range:
    values = [row[name] for row in made if row[name] is not None]
    low, high = (min(values), max(values)) if values else (None, None)
    return Range(low, high, len(made) - len(values), len(made))


@settings(max_examples=examples(60))
@given(rows(4), st.one_of(conditions(), conditions(WITHOUT_FLOATS)), st.booleans())
def test_ranges_never_rule_out_a_row_nor_count_one_too_many(made: list[Row], case: Case, known: bool) -> None:
    skip = condition_text.parse(case.text, TABLE).skip
    held = [case.holds(row) is True for row in made]

    def ranges(name: str) -> Range:
        return _range(made, name) if known else Range()

    assert may_meet(skip, ranges) or not any(held), case.text
    assert not all_meet(skip, ranges) or all(held), case.text


@pytest.mark.parametrize(
    ("text", "low", "high", "may", "every"),
    [
        ("i = 3", 3, 3, True, True),
        ("i = 3", 4, 9, False, False),
        ("i < 3.5", 0, 3, True, True),
        ("i > 3.5", 0, 3, False, False),
        ("i IN (1, 2)", 1, 1, True, True),
        ("i IN (1, 9)", 2, 8, False, False),
        ("s LIKE 'ab%'", "ab", "abz", True, True),
        ("s LIKE 'ab%'", "b", "c", False, False),
        ("i <> 3", 3, 3, False, False),
        ("i <> 3", 4, 5, True, True),
        ("i = 1 OR i = 2", 5, 6, False, False),
        ("NOT (i = 1 OR i = 2)", 5, 6, True, True),
        ("i BETWEEN 1 AND 4", 2, 3, True, True),
    ],
)
def test_ranges_decide_what_they_can(text: str, low: Any, high: Any, may: bool, every: bool) -> None:
    skip = condition_text.parse(text, TABLE).skip
    range_ = Range(low, high, 0, 10)
    assert (may_meet(skip, lambda _: range_), all_meet(skip, lambda _: range_)) == (may, every)
    with_nulls = Range(low, high, 1, 10)
    assert (may_meet(skip, lambda _: with_nulls), all_meet(skip, lambda _: with_nulls)) == (may, False)
    assert not may_meet(skip, lambda _: Range(None, None, 10, 10))


def _pushed(expression: pc.Expression) -> str | None:
    found = pushdown.parse(expression, TABLE, SCHEMA)
    return None if found is None else found.text


def test_expressions_become_conditions() -> None:
    field, scalar = pc.field, pa.scalar
    assert _pushed(field("i") == scalar(5, pa.int32())) == '("i" = 5)'
    assert _pushed((field("id") > -3) & (field("s") < "b'c") & field("b")) is None
    assert _pushed((field("id") > -3) & (field("s") < "b'c")) == """(("id" > -3) AND ("s" < 'b''c'))"""
    assert _pushed(pc.is_nan(field("f"))) == "(\"f\" = CAST('nan' AS DOUBLE))"
    assert _pushed(field("f") >= math.inf) == "(\"f\" >= CAST('inf' AS DOUBLE))"
    assert _pushed(field("st", "x") <= scalar(-1, pa.int32())) == '("st"."x" <= -1)'
    assert _pushed(field("id").isin([1, 2])) == '("id" IN (1, 2))'
    assert _pushed(field("s").is_null() | (field("s") == "")) == """(("s" IS NULL) OR ("s" = ''))"""
    assert _pushed(field("d") == scalar(-150, pa.decimal128(12, 2))) == '("d" = -150.00)'
    assert _pushed(field("bin") == b"\x00a") == "(\"bin\" = CAST('\\x00\\x61' AS BLOB))"
    assert _pushed(field("t") > scalar(-1, SCHEMA.field("t").type)) == "(\"t\" > '1969-12-31 23:59:59.999999+00:00')"
    assert _pushed(field("day") != scalar(-1, pa.date32())) == "(\"day\" != '1969-12-31')"
    assert _pushed(pc.add(field("id"), 1) == 3) is None
    assert _pushed(field("id") == field("i")) is None


@given(st.binary(max_size=60))
def test_a_message_that_is_none_is_not_understood(data: bytes) -> None:
    class Expression:
        def to_substrait(self, schema: pa.Schema) -> bytes:
            return data

    found: Any = Expression()
    assert pushdown.parse(found, TABLE, SCHEMA) is None

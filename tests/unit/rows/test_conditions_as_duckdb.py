"""Conditions of every kind answer as DuckDB does on the same rows, or are refused by a sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Exhausted, Invalid
from lakestore.model.table import define
from lakestore.rows import condition_text, literals
from lakestore.rows.condition import UNKNOWN, Comparison
from lakestore.rows.expressions import texts
from lakestore.rows.ranges import Range, all_meet, may_meet
from tests.support import sql_cases

TABLE = define("t.t", sql_cases.SCHEMA, primary_key=["id"])
_ALLOWED = ("without rounding or failing", "does not hold exactly", "NULL equals nothing", "fails on a row")
"""Refusals on purpose, where DuckDB would round what it compares, or wrap around."""
CASES = 260


@pytest.fixture(scope="module")
def engine() -> Any:
    """DuckDB without the rewriting of conditions, which has mistakes of its own (date_trunc of a date)."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET disabled_optimizers = 'filter_pushdown,expression_rewriter'")
        yield connection


def _ours(text: str, batch: pa.RecordBatch) -> list[int]:
    kept: list[int] = condition_text.parse(text, TABLE).apply(batch).column("id").to_pylist()
    return kept


def _duckdb(engine: Any, text: str, batch: pa.RecordBatch) -> list[int]:
    engine.register("t", pa.Table.from_batches([batch]))
    return [number for (number,) in engine.execute(f"SELECT id FROM t WHERE {text} ORDER BY id").fetchall()]


def _compared(engine: Any, seeds: range) -> int:
    answered = 0
    for seed in seeds:
        random = Random(seed)
        batch = sql_cases.rows(random, 30)
        text = sql_cases.Conditions(random).one(random.choice([0, 1, 2]))
        try:
            wanted = _duckdb(engine, text, batch)
        except duckdb.Error:
            continue  # ours may be the exact answer, where a narrow type overflows there
        try:
            found = _ours(text, batch)
        except Invalid as refused:
            assert any(words in refused.message for words in _ALLOWED), (seed, text, refused.message)
            continue
        assert found == wanted, (seed, text)
        part = condition_text.parse(text, TABLE).mask(batch.slice(3, 20))
        assert [3 + int(place) for place in part.nonzero()[0]] == [number for number in wanted if 3 <= number < 23]
        _pruned(text, batch, set(found))
        answered += 1
    return answered


def _pruned(text: str, batch: pa.RecordBatch, kept: set[int]) -> None:
    """A run of one row is never passed over that the condition keeps, nor counted as kept if it is not."""
    skip = condition_text.parse(text, TABLE).skip
    for row in batch.slice(0, 6).to_pylist():

        def known(name: str, row: dict[str, Any] = row) -> Range:
            value = row[name]
            if isinstance(value, float | dict | list):
                return Range()
            return Range(value, value, int(value is None), 1)

        assert may_meet(skip, known) or row["id"] not in kept, (text, row)
        assert not all_meet(skip, known) or row["id"] in kept, (text, row)


def test_random_conditions_answer_as_duckdb(engine: Any) -> None:
    assert _compared(engine, range(CASES)) > CASES * 0.9


@pytest.mark.long
def test_many_random_conditions_answer_as_duckdb(engine: Any) -> None:
    assert _compared(engine, range(CASES, 6_000)) > 5_000


_ROWS = sql_cases.rows(Random(5), 200)


@pytest.mark.parametrize(
    "text",
    [
        "t > TIMESTAMPTZ '2025-02-01 00:00:00+00' - INTERVAL 1 DAY",
        "day >= date_trunc('month', DATE '2024-02-29')",
        "(u + small) % 2 = 0 AND big < 1000",
        "i > -5 AND i < 100000 AND i * i * i * i >= 1",
        "CASE WHEN big BETWEEN 1 AND 1000 THEN big * big * big > 0 ELSE false END",
        "coalesce(nullif(s, ''), s2) ILIKE 'A%'",
        "s NOT ILIKE '%B%'",
        "s LIKE 'a\\%b' OR s LIKE '%\\b'",
        "st['in']['z'] IS NOT DISTINCT FROM CAST('nan' AS DOUBLE)",
        "g BETWEEN 0.1 AND 1e0",
        "g IN (1.5, 1e300)",
        "d = '1.245'",
        "b = 'T'",
        "n - TIMESTAMP '2024-02-29' < INTERVAL '1 month'",
    ],
)
def test_conditions_as_people_type_them(engine: Any, text: str) -> None:
    found = _ours(text, _ROWS)
    assert found == _duckdb(engine, text, _ROWS)
    assert found


def test_a_part_that_may_fail_is_computed_for_the_rows_that_ask_for_it() -> None:
    assert _ours("big < 10 AND big > -10 AND big * big > 20", _ROWS)
    with pytest.raises(Invalid, match="fails on a row: overflow"):
        _ours("big * big > 20", _ROWS)


def test_texts_do_not_grow_without_bound() -> None:
    doubled = "s"
    for _ in range(14):
        doubled = f"replace({doubled}, 'a', 'aaaa')"
    grown = "replace(replace(replace(s, 'a', '{0}'), 'a', '{0}'), 'a', '{0}') = 'x'".format("a" * 900)
    for text in (f"length({doubled}) > 1", grown, " || ".join(["repeated"] * 3).replace("repeated", "s") + " = 'x'"):
        try:
            _ours(text, _ROWS)
        except Invalid as refused:
            assert "more than 67,108,864" in refused.message
        else:
            assert "||" in text
    with pytest.raises(Invalid, match="has no value"):
        condition_text.parse("s = " + grown.replace("(s,", "('a',").replace(" = 'x'", ""), TABLE)


def test_a_pattern_of_many_wildcards_is_refused_before_it_takes_long() -> None:
    """A `_` behind a `%` doubles what a matcher has to remember; elsewhere, or in moderation, it costs nothing."""
    table = define("a.b", pa.schema([("s", pa.string())]))
    for pattern in ("%a" + "_" * 33 + "c%", "%a_" * 33, "_%a" + "_" * 900 + "%"):
        for text in (f"s LIKE '{pattern}'", f"s NOT ILIKE '{pattern}'", f"s LIKE '{pattern}' ESCAPE '!'"):
            with pytest.raises(Invalid, match="at most 32 `_` behind its first `%`"):
                condition_text.parse(text, table)
    rows = pa.record_batch({"s": ["ab" * 50, None, "b" + "a" * 99]})
    for pattern in ("_" * 100, "a" + "_" * 99 + "%", "%" * 900 + "b", "%a" + "_" * 32 + "b%", "!_%" * 100):
        held = condition_text.parse(f"s LIKE '{pattern}' ESCAPE '!'", table).mask(rows)
        assert list(held) == [pattern != "!_%" * 100, False, pattern in ("_" * 100,)]


def test_a_condition_on_wide_rows_is_computed_in_slices_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(1)
    wide = ["".join(chance.choices("ab", k=16_384)) for _ in range(80)]
    batch = pa.record_batch({"s": wide})
    test = condition_text.parse("s LIKE '%a" + "_" * 32 + "c%'", define("a.b", batch.schema))
    monkeypatch.setattr(texts, "CONDITION_SECONDS", 0.02)
    monkeypatch.setattr(texts, "SLICE_BYTES", 100_000)
    with pytest.raises(Exhausted, match=r"takes more than 0\.02 s of 80 rows"):
        test.mask(batch)
    grown = "replace(replace(s, 'a', 'aaaaaaaa'), 'b', 'bbbbbbbb')"
    dear = condition_text.parse(f"{grown} LIKE '%a{'_' * 32}c%'", define("a.b", batch.schema))
    with pytest.raises(Invalid, match="more than 67,108,864"):
        dear.mask(pa.record_batch({"s": ["ab" * (1 << 20)]}))


@pytest.mark.parametrize("row_seconds", [0.0, 1e-6, 0.001, 0.005])
def test_slices_of_a_costly_condition_are_smaller(monkeypatch: pytest.MonkeyPatch, row_seconds: float) -> None:
    """The processor's clock is the test's: each row takes so long."""
    clock, sizes = [0.0], []

    def costly(batch: pa.RecordBatch) -> texts.Mask:
        sizes.append(batch.num_rows)
        clock[0] += row_seconds * batch.num_rows
        return np.asarray(batch.column(0).to_numpy() % 2 == 0)

    monkeypatch.setattr(texts, "time", SimpleNamespace(thread_time=lambda: clock[0]))
    batch = pa.record_batch({"n": np.arange(100_000)})
    test = texts.in_slices(costly)
    if row_seconds < 0.001:
        assert list(test(batch)) == [True, False] * 50_000
        assert max(sizes) == texts.SLICE_ROWS
        assert len(sizes) < 9
        return
    with pytest.raises(Exhausted, match="takes more than 20 s"):
        test(batch)
    longest = max(sizes[1:]) * row_seconds
    assert longest <= texts.SLICE_SECONDS
    assert clock[0] <= texts.CONDITION_SECONDS + texts.SLICE_SECONDS


def test_all_texts_of_a_condition_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One function stays below it by itself, sixty of them are in memory together."""
    monkeypatch.setattr(texts, "time", SimpleNamespace(thread_time=lambda: 0.0))  # slow slices would be smaller
    rows = pa.table({"s": ["a" * 500] * 1_000}, schema=pa.schema([("s", pa.string())]))
    table = define("a.b", rows.schema)
    grown = "replace(s, 'a', 'aaaa')"
    for text, fits in ((f"length({grown}) = 2000", True), (f"length(concat({', '.join([grown] * 60)})) > 0", False)):
        test = condition_text.parse(text, table)
        if fits:
            assert all(test.mask(batch).all() for batch in rows.to_batches())
            assert test.mask(pa.concat_tables([rows] * 50).combine_chunks().to_batches()[0]).all()
        else:
            with pytest.raises(Invalid, match="more than 67,108,864"):
                test.mask(rows.to_batches()[0])


def test_constants_are_folded_so_that_statistics_see_literals() -> None:
    found = condition_text.parse("day >= DATE '2026-01-31' - INTERVAL '1 month' AND i = 2 + 3 * 4", TABLE).skip
    assert "Comparison(column='i', sign='=', values=(14,))" in repr(found)
    assert "column='day'" in repr(found)
    assert condition_text.parse("i + 1 = 2", TABLE).skip is UNKNOWN
    assert isinstance(condition_text.parse("d = '1.5'", TABLE).skip, Comparison)


def test_the_clock_is_fixed_once() -> None:
    at = datetime(2026, 11, 22, 18, 0, 0, 5, tzinfo=UTC)
    fixed = literals.fixed("t < now() - INTERVAL 1 DAY AND day = current_date AND s <> 'now()' AND x.now = 1", at)
    assert fixed == (
        "t < TIMESTAMPTZ '2026-11-22 18:00:00.000005+00' - INTERVAL 1 DAY AND day = DATE '2026-11-22'"
        " AND s <> 'now()' AND x.now = 1"
    )
    with pytest.raises(Invalid, match="name a time"):
        condition_text.parse("t < now()", TABLE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bigg > 1", "did you mean big?"),
        ("lenght(s) > 1", "did you mean length?"),
        ("st['zz'] = 1", "no field 'zz'"),
        ("CAST(s AS INT) = 1", "may fail on a row"),
        ("s + 1 = 2", "calculates with a string"),
        ("s LIKE 'a$' ESCAPE '$'", "ends with its ESCAPE"),
        ("i", "cannot be"),
        ("i + 1", "no condition"),
        ("sum(i) > 1", "names no function"),
        ("coalesce(i, s) = 1", "cast one of them"),
        ("i // 1.5 = 2", "takes integers"),
        ("day + day = day", "INTERVAL"),
        ("n > INTERVAL 'soon'", "no interval"),
    ],
)
def test_refusals_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        condition_text.parse(text, TABLE)
    assert words in refused.value.message or words == "cannot be"


def test_a_uuid_and_bytes_are_read_from_text() -> None:
    table = define("t.u", pa.schema([("id", pa.int64()), ("u", pa.binary(16))]))
    one = bytes(range(16))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array([one, b"x" * 16], pa.binary(16))], schema=table.schema
    )
    for text in ("u = '00010203-0405-0607-0809-0a0b0c0d0e0f'", "u = UUID '00010203-0405-0607-0809-0a0b0c0d0e0f'"):
        assert condition_text.parse(text, table).apply(batch).column("id").to_pylist() == [1]
    assert condition_text.parse("u IN ('xxxxxxxxxxxxxxxx')", table).apply(batch).column("id").to_pylist() == [2]

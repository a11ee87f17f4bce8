"""Filtered change streams are the changelog of the filtered table: their fold is the scan with the same condition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.model.columns import Column
from lakestore.rows.condition_text import CHARS_MAX
from lakestore_server.read.parsed_conditions import CHARS_KEPT, ParsedConditions
from tests.support.folding import Fold, values
from tests.support.seeds import examples

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.string())])
CONDITIONS = ("n > 2", "n <> 2", "NOT (n > 2)", "n IS NULL OR s = 'a'", "s LIKE 'a%' AND n < 4", "id > 2", "TRUE")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ls.Lake]:
    limits = Limits(changes_batch_rows=4, read_batch_bytes=200, fetch_batch_rows=3)
    with ls.open(tmp_path_factory.mktemp("lake") / "data", limits=limits) as opened:
        yield opened


def fresh(opened: ls.Lake, *, buckets: int = 2, **options: Any) -> ls.Table:
    """A table of its own."""
    return opened.create_table(f"t.t{next(NUMBERS)}", SCHEMA, primary_key=["id"], buckets=buckets, **options)


rows_ = st.fixed_dictionaries(
    {
        "id": st.integers(0, 4),
        "n": st.one_of(st.none(), st.integers(0, 5)),
        "s": st.one_of(st.none(), st.sampled_from(["a", "ab", "b"])),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(rows_, min_size=1, max_size=6)),
        st.tuples(
            st.just("delete"), st.lists(st.fixed_dictionaries({"id": st.integers(0, 4)}), min_size=1, max_size=3)
        ),
    ),
    min_size=1,
    max_size=12,
)


def scanned(table: ls.Table, where: str | None, at: str) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in table.scan(where=where, at=at).to_arrow().to_pylist()}


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=steps, where=st.sampled_from(CONDITIONS), images=st.booleans(), snapshot_at=st.integers(0, 11))
def test_the_fold_of_filtered_changes_is_the_filtered_scan_at_every_token(
    lake: ls.Lake, history: list[tuple[str, list[dict[str, Any]]]], where: str, images: bool, snapshot_at: int
) -> None:
    table = fresh(lake)
    tokens, late = [], None
    for i, (kind, rows) in enumerate(history):
        tokens.append(getattr(table, kind)(rows))
        if i == snapshot_at:
            late = table.changes("snapshot", where=where, until=tokens[-1], before_images=images)
            late_fold = Fold(images=images, whole_deletes=True).add(late)
            assert late_fold.rows == scanned(table, where, tokens[-1])
    fold, start = Fold(images=images, whole_deletes=True), "earliest"
    for token in tokens:
        fold.add(table.changes(start, where=where, until=token, before_images=images))
        assert fold.rows == scanned(table, where, token)
        start = token
    if late is not None:
        late_fold.add(table.changes(late.token, where=where, until="now", before_images=images))
        assert late_fold.rows == scanned(table, where, tokens[-1])


def shown(stream: Any) -> list[tuple[str, int, int | None]]:
    return [(row["__change"], row["id"], row["n"]) for batch in stream for row in batch.to_pylist()]


def test_a_row_comes_to_match_changes_and_ceases_to(lake: ls.Lake) -> None:
    table = fresh(lake, buckets=1)
    for n in (1, 5, 6, None, 7):
        table.upsert([{"id": 1, "n": n, "s": "x"}])
    table.delete([{"id": 1}])
    table.upsert([{"id": 1, "n": 8, "s": "x"}])
    plain = [("+I", 1, 5), ("+U", 1, 6), ("-D", 1, 6), ("+I", 1, 7), ("-D", 1, 7), ("+I", 1, 8)]
    assert shown(table.changes(where="n > 2", until="now")) == plain
    with_images = shown(table.changes(where="n > 2", until="now", before_images=True))
    assert with_images == [*plain[:1], ("-U", 1, 5), *plain[1:]]


def test_the_condition_may_name_what_is_not_shown(lake: ls.Lake) -> None:
    table = fresh(lake, buckets=1)
    table.upsert([{"id": i, "n": i, "s": "x"} for i in range(5)])
    found = [row for batch in table.changes(columns=["s"], where="n = 3", until="now") for row in batch.to_pylist()]
    assert [values(row) for row in found] == [{"s": "x"}]
    log = lake.create_table(f"t.t{next(NUMBERS)}", SCHEMA, buckets=1)
    log.append([{"id": i, "n": i, "s": "x"} for i in range(5)])
    for start in ("earliest", "snapshot"):
        rows = [
            r for batch in log.changes(start, columns=["id"], where="n > 2", until="now") for r in batch.to_pylist()
        ]
        assert [(row["__change"], row["id"], row["__offset"]) for row in rows] == [("+I", 3, 3), ("+I", 4, 4)]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("m > 1", "no column 'm'"),
        ("n > 'x'", "'x'"),
        ("n >", "not a whole condition"),
        ("__offset > 3", "__offset cannot stand"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_refused_at_open(lake: ls.Lake, where: str, says: str) -> None:
    table = fresh(lake)
    with pytest.raises(Invalid, match=says):
        next(table.changes(where=where))


def test_a_condition_follows_a_column_that_is_renamed_and_widened(lake: ls.Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    table = lake.create_table(f"t.t{next(NUMBERS)}", schema, primary_key=["id"], buckets=1)
    table.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 5}])
    stream = table.changes(where="n > 2")
    assert [row["id"] for row in next(stream).to_pylist()] == [2]
    table.alter(rename={"n": "m"}, widen={"m": pa.int64()})
    table.upsert([{"id": 1, "m": 1 << 40}, {"id": 2, "m": 0}])
    rows = next(stream).to_pylist()
    assert [(row["__change"], row["id"], row["m"]) for row in rows] == [("+I", 1, 1 << 40), ("-D", 2, 5)]
    for name in ("n", "m"):
        again = table.changes(stream.token, where=f"{name} > 2", until="now")
        assert list(again) == [], "who opens it again may use the old name as well"
    stream.close()


def test_a_column_that_is_dropped_ends_the_stream_with_a_reason(lake: ls.Lake) -> None:
    table = fresh(lake, buckets=1)
    table.upsert([{"id": 1, "n": 3, "s": "x"}])
    stream = table.changes(where="n > 2")
    next(stream)
    table.alter(drop=["n"])
    table.upsert([{"id": 1, "s": "y"}])
    with pytest.raises(Invalid, match="column 'n' of the stream's condition was dropped"):
        next(stream)
    with pytest.raises(Invalid, match="was dropped"):
        next(table.changes(where="n > 2"))


def test_rows_older_than_a_column_show_its_initial_value(lake: ls.Lake) -> None:
    table = fresh(lake, buckets=1, lake={"format_version": 3})
    table.upsert([{"id": 1, "n": 3, "s": "x"}])
    table.alter(add={"c": pa.int64()}, default={"c": 7})
    table.upsert([{"id": 2, "n": 3, "s": "x", "c": 8}])
    fold = Fold(images=False, whole_deletes=True).add(table.changes(where="c = 7", until="now", columns=["id"]))
    assert set(fold.rows) == {1}


def test_conditions_that_are_kept_parsed_are_bounded_by_number_and_by_length() -> None:
    columns = (Column(1, "s", "string"),)
    parsed = ParsedConditions(most=3, chars_max=1_000)
    texts = [f"s = '{i}'" for i in range(5)]
    for text in texts:
        assert parsed.filter_of(text, "t", columns) is parsed.filter_of(text, "t", columns)
    assert parsed.chars == sum(map(len, texts[-3:]))
    long = "s = '" + "x" * 600 + "'"
    kept = parsed.filter_of(texts[4], "t", columns)
    parsed.filter_of(long, "t", columns)
    assert parsed.filter_of(texts[4], "t", columns) is kept
    parsed.filter_of(long.replace("x", "y"), "t", columns)
    assert parsed.chars == len(long) + len(texts[4])
    most = "s = '" + "x" * 2_000 + "'"
    assert parsed.filter_of(most, "t", columns) is parsed.filter_of(most, "t", columns)
    assert parsed.chars == len(most)
    assert CHARS_KEPT > CHARS_MAX


def test_a_condition_on_several_tables_must_fit_each(lake: ls.Lake) -> None:
    one, two = fresh(lake), fresh(lake)
    other = lake.create_table(f"t.t{next(NUMBERS)}", pa.schema([("id", pa.int64())]), primary_key=["id"])
    for table in (one, two):
        table.upsert([{"id": i, "n": i, "s": ""} for i in range(4)])
    found = [
        (b.name, r["id"]) for b in lake.changes([one.name, two.name], where="n > 2", until="now") for r in b.to_pylist()
    ]
    assert sorted(found) == sorted([(one.name, 3), (two.name, 3)])
    with pytest.raises(Invalid, match=f"{other.name} has no column 'n'"):
        next(lake.changes([one.name, other.name], where="n > 2"))

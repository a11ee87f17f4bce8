"""A large backlog reaches the lake in several commits, and the lake is a prefix of the table after each of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, flush
from lakestore_tiering.flush import FlushResult
from tests.lake.tiering_tables import NAME, create, in_lake, in_table, items, keys

pytestmark = pytest.mark.spark
Rows = list[tuple[object, ...]]


def written(table: ls.Table) -> list[Rows]:
    """Updates, deletes and new rows in many commits; the rows after each of them."""
    states: list[Rows] = []
    for step in range(10):
        table.upsert(items(range(step * 5, step * 5 + 10), f"{step}-"))
        states.append(in_table(table))
        table.delete(keys(range(step, step + 2)))
        states.append(in_table(table))
    return states


@pytest.mark.parametrize("version", [2, 3])
def test_each_commit_of_a_backlog_is_a_prefix(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(flush, "CHANGES_MAX", 30)
    table = create(lake, version=version)
    states = written(table)
    seen: list[Rows] = []
    with Tierer(lake, spark) as tierer:
        tierer.acquire()
        while result := flush.flush(tierer.tools, NAME):
            seen.append(in_lake(spark))
            assert 0 < result.changes <= 30
            assert seen[-1] in states
            assert verify(lake.transport, NAME).same
            if len(seen) == 2:  # the columns change while rows of the older version are still left
                table = table.alter(add={"note": pa.string()})
                table.upsert(pa.table({"id": [900], "text": ["new"], "note": ["n"]}))
                states.append(in_table(table))
    assert len(seen) == 5
    assert seen[-1] == in_table(table)
    numbers = [states.index(each) for each in seen]
    assert numbers == sorted(numbers)


def test_a_commit_larger_than_a_round_is_one_round(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "CHANGES_MAX", 30)
    table = create(lake, keyed=False)
    for start in (0, 100, 200):
        table.append(items(range(start, start + 100)))
    with Tierer(lake, spark) as tierer:
        tierer.acquire()
        first = flush.flush(tierer.tools, NAME)
        assert isinstance(first, FlushResult)
        assert (first.rows, first.changes, first.changes_left) == (100, 100, 200)
        outcome = tierer.run_once(compaction=False)[0].flushed
        assert outcome is not None
        assert (outcome.rows, outcome.changes, outcome.changes_left) == (200, 200, 0)
    assert in_lake(spark) == in_table(table)

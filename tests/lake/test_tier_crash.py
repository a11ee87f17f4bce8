"""A tierer that dies at any step, or is replaced: the next one goes on from what is in the lake."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore_tiering import Tierer
from tests.lake.tiering_tables import create, in_lake, in_table, items, keys, refs

pytestmark = pytest.mark.spark

FLUSH_POINTS = ["staged", "deaths-written", "before-commit", "after-commit"]
COMPACT_POINTS = ["compact-forked", "compact-rewritten", "compact-before-landing", "compact-landed"]


class Died(BaseException):
    """The process is gone: nothing of it runs any more."""


def at(wanted: str) -> Callable[[str], None]:
    def crash(point: str) -> None:
        if point == wanted:
            raise Died(point)

    return crash


@pytest.mark.parametrize("point", [*FLUSH_POINTS, *COMPACT_POINTS])
def test_next_tierer_goes_on_after_a_crash(lake: ls.Lake, spark: SparkSession, point: str) -> None:
    table = create(lake)
    table.upsert(items(range(30)))
    with Tierer(lake, spark) as first:
        first.run_once(compaction=False)
    table.upsert(items(range(20, 40), "b"))
    table.delete(keys(range(5)))
    crashing = Tierer(lake, spark, holder="one", crash=at(point))
    with pytest.raises(Died):
        crashing.run_once(compaction=True)
    table.upsert(items(range(35, 45), "c"))
    with Tierer(lake, spark, holder="one") as second:
        second.run_once(compaction=True)
        assert in_lake(spark) == in_table(table)
        assert refs(spark) == {"main", "lakestore-tier"}


def test_replaced_tierer_is_fenced(lake: ls.Lake, spark: SparkSession) -> None:
    table = create(lake)
    table.upsert(items(range(10)))

    def another(point: str) -> None:
        if point == "before-commit":
            with Tierer(lake, spark, holder="one") as newer:
                newer.run_once(compaction=False)

    stale = Tierer(lake, spark, holder="one", crash=another)
    with pytest.raises(ls.Fenced):
        stale.run_once()
    with pytest.raises(ls.Fenced):
        stale.run_once()
    assert in_lake(spark) == in_table(table)


def test_second_holder_waits(lake: ls.Lake, spark: SparkSession) -> None:
    create(lake)
    with Tierer(lake, spark, holder="one") as first, Tierer(lake, spark, holder="two") as second:
        epoch = first.acquire()
        with pytest.raises(ls.Unavailable, match="one is the tierer"):
            second.acquire()
        first.close()
        assert second.acquire() > epoch


def test_commit_without_an_answer_is_found_in_the_lake(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakestore_tiering import iceberg_java

    table = create(lake)
    table.upsert(items(range(10)))
    real = iceberg_java.Iceberg.land

    def lost(self: iceberg_java.Iceberg, transaction, update, record, branch, source, seconds):  # type: ignore[no-untyped-def]
        real(self, transaction, update, record, branch, source, seconds)
        self.jvm.java.lang.Integer.parseInt("no answer")

    with Tierer(lake, spark) as tierer:
        monkeypatch.setattr(iceberg_java.Iceberg, "land", lost)
        (outcome,) = tierer.run_once(compaction=False)
        assert outcome.flushed is not None
        monkeypatch.undo()
        (outcome,) = tierer.run_once(compaction=False)
        assert outcome.flushed is None
        assert in_lake(spark) == in_table(table)

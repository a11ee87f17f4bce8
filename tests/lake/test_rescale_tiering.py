"""A keyed table in the lake is rescaled while it is tiered: Spark reads the same rows by its name before and after."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_tiering import Tierer
from tests.lake.tiering_tables import NAME, create, in_lake, in_table, items, keys
from tests.support.waiting import until

pytestmark = pytest.mark.spark


def test_a_round_of_the_copy_lets_it_take_the_place(lake: ls.Lake, spark: SparkSession) -> None:
    table = create(lake)
    with Tierer(lake, spark) as tierer:
        table.upsert(items(range(2_000)))
        table.delete(keys(range(10)))
        tierer.run_once(NAME, compaction=False)
        before = in_lake(spark)
        table.upsert(items(range(500, 600), "b"))
        table.rescale(5, wait=False)

        def waits() -> bool:
            progress = table.rescale_progress
            return progress is not None and progress.waits == "lake"

        until(waits, "the copy with all rows")
        assert in_lake(spark) == before, "by name, the lake has the old table"
        tierer.run_once(f"{NAME}__rescale", compaction=False)
        until(lambda: table.rescale_progress is None, "the swap")
        table = lake.table(NAME)
        assert table.definition.buckets == 5
        assert in_lake(spark) == in_table(table)
        table.upsert(items(range(550, 650), "c"))
        table.delete(keys(range(20)))
        (outcome,) = tierer.run_once(NAME, compaction=False)
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == 110
        assert in_lake(spark) == in_table(table)
    assert verify(lake.transport, NAME).same

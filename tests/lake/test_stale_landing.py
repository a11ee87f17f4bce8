"""A compaction that lands after main moved on: refused, for it does not know which rows died meanwhile."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, compact
from lakestore_tiering.flush import flush
from tests.lake.tiering_tables import NAME, create, in_lake, in_table, items, keys, refs

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("deaths", "by_another"),
    [
        (True, False),
        (False, True),
        pytest.param(True, True, marks=pytest.mark.long),
        pytest.param(False, False, marks=pytest.mark.long),
    ],
)
def test_a_landing_after_a_flush_is_refused(
    lake: ls.Lake, spark: SparkSession, version: int, deaths: bool, by_another: bool
) -> None:
    table = create(lake, version=version)

    def late(point: str) -> None:
        if point != "compact-before-landing":
            return
        if deaths:
            table.delete(keys(range(20, 30)))
        table.upsert(items(range(100, 110)))
        if by_another:
            with Tierer(lake, spark, holder="one") as second:
                second.run_once(compaction=False)
        else:
            flush(tierer.tools, NAME)

    with Tierer(lake, spark, holder="one", crash=late) as tierer:
        for step in range(3):
            table.upsert(items(range(step * 10, step * 10 + 20), f"v{step}-"))
            tierer.run_once(compaction=False)
        table.delete(keys(range(5)))
        started = compact.fork(tierer.tools, NAME, force=True)
        assert started is not None
        tierer.run_once(compaction=False)
        compact.rewrite(tierer.tools, started)
        with pytest.raises((ls.Conflict, ls.Fenced)):
            compact.land(tierer.tools, started)
    assert by_another or refs(spark) == {"main", "lakestore-tier"}
    assert in_lake(spark) == in_table(table)
    with Tierer(lake, spark) as third:
        third.run_once(compaction=True)
    assert in_lake(spark) == in_table(table)
    assert refs(spark) == {"main", "lakestore-tier"}
    verified = verify(lake.transport, NAME)
    assert verified.same, verified.problems()

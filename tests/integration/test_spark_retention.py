"""Real rounds and a log that gives up what they brought into the lake: Spark, Arrow and streams read on exactly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.errors import PositionExpired
from lakestore.server.main import Server
from lakestore.spark import SparkLake
from lakestore.tiering import Tierer
from lakestore.verify import verify
from tests.integration.tiering_tables import NAME, SCHEMA, in_lake, in_table, items


def in_spark(lake: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in lake.sql(f"SELECT id, text FROM {NAME}").collect())


def expected(end: int) -> list[tuple[int, str]]:
    return [(i, f"a{i}") for i in range(end)]


def test_union_reads_over_a_log_that_retention_has_cut(
    server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    table = lake.create_table(NAME, SCHEMA, buckets=2, retention={"bytes": 1})
    before = table.append(items(range(100)))
    server.retention.run_once()
    assert [row["id"] for batch in table.changes(until="now") for row in batch.to_pylist()] == list(range(100))
    with Tierer(lake, spark) as tierer:
        tierer.run_once(NAME, compaction=False)
        between = table.append(items(range(100, 150)))
        held = table.changes(between, subscription="holder", until="now")
        assert list(held) == []
        moment = datetime.now(UTC)
        table.append(items(range(150, 200)))
        tierer.run_once(NAME, compaction=False)
    table.append(items(range(200, 230)))
    server.retention.run_once()
    state = server.engine.view.named(NAME)
    assert sum(state.starts()) == 150
    assert in_lake(spark) == expected(200)
    assert in_table(table) == in_spark(spark_lake) == expected(230)
    assert in_spark(spark_lake.at(between)) == in_spark(spark_lake.at(moment)) == expected(150)
    assert table.scan(at=between).count() == 150
    with pytest.raises(PositionExpired):
        spark_lake.at(before).table(NAME)
    rows = [row["id"] for batch in table.changes("snapshot", until="now") for row in batch.to_pylist()]
    assert sorted(rows) == list(range(230))
    found = verify(lake.transport, NAME)
    assert found.same, found.problems()

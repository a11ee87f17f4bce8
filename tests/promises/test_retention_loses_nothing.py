"""Real rounds and a log that gives up what they brought into the lake: Spark, Arrow and streams read on exactly."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.errors import PositionExpired
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.lake.tiering_tables import NAME, SCHEMA, in_lake, in_table, items, keys
from tests.support.folding import Fold
from tests.support.log_start import compact
from tests.support.waiting import until

pytestmark = pytest.mark.spark


def in_spark(lake: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in lake.sql(f"SELECT id, text FROM {NAME}").collect())


def retain(server: Server) -> None:
    """Cut the log once the releases of all reads have come, for which no reader waits."""
    until(lambda: not server.sources.leases.count, "the releases")
    server.retention.run_once()


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
    retain(server)
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


def status(lake: ls.Lake) -> dict[str, Any]:
    """What the server says of the table."""
    told: dict[str, Any] = json.loads(lake.transport.status(pb.StatusRequest(tables=[NAME])).status)["tables"][0]
    return told


def test_the_tierer_down_for_longer_than_retention(
    server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    """Of a primary-key table nothing goes that the lake has not, and then all that is dead; no reader sees it."""
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, retention={"bytes": 1})
    held = []
    for n in range(4):
        table.upsert(items(range(60), f"n{n}-"))
        table.delete(keys(range(n * 10, n * 10 + 5)))
        server.upkeep.checkpoint()
        server.retention.run_once()
        assert sum(server.engine.view.named(NAME).starts()) == 0
        assert status(lake)["held_by"] == ["lake"]
        held.append(status(lake)["held_bytes"])
    assert held == sorted(set(held)), "it grows"
    live = [(i, f"n3-{i}") for i in range(60) if i not in range(30, 35)]
    assert in_table(table) == in_spark(spark_lake) == live
    with Tierer(lake, spark) as tierer:
        tierer.run_once(NAME, compaction=False)
    retain(server)
    compact(server)
    state = server.engine.view.named(NAME)
    assert state.starts() == tuple(log.head for log in state.logs)
    assert status(lake)["stored_rows"] == len(live), "only what lives is left"
    assert in_lake(spark) == in_table(table) == in_spark(spark_lake) == live
    table.upsert(items(range(20), "hot-"))
    table.delete(keys(range(50, 60)))
    server.retention.run_once()
    assert "lake" in status(lake)["held_by"]
    live = [(i, f"hot-{i}" if i < 20 else f"n3-{i}") for i in range(50) if i not in range(30, 35)]
    assert in_table(table) == in_spark(spark_lake) == live
    images = [row for batch in table.changes(until="now", before_images=True) for row in batch.to_pylist()]
    gone = sorted(row["text"] for row in images if row["__change"] == "-D")
    assert gone == [f"n3-{i}" for i in range(50, 60)]
    fold = Fold().add(table.changes("snapshot", until="now", before_images=True)).rows
    assert sorted((row["id"], row["text"]) for row in fold.values()) == live
    found = verify(lake.transport, NAME)
    assert found.same, found.problems()

"""Writing from Spark: each job and each micro-batch is one commit, and happens once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody names it)

import lakestore as ls
from lakestore_server.main import Server

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())])


@pytest.fixture
def lake(server: Server) -> Iterator[ls.Lake]:
    with ls.connect(server.about["grpc"]) as lake:
        lake.create_table("s.log", SCHEMA, buckets=2)
        lake.create_table("s.keyed", SCHEMA, primary_key=["id"], buckets=2)
        yield lake


def held(lake: ls.Lake, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.table(name).scan().to_arrow().to_pylist())


def numbers(spark: SparkSession, first: int, last: int, parts: int = 3) -> DataFrame:
    rows = spark.range(first, last, 1, parts)
    return rows.select("id", (F.col("id") * 2).alias("v"), F.col("id").cast("string").alias("s"))


def expected(first: int, last: int) -> list[tuple[Any, ...]]:
    return [(i, i * 2, str(i)) for i in range(first, last)]


def written(rows: DataFrame, server: Server, table: str, **options: str) -> None:
    """One job, which is one commit."""
    before = server.engine.view.lsn
    writer = rows.write.format("lakestore").mode("append").options(server=server.about["grpc"], **options)
    writer.option("table", table).save()
    assert server.engine.view.lsn == before + 1


def streamed(rows: DataFrame, server: Server, checkpoint: Path, table: str) -> None:
    """A query that takes what there is."""
    writer = rows.writeStream.format("lakestore").option("checkpointLocation", str(checkpoint))
    writer = writer.options(server=server.about["grpc"], table=table)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.timeout(600)
def test_jobs_streams_and_a_chain_of_both_copy_a_table_exactly(
    spark: SparkSession, server: Server, lake: ls.Lake, tmp_path: Path
) -> None:
    """One test for all that needs Spark itself: its processes take seconds to start."""
    written(numbers(spark, 0, 50), server, "s.keyed")
    changed = numbers(spark, 40, 60).select("id", F.lit(-1).cast("long").alias("v"), "s")
    written(changed, server, "s.keyed", mode="upsert")
    written(numbers(spark, 30, 45), server, "s.keyed", mode="delete")
    assert held(lake, "s.keyed") == [*expected(0, 30), *((i, -1, str(i)) for i in range(45, 60))]

    lake.create_table("s.copy", SCHEMA, primary_key=["id"], buckets=3)
    reader = spark.readStream.format("lakestore").options(server=server.about["grpc"], table="s.keyed")
    changes = reader.option("startingOffsets", "earliest").option("beforeImages", "true").load()
    streamed(changes, server, tmp_path / "chain", "s.copy")
    assert held(lake, "s.copy") == held(lake, "s.keyed")
    lake.table("s.keyed").delete([{"id": 0}, {"id": 59}])
    lake.table("s.keyed").upsert([{"id": 0, "v": 7, "s": "back"}])
    streamed(changes, server, tmp_path / "chain", "s.copy")
    assert held(lake, "s.copy") == held(lake, "s.keyed")
    (register,) = lake.list_registers("spark/")
    shutil.rmtree(tmp_path / "chain" / "commits")  # the driver died before Spark wrote that the batch was done
    before = server.engine.view.lsn
    streamed(changes, server, tmp_path / "chain", "s.copy")
    (again,) = lake.list_registers("spark/")
    assert (again.name, held(lake, "s.copy")) == (register.name, held(lake, "s.keyed"))
    assert server.engine.view.lsn - before <= 4
    assert server.engine.parts.count == 0

"""Writing from Spark: each job and each micro-batch is one commit, and happens once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody names it)

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from tests.support.process import ServerProcess

pytestmark = pytest.mark.spark

PEAK_BYTES = 900 << 20
"""Two commits of 60 MB of rows each, of which the second replaces the first; the rows stay in memory once."""
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
    """One test for all that needs Spark itself, whose processes take seconds to start: about 20 s on quiet cores."""
    lake.table("s.keyed").upsert([{"id": i, "v": 0, "s": ""} for i in range(60)])
    written(numbers(spark, 0, 50), server, "s.keyed")
    assert held(lake, "s.keyed") == [*expected(0, 50), *((i, 0, "") for i in range(50, 60))]

    lake.create_table("s.copy", SCHEMA, primary_key=["id"], buckets=3)
    reader = spark.readStream.format("lakestore").options(server=server.about["grpc"], table="s.keyed")
    changes = reader.option("startingOffsets", "earliest").option("beforeImages", "true").load()
    lake.table("s.keyed").delete([{"id": 0}, {"id": 59}])
    lake.table("s.keyed").upsert([{"id": 0, "v": 7, "s": "back"}])
    streamed(changes, server, tmp_path / "chain", "s.copy")
    assert held(lake, "s.copy") == held(lake, "s.keyed")

    shutil.rmtree(tmp_path / "chain" / "commits")  # the driver died before Spark wrote that the batch was done
    first = [batch.token for batch in lake.table("s.copy").changes("earliest", until="now")]
    streamed(changes, server, tmp_path / "chain", "s.copy")
    assert [batch for batch in lake.table("s.copy").changes(first[-1], until="now") if len(batch.to_arrow())] == []
    assert (len(lake.list_registers("spark/")), server.engine.parts.count) == (1, 0)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_millions_of_rows_are_one_commit_in_bounded_memory(spark: SparkSession, tmp_path: Path) -> None:
    rows = 2_000_000
    with ServerProcess(tmp_path / "big") as running, ls.connect(running.address) as lake:
        lake.create_table("s.big", SCHEMA, primary_key=["id"], buckets=4)
        before = lake.transport.head(pb.HeadRequest()).lsn
        for _ in range(2):  # new rows, then rows that replace others
            began = time.monotonic()
            writer = numbers(spark, 0, rows, 4).write.format("lakestore").mode("append")
            writer.options(server=running.address, table="s.big").save()
            print(f"{rows / (time.monotonic() - began):,.0f} rows/s")
        assert lake.transport.head(pb.HeadRequest()).lsn == before + 2
        found = lake.sql("SELECT count(*) AS n, sum(v) AS v, count(DISTINCT s) AS s FROM s.big").to_arrow().to_pylist()
        assert found == [{"n": rows, "v": rows * (rows - 1), "s": rows}]
        peak = Path(f"/proc/{running.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        print(f"peak of the server: {int(peak) >> 10} MB")
        assert int(peak) << 10 < PEAK_BYTES

"""The data source in Spark itself: reads, tables of Spark's catalog, streams; the rest is tested without a JVM.

Every type is read in `test_types_lake.py`; `tests/unit/source` has every change once, filters, alterations, leases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import lakestore as ls
from lakestore_server.main import Server

pytestmark = pytest.mark.spark

NAME = "shop.orders"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("f", pa.float64())])


def rows(first: int, last: int, v: int = 0) -> list[dict[str, Any]]:
    """Rows of some keys."""
    return [{"id": key, "v": v, "f": float(key)} for key in range(first, last)]


def test_reads_and_tables_of_the_catalog(server: Server, lake: ls.Lake, spark: SparkSession) -> None:
    """A load and a table of Spark's catalog read the head of each query's moment."""
    table = lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(0, 100))
    address = server.about["grpc"]
    frame = spark.read.format("lakestore").options(server=address, table=NAME).load()
    assert sorted(row.id for row in frame.where("id IN (3, 5, 7) AND v = 0 AND f > 3").collect()) == [5, 7]
    spark.sql(
        f"CREATE TABLE source_orders USING lakestore OPTIONS (server '{address}', table '{NAME}', columns 'id, v')"
    )
    try:
        assert spark.table("source_orders").agg(sf.count("*"), sf.sum("v")).first() == (100, 0)
        table.upsert(rows(99, 102, 7))
        assert spark.sql("SELECT count(*), sum(v) FROM source_orders").first() == (102, 21)
    finally:
        spark.sql("DROP TABLE source_orders")


@pytest.mark.parametrize("push_down", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_a_filter_belongs_to_its_query(server: Server, lake: ls.Lake, spark: SparkSession, push_down: str) -> None:
    """Queries of one relation with different filters: each has its own rows, whatever Spark's push-down is set to."""
    lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=2).upsert(rows(0, 40))
    address = server.about["grpc"]
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    assert before == "false"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", push_down)
    try:
        frame = spark.read.format("lakestore").options(server=address, table=NAME).load()
        few, others = frame.where("id < 3"), frame.where("id = 7 OR f = 8")
        assert [each.count() for each in (few, few.union(others), frame)] == [3, 5, 40]
        frame.createOrReplaceTempView("orders_view")
        spark.sql(f"CREATE TABLE orders_table USING lakestore OPTIONS (server '{address}', table '{NAME}')")
        for name in ("orders_view", "orders_table"):
            counts = [
                f"(SELECT count(*) FROM {name}{where})" for where in (" WHERE id < 3", " WHERE id = 7 OR f = 8", "")
            ]
            assert spark.sql(f"SELECT {', '.join(counts)}").first() == (3, 2, 40)
            assert [spark.sql(each[1:-1]).first()[0] for each in counts] == [3, 2, 40]  # type: ignore[index]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", before)
        spark.sql("DROP TABLE IF EXISTS orders_table")


def test_streams(server: Server, lake: ls.Lake, spark: SparkSession, tmp_path: Path) -> None:
    """A snapshot, then its changes, over restarts; nothing new is no batch; the lag is in the progress."""
    table = lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(0, 50))
    options = {"server": server.about["grpc"], "table": NAME, "startingOffsets": "snapshot"}
    seen: dict[int, list[tuple[str, int, int]]] = {}

    def keep(batch: Any, number: int) -> None:
        seen[number] = sorted((row["__change"], row.id, row.v) for row in batch.collect())

    def run(**more: str) -> Any:
        changes = spark.readStream.format("lakestore").options(**options, **more).load()
        writer = changes.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query.lastProgress

    run()
    assert seen == {0: [("+I", key, 0) for key in range(50)]}
    table.upsert(rows(48, 51, 1))
    table.delete([{"id": 0}])
    table.upsert(rows(60, 61))
    progress = run(maxOffsetsPerTrigger="3")
    assert seen[1] == [("+I", 50, 1), ("+U", 48, 1), ("+U", 49, 1)]
    assert json.loads(progress["sources"][0]["endOffset"].replace("'", '"'))["behind"] == 2
    lake.drop_table(NAME)
    with pytest.raises(AnalysisException, match=r"shop\.orders"):
        run()

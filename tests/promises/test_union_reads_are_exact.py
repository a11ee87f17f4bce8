"""Union reads in Spark: the answer equals the table at the cut, whatever was tiered, changed or compacted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore_tiering import Tierer

pytestmark = pytest.mark.spark

EVERY_TYPE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(12, 2)),
    ]
)


def row(i: int, version: int = 0) -> dict[str, Any]:
    if i % 11 == 0:
        return {"id": i}
    return {
        "id": i,
        "flag": i % 2 == 0,
        "i8": i % 100,
        "i16": i,
        "i32": i * version,
        "f32": i / 2,
        "f64": i / 3,
        "text": f"t{i}-{version}",
        "raw": bytes([i % 256]),
        "day": i,
        "local": i * 1_000_001,
        "at": i * 1_000_003,
        "price": Decimal(i) / 4,
    }


def rows(ids: range, version: int = 0) -> pa.Table:
    return pa.Table.from_pylist([row(i, version) for i in ids], schema=EVERY_TYPE)


def read(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().sort_by("id").to_pylist()
    return found


def scanned(table: ls.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return found


@pytest.fixture
def orders(lake: ls.Lake) -> ls.Table:
    return lake.create_table("shop.orders", EVERY_TYPE, primary_key=["id"], buckets=3)


def churn(table: ls.Table) -> None:
    """Deaths in the lake, deaths in the hot range, new rows and rows put back."""
    table.upsert(rows(range(20, 60), 1))
    table.delete([{"id": i} for i in range(50, 80)])
    table.upsert(rows(range(70, 75), 2))
    table.upsert(rows(range(200, 230), 1))
    table.delete([{"id": 205}])


def test_union_read_equals_table_before_and_after_tiering(
    lake: ls.Lake, orders: ls.Table, spark: SparkSession, spark_lake: SparkLake
) -> None:
    assert read(spark_lake.table("shop.orders")) == []
    orders.upsert(rows(range(100)))
    assert read(spark_lake.table("shop.orders")) == scanned(orders)
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
        assert read(spark_lake.table("shop.orders")) == scanned(orders)
        churn(orders)
        frame = spark_lake.table("shop.orders")
        expected = scanned(orders)
        assert read(frame) == expected
        assert frame.schema["i8"].dataType.simpleString() == "tinyint"
        tierer.run_once()
        orders.upsert(rows(range(300, 310)))
        assert read(frame) == expected
        assert read(spark_lake.table("shop.orders")) == scanned(orders)


def test_sql_reads_every_table_at_one_cut(
    lake: ls.Lake, orders: ls.Table, spark: SparkSession, spark_lake: SparkLake
) -> None:
    events = lake.create_table("shop.events", pa.schema([("id", pa.int64()), ("kind", pa.string())]))
    with lake.commit() as commit:
        commit.upsert("shop.orders", rows(range(10)))
        commit.append("shop.events", pa.table({"id": range(10), "kind": ["x"] * 10}))
    joined = "SELECT count(*) AS n, sum(shop.orders.i16) AS s FROM shop.orders JOIN `shop`.`events` e USING (id)"
    frame = spark_lake.sql(joined)
    with lake.commit() as commit:
        commit.upsert("shop.orders", rows(range(10, 20)))
        commit.append("shop.events", pa.table({"id": range(10, 20), "kind": ["y"] * 10}))
    assert frame.collect()[0].n == 10
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
    assert spark_lake.sql(joined).collect()[0].n == 20
    assert spark_lake.sql("SELECT kind, count(*) n FROM shop.events GROUP BY kind ORDER BY kind").collect()[0].n == 10
    assert spark_lake.sql("WITH o AS (SELECT * FROM shop.orders) SELECT max(o.id) m FROM o").collect()[0].m == 19
    assert spark_lake.sql("SELECT count(*) n FROM lake.shop.orders").collect()[0].n == 20
    assert spark_lake.sql("SELECT max(__offset) m FROM shop.events").collect()[0].m >= 4
    with pytest.raises(ls.Invalid, match="not written by SQL"):
        spark_lake.sql("INSERT INTO shop.events SELECT * FROM shop.events")
    assert events.scan().count() == 20


def test_read_at_a_token(lake: ls.Lake, orders: ls.Table, spark: SparkSession, spark_lake: SparkLake) -> None:
    token = orders.upsert(rows(range(10)))
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
        later = orders.upsert(rows(range(5, 15), 1))
        orders.delete([{"id": 0}])
        assert spark_lake.at(token).table("shop.orders").count() == 10
        assert spark_lake.at(later).sql("SELECT count(*) n FROM shop.orders").collect()[0].n == 15
    assert spark_lake.table("shop.orders").count() == 14


def test_filters_and_columns_reach_the_files(
    lake: ls.Lake, orders: ls.Table, spark: SparkSession, spark_lake: SparkLake
) -> None:
    orders.upsert(rows(range(100)))
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
    churn(orders)
    frame = spark_lake.sql("SELECT text FROM shop.orders WHERE i32 > 5 AND text LIKE 't5%'")
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert "i32 > 5" in plan
    (scan,) = [line for line in plan.splitlines() if "BatchScan now" in line]
    assert "filters=i32 IS NOT NULL, text IS NOT NULL, i32 > 5, text LIKE 't5%'" in scan
    assert "price" not in scan
    assert "raw" not in scan

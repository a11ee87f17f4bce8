"""Tiering rounds: what is in the lake is the table as of the tier point, and nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore_tiering import Tierer

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("small", pa.int8()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


PARTED = {"partition_by": ["day(at)"], "sort_by": ["name"]}


def orders(start: int, count: int, name: str = "a") -> pa.Table:
    ids = pa.array(range(start, start + count), pa.int64())
    return pa.table(
        {
            "id": ids,
            "name": pa.array([f"{name}{i % 7}" for i in range(count)]),
            "small": pc.cast(pc.bit_wise_and(ids, 63), pa.int8()),
            "price": pa.array([Decimal(i) / 4 for i in range(start, start + count)], pa.decimal128(12, 2)),
            "at": pc.cast(pc.multiply(ids, 86_400_000_000 // 8), pa.timestamp("us", tz="UTC")),
        },
        schema=SCHEMA,
    )


def in_lake(spark: SparkSession, name: str) -> list[dict[str, Any]]:
    columns = ", ".join(SCHEMA.names)
    found: list[dict[str, Any]] = (
        spark.sql(f"SELECT {columns} FROM lake.{name} ORDER BY id").toArrow().cast(SCHEMA).to_pylist()
    )
    return found


def in_table(table: ls.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return found


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        (2, PARTED),
        (3, {}),
        pytest.param(2, {}, marks=pytest.mark.long),
        pytest.param(3, PARTED, marks=pytest.mark.long),
    ],
)
def test_lake_equals_table_after_each_round(
    lake: ls.Lake, spark: SparkSession, version: int, layout: dict[str, Any]
) -> None:
    table = lake.create_table(
        "shop.orders", SCHEMA, primary_key=["id"], buckets=3, lake={"format_version": version, **layout}
    )
    with Tierer(lake, spark) as tierer:
        table.upsert(orders(0, 60))
        tierer.run_once("shop.orders", compaction=False)
        assert in_lake(spark, "shop.orders") == in_table(table)
        for step in range(2):
            table.upsert(orders(step * 9, 12, "b"))
            table.delete([{"id": step * 5 + 1}, {"id": 1_000}])
            table.upsert(orders(100 + step, 1, "c"))
            (outcome,) = tierer.run_once("shop.orders", compaction=False)
            assert outcome.flushed is not None
            assert outcome.flushed.deaths > 0
            assert in_lake(spark, "shop.orders") == in_table(table)
        (outcome,) = tierer.run_once("shop.orders", compaction=False)
        assert outcome.flushed is None

"""A union-read plan as a DataFrame: lake rows that are not dead, and live rows of the hot ranges.

The lake side is Iceberg's own scan of the planned snapshot, so filters and columns reach its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from lakestore.schema import SYSTEM_TYPES, Table
from lakestore.spark.dead import alive
from lakestore.spark.hot import Hot, spark_type
from lakestore.union.plan import TableScan

CATALOG = "lake"


def union_frame(spark: SparkSession, hot: Hot, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
    """The table at the plan's cut, with these columns."""
    if not scan.in_lake:
        return hot.frame(scan, columns, lease)
    cold = cold_frame(spark, scan, columns)
    return cold.unionAll(hot.frame(scan, columns, lease)) if scan.hot_rows else cold


def cold_frame(spark: SparkSession, scan: TableScan, columns: Sequence[str]) -> DataFrame:
    """The lake rows of the plan that are alive at its cut."""
    rows = spark.read.option("versionAsOf", scan.snapshot_id).table(lake_name(scan.table))
    dead = scan.cold_dead()
    if dead:
        ends = [part.tier_point for part in scan.buckets]
        rows = rows.where(alive(spark, dead, ends))
    return rows.select(*(_declared(scan.table, name) for name in columns))


def lake_name(table: Table) -> str:
    """The lake table's name in Spark SQL."""
    return f"{CATALOG}.`{table.namespace}`.`{table.short_name}`"


def _declared(table: Table, name: str) -> Column:
    """The lake keeps the narrow integers as int."""
    column = sf.col(f"`{name}`")
    if name not in SYSTEM_TYPES and table.column(name).type in ("int8", "int16"):
        return column.cast(spark_type(table.column(name).type)).alias(name)
    return column

"""A union-read plan as a DataFrame: lake rows that are not dead, and live rows of the hot ranges.

The lake side is Iceberg's own scan of the planned snapshot, so filters and columns reach its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from lakestore.model import defaults
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.columns import Column as Declared
from lakestore.model.names import VERSION_MARK
from lakestore.model.table import Table
from lakestore.union.plan import TableScan
from lakestore_spark.dead_filter import alive
from lakestore_spark.hot_rows import Hot
from lakestore_spark.types import spark_type

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
    ends_at = scan.lake_ends()
    if ends_at is not None:
        heads = sf.element_at(sf.array(*(sf.lit(end) for end in ends_at)), sf.col(LAKE_BUCKET) + 1)
        rows = rows.where(sf.col(LAKE_OFFSET) < heads)
    return rows.select(*(_shown(scan, rows, name) for name in columns))


def lake_name(table: Table) -> str:
    """The lake table's name in Spark SQL."""
    return f"{CATALOG}.`{table.namespace}`.`{table.short_name}`"


def version_name(table: Table) -> str:
    """The name under which the catalog gives the lake table with this schema version, before main has it."""
    return f"{CATALOG}.`{table.namespace}`.`{table.short_name}{VERSION_MARK}{table.schema_id}`"


def _shown(scan: TableScan, rows: DataFrame, name: str) -> Column:
    """A column in the cut's version, read from the snapshot's column of the same id, whatever its name there."""
    if name in SYSTEM_TYPES:
        return sf.col(f"`{name}`")
    column = scan.table.column(name)
    kind = spark_type(column.type)
    held = next((old for old in scan.lake_table.columns if old.id == column.id), None)
    if held is None:
        return _initial(column).cast(kind).alias(name)
    found = sf.col(f"`{held.name}`")
    same = rows.schema[held.name].dataType.simpleString() == kind.simpleString()
    return (found if same else found.cast(kind)).alias(name)


def _initial(column: Declared) -> Column:
    """The value that rows older than the column show."""
    value = defaults.in_lake(column.initial, column.type, column.name)
    if isinstance(value, str) and column.type.startswith(("binary", "fixed")):
        return sf.unhex(sf.lit(value))
    return sf.lit(value)

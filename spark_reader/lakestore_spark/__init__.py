"""Spark: session, attach, union reads in SQL and as DataFrames.

`session` makes or checks a Spark session, `spark_lake` is the face: a table or a query at one cut. `union` puts a plan
together from the lake's rows less the dead ones (`dead_filter`) and the live rows of the hot ranges (`hot_rows`,
`spool`); `leases` keeps a cut readable while its DataFrames live, `table_names` finds our tables in SQL text.
The theory: Spark is lazy, so a DataFrame must be readable long after its plan. The plan names one lake snapshot and
offset ranges of the log, both leased; an overdue lease fails the DataFrame and never gives part of the rows.
The cold side is Iceberg's own scan of the planned snapshot, so Spark prunes its files by filters and columns.
`source` is the data source `lakestore` of plain Spark: batch reads, streams and writes of one table.
Plans themselves are `lakestore.union`'s; writing to the lake belongs to `lakestore_tiering`.
"""

from lakestore_spark.session import attach, session
from lakestore_spark.spark_lake import SparkLake, SparkLakeAt

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]

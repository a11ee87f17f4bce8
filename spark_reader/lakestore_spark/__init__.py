"""Spark: session, attach, tables at a cut in SQL and as DataFrames.

`session` makes or checks a Spark session with the catalogs `lake` and `now`; `spark_lake` is the face: a table or a
statement at one cut. `statements` tells statements apart, `table_names` finds our tables in a query's text (`words` are
its tokens), `cut_tables` names them at the cut, `descriptions` and `cached_tables` are for DESCRIBE and CACHE TABLE.
The theory: the server presents a cut as an Iceberg snapshot, so Spark plans and reads it as any Iceberg table, by no
code of ours. Spark is lazy: a DataFrame names its cut by a token, the server keeps the files for an hour after each
load; later they are presented anew, or the read fails: it never gives part of the rows.
`source` is the data source `lakestore` of plain Spark: batch reads, streams and writes of one table.
`leases` keeps the plans of streams and rounds. Writing to the lake belongs to `lakestore_tiering`.
"""

from lakestore_spark.session import attach, session
from lakestore_spark.spark_lake import SparkLake, SparkLakeAt

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]

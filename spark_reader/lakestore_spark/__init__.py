"""Spark: sessions, and tables at a cut in SQL and as DataFrames.

- `session` creates or checks a Spark session with the catalogs `lake` and `now`. `spark_lake` reads a table or runs a
  statement at one cut.
- The server presents a cut as an Iceberg snapshot, so Spark plans and reads it like any Iceberg table, without code of
  ours.
- A DataFrame names its cut by a token. The server keeps the files for an hour after each load and presents them again
  later. A read that is too late fails; it never returns part of the rows.

`source` is the data source `lakestore` of plain Spark. `leases` renews the plans of streams and rounds. Writing to the
lake belongs to `lakestore_tiering`.
"""

from lakestore_spark.session import attach, session
from lakestore_spark.spark_lake import SparkLake, SparkLakeAt

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]

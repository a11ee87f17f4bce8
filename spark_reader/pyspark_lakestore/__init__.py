"""The module by which PySpark finds the data source `lakestore` in any session: it looks for `pyspark_…` by name."""

from lakestore_spark.source import LakestoreSource as DefaultSource

__all__ = ["DefaultSource"]

"""PySpark imports modules named `pyspark_…` to discover data sources; this one makes `lakestore` known."""

from lakestore_spark.source import LakestoreSource as DefaultSource

__all__ = ["DefaultSource"]

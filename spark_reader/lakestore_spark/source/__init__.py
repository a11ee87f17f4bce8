"""The data source `lakestore`: batch reads, streams and writes of one table by Spark's own `format("lakestore")`.

`lakestore_source` is the class that Spark makes, `options` its options as typed values.
"""

from lakestore_spark.source.lakestore_source import FORMAT, LakestoreSource

__all__ = ["FORMAT", "LakestoreSource"]

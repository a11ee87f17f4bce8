"""The data source `lakestore`: batch reads, streams and writes of one table by Spark's `format("lakestore")`.

`lakestore_source` is the class that Spark creates, `options` its typed options. `table_reader` reads, `change_reader`
streams, `table_writer` writes.
"""

from lakestore_spark.source.lakestore_source import FORMAT, LakestoreSource, register

__all__ = ["FORMAT", "LakestoreSource", "register"]

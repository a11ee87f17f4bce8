"""The data source `lakestore`: batch reads, streams and writes of one table by Spark's own `format("lakestore")`.

`lakestore_source` is the class that Spark makes, `options` its options as typed values. Reads: `table_reader` and
`filters`; streams: `change_reader` plans and reads, `stream_driver` asks the server, `kept_position` has the log kept;
`shown` binds columns to the version that they were loaded in.
"""

from lakestore_spark.source.lakestore_source import FORMAT, LakestoreSource, register

__all__ = ["FORMAT", "LakestoreSource", "register"]

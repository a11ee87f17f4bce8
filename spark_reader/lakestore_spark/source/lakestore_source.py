"""The class that Spark makes of `format("lakestore")`; readers and writers get its options, parsed."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

FORMAT = "lakestore"


class LakestoreSource(DataSource):
    """One table of a server, as Spark reads, streams and writes it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

"""The class behind `format("lakestore")`. It parses the options for readers and writers.

Spark asks for a schema before it says whether it reads or streams. Only an option of streams distinguishes them, so a
stream must set `startingOffsets`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from lakestore.model.table import Table
from lakestore.model.times import position_text
from lakestore.union import plan
from lakestore.v1.lakestore_pb2 import TableRequest
from lakestore_spark.source import options
from lakestore_spark.source.change_reader import ChangeReader
from lakestore_spark.source.options import Options
from lakestore_spark.source.table_reader import TableReader, changes_schema, rows_schema
from lakestore_spark.source.table_writer import StreamWriter, TableWriter, Target

FORMAT = "lakestore"
_STREAM_ONLY = set(options.STREAM) - set(options.READ)


class LakestoreSource(DataSource):
    """One table of a server, for reads, streams and writes."""

    _table: Table | None = None
    """The version that the schema was made from. It is pickled to readers with this object."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Spark's schema of the table's rows, or of its changes if a stream option is set."""
        if any(name in self.options for name in _STREAM_ONLY):
            said = Options(self.options, "spark.readStream", options.STREAM)
            self._table = _current(said)
            columns = said.names("columns")
            return changes_schema(self._table, columns) if self._table.keyed else rows_schema(self._table, columns)
        said = Options(self.options, "spark.read", (*options.READ, *options.WRITE))
        self._table = _at(said) if said.text("at") else _current(said)
        rows = rows_schema(self._table, said.names("columns"))
        of_catalog = any(name.lower().startswith(options.OF_CATALOG) for name in self.options)
        return options.with_options(rows, said) if of_catalog else rows

    def reader(self, schema: StructType) -> DataSourceReader:
        said = Options(options.with_stored_options(self.options, schema), "spark.read", options.READ)
        table = self._table or (_at(said) if said.text("at") else _current(said))
        return TableReader(said, table, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        said = Options(self.options, "spark.readStream", options.STREAM)
        return ChangeReader(said, self._table or _current(said), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        said = Options(self.options, "df.write", options.WRITE)
        return TableWriter(Target.of(said, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        said = Options(self.options, "df.writeStream", options.WRITE)
        return StreamWriter(Target.of(said, schema, overwrite=overwrite))


def register(spark: SparkSession) -> None:
    """Register the format in a session."""
    jvm: Any = spark._jvm  # noqa: SLF001 (the one way to the JVM that PySpark gives)
    sessions, own = jvm.SparkSession, spark._jsparkSession  # noqa: SLF001
    active = sessions.getActiveSession()
    # Spark looks names up in the active session. It would refuse a name that is known there but not in this session.
    sessions.setActiveSession(own)
    try:
        spark.dataSource.register(LakestoreSource)
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def _current(options: Options) -> Table:
    transport = options.address.connect()
    try:
        return Table.from_json(transport.get_table(TableRequest(table=options.table)).definition)
    finally:
        transport.close()


def _at(options: Options) -> Table:
    transport = options.address.connect()
    try:
        asked = plan.request([options.table], at=position_text(options.text("at")), no_dead=True)
        return plan.decode(transport.plan(asked)).tables[0].table
    finally:
        transport.close()

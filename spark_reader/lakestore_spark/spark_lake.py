"""`SparkLake`: a server's tables in a Spark session, each query at one cut.

A query takes one token; each of our tables in it becomes the table of that cut in the catalog `now`, which Iceberg's
own reader scans: one leaf a mention, with all that Iceberg knows of files, filters and statistics. Nothing is held
here: the server keeps a cut readable for an hour after it was loaded, and presents it anew for as long as log and
snapshots reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from lakestore.client.transport import Transport
from lakestore.errors import Invalid, NotFound
from lakestore.model.columns import LAKE_COLUMNS, SYSTEM_TYPES
from lakestore.model.times import At, position_text
from lakestore.union import plan
from lakestore.v1.lakestore_pb2 import TableRequest
from lakestore_spark.cached_tables import CachedTables
from lakestore_spark.cut_tables import CutTable
from lakestore_spark.descriptions import declared
from lakestore_spark.statements import Kind, Statement

_RELEASES = (Kind.CACHE, Kind.UNCACHE, Kind.REFRESH)


class SparkLake:
    """A server's tables in a Spark session; made by `attach`."""

    def __init__(
        self, spark: SparkSession, transport: Transport, *, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.spark = spark
        """The session that the DataFrames belong to."""
        self._on_close = on_close
        self._reads = SparkLakeAt(spark, transport)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the head of this moment; system columns come when they are named."""
        return self._reads.table(name, columns)

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement whose `database.table` names are ours, all of them at one cut.

        A table that `CACHE TABLE` keeps is read as it was then, and all tables of such a query with it, until
        `UNCACHE TABLE` or `REFRESH TABLE`.
        """
        return self._reads.sql(text)

    def at(self, position: At) -> SparkLakeAt:
        """The same reads at exactly the cut that a token names, or as of a time (UTC where it names no zone)."""
        return self._reads.at(position_text(position) if position else "")

    def close(self) -> None:
        """Close the connection to the server. DataFrames stay readable; again is harmless."""
        self._on_close()


class SparkLakeAt:
    """Reads at the cut of a token or time; each at the head of its moment when there is none."""

    def __init__(self, spark: SparkSession, transport: Transport, position: str = "") -> None:
        self._spark = spark
        self._transport = transport
        self._position = position
        self._cached = CachedTables(spark)

    def at(self, position: str) -> SparkLakeAt:
        """The same reads at another position."""
        return SparkLakeAt(self._spark, self._transport, position)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the cut; system columns come when they are named."""
        cut = self._cuts([name])[name]
        wanted = cut.table.selected(list(columns or ()))
        for column in wanted:
            if column in SYSTEM_TYPES and column not in LAKE_COLUMNS:
                raise Invalid(f"table {name}: rows have no column {column}, changes have it")
        return self._spark.sql(cut.select(wanted))

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement at the cut."""
        statement = Statement.of(text)
        ours = [name for name in statement.names if self._is_ours(name)]
        if not ours:
            return self._spark.sql(text)
        statement.check(ours)
        released = self._cached.release(ours) if statement.kind in _RELEASES else []
        cuts = self._cuts(ours)
        found = self._spark.sql(statement.replaced(cuts))
        if statement.kind is Kind.CACHE:
            self._cached.kept(cuts.values())
        elif statement.kind is Kind.REFRESH:
            self._cached.renew(cuts[name] for name in released)
        elif statement.kind is Kind.DESCRIBE:
            return declared(found, cuts[ours[0]].table)
        return found

    def _is_ours(self, name: str) -> bool:
        try:
            self._transport.get_table(TableRequest(table=name))
        except NotFound:
            return False
        return True

    def _cuts(self, names: Sequence[str]) -> dict[str, CutTable]:
        """The tables at one cut, in the versions that they have there."""
        position = self._position or self._cached.position(names)
        found = plan.decode(self._transport.plan(plan.request(names, at=position, no_dead=True)))
        return {name: CutTable(found.scan(name).table, found.token) for name in names}

"""`SparkLake`: a server's tables in a Spark session, each read a union read at one cut."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from lakestore import limits
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, NotFound
from lakestore.schema import Table
from lakestore.spark.hot import DRIVER_ROWS_MAX, Hot
from lakestore.spark.leases import LEASE_SECONDS, Leases
from lakestore.spark.names import Query
from lakestore.spark.union import union_frame
from lakestore.token import Token
from lakestore.union import plan
from lakestore.union.plan import ReadPlan
from lakestore.v1.lakestore_pb2 import TableRequest


class SparkLake:
    """Union reads of a server in a Spark session; made by `attach`."""

    def __init__(
        self,
        spark: SparkSession,
        transport: Transport,
        server: str,
        *,
        keep_seconds: float = limits.LEASE_SECONDS_DEFAULT,
        driver_rows_max: int = DRIVER_ROWS_MAX,
    ) -> None:
        self.spark = spark
        """The session that the DataFrames belong to."""
        self._transport = transport
        self._hot = Hot(spark, transport, server, driver_rows_max=driver_rows_max)
        self._leases = Leases(transport, keep_seconds=keep_seconds)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the head of this moment; system columns come when they are named."""
        return self._table(name, columns, "")

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement whose `database.table` names are ours, all of them at one cut."""
        return self._sql(text, "")

    def at(self, token: str | Token) -> SparkLakeAt:
        """The same reads at exactly the cut that a token names."""
        return SparkLakeAt(self, str(token))

    def close(self) -> None:
        """Let the leases of all DataFrames of this lake go."""
        self._leases.close()

    def _table(self, name: str, columns: Sequence[str] | None, at: str) -> DataFrame:
        cut = self._cut([name], at)
        scan = cut.scan(name)
        return union_frame(self.spark, self._hot, scan, scan.table.selected(list(columns or ())), cut.lease)

    def _sql(self, text: str, at: str) -> DataFrame:
        query = Query(text)
        tables = self._own(query)
        if query.target() in tables:
            raise Invalid(f"table {query.target()} is not written by SQL: use upsert, append or delete of the client")
        if not tables:
            return self.spark.sql(text)
        cut = self._cut(list(tables), at)
        views = {name: f"lakestore_{uuid.uuid4().hex}" for name in tables}
        try:
            for name, view in views.items():
                scan = cut.scan(name)
                frame = union_frame(self.spark, self._hot, scan, query.columns(scan.table), cut.lease)
                frame.createTempView(view)
            return self.spark.sql(query.replaced(views))
        finally:
            for view in views.values():
                self.spark.catalog.dropTempView(view)

    def _own(self, query: Query) -> dict[str, Table]:
        own = {}
        for name in query.names:
            try:
                own[name] = Table.from_json(self._transport.get_table(TableRequest(table=name)).definition)
            except NotFound:  # noqa: PERF203
                continue
        return own

    def _cut(self, names: Sequence[str], at: str) -> ReadPlan:
        cut = plan.decode(self._transport.plan(plan.request(names, at=at, lease_seconds=LEASE_SECONDS)))
        self._leases.hold(cut.lease)
        return cut


class SparkLakeAt:
    """Union reads at the cut of a token."""

    def __init__(self, lake: SparkLake, token: str) -> None:
        self._lake = lake
        self._token = token

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the token's cut."""
        return self._lake._table(name, columns, self._token)

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement at the token's cut."""
        return self._lake._sql(text, self._token)

"""`SparkLake`: a server's tables in a Spark session, each read a union read at one cut."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from lakestore import limits
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, NotFound
from lakestore.model.times import At, position_text
from lakestore.union import plan
from lakestore.union.plan import ReadPlan
from lakestore.v1.lakestore_pb2 import TableRequest
from lakestore_spark.hot_rows import DRIVER_ROWS_MAX, Hot
from lakestore_spark.leases import LEASE_SECONDS, SessionLeases
from lakestore_spark.table_names import Query
from lakestore_spark.union import union_frame


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
        spool: bool | None = None,
    ) -> None:
        self.spark = spark
        """The session that the DataFrames belong to."""
        self._transport = transport
        self._hot = Hot(spark, transport, server, driver_rows_max=driver_rows_max, spool=spool)
        self._leases = SessionLeases(transport, keep_seconds=keep_seconds, on_release=self._hot.forget)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the head of this moment; system columns come when they are named."""
        return self.at("").table(name, columns)

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement whose `database.table` names are ours, all of them at one cut."""
        return self.at("").sql(text)

    def at(self, position: At) -> SparkLakeAt:
        """The same reads at exactly the cut that a token names, or as of a time (UTC where it names no zone)."""
        text = position_text(position) if position else ""
        return SparkLakeAt(self.spark, self._hot, self._transport, self._leases, text)

    def close(self) -> None:
        """Let the leases of all DataFrames of this lake go."""
        self._leases.close()
        self._hot.close()


class SparkLakeAt:
    """Union reads at the cut of a token; each at the head of its moment when there is none."""

    def __init__(self, spark: SparkSession, hot: Hot, transport: Transport, leases: SessionLeases, token: str) -> None:
        self._spark = spark
        self._hot = hot
        self._transport = transport
        self._leases = leases
        self._token = token

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """The table at the cut; system columns come when they are named."""
        cut = self._cut([name])
        scan = cut.scan(name)
        return union_frame(self._spark, self._hot, scan, scan.table.selected(list(columns or ())), cut.lease)

    def sql(self, text: str) -> DataFrame:
        """A Spark SQL statement at the cut."""
        query = Query(text)
        names = [name for name in query.names if self._is_ours(name)]
        if query.target() in names:
            raise Invalid(f"table {query.target()} is not written by SQL: use upsert, append or delete of the client")
        if not names:
            return self._spark.sql(text)
        cut = self._cut(names)
        views = {name: f"lakestore_{uuid.uuid4().hex}" for name in names}
        try:
            for name, view in views.items():
                scan = cut.scan(name)
                frame = union_frame(self._spark, self._hot, scan, query.columns(scan.table), cut.lease)
                frame.createTempView(view)
            return self._spark.sql(query.replaced(views))
        finally:
            for view in views.values():
                self._spark.catalog.dropTempView(view)

    def _is_ours(self, name: str) -> bool:
        try:
            self._transport.get_table(TableRequest(table=name))
        except NotFound:
            return False
        return True

    def _cut(self, names: Sequence[str]) -> ReadPlan:
        asked = plan.request(names, at=self._token, lease_seconds=LEASE_SECONDS)
        cut = plan.decode(self._transport.plan(asked))
        self._leases.hold(cut.lease)
        return cut

"""Snapshots: one cut over all tables, leased by the server for its reads."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from lakestore import limits
from lakestore.client.retry import has_deadline, seconds_to_deadline
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, PlanExpired
from lakestore.model.alteration import Freshness, Requirement, Through
from lakestore.model.table import Table
from lakestore.union import plan
from lakestore.union import sql as union_sql
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage


def head(transport: Transport) -> str:
    """Token of the newest commit."""
    return transport.head(pb.HeadRequest()).token


REQUIRE_WAIT_SECONDS = 10.0
"""Seconds that a read of the head waits for its requirement, unless the caller's deadline is earlier."""
WAIT_SECONDS_MAX = 3_600.0
RENEWALS_PER_LEASE = 3
_DEADLINE_PART = 0.8
"""Share of a caller's deadline that is spent waiting, so that the answer is in time."""


def requirement(freshness: Freshness | None, through: Through | None) -> Requirement | None:
    """The requirement of a read that begins now."""
    wait = seconds_to_deadline(WAIT_SECONDS_MAX) * _DEADLINE_PART if has_deadline() else REQUIRE_WAIT_SECONDS
    return Requirement.of(freshness, through, wait)


class Hold:
    """A leased cut as the source of reads at it. Each read renews the lease before it is planned."""

    def __init__(self, transport: Transport, lease: str, seconds: int, clock: Callable[[], float]) -> None:
        self._transport, self._lease, self._seconds, self._clock = transport, lease, seconds, clock
        self._renewed, self._closed = clock(), False
        self._end = weakref.finalize(self, _release, transport, lease)
        self._end.atexit = False

    @property
    def server(self) -> pb.HelloAnswer:
        return self._transport.server

    def lookup(self, request: pb.LookupRequest, /) -> pb.RowBatch:
        return self._transport.lookup(request)

    def plan(self, request: pb.PlanRequest, /) -> pb.PlanAnswer:
        self._keep()
        return self._transport.plan(request)

    def fetch(self, request: pb.FetchRequest, /) -> Iterator[RowMessage]:
        return self._transport.fetch(request)

    def renew_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer:
        return self._transport.renew_lease(request)

    def release_lease(self, request: pb.LeaseRequest, /) -> object:
        return self._transport.release_lease(request)

    def store_key(self, request: pb.StoreKeyRequest, /) -> pb.StoreKeyAnswer:
        return self._transport.store_key(request)

    def _keep(self) -> None:
        if self._closed:
            raise Invalid("this snapshot is closed: take a new one")
        if not self._lease or self._clock() - self._renewed < self._seconds / RENEWALS_PER_LEASE:
            return
        try:
            self._transport.renew_lease(pb.LeaseRequest(lease=self._lease, seconds=self._seconds))
            self._renewed = self._clock()
        except PlanExpired:  # the server restarted, for example: the reads show whether their data still exist
            self._lease = ""

    def close(self) -> None:
        """Release the lease. Idempotent."""
        self._closed = True
        if self._end.detach() is not None:
            _release(self._transport, self._lease)


class Snapshot:
    """All tables at one cut. A context manager; the cut is leased until its end.

    Without a block it is leased until the snapshot and its scans are garbage, or for an hour after the last read.
    """

    def __init__(
        self,
        transport: Transport,
        token: str,
        *,
        lease: str = "",
        lease_seconds: int = limits.LEASE_SECONDS_DEFAULT,
        require: Requirement | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lease` is the server's lease of the cut; empty without one."""
        self._hold, self._require = Hold(transport, lease, lease_seconds, clock), require
        self.token, self._transport = token, transport

    @classmethod
    def of_head(
        cls,
        transport: Transport,
        freshness: Freshness | None,
        through: Through | None,
        lease_seconds: int = limits.LEASE_SECONDS_DEFAULT,
    ) -> Self:
        """The leased head. A freshness refers to the server's time now."""
        require = requirement(freshness, through)
        answer = transport.head(pb.HeadRequest(lease_seconds=lease_seconds))
        asked = require.as_of(answer.now_us) if require is not None and answer.now_us else require
        return cls(transport, answer.token, lease=answer.lease, lease_seconds=lease_seconds, require=asked)

    def definition(self, table: str) -> Table:
        """The table's definition at the cut, with the contract that was in force."""
        found = self._hold.plan(plan.request([table], at=self.token, no_dead=True))
        return plan.decode(found).scan(table).table

    def scan(self, table: str, columns: Sequence[str] | None = None, where: str | None = None) -> Scan:
        """A union read at the cut."""
        return Scan(self._hold, table, columns=columns, where=where, at=self.token, require=self._require)

    def sql(self, text: str, params: union_sql.Params = None, *, external_access: bool = False) -> union_sql.SqlResult:
        """DuckDB over union reads at the cut. With `external_access` the query may read files and addresses."""
        query = union_sql.Query(text, params, self.token, self._require, external_access=external_access)
        return union_sql.run(self._hold, query, self._tables)

    def _tables(self) -> list[Table]:
        answer = self._transport.list_tables(pb.ListTablesRequest())
        return [Table.from_json(info.definition) for info in answer.tables]

    def close(self) -> None:
        """Release the cut. Running reads complete. Idempotent."""
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _release(transport: Transport, lease: str) -> None:
    if lease:
        transport.release_lease(pb.LeaseRequest(lease=lease))

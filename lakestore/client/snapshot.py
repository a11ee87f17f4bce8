"""Snapshots: one cut over all tables, which the server holds for the reads at it."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from lakestore import limits
from lakestore.client.retry import has_deadline, seconds_left
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, NotFound, PlanExpired, Unavailable, UnknownCall
from lakestore.model.altered import Freshness, Requirement, Through
from lakestore.model.table import Table
from lakestore.union import sql as union_sql
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb


def head(transport: Transport, table: str = "") -> str:
    """The token of the newest commit, in one small answer.

    A server older than `Head` says it in its status, which grows with the tables that it tells of: `table` is one that
    the caller may see, so that it tells of no other.
    """
    try:
        return transport.head(pb.HeadRequest()).token
    except UnknownCall:
        status = transport.status(pb.StatusRequest(tables=[table] if table else [])).status
        return str(json.loads(status)["token"])


REQUIRE_WAIT_SECONDS = 10.0
"""Seconds for which a read of the head waits for what is required of it, unless the caller's deadline ends before."""
WAIT_SECONDS_MAX = 3_600.0
RENEWALS_PER_LEASE = 3
_DEADLINE_PART = 0.8
"""Part of a caller's deadline that is spent waiting, so that the answer comes within it."""


def requirement(freshness: Freshness | None, through: Through | None) -> Requirement | None:
    """The requirement of a read that begins now."""
    wait = seconds_left(WAIT_SECONDS_MAX) * _DEADLINE_PART if has_deadline() else REQUIRE_WAIT_SECONDS
    return Requirement.of(freshness, through, wait)


class Hold:
    """A cut that the server holds, as the source of the reads at it: each renews the hold before it is planned."""

    def __init__(self, transport: Transport, lease: str, seconds: int, clock: Callable[[], float]) -> None:
        self._transport, self._lease, self._seconds, self._clock = transport, lease, seconds, clock
        self._renewed, self._closed = clock(), False
        self._end = weakref.finalize(self, _release, transport, lease)
        self._end.atexit = False

    @property
    def server(self) -> pb.HelloAnswer:
        """The server's release and protocol, as far as they are known."""
        return self._transport.server

    def lookup(self, request: pb.LookupRequest, /) -> pb.RowBatch:
        """The rows of keys."""
        return self._transport.lookup(request)

    def plan(self, request: pb.PlanRequest, /) -> pb.PlanAnswer:
        """A cut over the named tables."""
        self._keep()
        return self._transport.plan(request)

    def fetch(self, request: pb.FetchRequest, /) -> Iterator[pb.RowBatch]:
        """Rows of one split of a hot range."""
        return self._transport.fetch(request)

    def renew_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer:
        """Hold a plan for longer."""
        return self._transport.renew_lease(request)

    def release_lease(self, request: pb.LeaseRequest, /) -> object:
        """Let a plan go."""
        return self._transport.release_lease(request)

    def _keep(self) -> None:
        """Renew the hold when a third of its time is over."""
        if self._closed:
            raise Invalid("this snapshot is closed: take a new one")
        if not self._lease or self._clock() - self._renewed < self._seconds / RENEWALS_PER_LEASE:
            return
        try:
            self._transport.renew_lease(pb.LeaseRequest(lease=self._lease, seconds=self._seconds))
            self._renewed = self._clock()
        except PlanExpired:  # of a server that was restarted, say: the reads tell whether what they need is there
            self._lease = ""

    def close(self) -> None:
        """Let it go. Again is harmless."""
        self._closed = True
        self._end()


class Snapshot:
    """All tables at one cut. A context manager: what reads at the cut need is held until its end.

    Without one it is held until the snapshot and its scans are garbage, or for an hour after the last read.
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
        """`lease` is the server's hold on the cut; empty for one that is not held."""
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
        """The head of this moment, held; a freshness means the server's time of this moment."""
        require = requirement(freshness, through)
        try:
            answer = transport.head(pb.HeadRequest(lease_seconds=lease_seconds))
        except UnknownCall:
            return cls(transport, head(transport), require=require)  # which the server refuses to judge
        asked = require.as_of(answer.now_us) if require is not None and answer.now_us else require
        return cls(transport, answer.token, lease=answer.lease, lease_seconds=lease_seconds, require=asked)

    def scan(self, table: str, columns: Sequence[str] | None = None, where: str | None = None) -> Scan:
        """A union read at the cut."""
        return Scan(self._hold, table, columns=columns, where=where, at=self.token, require=self._require)

    def sql(self, text: str, params: union_sql.Params = None, *, external_access: bool = False) -> union_sql.SqlResult:
        """DuckDB over union reads at the cut; with `external_access` the query may read files and addresses as well."""
        query = union_sql.Query(text, params, self.token, self._require, external_access=external_access)
        return union_sql.run(self._hold, query, self._tables)

    def _tables(self) -> list[Table]:
        """The definitions of all tables as they are now."""
        answer = self._transport.list_tables(pb.ListTablesRequest())
        return [Table.from_json(info.definition) for info in answer.tables]

    def close(self) -> None:
        """Let go what the cut needs. Reads that have begun end well; again is harmless."""
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _release(transport: Transport, lease: str) -> None:
    # A lease that could not be released runs out by itself.
    if lease:
        with suppress(NotFound, Unavailable):
            transport.release_lease(pb.LeaseRequest(lease=lease))

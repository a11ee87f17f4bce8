"""A cut that a reader holds: a plan, its lease, and the transport to the server that made it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from types import TracebackType
from typing import Protocol, Self

from lakestore import limits
from lakestore.errors import Invalid, PlanExpired
from lakestore.model.alteration import Requirement
from lakestore.model.token import Token
from lakestore.union import plan
from lakestore.union.plan import ReadPlan, TableScan
from lakestore.union.table_keys import read_folders
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage

RENEWALS_PER_LEASE = 3
HELD_AGAIN_MAX = 3
"""The most leases that one cut may lose during a read."""


class Transport(Protocol):
    """The calls that union reads make."""

    @property
    def server(self) -> pb.HelloAnswer:
        """The server's release and protocol, as far as they are known."""

    def lookup(self, request: pb.LookupRequest, /) -> pb.RowBatch: ...

    def plan(self, request: pb.PlanRequest, /) -> pb.PlanAnswer: ...

    def fetch(self, request: pb.FetchRequest, /) -> Iterator[RowMessage]: ...

    def renew_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer: ...

    def release_lease(self, request: pb.LeaseRequest, /) -> object: ...

    def store_key(self, request: pb.StoreKeyRequest, /) -> pb.StoreKeyAnswer: ...


class Cut:
    """One plan with its lease. Reads renew the lease; `close` releases it."""

    def __init__(
        self,
        transport: Transport,
        tables: Sequence[str],
        *,
        at: str | Token | None = None,
        require: Requirement | None = None,
        lease_seconds: int = limits.LEASE_SECONDS_DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        held: ReadPlan | None = None,
    ) -> None:
        """If `held` is given, the cut uses that plan, which other readers share: its lease is renewed and never
        released.
        """
        self.transport = transport
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._renewed = clock() if held is None else -inf
        self._is_shared = held is not None
        if held is None:
            position = "" if at is None else str(at)
            request = plan.request(tables, at=position, lease_seconds=lease_seconds, require=require)
            held = plan.decode(transport.plan(request))
        self.plan = held
        """The parts to read, for each table."""
        self._closed, self._again = False, HELD_AGAIN_MAX
        self._folders = read_folders(transport, held.tables)

    @property
    def token(self) -> str:
        """The cut as a text that `at=` accepts."""
        return self.plan.token

    def keep(self) -> None:
        """Renew the lease once a third of its time is over. Call it between batches."""
        if self._closed:
            raise Invalid("this snapshot is closed: take a new one")
        if not self.plan.lease or self._clock() - self._renewed < self._lease_seconds / RENEWALS_PER_LEASE:
            return
        try:
            self.transport.renew_lease(pb.LeaseRequest(lease=self.plan.lease, seconds=self._lease_seconds))
            self._renewed = self._clock()
        except PlanExpired as error:
            self.hold_again(error)

    def hold_again(self, error: PlanExpired) -> None:
        """Lease the same rows again, for instance after the server was restarted. Raises `error` if the server no
        longer has exactly these rows.
        """
        if not self._again:
            raise error
        self._again -= 1
        names = [part.table.name for part in self.plan.tables]
        asked = plan.request(names, at=self.token, lease_seconds=self._lease_seconds)
        found = plan.decode(self.transport.plan(asked))
        if [_rows_of(part) for part in found.tables] != [_rows_of(part) for part in self.plan.tables]:
            self.transport.release_lease(pb.LeaseRequest(lease=found.lease))
            raise error
        self.plan, self._renewed = replace(self.plan, lease=found.lease), self._clock()

    def close(self) -> None:
        """Release the lease. Closing twice is harmless."""
        self._folders.close()
        if self._closed or not self.plan.lease:
            return
        self._closed = True
        if self._is_shared:
            return
        self.transport.release_lease(pb.LeaseRequest(lease=self.plan.lease))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _rows_of(part: TableScan) -> tuple[object, ...]:
    """Identifies the rows of a table in a plan, and the schema version that shows them."""
    ranges = tuple((bucket.tier_point, bucket.head, bucket.live_sum) for bucket in part.buckets)
    return part.table.uuid, part.table.schema_id, part.snapshot_id, ranges


Source = Transport | Cut
"""Where a read gets its plan: a server plans the present head; a cut is a plan that a reader already holds."""


@contextmanager
def opened(
    source: Source, tables: Sequence[str], at: str | Token | None, require: Requirement | None = None
) -> Iterator[Cut]:
    """A cut over these tables: the one that the reader holds, or a new one that is released at the end."""
    if not isinstance(source, Cut):
        with Cut(source, tables, at=at, require=require) as cut:
            yield cut
        return
    if at is not None:
        raise Invalid("a snapshot is one cut: read it without at=")
    if require is not None:
        raise Invalid("a snapshot that is already taken meets no new requirement: pass require= when you take it")
    for name in tables:
        source.plan.scan(name)
    yield source

"""The leases of a stream that begins with a snapshot; they last while it lives, and for a while after it broke.

Two leases of one cut, found again by the token that names the cut: on the rows of the snapshot until they are read,
and on the changes behind the cut until the stream has caught up. From then on it is a stream like any other. Without
the second lease a large table could never be followed: its log start would pass the cut while its rows are read.
Leases are in memory: after a restart the grace time of reads holds instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import LEASE_SECONDS_DEFAULT
from lakestore.model.token import SnapshotPosition
from lakestore_server.commit.engine import Engine
from lakestore_server.read.leases import Leases
from lakestore_server.read.plan import AGAIN_SECONDS, log_needed, usable_tier
from lakestore_server.state.view import View

GRACE_SECONDS = LEASE_SECONDS_DEFAULT
"""Seconds for which the consumer of a subscription may stay away."""
UNNAMED_GRACE_SECONDS = 600
"""The same for a stream that reads no subscription: a client connects again within seconds."""
_NEVER = 1 << 62
Starts = dict[str, tuple[int, ...]]
"""Table uuid to the first offset of each bucket that is needed."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """The offsets and lake snapshots to be leased."""

    snapshots: dict[str, int]
    """Table uuid to lake snapshot, for tables whose old rows are only in the lake."""
    rows: Starts
    changes: Starts


class SnapshotLease:
    """The leases of a stream's connection. A context manager: leases still held at its end last for a while longer,
    unless the stream ended by an error with which it cannot go on."""

    def __init__(self, leases: Leases, owner: str = "", *, is_named: bool = True) -> None:
        """`is_named`: the stream reads a subscription."""
        self._leases, self._owner, self._head = leases, owner, _NEVER
        self._grace_seconds = GRACE_SECONDS if is_named else UNNAMED_GRACE_SECONDS
        self._rows: list[str] = []
        self._changes: list[str] = []

    def take(self, position: SnapshotPosition, needs: _Needs) -> None:
        """Lease the needs of a stream that goes on at a position; `Unavailable` if some of them go at this moment."""
        left = position.tables[position.tables.index(position.place.table) :]
        name = f"rows {position.lsn} {' '.join(left)}"
        self._leases.hold(name, needs.snapshots, needs.rows, owner=self._owner)
        self._rows = [name]
        name = f"changes {position.lsn} {' '.join(position.tables)}"
        self._leases.hold(name, {}, needs.changes, owner=self._owner)
        self._changes = [name]

    def rows_are_read(self, head: int) -> None:
        """Release the rows of the snapshot; the stream has caught up once it has come to this LSN."""
        self._head = head
        self._let_go(self._rows, 0)

    def is_at(self, lsn: int) -> None:
        """Note that the stream has come to an LSN."""
        if lsn >= self._head:
            self.is_over()

    def is_over(self) -> None:
        """Release everything: the stream has caught up, or is done."""
        self._let_go(self._rows, 0)
        self._let_go(self._changes, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_refused = isinstance(error, LakestoreError) and not isinstance(error, Unavailable)
        for names in (self._rows, self._changes):
            self._let_go(names, 0 if is_refused else self._grace_seconds)

    def _let_go(self, names: list[str], seconds: int) -> None:
        while names:
            self._leases.leave(names.pop(), seconds)


def take(lease: SnapshotLease, engine: Engine, leases: Leases, position: SnapshotPosition, *, reads_lake: bool) -> None:
    """Lease the needs of a stream that reads its snapshot on from this position; `PositionExpired` if they are gone.

    When the log start moves at this moment, the next view shows where to, and the needs are found anew.
    """
    view = engine.view
    while True:
        needs = _needs(view, leases, position, reads_lake=reads_lake)
        try:
            lease.take(position, needs)
        except Unavailable:
            lease.is_over()
            view = engine.wait_beyond(view.lsn, AGAIN_SECONDS)
        else:
            return


def _needs(view: View, leases: Leases, position: SnapshotPosition, *, reads_lake: bool) -> _Needs:
    lsn, tables = position.lsn, position.tables
    left = tables[tables.index(position.place.table) :]
    needs = _Needs({}, {}, {})
    for uuid in tables:
        state = view.by_uuid(uuid)
        needs.changes[uuid] = tuple(log.at_lsn(lsn).end for log in state.logs)
        if uuid not in left or state.table.keyed:
            # Live rows of a primary-key table stay in the log as long as the log start does not pass the cut.
            continue
        if state.has_all_rows:
            needs.rows[uuid] = state.starts()
        elif reads_lake and (tier := usable_tier(state, lsn, leases)) is not None:
            needs.snapshots[uuid], needs.rows[uuid] = tier.snapshot_id, log_needed(state, tier, lsn)
    return needs

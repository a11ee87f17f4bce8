"""The snapshot before a change stream: the rows that were live at its cut, as inserts, table by table.

Each message has the token of the place after it, so a stream that breaks inside a snapshot continues there. If the old
rows of a table are only in the lake, the client reads them at the cut (`read_the_lake`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from lakestore.errors import LakestoreError, PositionExpired, Unavailable
from lakestore.limits import LEASE_SECONDS_DEFAULT
from lakestore.model.token import Place, SnapshotPosition
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.batches import bare, live_piece, message, progress
from lakestore_server.changes.lease_names import changes_name, rows_name
from lakestore_server.changes.start import StreamOptions, check_reach
from lakestore_server.commit.engine import Engine
from lakestore_server.read.leases import LeaseConflict, Leases
from lakestore_server.read.plan import AGAIN_SECONDS, log_starts, usable_tier
from lakestore_server.read.rows import DeadCache
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View

GRACE_SECONDS = LEASE_SECONDS_DEFAULT
"""Seconds for which leases of a subscription outlive its connection."""
UNNAMED_GRACE_SECONDS = 600
"""Seconds for which leases of a stream without a subscription outlive it: a client reconnects within seconds."""
_NEVER = 1 << 62
Starts = dict[str, tuple[int, ...]]
"""Table uuid to the first offset of each bucket that must stay."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """The offsets and lake snapshots that must be leased."""

    snapshots: dict[str, int]
    """Table uuid to lake snapshot, for tables whose old rows are only in the lake."""
    rows: Starts
    changes: Starts


class SnapshotLease:
    """The leases of a stream's connection, as a context manager. Leases that remain at its end last for the grace time,
    unless the stream ended by an error that it cannot survive."""

    def __init__(self, leases: Leases, owner: str = "", *, is_named: bool = True) -> None:
        """`is_named`: the stream reads a subscription."""
        self._leases, self._owner, self._head = leases, owner, _NEVER
        self._grace_seconds = GRACE_SECONDS if is_named else UNNAMED_GRACE_SECONDS
        self._rows: list[str] = []
        self._changes: list[str] = []

    def lease(self, position: SnapshotPosition, needs: _Needs) -> None:
        """Lease the needs of a stream at a position; `LeaseConflict` if some of them are removed at this moment."""
        left = position.tables[position.tables.index(position.place.table) :]
        name = rows_name(position.lsn, left)
        self._leases.hold(name, needs.snapshots, needs.rows, owner=self._owner)
        self._rows = [name]
        name = changes_name(position.lsn, position.tables)
        self._leases.hold(name, {}, needs.changes, owner=self._owner)
        self._changes = [name]

    def rows_are_read(self, head: int) -> None:
        """Release the snapshot's rows. The stream has caught up once it reaches this LSN."""
        self._head = head
        self._let_go(self._rows, 0)

    def is_at(self, lsn: int) -> None:
        if lsn >= self._head:
            self.is_over()

    def is_over(self) -> None:
        """Release everything: the stream has caught up or has ended."""
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


def lease_needs(
    lease: SnapshotLease, engine: Engine, leases: Leases, position: SnapshotPosition, *, reads_lake: bool
) -> None:
    """Lease the needs of a stream that continues its snapshot at this position; `PositionExpired` if they are gone. If
    the log start moves at this moment, the needs are computed again from the next view."""
    view = engine.view
    while True:
        needs = _needs(view, leases, position, reads_lake=reads_lake)
        try:
            lease.lease(position, needs)
        except LeaseConflict:
            lease.is_over()
            view = engine.wait_beyond(view.lsn, AGAIN_SECONDS)
        else:
            return


def _needs(view: View, leases: Leases, position: SnapshotPosition, *, reads_lake: bool) -> _Needs:
    lsn, tables = position.lsn, position.tables
    left = tables[tables.index(position.place.table) :]
    needs = _Needs({}, {}, {})
    for name in tables:
        state = swaps.state_at(view, view.present(name), lsn)
        uuid = state.table.uuid
        needs.changes[uuid] = tuple(log.at_lsn(lsn).end for log in state.logs)
        if name not in left or state.table.keyed:
            # Live rows of a keyed table stay in the log while the log start does not pass the cut.
            continue
        if state.has_all_rows:
            needs.rows[uuid] = state.starts()
        elif reads_lake and (tier := usable_tier(state, lsn, leases)) is not None:
            needs.snapshots[uuid], needs.rows[uuid] = tier.snapshot_id, log_starts(state, tier, lsn)
    return needs


PROGRESS_ROWS = 1_000_000
"""Offsets without a row for the consumer after which a token without rows is sent."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step through a bucket's snapshot."""

    batch: EncodedBatch | None
    """The message; None if the condition matched no row."""
    reached: Place
    """The place after the step."""


class SnapshotReader:
    """Snapshots of streams with one consumer. Thread-safe: the position is the whole state between two messages."""

    def __init__(self, engine: Engine, dead: DeadCache) -> None:
        self._engine, self._dead = engine, dead

    def messages(self, options: StreamOptions, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """The live rows at the cut, from a place on, as inserts."""
        at = swaps.TablesAt.of(self._engine.view, options.shape.tables, position.lsn)
        if at.tables != position.tables:
            place = replace(position.place, table=at.tables[position.tables.index(position.place.table)])
            position = replace(position, tables=at.tables, place=place)
            options = replace(options, shape=options.shape.of_tables(at.tables))
        tables = at.tables
        for uuid in tables[tables.index(position.place.table) :]:
            view = self._engine.view
            state = self._state(uuid)
            check_reach(view, state, position.lsn, options.subscription)
            here = replace(position, place=position.place if position.place.table == uuid else Place(uuid, 0, 0))
            if not state.has_all_rows:
                yield options.sent(_read_the_lake(options, state, here))
                continue
            for batch in self._table(options, here):
                yield options.sent(batch)

    def _table(self, options: StreamOptions, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """The live rows of one table, from its log. Every piece uses the newest view: a slow consumer with a fixed view
        would keep chunks in memory that compaction has replaced. The rows that were live at the cut are equal in all of
        these views."""
        passed = 0
        while True:
            steps = self._steps(options, position)
            for step in steps:
                passed = 0 if step.batch else passed + step.reached.offset - position.place.offset
                position = replace(position, place=step.reached)
                if step.batch is not None:
                    yield step.batch
                elif passed >= PROGRESS_ROWS and options.progress:
                    passed = 0
                    state = self._state(position.place.table)
                    yield progress(state.versions.at(position.lsn), position)
            if not steps:
                place = position.place
                if place.bucket + 1 == len(self._state(place.table).logs):
                    return
                position = replace(position, place=Place(place.table, place.bucket + 1, 0))

    def _state(self, uuid: str) -> TableState:
        """A table that is read; another one may have its place meanwhile."""
        view = self._engine.view
        return swaps.kept_table(view, uuid) or view.by_uuid(uuid)

    def _steps(self, options: StreamOptions, position: SnapshotPosition) -> list[_Step]:
        place, lsn = position.place, position.lsn
        state = self._state(place.table)
        log, table = state.logs[place.bucket], state.versions.at(lsn)
        dead = self._dead.dead_offsets(place.table, place.bucket, log, 0, log.at_lsn(lsn).end)
        steps: list[_Step] = []
        for piece in live_piece(state, options.shape, place, lsn, dead, self._engine.limits):
            reached = Place(place.table, place.bucket, piece.end)
            token = replace(position, place=reached)
            most = self._engine.limits.message_bytes
            batch = message(table, piece.batch, token, most, snapshot=True) if piece.batch.num_rows else None
            steps.append(_Step(batch, reached))
        return steps


def _read_the_lake(options: StreamOptions, state: TableState, position: SnapshotPosition) -> EncodedBatch:
    table = state.versions.at(position.lsn)
    if not options.reads_lake:
        raise PositionExpired(
            f"the old rows of table {table.name} are only in the lake, which this client cannot read in a stream: "
            "scan the table at a token, then start there"
        )
    made = bare(table, position)
    made.snapshot = made.read_the_lake = True
    return EncodedBatch.encode(made)

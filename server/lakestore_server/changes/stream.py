"""The change stream: whole commits in LSN order, after a snapshot if one was asked for.

A stream sleeps until one of its tables changes. Streams of the same tables share what they send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from lakestore.errors import Invalid, NotFound, PositionExpired
from lakestore.model import times
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.token import LogPosition, Place, SharedPosition, SnapshotPosition, StreamPosition, Token, place_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.batch_cache import BatchCache, EncodedBatch, StreamRun
from lakestore_server.changes.batches import Shape, live_piece, message, progress, run
from lakestore_server.changes.filter import bound
from lakestore_server.changes.shared import positions
from lakestore_server.changes.shared.stream import MemberStream
from lakestore_server.changes.snapshot_lease import SnapshotLease, take
from lakestore_server.changes.subscriptions import Subscriptions, check_current
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.read.leases import Leases
from lakestore_server.read.positions import lsn_at, lsn_by_time, parse_token
from lakestore_server.read.rows import DeadCache
from lakestore_server.state.view import TableState, View

POLL_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
"""A stream whose condition lets nothing through tells so often how far it has come."""
PROGRESS_ROWS = 1_000_000
"""And after so many offsets of a snapshot."""


class Listener(Protocol):
    """Who reads a stream; a gRPC context is one."""

    def is_active(self) -> bool:
        """Whether somebody still listens."""

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Call back when nobody listens any more; False if that cannot be promised."""


@dataclass(frozen=True, slots=True)
class _Stream:
    shape: Shape
    until: int | None
    reads_lake: bool
    subscription: str
    progress: bool
    """Whether its consumer understands messages that only tell how far the stream has come."""
    epoch: int = 0

    def checked(self, view: View) -> View:
        """The view, if the stream may go on in it."""
        if self.subscription:
            check_current(view, self.subscription, self.epoch)
        return view

    def sent(self, prepared: EncodedBatch) -> EncodedBatch:
        """A message as this stream's consumer gets it."""
        return prepared.of_consumer(self.epoch) if self.subscription else prepared


class _Told:
    """How far the consumer of a stream knows that it has come."""

    def __init__(self, position: StreamPosition, clock: Clock) -> None:
        self.lsn, self._clock = position.lsn, clock
        self.nothing = True
        """Whether it was sent no position at all."""
        self.behind = isinstance(position, SnapshotPosition)
        """Whether it lacks something: the end of its snapshot, or changes that were passed over."""
        self._at = clock.monotonic()

    def upto(self, lsn: int, *, sent: bool) -> bool:
        """The stream has come to `lsn`, and its consumer was sent that or nothing; whether it is time to tell."""
        now = self._clock.monotonic()
        if sent:
            self.lsn, self.behind, self.nothing, self._at = lsn, False, False, now
            return False
        self.behind = True
        return now - self._at >= PROGRESS_SECONDS

    def timeout(self, poll: float | None) -> float | None:
        """How long to wait for changes."""
        return PROGRESS_SECONDS if self.behind else poll


class Feed:
    """Change streams. Thread-safe."""

    def __init__(self, engine: Engine, subscriptions: Subscriptions, leases: Leases, clock: Clock) -> None:
        self._engine, self._subscriptions, self._leases, self._clock = engine, subscriptions, leases, clock
        self._dead = DeadCache(engine.limits.dead_cache_ranges, engine.limits.dead_cache_bytes)
        self._cache = BatchCache(engine.limits.feed_cache_bytes)

    def changes(self, request: pb.ChangesRequest, listener: Listener) -> Iterator[EncodedBatch]:
        """The stream of a request; ends at `until`, or when nobody listens any more."""
        engine = self._engine
        view = engine.view if times.micros_of(request.start) is None else engine.settled()
        if not request.tables:
            raise Invalid("a change stream needs a table")
        tables = tuple(view.named(name).table.uuid for name in request.tables)
        until = None
        if request.until:
            until = view.lsn if request.until == "now" else lsn_at(engine, request.until, request.tables)
        chosen = _chosen(view, tables, list(request.columns))
        where = tuple(bound(request.where, view.tables[uuid].versions) for uuid in tables) if request.where else ()
        shape = Shape(tables, request.before_images, chosen, where)
        if request.member:
            yield from self._of_member(request, shape, until, listener)
            return
        stream = _Stream(shape, until, request.lake_snapshot, request.subscription, request.progress)
        with ExitStack() as stack:
            if request.subscription:
                stack.enter_context(self._subscriptions.consumed(request.subscription))
                opened = self._subscriptions.open(
                    request.subscription, tables, lambda now: _start(engine, now, request.start or "earliest", tables)
                )
                stream, position = replace(stream, epoch=opened.epoch), opened.token(engine.timeline)
            else:
                position = _start(engine, view, request.start or "earliest", tables)
            stack.enter_context(self._cache.followed(shape))
            hold = stack.enter_context(SnapshotLease(self._leases))
            if isinstance(position, SnapshotPosition):
                position = self._held(hold, request, stream, position)
                yield from self._snapshot(stream, position)
                hold.rows_are_read(engine.view.lsn)
            yield from self._follow(stream, position, listener, hold)

    def _held(
        self, hold: SnapshotLease, request: pb.ChangesRequest, stream: _Stream, position: SnapshotPosition
    ) -> SnapshotPosition:
        """Hold what a snapshot needs. A new one begins later if the log start has passed it in this very moment."""
        while True:
            try:
                take(hold, self._engine, self._leases, position, reads_lake=stream.reads_lake)
            except PositionExpired:
                if request.start != "snapshot" or request.subscription:
                    raise
                position = _snapshot_start(self._engine, self._engine.view, stream.shape.tables)
            else:
                return position

    def _of_member(
        self, request: pb.ChangesRequest, shape: Shape, until: int | None, listener: Listener
    ) -> Iterator[EncodedBatch]:
        """What one of several consumers of a subscription is sent."""
        engine, subscriptions, name = self._engine, self._subscriptions, request.subscription
        if not name or not request.session:
            raise Invalid("a consumer that shares a subscription names the subscription and its session")
        with ExitStack() as stack:
            stack.enter_context(subscriptions.consumed(name, shared=True))
            start = partial(_start, engine, start=request.start or "earliest", tables=shape.tables)
            opened = subscriptions.open(name, shape.tables, start, shared=True)
            seat = stack.enter_context(subscriptions.shared.joined(opened, request.member, request.session))
            stream = MemberStream(engine, self._dead, seat, shape, until, reads_lake=request.lake_snapshot)
            hold = stack.enter_context(SnapshotLease(self._leases))
            lsn, place = positions.position(opened, engine.view)
            if place:
                at = SnapshotPosition(engine.timeline, lsn, shape.tables, place)
                take(hold, engine, self._leases, at, reads_lake=request.lake_snapshot)
            bell = stack.enter_context(engine.bells.heard(stream.bells))
            poll = None if listener.add_callback(bell.set) else POLL_SECONDS
            while listener.is_active():
                bell.clear()
                yield from stream.messages()
                if not stream.moved:
                    if not stream.has_snapshot():
                        hold.is_over()
                    if stream.is_over():
                        return
                    stream.wait(bell, poll)

    def _snapshot(self, stream: _Stream, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """The live rows at the cut, as inserts."""
        tables = stream.shape.tables
        for uuid in tables[tables.index(position.place.table) :]:
            state = self._engine.view.by_uuid(uuid)
            _check_reach(state, position.lsn)
            here = replace(position, place=position.place if position.place.table == uuid else Place(uuid, 0, 0))
            if not state.has_all_rows:
                yield stream.sent(_from_lake(stream, state, here))
                continue
            for prepared in self._table_snapshot(stream, here):
                yield stream.sent(prepared)

    def _table_snapshot(self, stream: _Stream, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """One table's live rows, out of its log. While the consumer takes its time, no view is kept for it."""
        passed = 0
        while True:
            found = self._piece(stream, position)
            for prepared, reached in found:
                passed = 0 if prepared else passed + reached.offset - position.place.offset
                position = replace(position, place=reached)
                if prepared is not None:
                    yield prepared
                elif passed >= PROGRESS_ROWS and stream.progress:
                    passed = 0
                    yield self._progress(stream, position)
            if not found:
                view, place = self._engine.view, position.place
                if place.bucket + 1 == len(view.by_uuid(place.table).logs):
                    return
                position = replace(position, place=Place(place.table, place.bucket + 1, 0))

    def _piece(self, stream: _Stream, position: SnapshotPosition) -> list[tuple[EncodedBatch | None, Place]]:
        """The next messages of a bucket's snapshot and the places behind them; None for a message without rows."""
        place, limits = position.place, self._engine.limits
        state = self._engine.view.by_uuid(place.table)
        log, table = state.logs[place.bucket], state.versions.at(position.lsn)
        dead = self._dead.of(place.table, place.bucket, log, 0, log.at_lsn(position.lsn).end)
        made: list[tuple[EncodedBatch | None, Place]] = []
        for batch, after in live_piece(state, stream.shape, place, position.lsn, dead, limits):
            reached = Place(place.table, place.bucket, after)
            token = replace(position, place=reached)
            made.append((message(table, batch, token, snapshot=True) if batch.num_rows else None, reached))
        return made

    def _follow(
        self, stream: _Stream, position: StreamPosition, listener: Listener, hold: SnapshotLease
    ) -> Iterator[EncodedBatch]:
        """The changes behind a position; where a condition lets none through, or a snapshot ends, how far it came."""
        lsn, tables = position.lsn, stream.shape.tables
        told = _Told(position, self._clock)
        keys = [*tables, *([stream.subscription] if stream.subscription else [])]
        with self._engine.bells.heard(keys) as bell:
            poll = None if listener.add_callback(bell.set) else POLL_SECONDS
            while stream.until is None or lsn < stream.until:
                bell.clear()
                view = stream.checked(self._engine.serving())
                if not listener.is_active():
                    return
                limit = view.lsn if stream.until is None else min(view.lsn, stream.until)
                if _changed(view, tables, lsn, limit):
                    found = self._run(view, stream, lsn, limit)
                    for prepared in found.messages:
                        yield stream.sent(prepared)
                    lsn = found.upto
                    hold.is_at(lsn)
                    due = told.upto(lsn, sent=bool(found.messages))
                else:
                    lsn = limit
                    hold.is_at(lsn)
                    due = self._wait(stream, lsn, bell, told.timeout(poll)) and told.behind
                if due and stream.progress:
                    yield stream.sent(self._progress(stream, self._token(stream, lsn)))
                    told.upto(lsn, sent=True)
        hold.is_over()
        if stream.progress and (told.behind or told.nothing or lsn > told.lsn):
            yield stream.sent(self._progress(stream, self._token(stream, lsn)))

    def _token(self, stream: _Stream, lsn: int) -> LogPosition:
        return LogPosition(self._engine.timeline, lsn, stream.shape.tables)

    def _progress(self, stream: _Stream, position: StreamPosition) -> EncodedBatch:
        place = place_of(position)
        uuid = place.table if place else stream.shape.tables[0]
        return progress(self._engine.view.by_uuid(uuid).versions.at(position.lsn), position)

    def _run(self, view: View, stream: _Stream, lsn: int, limit: int) -> StreamRun:
        """The next messages: of streams of the same shape only one makes them."""
        made = partial(run, view, stream.shape, LogPosition(self._engine.timeline, lsn), limit, self._engine.limits)
        return self._cache.of(stream.shape, lsn, limit, made)

    def _wait(self, stream: _Stream, lsn: int, bell: threading.Event, timeout: float | None) -> bool:
        """Until one of the tables changes, or for a time; whether that went by. An end that lies ahead may be reached
        by other tables' commits.
        """
        if stream.until is None:
            return not bell.wait(timeout)
        if lsn < stream.until:
            return self._engine.wait_beyond(lsn, POLL_SECONDS).lsn <= lsn
        return False


def _chosen(view: View, tables: tuple[str, ...], columns: list[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of the columns to show, per table; nothing where none are named."""
    named = [name for name in columns if name not in SYSTEM_TYPES]
    chosen = (tuple(view.tables[uuid].versions.column_id(name) for name in named) for uuid in tables)
    return tuple(chosen) if columns else ()


def _start(engine: Engine, view: View, start: str, tables: tuple[str, ...]) -> StreamPosition:
    states = [view.by_uuid(uuid) for uuid in tables]
    token = _start_token(engine, view, start, states)
    if isinstance(token, SharedPosition):
        raise Invalid("the position is one of a shared subscription, for its batches to be acknowledged only")
    if token.lsn > view.lsn:
        raise Invalid("the position lies ahead of the server's history")
    if token.tables and token.tables != tables:
        raise NotFound("the position belongs to other tables: one was dropped, or the list has changed")
    place = place_of(token)
    if place and place.table not in tables:
        raise Invalid("the position names a table that is not its own")
    for state in states:
        _check_reach(state, token.lsn)
    return replace(token, tables=tables)


def _start_token(engine: Engine, view: View, start: str, states: list[TableState]) -> Token:
    tables = tuple(state.table.uuid for state in states)
    if start == "earliest":
        return LogPosition(engine.timeline, max(state.log_start_lsn for state in states), tables)
    if start == "latest":
        return LogPosition(engine.timeline, view.lsn, tables)
    if start == "snapshot":
        return _snapshot_start(engine, view, tables)
    time_us = times.micros_of(start)
    if time_us is None:
        return parse_token(start, engine)
    if time_us > view.time_us:
        return LogPosition(engine.timeline, view.lsn, tables)
    return LogPosition(engine.timeline, lsn_by_time(states, time_us, before=True), tables)


def _snapshot_start(engine: Engine, view: View, tables: tuple[str, ...]) -> SnapshotPosition:
    return SnapshotPosition(engine.timeline, view.lsn, tables, Place(tables[0], 0, 0))


def _check_reach(state: TableState, lsn: int) -> None:
    if lsn < state.log_start_lsn:
        raise PositionExpired(
            f"the changes of table {state.table.name} are kept from LSN {state.log_start_lsn} (offsets "
            f"{list(state.starts())}) on, and the position is LSN {lsn}: start at 'snapshot', or at 'earliest'"
        )


def _from_lake(stream: _Stream, state: TableState, position: SnapshotPosition) -> EncodedBatch:
    """What tells a client to read a table's snapshot itself, for the old part of it is only in the lake."""
    table = state.versions.at(position.lsn)
    if not stream.reads_lake:
        raise PositionExpired(
            f"the old rows of table {table.name} are only in the lake, which this client does not read in a stream: "
            "scan the table at a token, then start there"
        )
    return EncodedBatch.of(
        pb.ChangeBatch(
            table=table.name, token=str(position), snapshot=True, schema_id=table.schema_id, read_the_lake=True
        )
    )


def _changed(view: View, tables: tuple[str, ...], lsn: int, limit: int) -> bool:
    """Whether a commit in (lsn, limit] touches one of the tables."""
    if limit <= lsn:
        return False
    for uuid in tables:
        state = view.by_uuid(uuid)
        _check_reach(state, lsn)
        if any(log.at_lsn(limit).end > log.at_lsn(lsn).end for log in state.logs):
            return True
    return False

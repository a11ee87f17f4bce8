"""The change stream: whole commits in LSN order, after a snapshot if the request asks for one.

A stream sleeps until one of its tables changes. Streams of the same tables share messages. With `progress` a token
without rows is sent a second after the stream skipped commits, after a million offsets of a snapshot without a match,
and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol

from lakestore.errors import Invalid, PositionExpired
from lakestore.model.token import LogPosition, SnapshotPosition, StreamPosition
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.batch_cache import BatchCache, EncodedBatch, StreamRun
from lakestore_server.changes.batches import Shape, progress, run
from lakestore_server.changes.sharing import positions
from lakestore_server.changes.sharing.stream import MemberStream
from lakestore_server.changes.snapshot import SnapshotLease, SnapshotReader, lease_needs
from lakestore_server.changes.start import StreamOptions, check_reach, first_view, snapshot_start
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.durable import EVERY, Bell, Pause, waited
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.read.leases import Leases
from lakestore_server.read.rows import DeadCache
from lakestore_server.state import swaps
from lakestore_server.state.view import View

POLL_SECONDS = 1.0
"""Seconds between checks of the listener if the transport has no callback."""
PROGRESS_SECONDS = 1.0
"""Seconds after which a stream that skips commits sends a token."""


class Listener(Protocol):
    """The reader at the other end of a stream; a gRPC context is one."""

    def is_active(self) -> bool: ...

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Call back when the listener is gone; False if the transport cannot."""


class ProgressClock:
    """The position that a stream's consumer knows, and the time at which it needs a newer one. Without progress, the
    consumer of a stream that shows nothing would resume at a position that the log may have lost."""

    def __init__(self, position: StreamPosition, clock: Clock) -> None:
        self.lsn, self._clock = position.lsn, clock
        self.nothing = True
        """True if the consumer has no position yet."""
        self.behind = isinstance(position, SnapshotPosition)
        """True if the consumer lacks the end of its snapshot or a token after skipped changes."""
        self._at = clock.monotonic()

    def upto(self, lsn: int, *, sent: bool) -> bool:
        """Note that the stream has reached `lsn`; True when the consumer needs a token. `sent`: the consumer got this
        LSN."""
        now = self._clock.monotonic()
        if sent:
            self.lsn, self.behind, self.nothing, self._at = lsn, False, False, now
            return False
        self.behind = True
        return now - self._at >= PROGRESS_SECONDS

    def is_owed(self, lsn: int) -> bool:
        """True if the consumer of a stream that ends at `lsn` does not know of the end yet."""
        return self.behind or self.nothing or lsn > self.lsn

    def timeout(self, poll: float | None) -> float | None:
        """Seconds to wait for changes; None to wait without an end."""
        return PROGRESS_SECONDS if self.behind else poll


class Feed:
    """Change streams. Thread-safe."""

    def __init__(self, engine: Engine, subscriptions: Subscriptions, leases: Leases, clock: Clock) -> None:
        self._engine, self._subscriptions, self._leases, self._clock = engine, subscriptions, leases, clock
        self._dead = DeadCache(engine.limits.dead_cache_ranges, engine.limits.dead_cache_bytes)
        self._cache = BatchCache(engine.limits.feed_cache_bytes)
        self._snapshots = SnapshotReader(engine, self._dead)

    def changes(self, request: pb.ChangesRequest, listener: Listener) -> Iterator[EncodedBatch]:
        """The stream of a request; it ends at `until` or when the listener is gone. It blocks its thread between
        messages."""
        return waited(self.messages(request, listener))

    def messages(self, request: pb.ChangesRequest, listener: Listener) -> Generator[EncodedBatch | Pause]:
        """The same stream, which yields a `Pause` when there is nothing to send."""
        self._engine.check_timeline(request.timeline, "what this stream has handed out")
        view = first_view(request.start, self._engine)
        options = StreamOptions.from_request(request, self._engine, view)
        if request.member:
            yield from self._of_member(request, options, listener)
        else:
            yield from self._of_one(options, view, listener)

    def _of_one(self, options: StreamOptions, view: View, listener: Listener) -> Iterator[EncodedBatch | Pause]:
        with ExitStack() as stack:
            options, position = self._begun(options, view, stack)
            stack.enter_context(self._cache.followed(options.shape))
            lease = stack.enter_context(SnapshotLease(self._leases, options.owner, is_named=bool(options.subscription)))
            if isinstance(position, SnapshotPosition):
                position = self._leased(lease, options, position)
                yield from self._snapshots.messages(options, position)
                lease.rows_are_read(self._engine.view.lsn)
            yield from self._follow(options, position, listener, lease)

    def _begun(self, options: StreamOptions, view: View, stack: ExitStack) -> tuple[StreamOptions, StreamPosition]:
        """The options with the subscription's epoch, and the first position. The stack holds the subscription while it
        is read, so that it cannot be dropped for idleness."""
        engine = self._engine
        if not options.subscription:
            return options, options.position(engine, view)
        stack.enter_context(self._subscriptions.consumed(options.subscription))
        begins = partial(options.position, engine)
        opened = self._subscriptions.open(options.subscription, options.shape.tables, begins, owner=options.owner)
        return replace(options, epoch=opened.epoch), opened.token(engine.timeline)

    def _leased(self, lease: SnapshotLease, options: StreamOptions, position: SnapshotPosition) -> SnapshotPosition:
        """The position of a snapshot whose rows are leased. The log start may pass the head between reading the head
        and leasing its rows. A new snapshot then begins at the next head. A position that the consumer already has must
        not move, so `PositionExpired` is raised; it is also raised if the log start is not the reason."""
        while True:
            try:
                lease_needs(lease, self._engine, self._leases, position, reads_lake=options.reads_lake)
            except PositionExpired:
                view = self._engine.view
                at = swaps.TablesAt.of(view, options.shape.tables, position.lsn)
                passed = any(at.view.by_uuid(uuid).log_start_lsn > position.lsn for uuid in at.tables)
                if options.start != "snapshot" or options.subscription or not passed:
                    raise
                position = snapshot_start(self._engine, view, options.shape.tables)
            else:
                return position

    def _of_member(
        self, request: pb.ChangesRequest, options: StreamOptions, listener: Listener
    ) -> Iterator[EncodedBatch | Pause]:
        engine, subscriptions, name = self._engine, self._subscriptions, options.subscription
        if not name or not request.session:
            raise Invalid("a consumer that shares a subscription names the subscription and its session")
        with ExitStack() as stack:
            stack.enter_context(subscriptions.consumed(name, shared=True))
            begins = partial(options.position, engine)
            opened = subscriptions.open(name, options.shape.tables, begins, shared=True, owner=options.owner)
            joined = subscriptions.shared.joined(opened, request.member, request.session)
            stream = MemberStream(
                engine,
                self._dead,
                stack.enter_context(joined),
                options.shape,
                options.until,
                reads_lake=options.reads_lake,
            )
            lease = stack.enter_context(SnapshotLease(self._leases, options.owner))
            lsn, place = positions.position(opened, engine.view)
            if place:
                at = SnapshotPosition(engine.timeline, lsn, options.shape.tables, place)
                lease_needs(lease, engine, self._leases, at, reads_lake=options.reads_lake)
            bell = stack.enter_context(engine.wakeups.heard(stream.wakeups))
            yield from self._member_messages(stream, listener, bell, lease)

    @staticmethod
    def _member_messages(
        stream: MemberStream, listener: Listener, bell: Bell, lease: SnapshotLease
    ) -> Iterator[EncodedBatch | Pause]:
        poll = None if listener.add_callback(bell.set) else POLL_SECONDS
        while True:
            bell.clear()  # cleared before the listener is checked: a listener that goes in between rings again
            if not listener.is_active():
                return
            yield from stream.messages()
            if stream.moved:
                continue
            if not stream.has_snapshot():
                lease.is_over()
            if stream.is_over():
                return
            yield stream.pause(bell, poll)

    def _follow(
        self, options: StreamOptions, position: StreamPosition, listener: Listener, lease: SnapshotLease
    ) -> Iterator[EncodedBatch | Pause]:
        told = ProgressClock(position, self._clock)
        lsn = position.lsn
        while True:
            lsn = yield from self._follow_tables(options, lsn, listener, lease, told)
            present = swaps.present_tables(self._engine.view, options.shape.tables)
            if present == options.shape.tables or lsn == options.until or not listener.is_active():
                break
            options = replace(options, shape=options.shape.of_tables(present))
        if not listener.is_active():
            return
        lease.is_over()
        if options.progress and told.is_owed(lsn):
            yield self._progress(options, lsn)

    def _follow_tables(
        self, options: StreamOptions, lsn: int, listener: Listener, lease: SnapshotLease, told: ProgressClock
    ) -> Generator[EncodedBatch | Pause, None, int]:
        """Send changes until the end of the stream, until the listener is gone, or until the stream has passed the swap
        of one of its tables; returns the LSN that it has reached."""
        tables = options.shape.tables
        # Commits of other tables may reach the end of the stream.
        keys = [*tables, *filter(None, [options.subscription, EVERY if options.until is not None else ""])]
        with self._engine.wakeups.heard(keys) as bell:
            poll = None if listener.add_callback(bell.set) else POLL_SECONDS
            while options.until is None or lsn < options.until:
                # Cleared before the view is taken: a commit in between rings again.
                bell.clear()
                view = options.checked(self._engine.serving())
                if not listener.is_active():
                    return lsn
                head = view.lsn if options.until is None else min(view.lsn, options.until)
                at = swaps.TablesAt.of(view, tables, lsn)
                is_swapped = swaps.present_tables(view, tables) != tables
                if is_swapped and lsn >= at.until:
                    return lsn
                limit = min(at.until, head)
                if _changed(at.view, at.tables, lsn, limit, options.subscription):
                    found = self._run(at.view, options.shape.of_tables(at.tables), lsn, limit)
                    for batch in found.messages:
                        yield options.sent(batch)
                    lsn = found.upto
                    lease.is_at(lsn)
                    due = told.upto(lsn, sent=bool(found.messages))
                else:
                    lsn = limit
                    lease.is_at(lsn)
                    if lsn == options.until:
                        break
                    if lsn < head or is_swapped:
                        continue  # the table in its place has the rest
                    yield Pause(bell, told.timeout(poll))
                    due = told.behind and not bell.is_set()
                if due and options.progress:
                    yield self._progress(options, lsn)
                    told.upto(lsn, sent=True)
        return lsn

    def _progress(self, options: StreamOptions, lsn: int) -> EncodedBatch:
        tables = options.shape.tables
        version = self._engine.view.present(tables[0]).versions.at(lsn)
        return options.sent(progress(version, LogPosition(self._engine.timeline, lsn, tables)))

    def _run(self, view: View, shape: Shape, lsn: int, limit: int) -> StreamRun:
        made = partial(run, view, shape, LogPosition(self._engine.timeline, lsn), limit, self._engine.limits)
        return self._cache.shared_run(shape, lsn, limit, made)


def _changed(view: View, tables: tuple[str, ...], lsn: int, limit: int, subscription: str) -> bool:
    if limit <= lsn:
        return False
    for uuid in tables:
        state = view.by_uuid(uuid)
        check_reach(view, state, lsn, subscription)
        if any(log.at_lsn(limit).end > log.at_lsn(lsn).end for log in state.logs):
            return True
    return False

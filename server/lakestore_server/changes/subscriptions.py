"""Verbs of named subscriptions: open, acknowledge, list, drop. Positions are journaled, consumers are in memory.

- A consumer that opens a subscription alone gets a new epoch; reads and acknowledgements of older consumers are
  `Fenced`.
- Consumers share a subscription if each of them asks for it (`shared/`).
- A subscription changes between alone and shared only while nobody reads it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lakestore.errors import Conflict, Fenced, Invalid, LimitReached, NotFound
from lakestore.model.names import DROPPED
from lakestore.model.outside_values import shown_name
from lakestore.model.token import StreamPosition, Token, place_of, stream_position
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.lease_names import lease_names
from lakestore_server.changes.sharing import positions
from lakestore_server.changes.sharing.group import SharedSubscriptions
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import AHEAD_US_MIN, Clock
from lakestore_server.host.quota import share_of
from lakestore_server.read.leases import Leases
from lakestore_server.read.positions import check_place, parse_token
from lakestore_server.state import swaps
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.subscription import Subscription, SubscriptionDrop, SubscriptionMove
from lakestore_server.state.view import View

NOTED_PER_IDLE = 8
"""Journal entries of a waiting consumer in the time after which its subscription would be dropped as idle."""
ACK_AGAIN_US = 60_000_000
"""Microseconds after the last journaled acknowledgement from which an acknowledgement that moves nothing is journaled
too."""


class Subscriptions:
    """Named subscriptions and their positions. Thread-safe."""

    def __init__(
        self, engine: Engine, leases: Leases, clock: Clock, idle_seconds: float, rebalance_seconds: float
    ) -> None:
        self._engine, self._leases = engine, leases
        self.shared = SharedSubscriptions(engine, clock, rebalance_seconds, ACK_AGAIN_US)
        self._idle_us = int(idle_seconds * 1e6)
        self._lock = threading.Lock()
        self._consumers: Counter[str] = Counter()
        self._members: Counter[str] = Counter()

    def open(
        self,
        name: str,
        tables: tuple[str, ...],
        start: Callable[[View], StreamPosition],
        *,
        shared: bool = False,
        owner: str = "",
    ) -> Subscription:
        """The subscription for its next consumer: the existing one, or a new one at `start`."""

        def plan(state: State, record: CommitRecord) -> Subscription:
            view = state.view
            known = view.subscriptions.get(name)
            if known is None:
                self._check_room(view, name, owner)
                begin = start(view)
                opened = Subscription(name, tables, begin.lsn, place_of(begin), state.epoch(record.lsn), 0)
                opened = positions.shared(opened, view) if shared else opened
            else:
                _check_tables(known, tables, view)
                positions.check_kept(known, view)
                opened = _opened(known, view, state.epoch(record.lsn), shared=shared)
            opened = replace(opened, acked_us=record.clock_us)
            record.subscriptions.append(opened)
            return opened

        opened = self._engine.operate(plan).result
        if not shared:
            self.shared.forget(name)
        return opened

    def _check_room(self, view: View, name: str, owner: str) -> None:
        limits = self._engine.limits
        if len(name) > limits.name_chars:
            raise Invalid(f"the subscription's name has {len(name)} characters; at most {limits.name_chars} are taken")
        if len(view.subscriptions) >= limits.subscriptions:
            raise LimitReached(
                f"the server keeps {limits.subscriptions} subscriptions, its limit: drop one that is no longer read"
            )
        own = f"{owner}/"
        if owner and name.startswith(own):
            mine = sum(each.startswith(own) for each in view.subscriptions)
            if mine >= share_of(limits.subscriptions, limits):
                raise LimitReached(
                    f"{owner} keeps {mine} subscriptions, one principal's part of the limit: drop one that is no"
                    " longer read"
                )

    @contextmanager
    def consumed(self, name: str, *, shared: bool = False) -> Iterator[None]:
        """Mark a subscription as read while the block runs. It is not dropped as idle and nobody opens it the other
        way."""
        mine, others = (self._members, self._consumers) if shared else (self._consumers, self._members)
        with self._lock:
            if others[name]:
                raise Conflict(_read_otherwise(name, others[name], shared=shared))
            mine[name] += 1
        try:
            yield
        finally:
            with self._lock:
                mine[name] -= 1
                if not mine[name]:
                    del mine[name]

    def ack(self, request: pb.AckRequest) -> pb.AckAnswer:
        """Move a position, durably. A position at or before the present one changes nothing."""
        token = swaps.present_token(self._engine.view, parse_token(request.token, self._engine))
        if request.member:
            self.shared.ack(request, token)
            return pb.AckAnswer()
        view = self._engine.view
        held = _held(view, request)
        moved = _acked(held, token, view)
        if moved == held and view.clock_us - held.acked_us < ACK_AGAIN_US:
            return pb.AckAnswer()

        def plan(state: State, record: CommitRecord) -> None:
            now = _held(state.view, request)
            record.subscriptions.append(_acked(replace(now, acked_us=record.clock_us), token, state.view))

        self._engine.operate(plan)
        return pb.AckAnswer()

    def list_subscriptions(self, _: pb.ListSubscriptionsRequest) -> pb.ListSubscriptionsAnswer:
        view = self._engine.view
        infos = [self._info(view, view.subscriptions[name]) for name in sorted(view.subscriptions)]
        return pb.ListSubscriptionsAnswer(subscriptions=infos)

    def _info(self, view: View, held: Subscription) -> pb.SubscriptionInfo:
        names = [view.tables[uuid].table.name if uuid in view.tables else DROPPED for uuid in held.tables]
        lsn, place = positions.position(held, view)
        return pb.SubscriptionInfo(
            name=held.name,
            tables=names,
            token=str(stream_position(self._engine.timeline, lsn, held.tables, place)),
            acked_us=held.acked_us,
            behind=behind(view, held),
            snapshot=place is not None,
            shared=held.is_shared,
            members=self.shared.members(held, view) if held.is_shared else (),
            expired=positions.expired(held, view) is not None,
        )

    def drop_subscription(self, request: pb.DropSubscriptionRequest) -> pb.DropSubscriptionAnswer:
        def plan(state: State, record: CommitRecord) -> Subscription:
            known = state.view.subscriptions.get(request.subscription)
            if known is None:
                raise NotFound(f"there is no subscription {shown_name(request.subscription)}")
            record.subscriptions.append(SubscriptionDrop(request.subscription))
            return known

        done = self._engine.operate(plan)
        self.left(done.result, done.view)
        return pb.DropSubscriptionAnswer()

    def left(self, known: Subscription, view: View) -> None:
        """Forget the consumers of a subscription as it was before its reset or drop, and what its half-read snapshot
        needed, unless another subscription in the view reads the same snapshot."""
        self.shared.forget(known.name)
        cut = _snapshot_cut(known, view)
        if cut and cut not in (_snapshot_cut(each, view) for each in view.subscriptions.values()):
            self._leases.forget(lease_names(*cut))

    def forget_idle(self, now_us: int) -> None:
        """Drop the subscriptions that were not opened, read or acknowledged for too long."""
        if not self._idle(self._engine.view, now_us):
            return

        def plan(state: State, record: CommitRecord) -> None:
            record.subscriptions += [SubscriptionDrop(name) for name in self._idle(state.view, now_us)]

        self._engine.operate(plan)

    def _idle(self, view: View, now_us: int) -> list[str]:
        with self._lock:
            consumed = {*self._consumers, *self._members}
        oldest_us = now_us - self._idle_us
        return [s.name for s in view.subscriptions.values() if s.acked_us < oldest_us and s.name not in consumed]

    def note_consumers(self, now_us: int) -> None:
        """Journal that waiting consumers are present, so that a restart does not take their subscriptions for idle. A
        subscription that was acknowledged under a clock ahead of the time becomes idle from now on."""
        due = self._to_note(self._engine.view, now_us)
        if not due:
            return

        def plan(state: State, record: CommitRecord) -> None:
            for held in self._to_note(state.view, now_us):
                alone, shared = replace(held, acked_us=record.clock_us), SubscriptionMove(held.name, record.clock_us)
                record.subscriptions.append(shared if held.is_shared else alone)

        self._engine.operate(plan)

    def _to_note(self, view: View, now_us: int) -> list[Subscription]:
        with self._lock:
            consumed = {*self._consumers, *self._members}
        oldest_us = now_us - self._idle_us // NOTED_PER_IDLE
        late = {s.name for s in view.subscriptions.values() if s.acked_us > now_us + AHEAD_US_MIN}
        return [
            s for s in view.subscriptions.values() if (s.name in consumed and s.acked_us < oldest_us) or s.name in late
        ]


def _snapshot_cut(held: Subscription, view: View) -> tuple[int, tuple[str, ...]] | None:
    """(LSN, tables) of the snapshot that a subscription is in; None beyond its snapshot."""
    lsn, place = positions.position(held, view)
    return (lsn, held.tables) if place is not None else None


def check_current(view: View, name: str, epoch: int) -> None:
    """`Fenced` if another consumer has opened the subscription since, `NotFound` if it was dropped."""
    held = view.subscriptions.get(name)
    if held is None:
        raise NotFound(f"subscription {name!r} was dropped: open it again")
    if held.epoch != epoch or held.is_shared:
        raise Fenced(f"subscription {name!r} was opened again by another consumer, or reset: this consumer must stop")


def behind(view: View, held: Subscription) -> int:
    """The number of unread changes of a subscription."""
    return sum(changes for _, changes in positions.behind(held, view))


def _held(view: View, request: pb.AckRequest) -> Subscription:
    check_current(view, request.subscription, request.epoch)
    return view.subscriptions[request.subscription]


def _acked(held: Subscription, token: Token, view: View) -> Subscription:
    place = place_of(token)
    token = swaps.present_token(view, token)
    if token.tables != held.tables or (place and place.table not in held.tables):
        raise Invalid(f"the position does not belong to subscription {held.name!r}: acknowledge one of its batches")
    if token.lsn > view.lsn:
        raise Invalid("the position lies ahead of the server's history")
    for uuid in held.tables:
        view.by_uuid(uuid)
    if place:
        check_place(view, place, token.lsn)
    return held.at(token, held.acked_us)


def _opened(known: Subscription, view: View, epoch: int, *, shared: bool) -> Subscription:
    if shared and known.is_shared:
        return known
    changed = positions.shared(known, view) if shared else positions.alone(known, view) if known.is_shared else known
    return replace(changed, epoch=epoch)


def _read_otherwise(name: str, consumers: int, *, shared: bool) -> str:
    if shared:
        return f"subscription {name!r} is read by one consumer alone: stop it, or let it share with shared=True"
    return f"subscription {name!r} is shared by {consumers} consumers: read it with shared=True, or stop them first"


def _check_tables(held: Subscription, tables: Sequence[str], view: View) -> None:
    gone = [uuid for uuid in held.tables if uuid not in view.tables]
    if gone:
        raise NotFound(
            f"a table of subscription {held.name!r} was dropped: drop the subscription, then open it for the new table"
        )
    if tuple(tables) != held.tables:
        names = ", ".join(view.tables[uuid].table.name for uuid in held.tables)
        raise Invalid(f"subscription {held.name!r} belongs to {names}: open it for these tables, or under another name")

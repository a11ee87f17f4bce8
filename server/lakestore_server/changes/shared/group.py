"""Shared subscriptions: members take seats, read the buckets that are theirs, and acknowledge them. Thread-safe.

Marks are in the journal, members in memory (`members.py`). After a restart nobody reads any bucket until members come
back; an acknowledgement counts unless somebody else reads the bucket, or has acknowledged more of it since. One that
counted already, and whose answer was lost, counts whoever reads the bucket now.
A bucket's *run* is a number that changes when its reader does; an acknowledgement names the run it read in. A lost
answer that cannot be told from a refusal is `Fenced` with `applied="unknown"`: a consumer must not undo its work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakestore.errors import Fenced, Invalid, NotFound
from lakestore.model.token import Part, SharedPosition, Token
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.shared import positions
from lakestore_server.changes.shared.assignment import Bucket
from lakestore_server.changes.shared.members import Group, Order
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.subscription import NO_CUT, Mark, MovedMark, Subscription, SubscriptionMove
from lakestore_server.state.view import View

Moves = Mapping[Bucket, tuple[int, Order]]
"""Bucket to grant and place."""
BUCKETS_SAID = 8
"""How many a sentence names; the error has them all."""


class SharedSubscriptions:
    """The groups of all shared subscriptions."""

    def __init__(self, engine: Engine, clock: Clock, rebalance_seconds: float, ack_again_us: int) -> None:
        self._engine, self._clock = engine, clock
        self._rebalance_seconds, self._ack_again_us = rebalance_seconds, ack_again_us
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}

    @contextmanager
    def joined(self, held: Subscription, member: str, session: int) -> Iterator[Membership]:
        """A member's seat while it has a connection."""
        most = self._engine.limits.name_chars
        if len(member) > most:
            raise Invalid(f"the member's name has {len(member)} characters; at most {most} are taken")
        with self._lock:
            group = self._group(held)
            number = group.join(member, session, self._clock.monotonic())
        self.ring(held.name)
        try:
            yield Membership(self, group, held.name, member, session, number)
        finally:
            with self._lock:
                group.leave(member, number, self._clock.monotonic())
            self.ring(held.name)

    def forget(self, name: str) -> None:
        """The subscription is no longer shared: whoever has a seat is told so."""
        with self._lock:
            group = self._groups.pop(name, None)
            if group is not None:
                group.close()
        self.ring(name)

    def ack(self, request: pb.AckRequest, token: Token) -> None:
        """Move the marks of a batch's buckets, durably; `Fenced` names the buckets where it does not count."""
        held = current(self._engine.view, request.subscription)
        parts = _checked(token, held, self._engine.view)
        refused = self.move(held, request.member, request.session, parts)
        if refused:
            raise self._fenced(held, refused)

    def move(self, held: Subscription, member: str, session: int, parts: Sequence[Part]) -> list[Part]:
        """Journal what a session has acknowledged; the parts that do not count come back."""
        of = {(held.tables[part.table], part.bucket): part for part in parts}
        with self._lock:
            group = self._group(held)
            own = group.ack_begins(member, session, {bucket: part.run for bucket, part in of.items()})
        acked: dict[Bucket, Order] = {}
        try:
            refused = self._journal(held.name, session, [of[bucket] for bucket in own])
            now = current(self._engine.view, held.name)
            others = [part for bucket, part in of.items() if bucket not in own]
            refused += [part for part in others if not _is_done(now, session, part)]
            acked = {bucket: _mark(now, of[bucket]).order() for bucket in own}
        finally:
            with self._lock:
                freed = group.ack_ends(own, acked)
            if freed:
                self.ring(held.name)
        return refused

    def _journal(self, name: str, session: int, parts: Sequence[Part]) -> list[Part]:
        """Move marks in the journal; the parts behind which somebody else has acknowledged more come back."""
        view = self._engine.view
        moved, late = _moved(current(view, name), session, parts)
        if not moved and view.time_us - view.subscriptions[name].acked_us < self._ack_again_us:
            return late

        def plan(state: State, record: CommitRecord) -> list[Part]:
            moved, late = _moved(current(state.view, name), session, parts)
            record.subscriptions.append(SubscriptionMove(name, record.time_us, tuple(moved)))
            return late

        return self._engine.operate(plan).result

    def members(self, held: Subscription, view: View) -> list[pb.MemberInfo]:
        """Who is there, and what each one reads."""
        left = dict(positions.behind(held, view))
        with self._lock:
            group = self._groups.get(held.name)
            if group is None:
                return []
            group.look(self._clock.monotonic())
            reads = {name: group.reads(name) for name in sorted(group.members)}
            away = {name: member.left is not None for name, member in group.members.items()}
        return [
            pb.MemberInfo(
                name=name,
                away=away[name],
                buckets=[
                    pb.SharedBucket(table=view.tables[uuid].table.name, bucket=number, behind=left[uuid, number])
                    for uuid, number in sorted(buckets)
                    if uuid in view.tables
                ],
            )
            for name, buckets in reads.items()
        ]

    def ring(self, name: str) -> None:
        """Wake the members: what they read may have changed."""
        self._engine.bells.ring([bell_key(name)])

    def take(self, seat: Membership) -> dict[Bucket, tuple[int, int, Mark]]:
        """What a seat reads now: grant, run, and the mark behind which a new grant begins."""
        with self._lock:
            changed = seat.group.look(self._clock.monotonic())
            held = current(self._engine.view, seat.name)
            now = dict(_by_bucket(held))
            grants = seat.group.take(seat.member, seat.number, {bucket: mark.order() for bucket, mark in now.items()})
            runs = {bucket: seat.group.run(bucket) for bucket in grants}
        if changed:
            self.ring(seat.name)
        return {bucket: (grant, runs[bucket], now[bucket]) for bucket, grant in grants.items()}

    def sends(self, seat: Membership, moves: Moves) -> bool:
        """Note what is about to be sent; False if a bucket has been taken away meanwhile."""
        with self._lock:
            return seat.group.sends(seat.member, seat.number, moves)

    def waits(self, seat: Membership) -> bool:
        """Whether there are buckets that the seat is to read and somebody else still does."""
        with self._lock:
            return bool(seat.group.missing(seat.member))

    def acknowledged(self, seat: Membership) -> list[Bucket]:
        """The seat's buckets of which everything that was sent is acknowledged."""
        with self._lock:
            return seat.group.acknowledged(seat.member)

    def due(self, seat: Membership) -> float | None:
        """Seconds until time alone changes what members read; None if it will not."""
        with self._lock:
            due = seat.group.due()
        return None if due is None else max(due - self._clock.monotonic(), 0.0)

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        return self._clock.monotonic()

    def _group(self, held: Subscription) -> Group:
        group = self._groups.get(held.name)
        if group is None:
            buckets = [bucket for bucket, _ in _by_bucket(held)]
            group = self._groups[held.name] = Group(buckets, self._rebalance_seconds, self._clock.now_us())
        return group

    def _fenced(self, held: Subscription, refused: Sequence[Part]) -> Fenced:
        states = [self._engine.view.tables.get(uuid) for uuid in held.tables]
        names = [state.table.name if state else "a dropped table" for state in states]
        buckets = sorted((names[part.table], part.bucket) for part in refused)
        said = [f"bucket {number} of {table}" for table, number in buckets[:BUCKETS_SAID]]
        more = f" and {len(buckets) - BUCKETS_SAID} more" if len(buckets) > BUCKETS_SAID else ""
        error = Fenced(
            f"another consumer of subscription {held.name!r} reads {', '.join(said)}{more} now, and gets these changes "
            "again: what this one has acknowledged of other buckets counts, so go on"
        )
        error.buckets = tuple(buckets)
        return error


@dataclass(frozen=True, slots=True)
class Membership:
    """One connection of a member."""

    shared: SharedSubscriptions
    group: Group
    name: str
    """Of the subscription."""
    member: str
    session: int
    number: int

    def settle(self, view: View, parts: Sequence[Part]) -> None:
        """Acknowledge, in the consumer's name, what held no rows for it."""
        self.shared.move(current(view, self.name), self.member, self.session, parts)


def bell_key(name: str) -> str:
    """What is rung when the members of a subscription, or their buckets, change."""
    return f"members of {name}"


def current(view: View, name: str) -> Subscription:
    """The subscription while it is shared; `NotFound` if it was dropped, `Fenced` if one consumer took it alone."""
    held = view.subscriptions.get(name)
    if held is None:
        raise NotFound(f"subscription {name!r} was dropped: open it again")
    if not held.is_shared:
        raise Fenced(f"subscription {name!r} was opened by one consumer alone: this one must stop")
    return held


def _by_bucket(held: Subscription) -> Iterable[tuple[Bucket, Mark]]:
    for uuid, table in zip(held.tables, held.marks, strict=True):
        for bucket, mark in enumerate(table):
            yield (uuid, bucket), mark


def _mark(held: Subscription, part: Part) -> Mark:
    return held.marks[part.table][part.bucket]


def _is_done(held: Subscription, session: int, part: Part) -> bool:
    """Whether a part counted before: it is sent again if the answer was lost, and somebody else reads on by then."""
    return _mark(held, part).has(session, part.begin, part.end, part.cut)


def _checked(token: Token, held: Subscription, view: View) -> tuple[Part, ...]:
    if not isinstance(token, SharedPosition) or token.tables != held.tables:
        raise Invalid(f"the position is not one of subscription {held.name!r}: acknowledge a batch that it gave")
    for part in token.parts:
        if not (0 <= part.table < len(held.marks) and 0 <= part.bucket < len(held.marks[part.table])):
            raise Invalid(f"the position names a bucket that subscription {held.name!r} does not have")
        if not 0 <= part.end <= view.by_uuid(held.tables[part.table]).logs[part.bucket].head:
            raise Invalid("the position lies ahead of the server's history")
    return token.parts


def _moved(held: Subscription, session: int, parts: Sequence[Part]) -> tuple[list[MovedMark], list[Part]]:
    """The marks that a session's parts move, and the parts behind which somebody else has moved one."""
    moved, late = [], []
    for part in parts:
        mark = _mark(held, part)
        after = mark.moved(session, part.end, part.cut)
        if not mark.counts(session, part.begin):
            late.append(part)
        elif after.order() > mark.order() and after.cut in (NO_CUT, mark.cut):
            moved.append(MovedMark(part.table, part.bucket, after))
    return moved, late

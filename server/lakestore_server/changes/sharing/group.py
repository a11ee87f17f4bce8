"""Shared subscriptions: members join, read their buckets and acknowledge them. Thread-safe.

- Marks are journaled, members are in memory. After a restart no bucket has a reader until members return.
- An acknowledgement counts unless another member reads the bucket or has acknowledged more. A repeated acknowledgement
  counts again.
- A bucket's *run* is a number that changes with its reader; an acknowledgement names its run.
- A refusal is journaled with the first run that counts again before the member is told, so it survives a restart.
- A lost answer that may have been a refusal is `Fenced` with `applied="unknown"`: a consumer must not undo its work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakestore.errors import Fenced, Invalid, NotFound
from lakestore.model.token import Part, SharedPosition, Token
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.sharing import positions
from lakestore_server.changes.sharing.members import Bucket, Group, Order, Sending
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.subscription import NO_CUT, Mark, MovedMark, Refusal, Subscription, SubscriptionMove
from lakestore_server.state.view import View

EPOCH_BITS, AFTER_CLOCKS = 30, 1 << 52
"""A grant of a server whose journal others share is numbered by the journal's epoch, so it is higher than every grant
of an earlier leader, whatever their clocks say. These numbers lie beyond all microseconds."""
BUCKETS_SAID = 8
"""Buckets that an error sentence names; the error's field has all."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant of a bucket to a member."""

    number: int
    run: int
    """The first grant since another member read the bucket; 0 if none did."""
    mark: Mark
    """The mark after which a new grant begins."""


@dataclass(frozen=True, slots=True)
class _Acknowledgement:
    """The parts of an acknowledgement, compared with the present marks."""

    moved: list[MovedMark]
    late: list[Part]
    """Parts after which another member has moved the mark."""


class SharedSubscriptions:
    """The groups of all shared subscriptions."""

    def __init__(self, engine: Engine, clock: Clock, rebalance_seconds: float, ack_again_us: int) -> None:
        self._engine, self._clock = engine, clock
        self._rebalance_seconds, self._ack_again_us = rebalance_seconds, ack_again_us
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}

    @contextmanager
    def joined(self, held: Subscription, member: str, session: int) -> Iterator[Membership]:
        """The membership of a consumer while it is connected."""
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

    def begin_to_lead(self) -> None:
        """Forget who reads what: another server may have led, granted buckets and refused acknowledgements."""
        view = self._engine.view
        with self._lock:
            for name, group in list(self._groups.items()):
                held = view.subscriptions.get(name)
                if held is not None and held.is_shared:
                    group.begin_again(self._first_number(), _refused(held))
                else:
                    self._groups.pop(name).close()
            names = list(self._groups)
        for name in names:
            self.ring(name)

    def _first_number(self) -> int:
        """A number higher than every grant before this server began to lead."""
        epoch = self._engine.loop.journal.leader.epoch
        return AFTER_CLOCKS + (epoch << EPOCH_BITS) if epoch else self._clock.now_us()

    def forget(self, name: str) -> None:
        """Remove the group of a subscription that is no longer shared. Its members learn it in their next call."""
        with self._lock:
            group = self._groups.pop(name, None)
            if group is not None:
                group.close()
        self.ring(name)

    def ack(self, request: pb.AckRequest, token: Token) -> None:
        """Move the marks of a batch's buckets, durably; `Fenced` names the buckets that do not count."""
        held = current(self._engine.view, request.subscription)
        positions.check_kept(held, self._engine.view)
        parts = _checked(token, held, self._engine.view)
        refused = self.move(held, request.member, request.session, parts)
        if refused:
            raise self._fenced(held, refused)

    def move(self, held: Subscription, member: str, session: int, parts: Sequence[Part]) -> list[Part]:
        """Journal a session's acknowledgement; returns the parts that do not count."""
        of = {(held.tables[part.table], part.bucket): part for part in parts}
        # Nobody begins to read these buckets until `ack_ends`. A new reader would start below the mark that the journal
        # is about to move and would be sent acknowledged rows.
        with self._lock:
            group = self._group(held)
            own = group.ack_begins(member, session, {bucket: part.run for bucket, part in of.items()})
        acked: dict[Bucket, Order] = {}
        try:
            refused = self._journal(held.name, session, [of[bucket] for bucket in own])
            now = current(self._engine.view, held.name)
            others = [part for bucket, part in of.items() if bucket not in own and not _is_done(now, session, part)]
            if others:
                self._journal_refusals(held, group, session, others)
            refused += others
            acked = {bucket: _mark(now, of[bucket]).order() for bucket in own}
        finally:
            with self._lock:
                freed = group.ack_ends(own, acked)
            if freed:
                self.ring(held.name)
        return refused

    def _journal(self, name: str, session: int, parts: Sequence[Part]) -> list[Part]:
        view = self._engine.view
        found = _acknowledgement(current(view, name), session, parts)
        if not found.moved and view.clock_us - view.subscriptions[name].acked_us < self._ack_again_us:
            return found.late

        def plan(state: State, record: CommitRecord) -> list[Part]:
            held = current(state.view, name)
            positions.check_kept(held, state.view)
            now = _acknowledgement(held, session, parts)
            record.subscriptions.append(SubscriptionMove(name, record.clock_us, tuple(now.moved)))
            return now.late

        return self._engine.operate(plan).result

    def _journal_refusals(self, held: Subscription, group: Group, session: int, parts: Sequence[Part]) -> None:
        """Journal the batches whose acknowledgement will be refused. The session must be sent them again before a later
        acknowledgement of it counts, also after a restart."""
        with self._lock:
            runs = [group.refuses((held.tables[part.table], part.bucket), session) for part in parts]
        named = zip(parts, runs, strict=True)
        refusals = tuple(Refusal(part.table, part.bucket, session, run) for part, run in named)

        def plan(state: State, record: CommitRecord) -> None:
            current(state.view, held.name)
            record.subscriptions.append(SubscriptionMove(held.name, record.clock_us, refusals=refusals))

        self._engine.operate(plan)

    def members(self, held: Subscription, view: View) -> list[pb.MemberInfo]:
        """The members by name, with the buckets that each of them reads."""
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
        """Wake the members, because their buckets may have changed."""
        self._engine.wakeups.ring([bell_key(name)])

    def grants(self, membership: Membership) -> dict[Bucket, Grant]:
        with self._lock:
            changed = membership.group.look(self._clock.monotonic())
            held = current(self._engine.view, membership.name)
            now = dict(by_bucket(held))
            grants = membership.group.take_buckets(
                membership.member, membership.number, {bucket: mark.order() for bucket, mark in now.items()}
            )
            runs = {bucket: membership.group.run(bucket) for bucket in grants}
        if changed:
            self.ring(membership.name)
        return {bucket: Grant(number, runs[bucket], now[bucket]) for bucket, number in grants.items()}

    def sends(self, membership: Membership, message: Mapping[Bucket, Sending]) -> bool:
        """Note a message that is about to be sent; False if one of its buckets was taken away."""
        with self._lock:
            return membership.group.sends(membership.member, membership.number, message)

    def waits(self, membership: Membership) -> bool:
        """True if another member still reads a bucket that is assigned to this member."""
        with self._lock:
            return bool(membership.group.missing(membership.member))

    def acknowledged(self, membership: Membership) -> list[Bucket]:
        with self._lock:
            return membership.group.acknowledged(membership.member)

    def due(self, membership: Membership) -> float | None:
        """Seconds until time alone changes the members' buckets; None if it will not."""
        with self._lock:
            due = membership.group.due()
        return None if due is None else max(due - self._clock.monotonic(), 0.0)

    def now(self) -> float:
        return self._clock.monotonic()

    def _group(self, held: Subscription) -> Group:
        group = self._groups.get(held.name)
        if group is None:
            buckets = [bucket for bucket, _ in by_bucket(held)]
            group = Group(buckets, self._rebalance_seconds, self._first_number(), _refused(held))
            self._groups[held.name] = group
        return group

    def _fenced(self, held: Subscription, refused: Sequence[Part]) -> Fenced:
        states = [self._engine.view.tables.get(uuid) for uuid in held.tables]
        names = [state.table.name if state else "a dropped table" for state in states]
        buckets = sorted((names[part.table], part.bucket) for part in refused)
        said = [f"bucket {number} of {table}" for table, number in buckets[:BUCKETS_SAID]]
        more = f" and {len(buckets) - BUCKETS_SAID} more" if len(buckets) > BUCKETS_SAID else ""
        error = Fenced(
            f"another consumer of subscription {held.name!r} reads {', '.join(said)}{more} now, and gets these changes "
            "again: acknowledgements of other buckets count, so continue"
        )
        error.buckets = tuple(buckets)
        return error


@dataclass(frozen=True, slots=True)
class Membership:
    """One connection of a member."""

    shared: SharedSubscriptions
    group: Group
    name: str
    member: str
    session: int
    number: int
    """Number of the connection; it grows with each connection of a member."""

    def settle(self, view: View, parts: Sequence[Part]) -> None:
        """Acknowledge ranges without rows for the consumer, in its name."""
        self.shared.move(current(view, self.name), self.member, self.session, parts)


def bell_key(name: str) -> str:
    """The wake-up key for changes of a subscription's members or their buckets."""
    return f"members of {name}"


def current(view: View, name: str) -> Subscription:
    """The subscription while it is shared; `NotFound` if it was dropped, `Fenced` if one consumer opened it alone."""
    held = view.subscriptions.get(name)
    if held is None:
        raise NotFound(f"subscription {name!r} was dropped: open it again")
    if not held.is_shared:
        raise Fenced(f"subscription {name!r} was opened by one consumer alone: this consumer must stop")
    return held


def _refused(held: Subscription) -> dict[tuple[Bucket, int], int]:
    """By bucket and session the first run that counts again after a refusal."""
    return {((held.tables[each.table], each.bucket), each.session): each.run for each in held.refusals}


def by_bucket(held: Subscription) -> Iterable[tuple[Bucket, Mark]]:
    """The mark of each bucket of a shared subscription."""
    for uuid, table in zip(held.tables, held.marks, strict=True):
        for bucket, mark in enumerate(table):
            yield (uuid, bucket), mark


def _mark(held: Subscription, part: Part) -> Mark:
    return held.marks[part.table][part.bucket]


def _is_done(held: Subscription, session: int, part: Part) -> bool:
    """True if the part already counted: a client that lost the answer sends it again, even if another member reads
    now."""
    return _mark(held, part).has(session, part.begin, part.end, part.cut)


def _checked(token: Token, held: Subscription, view: View) -> tuple[Part, ...]:
    if not isinstance(token, SharedPosition) or token.tables != held.tables:
        raise Invalid(f"the position does not belong to subscription {held.name!r}: acknowledge one of its batches")
    for part in token.parts:
        if not (0 <= part.table < len(held.marks) and 0 <= part.bucket < len(held.marks[part.table])):
            raise Invalid(f"the position names a bucket that subscription {held.name!r} does not have")
        if not 0 <= part.end <= view.by_uuid(held.tables[part.table]).logs[part.bucket].head:
            raise Invalid("the position lies ahead of the server's history")
    return token.parts


def _acknowledgement(held: Subscription, session: int, parts: Sequence[Part]) -> _Acknowledgement:
    moved: list[MovedMark] = []
    late: list[Part] = []
    for part in parts:
        mark = _mark(held, part)
        after = mark.moved(session, part.end, part.cut)
        if not mark.counts(session, part.begin):
            late.append(part)
        elif after.order() > mark.order() and after.cut in (NO_CUT, mark.cut):
            moved.append(MovedMark(part.table, part.bucket, after))
    return _Acknowledgement(moved, late)

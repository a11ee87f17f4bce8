"""Who is there: the members of one shared subscription, and which bucket each of them reads. In memory only.

A state machine without a clock or a lock. A bucket has one reader at a time. The wanted assignment follows the
members at once; a bucket moves to it when its reader has acknowledged everything it was sent, is gone, or has had
`rebalance_seconds`. A member whose stream broke has a moment to come back before it counts as gone. While an
acknowledgement is being journaled nobody begins to read its buckets, so the next reader begins behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakestore.errors import Fenced
from lakestore_server.changes.shared.assignment import Bucket, assign

RETURN_SECONDS = 1.0
"""How long a member whose stream ended is waited for."""
Order = tuple[int, int]
"""A place in a bucket, as `Mark.order` has it."""


@dataclass(slots=True)
class Member:
    """A consumer, over all connections of its stream."""

    session: int
    seat: int
    """Of its newest connection."""
    left: float | None = None
    """When that ended."""


@dataclass(slots=True)
class Holding:
    """A bucket that is read."""

    member: str
    session: int
    grant: int
    """One reading from an acknowledged position on; the next reading has another number."""
    sent: Order
    acked: Order
    revoked: float | None = None
    """When it was given to somebody else."""


class Group:
    """The members of one subscription."""

    def __init__(self, buckets: Sequence[Bucket], rebalance_seconds: float, first: int = 0) -> None:
        """Grants are numbered from `first` on, higher than those before a restart."""
        self._buckets, self._rebalance_seconds = tuple(buckets), rebalance_seconds
        self.members: dict[str, Member] = {}
        self.holdings: dict[Bucket, Holding] = {}
        self.wanted: dict[Bucket, str] = {}
        self.generation = 0
        """Raised by who joins or leaves."""
        self._acking: Counter[Bucket] = Counter()
        self._numbers = first
        self._runs: dict[Bucket, tuple[int, int]] = {}
        """Of each bucket the session that read it last, and its first grant since another one did; 0 if none did."""

    def join(self, name: str, session: int, now: float) -> int:
        """The seat of a member's new connection. Another session of the same name takes its place."""
        self.look(now)
        known = self.members.get(name)
        if known is not None and known.session != session:
            self._release(bucket for bucket, held in self.holdings.items() if held.member == name)
        seat = self._number()
        self.members[name] = Member(session, seat)
        if known is None:
            self._reassign(now)
        return seat

    def leave(self, name: str, seat: int, now: float) -> None:
        """A connection has ended."""
        member = self.members.get(name)
        if member is not None and member.seat == seat:
            member.left = now
        self.look(now)

    def look(self, now: float) -> bool:
        """Let time do its work: who is away too long is gone, and who was asked to hand over must. True if so."""
        gone = [name for name, member in self.members.items() if _is_over(member.left, RETURN_SECONDS, now)]
        for name in gone:
            del self.members[name]
        if gone:
            self._reassign(now)
        over = [b for b, held in self.holdings.items() if _is_over(held.revoked, self._rebalance_seconds, now)]
        over += [b for b, held in self.holdings.items() if held.member not in self.members]
        self._release(over)
        return bool(gone or over)

    def due(self) -> float | None:
        """When `look` will have something to do, if nothing else happens."""
        times = [m.left + RETURN_SECONDS for m in self.members.values() if m.left is not None]
        times += [h.revoked + self._rebalance_seconds for h in self.holdings.values() if h.revoked is not None]
        return min(times, default=None)

    def take(self, name: str, seat: int, acked: Mapping[Bucket, Order]) -> dict[Bucket, int]:
        """The buckets that a connection reads now, each with its grant; free ones that it is to have begin here."""
        member = self._seated(name, seat)
        for bucket in self.missing(name):
            if bucket not in self.holdings and not self._acking[bucket]:
                grant = self._number()
                self.holdings[bucket] = Holding(name, member.session, grant, acked[bucket], acked[bucket])
                last, run = self._runs.get(bucket, (member.session, 0))
                self._runs[bucket] = (member.session, run if last == member.session else grant)
        return {b: h.grant for b, h in self.holdings.items() if h.member == name and h.revoked is None}

    def missing(self, name: str) -> list[Bucket]:
        """What a member is to have and does not read yet."""
        held = {bucket for bucket, holding in self.holdings.items() if holding.member == name}
        return [bucket for bucket, to in self.wanted.items() if to == name and bucket not in held]

    def sends(self, name: str, seat: int, moves: Mapping[Bucket, tuple[int, Order]]) -> bool:
        """Note what is about to be sent (bucket to grant and place); False, and nothing noted, if it may not be."""
        self._seated(name, seat)
        held = {bucket: self.holdings.get(bucket) for bucket in moves}
        if any(h is None or h.grant != moves[b][0] or h.revoked is not None for b, h in held.items()):
            return False
        for bucket, holding in held.items():
            assert holding is not None, "checked above"
            holding.sent = max(holding.sent, moves[bucket][1])
        return True

    def run(self, bucket: Bucket) -> int:
        """The first grant of a bucket's reader since somebody else read it; 0 if nobody did."""
        return self._runs.get(bucket, (0, 0))[1]

    def ack_begins(self, name: str, session: int, runs: Mapping[Bucket, int]) -> list[Bucket]:
        """Those of the buckets that a session may acknowledge: its own, and those that nobody reads; but not what it
        read before somebody else did: it may have been refused what lies before that.
        """
        own = [
            bucket
            for bucket, run in runs.items()
            if self._is_own(bucket, name, session) and self._is_newest(bucket, session, run)
        ]
        self._acking.update(own)
        return own

    def ack_ends(self, buckets: Iterable[Bucket], acked: Mapping[Bucket, Order]) -> bool:
        """An acknowledgement is journaled, or has failed; `acked` is where its buckets stand now. True if one of them
        may have a new reader."""
        waited = False
        for bucket in buckets:
            self._acking[bucket] -= 1
            if not self._acking[bucket]:
                del self._acking[bucket]
            holding = self.holdings.get(bucket)
            waited |= holding is None or holding.revoked is not None
            if holding is not None and bucket in acked:
                holding.acked = max(holding.acked, acked[bucket])
        self._hand_over()
        return waited

    def acknowledged(self, name: str) -> list[Bucket]:
        """The buckets of a member of which it has acknowledged everything that it was sent."""
        return [b for b, h in self.holdings.items() if h.member == name and h.revoked is None and h.acked >= h.sent]

    def reads(self, name: str) -> list[Bucket]:
        """The buckets that a member reads, also those that it is to hand over."""
        return [bucket for bucket, held in self.holdings.items() if held.member == name]

    def close(self) -> None:
        """Nobody is a member any more."""
        self.members.clear()
        self.holdings.clear()
        self.wanted = {}

    def _is_own(self, bucket: Bucket, name: str, session: int) -> bool:
        holding = self.holdings.get(bucket)
        return holding is None or (holding.member, holding.session) == (name, session)

    def _is_newest(self, bucket: Bucket, session: int, run: int) -> bool:
        """Whether nobody else has read a bucket since a session did in a run. The first reader after a restart may go
        on in a run from before it, so the number alone does not tell."""
        last, newest = self._runs.get(bucket, (session, 0))
        return last == session and run >= newest

    def _seated(self, name: str, seat: int) -> Member:
        member = self.members.get(name)
        if member is None or member.seat != seat:
            raise Fenced(f"member {name!r} was opened again by another consumer: this one must stop")
        return member

    def _reassign(self, now: float) -> None:
        self.generation += 1
        self.wanted = assign(self.members, self._buckets, self.wanted)
        for bucket, holding in self.holdings.items():
            if self.wanted.get(bucket) == holding.member:
                holding.revoked = None
            elif holding.revoked is None:
                holding.revoked = now
        self._hand_over()

    def _hand_over(self) -> None:
        """Buckets that another member waits for, and whose reader has acknowledged everything, are free."""
        self._release(b for b, h in self.holdings.items() if h.revoked is not None and h.acked >= h.sent)

    def _release(self, buckets: Iterable[Bucket]) -> None:
        for bucket in list(buckets):
            self.holdings.pop(bucket, None)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _is_over(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now >= since + seconds

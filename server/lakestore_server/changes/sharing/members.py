"""The members of one shared subscription and the buckets that each of them reads. In memory only.

A state machine without clock and lock. The wanted assignment follows the members at once.

- A bucket has one reader at a time.
- A bucket moves to its wanted reader once the present reader has acknowledged everything it was sent, is gone, or has
  had `rebalance_seconds`.
- A member whose stream broke may return within `RETURN_SECONDS` before it counts as gone.
- While an acknowledgement is journaled, nobody begins to read its buckets; the next reader begins after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakestore.errors import Fenced

Bucket = tuple[str, int]
"""Table uuid and bucket number."""


def assign(members: Collection[str], buckets: Sequence[Bucket], before: Mapping[Bucket, str]) -> dict[Bucket, str]:
    """The member of each bucket: the former one, except for buckets that balance must move. Empty without members."""
    if not members:
        return {}
    kept: dict[str, list[Bucket]] = {member: [] for member in sorted(members)}
    for bucket in buckets:
        if before.get(bucket) in kept:
            kept[before[bucket]].append(bucket)
    quotas = _quotas({member: len(own) for member, own in kept.items()}, len(buckets))
    after = {bucket: member for member, own in kept.items() for bucket in own[: quotas[member]]}
    room = [member for member, own in kept.items() for _ in range(quotas[member] - len(own))]
    free = [bucket for bucket in buckets if bucket not in after]
    return after | dict(zip(free, room, strict=True))


def _quotas(held: Mapping[str, int], buckets: int) -> dict[str, int]:
    """The number of buckets for each member. The members that hold most get the remainder, so the fewest buckets
    move."""
    each, more = divmod(buckets, len(held))
    most = sorted(held, key=lambda member: (-held[member], member))
    return {member: each + (i < more) for i, member in enumerate(most)}


RETURN_SECONDS = 1.0
"""Seconds in which a member whose stream ended may return."""
Order = tuple[int, int]
"""A place in a bucket, like `Mark.order`."""


@dataclass(frozen=True, slots=True)
class Sending:
    """One bucket of a message that is about to be sent."""

    grant: int
    """The grant under which the bucket was read."""
    upto: Order
    """The place after the message."""


@dataclass(slots=True)
class Member:
    """A consumer, over all connections of its stream."""

    session: int
    connection: int
    """Number of its newest connection."""
    left: float | None = None
    """Monotonic seconds at which that connection ended; None while it is open."""


@dataclass(slots=True)
class Holding:
    """A bucket with its reader."""

    member: str
    session: int
    grant: int
    """Number of this grant, which began at an acknowledged position. The next grant has another number."""
    sent: Order
    acked: Order
    revoked: float | None = None
    """Monotonic seconds at which the bucket was assigned to another member; None while its reader keeps it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive grants of a bucket to one session."""

    session: int
    first: int
    """The first of these grants; 0 if no other session has read the bucket before."""


class Group:
    """The members of one subscription."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        rebalance_seconds: float,
        first: int = 0,
        refused: Mapping[tuple[Bucket, int], int] | None = None,
    ) -> None:
        """`first` is higher than every grant before a restart. `refused` maps bucket and session to the first run that
        counts again after a refusal."""
        self._buckets, self._rebalance_seconds = tuple(buckets), rebalance_seconds
        self.members: dict[str, Member] = {}
        self.holdings: dict[Bucket, Holding] = {}
        self.wanted: dict[Bucket, str] = {}
        self.generation = 0
        """Number of the wanted assignment; grows when a member joins or leaves."""
        self._acking: Counter[Bucket] = Counter()
        self._refused = dict(refused or {})
        self._numbers = max([first, *self._refused.values()])
        self._runs: dict[Bucket, _Run] = {}

    def begin_again(self, first: int, refused: Mapping[tuple[Bucket, int], int]) -> None:
        """Continue as after a restart, because another server may have led: members stay, and each bucket is granted
        again."""
        self._refused = dict(refused)
        self._numbers = max([self._numbers, first, *self._refused.values()])
        self._runs.clear()
        self.holdings.clear()

    def join(self, name: str, session: int, now: float) -> int:
        """The number of a member's new connection. A session takes the place of another session with this member
        name."""
        self.look(now)
        known = self.members.get(name)
        if known is not None and known.session != session:
            self._release(bucket for bucket, held in self.holdings.items() if held.member == name)
        connection = self._number()
        self.members[name] = Member(session, connection)
        if known is None:
            self._reassign(now)
        return connection

    def leave(self, name: str, connection: int, now: float) -> None:
        member = self.members.get(name)
        if member is not None and member.connection == connection:
            member.left = now
        self.look(now)

    def look(self, now: float) -> bool:
        """Remove members that are away too long, and free buckets whose reader is out of time; True if anything
        changed."""
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
        """Monotonic seconds at which `look` has work to do; None if never."""
        times = [m.left + RETURN_SECONDS for m in self.members.values() if m.left is not None]
        times += [h.revoked + self._rebalance_seconds for h in self.holdings.values() if h.revoked is not None]
        return min(times, default=None)

    def take_buckets(self, name: str, connection: int, acked: Mapping[Bucket, Order]) -> dict[Bucket, int]:
        """The buckets that a connection reads, each with its grant. Free buckets that are assigned to it begin now."""
        member = self._connected(name, connection)
        for bucket in self.missing(name):
            if bucket not in self.holdings and not self._acking[bucket]:
                grant = self._number()
                self.holdings[bucket] = Holding(name, member.session, grant, acked[bucket], acked[bucket])
                run = self._runs.get(bucket) or self._first_run(bucket, member.session)
                self._runs[bucket] = run if run.session == member.session else _Run(member.session, grant)
        return {b: h.grant for b, h in self.holdings.items() if h.member == name and h.revoked is None}

    def missing(self, name: str) -> list[Bucket]:
        """The buckets that are assigned to a member and that it does not read yet."""
        held = {bucket for bucket, holding in self.holdings.items() if holding.member == name}
        return [bucket for bucket, to in self.wanted.items() if to == name and bucket not in held]

    def sends(self, name: str, connection: int, message: Mapping[Bucket, Sending]) -> bool:
        """Note a message that is about to be sent; False, and nothing noted, if one of its buckets was taken away. The
        note comes before the message: a bucket is handed over once everything noted is acknowledged. Rows sent without
        a note could reach two consumers."""
        self._connected(name, connection)
        held = {bucket: holding for bucket in message if (holding := self.holdings.get(bucket)) is not None}
        if len(held) < len(message):
            return False
        if any(holding.grant != message[b].grant or holding.revoked is not None for b, holding in held.items()):
            return False
        for bucket, holding in held.items():
            holding.sent = max(holding.sent, message[bucket].upto)
        return True

    def run(self, bucket: Bucket) -> int:
        """The first grant of a bucket's reader since another session read it; 0 if none did."""
        run = self._runs.get(bucket)
        return 0 if run is None else run.first

    def refuses(self, bucket: Bucket, session: int) -> int:
        """The first run of a refused session that counts again, also after a restart."""
        run = self._runs.get(bucket)
        return run.first if run is not None and run.session == session and run.first else self._number()

    def ack_begins(self, name: str, session: int, runs: Mapping[Bucket, int]) -> list[Bucket]:
        """The buckets that a session may acknowledge: its own, and buckets without a reader. They get no new reader
        until `ack_ends`. A bucket that another session has read since is left out: an acknowledgement of earlier rows
        may have been refused, and a later one would skip them."""
        own = [
            bucket
            for bucket, run in runs.items()
            if self._is_own(bucket, name, session) and self._is_newest(bucket, session, run)
        ]
        self._acking.update(own)
        return own

    def ack_ends(self, buckets: Iterable[Bucket], acked: Mapping[Bucket, Order]) -> bool:
        """Note that an acknowledgement is journaled or has failed; `acked` maps its buckets to their places. True if
        one of the buckets may have a new reader."""
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
        """The buckets in which a member has acknowledged everything it was sent."""
        return [b for b, h in self.holdings.items() if h.member == name and h.revoked is None and h.acked >= h.sent]

    def reads(self, name: str) -> list[Bucket]:
        """The buckets that a member reads, including buckets that it must hand over."""
        return [bucket for bucket, held in self.holdings.items() if held.member == name]

    def close(self) -> None:
        self.members.clear()
        self.holdings.clear()
        self.wanted = {}

    def _is_own(self, bucket: Bucket, name: str, session: int) -> bool:
        holding = self.holdings.get(bucket)
        return holding is None or (holding.member, holding.session) == (name, session)

    def _is_newest(self, bucket: Bucket, session: int, run: int) -> bool:
        """True if no other session has read the bucket since this session's run. The number alone does not decide: the
        first reader after a restart may continue an earlier run."""
        newest = self._runs.get(bucket) or self._first_run(bucket, session)
        return newest.session == session and run >= newest.first

    def _first_run(self, bucket: Bucket, session: int) -> _Run:
        return _Run(session, self._refused.get((bucket, session), 0))

    def _connected(self, name: str, connection: int) -> Member:
        member = self.members.get(name)
        if member is None or member.connection != connection:
            raise Fenced(f"member {name!r} was opened again by another consumer: this consumer must stop")
        return member

    def _reassign(self, now: float) -> None:
        self.generation += 1
        self.wanted = assign(self.members, self._buckets, self.wanted)
        for bucket, holding in self.holdings.items():
            if self.wanted.get(bucket) == holding.member:
                # The bucket is assigned to its reader again before it was handed over, so the reader continues.
                holding.revoked = None
            elif holding.revoked is None:
                holding.revoked = now
        self._hand_over()

    def _hand_over(self) -> None:
        self._release(b for b, h in self.holdings.items() if h.revoked is not None and h.acked >= h.sent)

    def _release(self, buckets: Iterable[Bucket]) -> None:
        for bucket in list(buckets):
            self.holdings.pop(bucket, None)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _is_over(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now >= since + seconds

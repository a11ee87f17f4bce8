"""Leases of reads: lake snapshots, metadata files and log ranges that a plan names stay until its lease ends.

- In memory. After a start, and when a server begins to lead, everything is held for one grace time, because readers
  from before may still run.
- A follower asks the leader to hold what a lease needs of the lake before it grants the lease (`leader_holds`).
- The leader holds it by leases of its own, whose `follower` is the address of that server.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakestore.errors import Exhausted, Invalid, PlanExpired, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.host.clock import Clock
from lakestore_server.host.quota import share_of
from lakestore_server.state.view import TableState


@dataclass(slots=True)
class _PreTruncate:
    """A table before its truncate."""

    state: TableState
    lsn: int
    """The commit that truncated it."""
    leases: set[str]
    """The leases of reads from before."""


class PreTruncateTables:
    """The tables that were truncated under a read. Thread-safe."""

    def __init__(self, running: Callable[[Iterable[str]], set[str]]) -> None:
        """`running` returns the leases that are not over."""
        self._running = running
        self._lock = threading.Lock()
        self._kept: list[_PreTruncate] = []

    def keep(self, state: TableState, lsn: int, leases: Iterable[str]) -> None:
        """Keep a table as before the commit `lsn`, while one of these leases runs."""
        self._forget()
        held = set(leases)
        if held:
            with self._lock:
                self._kept.append(_PreTruncate(state, lsn, held))

    def of_lease(self, table_uuid: str, lease: str) -> TableState | None:
        """The table that a lease reads, if it was truncated since."""
        with self._lock:
            mine = [each for each in self._kept if lease in each.leases and each.state.table.uuid == table_uuid]
        return mine[0].state if mine else None

    def at(self, table_uuid: str, lsn: int) -> TableState | None:
        """A table that was truncated after `lsn`, for reads at that cut; None if it is not kept."""
        self._forget()
        with self._lock:
            for each in self._kept:
                if each.state.table.uuid == table_uuid and each.state.log_start_lsn <= lsn < each.lsn:
                    return each.state
        return None

    def read_by(self, lease: str, states: Iterable[TableState]) -> None:
        """Note that a lease reads the states that are kept here."""
        wanted = {id(state) for state in states}
        with self._lock:
            for each in self._kept:
                if id(each.state) in wanted:
                    each.leases.add(lease)

    def _forget(self) -> None:
        with self._lock:
            every = {lease for each in self._kept for lease in each.leases}
        if not every:
            return
        over = every - self._running(every)
        with self._lock:
            for each in self._kept:
                each.leases -= over
            self._kept = [each for each in self._kept if each.leases]


class LeaseConflict(Unavailable):
    """A snapshot expires or a log start moves at this moment: choose from the next view."""


@dataclass(frozen=True, slots=True)
class LakeHold:
    """A lease's need of the lake: a snapshot, a metadata file or a cut over all tables."""

    table: str = ""
    """Uuid of the snapshot's table."""
    snapshot: int = 0
    starts: tuple[int, ...] = ()
    """The first offset of each bucket that is read from the log beside the snapshot; empty for none."""
    metadata: str = ""
    cut: int | None = None
    """LSN."""
    owner: str = ""
    """The principal of a cut."""


MayRead = Callable[[str, str], bool]
"""Whether an owner (empty without principals) may read the table with a uuid."""
KEPT_PART = 10
"""Leases of disconnected streams are at most this part of all leases."""


@dataclass(slots=True)
class Lease:
    """One read's claim on snapshots and on the log."""

    expires: float
    """Monotonic seconds."""
    snapshots: Mapping[str, int]
    """Table uuid to the lake snapshot that is read."""
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Table uuid to the first offset of each bucket that is read from the log."""
    metadata: frozenset[str] = frozenset()
    """Metadata files that the plan names."""
    owner: str = ""
    """The principal whose quota it uses; empty without principals."""
    holders: int = 0
    """Number of connected streams that need the lease, which does not expire while there are any."""
    cut: int | None = None
    """LSN of a cut over all tables that the owner may read; None for a read of named tables."""
    is_kept: bool = False
    """Whether its stream is disconnected: it is kept for a consumer that may return."""
    follower: str = ""
    """The address of the server whose reads it is for; empty for a read at this server."""

    @staticmethod
    def of_hold(hold: LakeHold, expires: float, follower: str) -> Lease:
        """The leader's lease for reads at a follower."""
        at = hold.table
        snapshots, starts = {at: hold.snapshot} if at else {}, {at: hold.starts} if hold.starts else {}
        metadata = frozenset({hold.metadata} if hold.metadata else ())
        return Lease(expires, snapshots, starts, metadata, hold.owner, cut=hold.cut, follower=follower)

    def holds(self) -> Iterator[LakeHold]:
        """Its needs of the lake."""
        for table, snapshot in self.snapshots.items():
            yield LakeHold(table, snapshot, self.starts.get(table, ()))
        if self.snapshots:
            yield from (LakeHold(metadata=location) for location in sorted(self.metadata) if location)
        if self.cut is not None:
            yield LakeHold(cut=self.cut, owner=self.owner)

    @property
    def may_go(self) -> bool:
        """Whether it may end early for the sake of a running read."""
        return self.is_kept and not self.holders


@dataclass(frozen=True, slots=True)
class HeldRead:
    """A lease as an operator sees it."""

    owner: str
    """The principal; empty without principals."""
    seconds: float
    """Seconds until it ends without a renewal."""
    tables: tuple[str, ...]
    """Uuids of the tables whose rows it holds."""
    cut: int | None
    """LSN of a cut over all tables."""
    streams: int
    """Connected streams that need it."""
    follower: str
    """The address of the server at which the read runs; empty for this server."""


class Leases:
    """All leases of a server. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        grace_seconds: float,
        limits: Limits = DEFAULT,
        may_read: MayRead = lambda _owner, _table_uuid: True,
    ) -> None:
        """A lease on a whole cut holds the logs of the tables that its owner may read, by `may_read`."""
        self._clock, self._limits, self._may_read = clock, limits, may_read
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._registered: dict[tuple[str, LakeHold], str] = {}
        """The leases for reads at followers, by address and need."""
        self._secure: Callable[[Sequence[LakeHold]], None] = lambda _holds: None
        self._released: deque[str] = deque()
        self._retired: set[tuple[str, int]] = set()
        self._grace_seconds = grace_seconds
        self._held: Mapping[str, frozenset[int]] = {}
        """Table uuid to the lake snapshots that readers from before may hold, during the grace."""
        self._held_until = clock.monotonic() + grace_seconds
        self._log_starts: dict[str, tuple[int, ...]] = {}
        self._lost_cuts: dict[str, range] = {}
        """Table uuid to the cuts that its log has lost in this process."""
        self.pre_truncate = PreTruncateTables(self.running)
        """Tables from before a truncate, for reads at a cut from before."""

    def begin(self, tables: Mapping[str, TableState]) -> None:
        """Begin the grace of reads whose leases another process granted: at a start, and when this server begins to
        lead."""
        self._held = {uuid: frozenset(state.tiers) for uuid, state in tables.items()}
        self._held_until = self._clock.monotonic() + self._grace_seconds

    def secure_by(self, secure: Callable[[Sequence[LakeHold]], None]) -> None:
        """Call `secure` with the needs of a lease before it is granted. If they cannot be held it raises:
        `LeaseConflict` if some are gone, `Unavailable` if the leader cannot be asked."""
        self._secure = secure

    @property
    def count(self) -> int:
        """Number of reads at this server that hold a cut now."""
        with self._lock:
            self._drop_expired()
            return self._count()

    @property
    def registered(self) -> int:
        """Number of snapshots, metadata files and cuts that this server holds for reads at followers."""
        with self._lock:
            self._drop_expired()
            return len(self._leases) - self._count()

    def _count(self) -> int:
        return sum(not lease.follower for lease in self._leases.values())

    def holders(self, most: int) -> list[HeldRead]:
        """The `most` leases that have run longest."""
        with self._lock:
            self._drop_expired()
            first = list(self._leases.values())[:most]
            now = self._clock.monotonic()
            return [_shown(lease, now) for lease in first]

    def grant(
        self,
        snapshots: Mapping[str, int],
        seconds: int,
        starts: Mapping[str, tuple[int, ...]] | None = None,
        metadata: Iterable[str] = (),
        *,
        owner: str = "",
        pre_truncate: Iterable[TableState] = (),
    ) -> str:
        """A new lease on lake snapshots, on the log from `starts` on and on metadata files; returns its id. Tables in
        `pre_truncate` are read as before a truncate. `LeaseConflict` if a snapshot expires or the log start moves at
        this moment: plan again. `Unavailable` at a follower that cannot ask the leader."""
        name = uuid.uuid4().hex
        lease = Lease(self._until(seconds), snapshots, starts or {}, frozenset(metadata), owner)
        self._secure([*lease.holds()])
        lease.expires = self._until(seconds)
        before = list(pre_truncate)
        with self._lock:
            self._add(name, lease, frozenset(state.table.uuid for state in before))
        self.pre_truncate.read_by(name, before)
        return name

    def grant_cut(self, lsn: int, seconds: int, *, owner: str = "") -> str:
        """A new lease on a cut over all tables; returns its id. `LeaseConflict` if a log start passes the cut,
        `Unavailable` like `grant`."""
        name = uuid.uuid4().hex
        lease = Lease(self._until(seconds), {}, owner=owner, cut=lsn)
        self._secure([*lease.holds()])
        lease.expires = self._until(seconds)
        with self._lock:
            self._add(name, lease)
        return name

    def cuts(self, table_uuid: str) -> list[int]:
        """The LSNs of leased cuts, for reads of a table."""
        with self._lock:
            self._drop_expired()
            return sorted({lease.cut for lease in self._of_cuts(table_uuid).values() if lease.cut is not None})

    def _of_cuts(self, table_uuid: str) -> dict[str, Lease]:
        """The leases on whole cuts whose owners may read a table. Under the lock."""
        return {
            name: lease
            for name, lease in self._leases.items()
            if lease.cut is not None and self._may_read(lease.owner, table_uuid)
        }

    def hold(
        self, name: str, snapshots: Mapping[str, int], starts: Mapping[str, tuple[int, ...]], *, owner: str = ""
    ) -> None:
        """Lease for a stream until `leave`, under a name by which a stream with the same needs finds the lease again.
        Otherwise like `grant`."""
        self._secure([*Lease(0.0, snapshots, starts, owner=owner).holds()])
        with self._lock:
            self._drop_expired()
            if name not in self._leases:
                self._add(name, Lease(self._clock.monotonic(), snapshots, starts, owner=owner))
            self._leases[name].holders += 1
            self._leases[name].is_kept = False

    def leave(self, name: str, seconds: int) -> None:
        """Note that one holder is gone; the lease lasts `seconds` more for its return. Such leases are few: the ones
        that end first make room for others and for running reads."""
        with self._lock:
            lease = self._leases.get(name)
            if lease is None:  # an erasure has cut it off
                return
            lease.holders -= 1
            lease.is_kept = not lease.holders
            lease.expires = max(lease.expires, self._clock.monotonic() + seconds)
            self._drop_expired()
            kept = sum(each.may_go for each in self._leases.values())
            self._drop_kept(self._leases, kept - max(self._limits.leases // KEPT_PART, 2))

    def forget(self, names: Iterable[str]) -> None:
        """End leases of streams whose consumers will not return: now, or when the last connected one leaves."""
        with self._lock:
            for name in names:
                if (lease := self._leases.get(name)) is not None:
                    lease.expires = self._clock.monotonic()
            self._drop_expired()

    def _drop_kept(self, among: Iterable[str], count: int) -> None:
        """End `count` leases of disconnected streams, the ones that end first."""
        if count > 0:
            kept = sorted((name for name in among if self._leases[name].may_go), key=lambda n: self._leases[n].expires)
            for name in kept[:count]:
                del self._leases[name]

    def _add(self, name: str, lease: Lease, pre_truncate: frozenset[str] = frozenset()) -> None:
        self._drop_expired()
        self._check_conflict(lease, pre_truncate)
        self._drop_kept(self._leases, self._count() + 1 - self._limits.leases)
        if self._count() >= self._limits.leases:
            raise Exhausted(
                f"{self._limits.leases} reads run, the limit: try again when one has ended", retry_after=1.0
            )
        if lease.owner:
            share = share_of(self._limits.leases, self._limits)
            own = [held for held, each in self._leases.items() if each.owner == lease.owner and not each.follower]
            self._drop_kept(own, len(own) + 1 - share)
            mine = sum(held in self._leases for held in own)
            if mine >= share:
                raise Exhausted(
                    f"{lease.owner} runs {mine} reads, one principal's part of the limit: end some of them",
                    retry_after=1.0,
                )
        self._leases[name] = lease

    def _check_conflict(self, lease: Lease, pre_truncate: frozenset[str] = frozenset()) -> None:
        if self._retired.intersection(lease.snapshots.items()):
            raise LeaseConflict("a snapshot expires at this moment: plan again")
        if lease.cut is not None and any(
            lease.cut in lost and self._may_read(lease.owner, table) for table, lost in self._lost_cuts.items()
        ):
            raise LeaseConflict("a log start moves at this moment: take a later cut")
        if any(
            _below(lease.starts[table], start)
            for table, start in self._log_starts.items()
            if table in lease.starts and table not in pre_truncate
        ):
            raise LeaseConflict("the log start moves at this moment: plan again")

    def may_read(self, owner: str, table_uuid: str) -> bool:
        """Whether a lease of a principal on a whole cut has the table."""
        return self._may_read(owner, table_uuid)

    def needs(self) -> list[LakeHold]:
        """The present needs of the lake of reads at this server."""
        with self._lock:
            self._drop_expired()
            own = [lease for lease in self._leases.values() if not lease.follower]
            return [*dict.fromkeys(hold for lease in own for hold in lease.holds())]

    def lose(self, lost: Collection[LakeHold]) -> None:
        """End the leases whose needs the leader does not hold any more. A connected stream goes on without them."""
        gone = frozenset(lost)
        with self._lock:
            for name, lease in [*self._leases.items()]:
                if lease.follower or gone.isdisjoint(lease.holds()):
                    continue
                if lease.holders:
                    uuids = {hold.table for hold in lease.holds() if hold in gone}
                    lease.snapshots = {uuid: each for uuid, each in lease.snapshots.items() if uuid not in uuids}
                else:
                    del self._leases[name]

    def register(self, follower: str, holds: Iterable[LakeHold], seconds: float) -> tuple[set[LakeHold], set[LakeHold]]:
        """Hold needs of a follower's reads. Returns the needs that are removed at this moment, which are not held, and
        the ones that were held until now. The caller checks that all others are still there."""
        refused, known = set[LakeHold](), set[LakeHold]()
        with self._lock:
            self._drop_expired()
            self._registered = {key: name for key, name in self._registered.items() if name in self._leases}
            files = frozenset(location for lease in self._leases.values() for location in lease.metadata)
            expires = self._clock.monotonic() + seconds
            for hold in holds:
                name = self._registered.get((follower, hold), "")
                lease = Lease.of_hold(hold, expires, follower)
                if name:
                    known.add(hold)
                    self._leases[name].expires = max(expires, self._leases[name].expires)
                    continue
                try:
                    self._check_conflict(lease)
                except LeaseConflict:
                    refused.add(hold)
                    continue
                if hold.metadata in files:
                    known.add(hold)
                name = self._registered[follower, hold] = uuid.uuid4().hex
                self._leases[name] = lease
        return refused, known

    def withdraw(self, follower: str, holds: Iterable[LakeHold]) -> None:
        """End leases of `register`."""
        with self._lock:
            for hold in holds:
                self._leases.pop(self._registered.pop((follower, hold), ""), None)

    def before(self, table_uuid: str, lsn: int, snapshots: Collection[int], starts: tuple[int, ...]) -> list[HeldRead]:
        """The reads of a table that need a state before a commit: one of these `snapshots`, the log below `starts`, or
        a cut."""
        with self._lock:
            self._drop_expired()
            names = self._before(table_uuid, lsn, snapshots, starts)
            now = self._clock.monotonic()
            return [_shown(self._leases[name], now) for name in names]

    def cut_off(self, table_uuid: str, lsn: int, snapshots: Collection[int], starts: tuple[int, ...]) -> int:
        """End the reads of `before`: their next call is `PlanExpired`. Returns their number."""
        with self._lock:
            names = self._before(table_uuid, lsn, snapshots, starts)
            for name in names:
                del self._leases[name]
        return len(names)

    def _before(self, uuid: str, lsn: int, snapshots: Collection[int], starts: tuple[int, ...]) -> list[str]:
        cuts = self._of_cuts(uuid)
        return [
            name
            for name, lease in self._leases.items()
            if lease.snapshots.get(uuid) in snapshots
            or (uuid in lease.starts and starts and _below(lease.starts[uuid], starts))
            or (name in cuts and lease.cut is not None and lease.cut < lsn)
        ]

    def raise_log_start(self, table_uuid: str, starts: tuple[int, ...], lsns: range = range(0)) -> bool:
        """Let no read begin below these offsets from now on; False, and nothing done, if a read needs them. `lsns` are
        the cuts that the log loses. Check and note use one lock, so no read can begin between the check and the cut of
        the log."""
        with self._lock:
            if any(_below(held, starts) for held in self._starts(table_uuid)):
                return False
            if any(lease.cut in lsns for lease in self._of_cuts(table_uuid).values()):
                return False
            self._lose_cuts(table_uuid, lsns)
            self._log_starts[table_uuid] = starts
        return True

    def _lose_cuts(self, table_uuid: str, lsns: range) -> None:
        earlier = self._lost_cuts.get(table_uuid, lsns)
        self._lost_cuts[table_uuid] = range(min(earlier.start, lsns.start), max(earlier.stop, lsns.stop))

    def truncate(self, state: TableState, lsn: int) -> None:
        """Let no read begin on a table's log from before the commit `lsn`; running reads keep what they read."""
        uuid = state.table.uuid
        with self._lock:
            self._drop_expired()
            held = [name for name, lease in self._leases.items() if uuid in lease.starts] + [*self._of_cuts(uuid)]
            self._lose_cuts(uuid, range(state.created_lsn, lsn))
            self._log_starts[uuid] = tuple(state.heads())
        self.pre_truncate.keep(state, lsn, held)

    def running(self, names: Iterable[str]) -> set[str]:
        with self._lock:
            self._drop_expired()
            return {name for name in names if name in self._leases}

    def reset_log_start(self, table_uuid: str, starts: tuple[int, ...]) -> None:
        """Undo a raised log start: it stays at `starts`."""
        with self._lock:
            self._log_starts[table_uuid] = starts

    def starts(self, table_uuid: str) -> list[tuple[int, ...]]:
        """The first needed offset of each bucket of a table's log, one entry per running read."""
        with self._lock:
            return self._starts(table_uuid)

    @property
    def in_grace(self) -> bool:
        """Whether reads that began before the last start may still run."""
        return self._clock.monotonic() < self._held_until

    def _starts(self, table_uuid: str) -> list[tuple[int, ...]]:
        self._drop_expired()
        return [lease.starts[table_uuid] for lease in self._leases.values() if table_uuid in lease.starts]

    def renew(self, name: str, seconds: int) -> None:
        """Prolong, or `PlanExpired`."""
        with self._lock:
            self._drop_expired()
            if name not in self._leases:
                raise PlanExpired("the read took longer than its lease: plan it again")
            self._leases[name].expires = self._until(seconds)

    def check_lease(self, name: str) -> None:
        """`PlanExpired` unless the lease runs; the empty name means a read without a lease."""
        if name:
            with self._lock:
                self._drop_expired()
                if name not in self._leases:
                    raise PlanExpired("the read took longer than its lease: plan it again")

    def release(self, name: str) -> None:
        """End a lease; unknown ones are over, and one that streams need stays. Takes no lock, because the garbage
        collector ends abandoned reads and runs under any lock."""
        self._released.append(name)

    def retire(self, table_uuid: str, snapshots: frozenset[int]) -> bool:
        """Let no read begin on these snapshots from now on; False, and nothing done, if one is held."""
        with self._lock:
            if snapshots & self._pinned(table_uuid):
                return False
            self._retired.update((table_uuid, snapshot) for snapshot in snapshots)
        return True

    def keep(self, table_uuid: str, snapshots: frozenset[int]) -> None:
        """Undo a retirement: these snapshots do not expire."""
        with self._lock:
            self._retired.difference_update((table_uuid, snapshot) for snapshot in snapshots)

    def is_retired(self, table_uuid: str, snapshot: int) -> bool:
        """Whether no read may begin on a snapshot any more."""
        return (table_uuid, snapshot) in self._retired

    def holds_metadata(self, location: str) -> bool:
        """Whether a read may still open a metadata file."""
        with self._lock:
            self._drop_expired()
            return any(location in lease.metadata for lease in self._leases.values())

    def pinned(self, table_uuid: str) -> frozenset[int]:
        """Snapshots of a table that a read holds."""
        with self._lock:
            return self._pinned(table_uuid)

    def is_read(self, table_uuid: str) -> bool:
        """Whether a read holds a snapshot or a log range of a table."""
        with self._lock:
            return bool(self._pinned(table_uuid) or self._starts(table_uuid))

    def _pinned(self, table_uuid: str) -> frozenset[int]:
        self._drop_expired()
        held = {lease.snapshots[table_uuid] for lease in self._leases.values() if table_uuid in lease.snapshots}
        if self.in_grace:
            held |= self._held.get(table_uuid, frozenset())
        return frozenset(held)

    def _until(self, seconds: int) -> float:
        if not 1 <= seconds <= self._limits.lease_seconds:
            raise Invalid(f"a lease is 1 to {self._limits.lease_seconds} seconds, not {seconds}")
        return self._clock.monotonic() + seconds

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        while self._released:
            lease = self._leases.get(self._released.popleft())
            if lease is not None and not lease.holders:
                lease.expires = now
        for name in [name for name, lease in self._leases.items() if not lease.holders and lease.expires <= now]:
            del self._leases[name]


def _below(needed: tuple[int, ...], start: tuple[int, ...]) -> bool:
    return any(mine < first for mine, first in zip(needed, start, strict=True))


def _shown(lease: Lease, now: float) -> HeldRead:
    return HeldRead(
        lease.owner,
        round(max(lease.expires - now, 0.0), 1),
        tuple(sorted({*lease.snapshots, *lease.starts})),
        lease.cut,
        lease.holders,
        lease.follower,
    )

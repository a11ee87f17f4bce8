"""The retention duty: moves log starts up to what retention asks for and nobody needs.

`decide` is pure: a table, a time and the holders of its log give the new log start.

- A log start is a commit end after a whole chunk of some bucket, and never passes a tier point in the lake, a lease or
  a subscription.
- Age compares commit times with the clock. While the clock is in doubt, nothing is removed by age.
- The log start is durable before a row leaves the view; segment files are removed at the next checkpoint.
- No log start moves within `lease_grace_seconds` of the server's start, nor if the lake continued under another
  timeline.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lakestore.errors import Conflict, LakestoreError
from lakestore_server.changes.sharing.positions import needed
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.producer_verbs import ProducerVerbs
from lakestore_server.host.clock import Reading
from lakestore_server.host.worker import Worker
from lakestore_server.read.leases import Leases
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.commit_record import CommitRecord, LogStart
from lakestore_server.state.rescale import CopyKind
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.retention")
_NEWEST = 1 << 62
_SAID = {
    "lake": "what is not in the lake yet",
    "restore": "a lake that is ahead of this restored server",
    "clock": "a clock in doubt",
    "rescale": "a copy with another number of buckets, or a branch",
}


@dataclass(frozen=True, slots=True)
class LogHold:
    """A reader or duty that needs a table's log."""

    by: str
    """lake, restore (the lake continued under another timeline), lease, restart, clock, rescale, or
    `subscription NAME`."""
    lsn: int
    """The log start may not pass this commit."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The log start of one table."""

    lsn: int
    """The log start; the present one if nothing is removed."""
    held: tuple[LogHold, ...] = ()
    """Holders of rows that retention would remove."""
    held_bytes: int = 0

    def holders(self) -> list[str]:
        return sorted({hold.by for hold in self.held})


def decide(state: TableState, now_us: int, holds: Sequence[LogHold], marks: ClockMarks = NO_MARKS) -> Decision:
    """The LSN up to which a table's log start may move. `marks` give the age of commits whose stamps are ahead."""
    ends = sorted((lsn, marks.time_us(lsn, time_us), size) for lsn, time_us, size in _chunk_ends(state))
    wanted = _wanted(state, now_us, ends)
    allowed = min([wanted, *(hold.lsn for hold in holds)])
    lsn = max((end for end, _, _ in ends if end <= allowed), default=state.log_start_lsn)
    kept = sum(size for end, _, size in ends if lsn < end <= wanted)
    return Decision(lsn, tuple(hold for hold in holds if kept and hold.lsn < wanted), kept)


def _chunk_ends(state: TableState) -> Iterator[tuple[int, int, int]]:
    """(last LSN, its time, bytes) of every chunk above the log start."""
    for held in state.logs:
        for chunk in held.chunks:
            if chunk.end > held.base.end:
                yield int(chunk.index.lsn[-1]), int(chunk.index.time_us[-1]), chunk.size


def _wanted(state: TableState, now_us: int, ends: Sequence[tuple[int, int, int]]) -> int:
    retention, wanted = state.table.retention, state.log_start_lsn
    if retention is None:
        return wanted
    if retention.age_seconds is not None:
        oldest_us = now_us - retention.age_seconds * 1_000_000
        wanted = max([wanted, *(lsn for lsn, time_us, _ in ends if time_us <= oldest_us)])
    return max(wanted, _by_bytes(state, ends))


def wanted_by_bytes(state: TableState) -> int:
    """The log start that retention by bytes asks for."""
    return _by_bytes(state, sorted(_chunk_ends(state)))


def _by_bytes(state: TableState, ends: Sequence[tuple[int, int, int]]) -> int:
    retention, wanted = state.table.retention, state.log_start_lsn
    if retention is None or retention.bytes is None:
        return wanted
    excess = sum(size for _, _, size in ends) - retention.bytes
    for lsn, _, size in ends:
        if excess <= 0:
            break
        wanted, excess = max(wanted, lsn), excess - size
    return wanted


def reaching(state: TableState, starts: Sequence[int]) -> int:
    """The newest commit at which a log start keeps these offsets (one per bucket) readable."""
    beyond = [log.lsn_beyond(start) for log, start in zip(state.logs, starts, strict=True)]
    return min((lsn - 1 for lsn in beyond if lsn is not None), default=_NEWEST)


class Retention:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(
        self,
        *,
        engine: Engine,
        leases: Leases,
        subscriptions: Subscriptions,
        producers: ProducerVerbs,
        check_seconds: float,
        wake_checkpoint: Callable[[], None],
    ) -> None:
        self._engine, self._leases, self._subscriptions, self._producers = engine, leases, subscriptions, producers
        self._wake_checkpoint = wake_checkpoint
        self._running = threading.Lock()
        self._decisions: dict[str, Decision] = {}
        self._said: dict[str, tuple[str, ...]] = {}
        self._duty = Worker(
            supervisor=engine.supervisor, name="retention", work=self.run_once, failed=_failed, every=check_seconds
        )
        self._duty.start()

    def close(self) -> None:
        self._duty.close()

    def decision(self, table_uuid: str) -> Decision | None:
        """The last decision on a table with retention; None before it."""
        return self._decisions.get(table_uuid)

    def run_once(self) -> None:
        with self._running:
            if not self._engine.is_leading:
                return
            now = self._engine.time.read()
            if now.may_delete:
                self._subscriptions.note_consumers(now.time_us)
                self._engine.parts.expire(now.time_us)
                if not self._leases.in_grace:
                    self._subscriptions.forget_idle(now.time_us)
                    self._producers.forget_idle(now.time_us)
            view = self._engine.view
            self._decisions = {
                uuid: self._decided(view, state, now)
                for uuid, state in view.tables.items()
                if state.table.retention and not view.is_copy(uuid)
            }
            self._say(view)
            moving = [uuid for uuid, found in self._decisions.items() if found.lsn > view.tables[uuid].log_start_lsn]
            if moving:
                self._drop(moving, now)

    def _decided(self, view: View, state: TableState, now: Reading) -> Decision:
        holds = self._holds(view, state)
        if not now.may_delete:
            holds.append(LogHold("clock", wanted_by_bytes(state)))
        return decide(state, now.time_us, holds, view.marks)

    def _holds(self, view: View, state: TableState) -> list[LogHold]:
        uuid = state.table.uuid
        holds = [LogHold("lake", self._tiered(state))]
        holds += [LogHold("lease", reaching(state, starts)) for starts in self._leases.starts(uuid)]
        holds += [LogHold("lease", cut) for cut in self._leases.cuts(uuid) if cut >= max(state.created_lsn, 1)]
        holds += [
            LogHold(f"subscription {s.name}", needed(s, state)) for s in view.subscriptions.values() if uuid in s.tables
        ]
        held = view.rescales.get(uuid)
        if held is not None and not (held.kind is CopyKind.BRANCH_AT and held.is_filled):
            needed_from = [max(*each) for each in zip(held.done, held.ends, strict=True)]
            holds.append(LogHold("rescale", reaching(state, needed_from)))
        if uuid in self._engine.lake_ahead:
            holds.append(LogHold("restore", state.log_start_lsn))
        if self._leases.in_grace:
            holds.append(LogHold("restart", state.log_start_lsn))
        return holds

    def _tiered(self, state: TableState) -> int:
        """The LSN of the tier point up to which the lake alone can serve reads."""
        usable = [
            tier for tier in state.tiers.values() if not self._leases.is_retired(state.table.uuid, tier.snapshot_id)
        ]
        return max((reaching(state, tier.tier_point) for tier in usable), default=state.log_start_lsn)

    def _drop(self, tables: Sequence[str], now: Reading) -> None:
        """Journal the new log starts. The commit loop checks once more for reads that have begun meanwhile."""
        raised: dict[str, tuple[int, ...]] = {}

        def plan(state: State, record: CommitRecord) -> None:
            for uuid in tables:
                table = state.view.tables.get(uuid)
                found = self._decided(state.view, table, now) if table else None
                if table is None or found is None or found.lsn <= table.log_start_lsn:
                    continue
                lost = range(max(table.created_lsn, table.log_start_lsn), found.lsn)
                if self._leases.raise_log_start(uuid, table.from_lsn(found.lsn).starts(), lost):
                    raised[uuid] = table.starts()
                    record.starts.append(LogStart(uuid, found.lsn))
            if not record.starts:
                raise Conflict("a read of the rows to remove has begun")

        try:
            self._engine.operate(plan)
        except Conflict:
            return
        except LakestoreError:
            for uuid, starts in raised.items():
                self._leases.reset_log_start(uuid, starts)
            raise
        self._wake_checkpoint()

    def _say(self, view: View) -> None:
        """Warn of every table whose retention is held back, once for each set of holders."""
        for uuid, decision in self._decisions.items():
            holders = tuple(decision.holders())
            if holders and holders != self._said.get(uuid):
                name = view.tables[uuid].table.name
                log.warning(
                    "retention of table %s is held back by %s: %d bytes stay",
                    name,
                    _named(holders),
                    decision.held_bytes,
                )
            self._said[uuid] = holders


def _failed(error: Exception) -> None:
    log.error("a round of retention failed and will be tried again: %s", error)


def _named(holders: Sequence[str]) -> str:
    return " and ".join(_SAID.get(by, by) for by in holders)

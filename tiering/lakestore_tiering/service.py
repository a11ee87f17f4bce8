"""The tiering service: rounds of each table by its freshness, with compaction in parallel and expiry afterwards.

- One holder at a time has the epoch. Rounds of several tables run in parallel; a table has one round at a time, which
  no other table's round waits for. Compactions rewrite beside the rounds.
- A table whose round fails is retried later and does not delay the others.
- `Fenced` ends the service, as does a server that is unreachable or refuses the tierer for too long.
"""

from __future__ import annotations

import contextvars
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pyspark.sql import SparkSession

from lakestore import limits
from lakestore.client.transport import Transport
from lakestore.errors import Denied, Fenced, LakestoreError, Stopped, Unavailable
from lakestore.iceberg import cache
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.model.contract.promises import upkeep_budget
from lakestore.model.freshness_price import PAUSE_SECONDS
from lakestore.model.table import Table
from lakestore.v1.lakestore_pb2 import LakeErasure, ListTablesRequest, TierProblem
from lakestore.wire import tracing
from lakestore_spark.leases import SessionLeases
from lakestore_tiering import compact, erase, iceberg_java, manifest_rewrite, orphans
from lakestore_tiering.budgets import Budgets
from lakestore_tiering.compact import CompactionResult, Fork
from lakestore_tiering.debts import ERASURE
from lakestore_tiering.epoch import POLL_SECONDS, HeldEpoch
from lakestore_tiering.flush import FlushResult, flush
from lakestore_tiering.hot_rows import Hot
from lakestore_tiering.progress import ERASE, UPKEEP, RoundProgress, tasks_of
from lakestore_tiering.round import Round, StopAsked, no_crash
from lakestore_tiering.schedule import Pace

RETRY_SECONDS = 2.0
RETRY_SECONDS_MAX = 300.0
SERVER_SECONDS_MAX = 600.0
"""Seconds for which a server may be unreachable, or refuse the tierer, before the service ends."""
_log = logging.getLogger("lakestore.tiering")


@dataclass(frozen=True, slots=True)
class FailedTable:
    """A table whose last rounds failed."""

    table: str
    problem: str
    failures: int

    @property
    def retry_seconds(self) -> float:
        """Seconds until the next round; doubles each time."""
        return min(RETRY_SECONDS_MAX, RETRY_SECONDS * float(2 ** min(self.failures - 1, 16)))


class FailedTables:
    """All failed tables."""

    def __init__(self) -> None:
        self._of: dict[str, FailedTable] = {}

    def failed(self, table: Table, error: Exception) -> FailedTable:
        before = self._of.get(table.uuid)
        told = error.message if isinstance(error, LakestoreError) else f"{type(error).__name__}: {error}"
        found = FailedTable(table.name, told, before.failures + 1 if before else 1)
        self._of[table.uuid] = found
        if before is None or before.problem != told:
            expected = isinstance(error, LakestoreError)
            text = "round of table %s failed, the next try is in %.0f s: %s"
            _log.warning(text, table.name, found.retry_seconds, told, exc_info=None if expected else error)
        return found

    def went_well(self, table: Table) -> None:
        before = self._of.pop(table.uuid, None)
        if before is not None:
            _log.warning("table %s is tiered again", table.name)

    def keep_only(self, tables: Sequence[Table]) -> None:
        known = {table.uuid for table in tables}
        self._of = {uuid: trouble for uuid, trouble in self._of.items() if uuid in known}

    def problems(self) -> list[TierProblem]:
        return [
            TierProblem(table_uuid=uuid, problem=trouble.problem, failures=trouble.failures)
            for uuid, trouble in self._of.items()
        ]


class ServerOutage:
    """The time for which the server has been unreachable."""

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._address = address
        self._clock = clock
        self._since: float | None = None

    def failed(self, error: LakestoreError) -> float:
        """Seconds until the next attempt. Raises the error if it has lasted too long."""
        now = self._clock()
        if self._since is None:
            self._since = now
            _log.warning("the server %s does not answer the tierer, which waits: %s", self._address, error.message)
        lasted = now - self._since
        if lasted >= SERVER_SECONDS_MAX:
            told = f"the server {self._address} has not answered the tierer for {lasted:.0f} s: {error.message}"
            raise type(error)(told, applied=error.applied) from error
        return min(10.0, RETRY_SECONDS + lasted / 10)

    def went_well(self) -> None:
        if self._since is not None:
            self._since = None
            _log.warning("the server %s answers the tierer again", self._address)


TELL_SECONDS = 2.0
"""Seconds of a round from which its progress is told, and between two reports."""
ROUNDS_BEGUN = 64
"""Rounds that have begun and do not wait for Spark: a few have places, the others wait for one."""
ROUND_THREADS = 1_024
"""All rounds that have begun. A thread is made when a round needs one."""
ROUNDS_PER_EXPIRY = 20
AGE_LOOKS = 10
"""Expiries in the time of a budget's snapshot age, in a table that has one."""
ORPHAN_CHECK_SECONDS = 6 * 3600.0
"""Seconds between two searches for orphans of one table."""

Result = TypeVar("Result")


class LakeConnection(Protocol):
    """A connection to a server, as from `lakestore.connect(…)`."""

    address: str
    transport: Transport


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one round of one table."""

    table: str
    flushed: FlushResult | None
    compacted: CompactionResult | None
    expired: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Begun:
    """A round that has begun."""

    table: Table
    began: float
    """Clock seconds."""


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A compaction that is rewriting files."""

    fork: Fork
    rewritten: Future[None]


class Tierer:
    """Tiers the tables of one server while it holds the epoch."""

    def __init__(
        self,
        lake: LakeConnection,
        spark: SparkSession,
        *,
        holder: str = "",
        seconds: int = limits.TIERER_SECONDS_DEFAULT,
        crash: Callable[[str], None] = no_crash,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._address = lake.transport, lake.transport.address
        self._holder = holder or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._clock = clock
        self._held = HeldEpoch(lake.transport, self._holder, seconds, clock)
        hot = Hot(spark, lake.transport)
        leases = SessionLeases(lake.transport, keep_seconds=float("inf"), on_release=hot.forget)
        derived = cache.of_process()
        self._folder = TemporaryDirectory(prefix="lakestore-cache-", ignore_cleanup_errors=True)
        derived = derived if derived.folder else cache.DerivedCache(Path(self._folder.name))
        about = self._held.epoch, self._held.confirm, crash, OffsetCache(derived), derived
        self.tools = Round(spark, lake.transport, hot, leases, *about, progress=RoundProgress(clock))
        self._troubles, self._server = FailedTables(), ServerOutage(lake.address, clock)
        self._rounds: dict[str, int] = {}
        self._expired: dict[str, float] = {}
        """Table uuid to the clock seconds of its last expiry of snapshots."""
        self._looked: dict[str, float] = {}
        self._due: dict[str, float] = {}
        """Table uuid to clock seconds."""
        self._budgets, self._pace = Budgets(self.tools.debts, clock), Pace()
        self._known: list[Table] = []
        self._erasures: dict[str, LakeErasure] = {}
        """By table uuid: the erasure that waits for the lake."""
        self._listed = float("-inf")
        """Clock seconds at which the server listed `_known`."""
        self._told, self._has_told = float("-inf"), False
        """Clock seconds at which the server was told the running rounds, and whether there were any."""
        self._begun: dict[Future[FlushResult | bool], _Begun] = {}
        self._pool = ThreadPoolExecutor(ROUND_THREADS, "lakestore-round")
        self._background = ThreadPoolExecutor(1, "lakestore-compact")
        self._compacting: dict[str, _Rewrite] = {}

    def acquire(self, *, wait_seconds: float = 0.0) -> int:
        """Acquire the epoch. Raises `Unavailable` if another holder still has it after `wait_seconds`."""
        return self._held.acquire(wait_seconds)

    def run_once(self, table: str | None = None, *, compaction: bool | None = None) -> list[Outcome]:
        """Run one round of every table, or of one. `compaction` forces or skips it; default: if due.

        A table's error is raised after the rounds of the others.
        """
        self._held.acquire(self._held.seconds * 2.0)
        self.tools.stop = threading.Event()
        tables = [found for found in self._tables() if table in (None, found.name)]
        done: dict[str, Outcome] = {}
        errors: dict[str, LakestoreError] = {}

        def settle(found: Table, round_: Future[Outcome]) -> None:
            try:
                done[found.uuid] = round_.result()
            except (Fenced, Denied):
                raise
            except LakestoreError as error:
                errors[found.uuid] = error

        running = {self._submit(self._once, each, compaction): each for each in tables}
        try:
            for round_ in self._as_completed(running):
                settle(running[round_], round_)
        finally:
            _awaited(running)
        if errors:
            raise _joined([errors[found.uuid] for found in tables if found.uuid in errors])
        return [done[found.uuid] for found in tables]

    def run_forever(self, stop: threading.Event) -> None:
        """Run rounds by each table's freshness until stopped, until another tierer takes over (`Fenced`), until Spark
        has ended (`Stopped`), or until the leader `has_moved`.
        """
        self._held.acquire(float("inf"), stop)
        try:
            while not (stop.is_set() or self.has_moved):
                try:
                    self._begin_due(stop)
                    self._settle_ended(stop)
                except Stopped:
                    raise
                except (Unavailable, Denied) as error:
                    stop.wait(self._server.failed(error))
        finally:
            _awaited(self._begun)
            self._begun.clear()

    @property
    def has_moved(self) -> bool:
        """True if another server leads than at the start. The session's catalog is at the earlier leader: go on with a
        new session and a new tierer.
        """
        return self._transport.address != self._address

    def close(self) -> None:
        """Stop compactions and release the epoch. Idempotent."""
        self._pool.shutdown(wait=True)
        self._background.shutdown(wait=True, cancel_futures=True)
        if self._compacting and iceberg_java.has_ended(self.tools.spark):
            self._compacting.clear()  # the next epoch removes the branches of this one
        for name in list(self._compacting):
            with suppress(LakestoreError):
                compact.abandon(self.tools, self._compacting.pop(name).fork)
        self.tools.leases.close()
        self.tools.hot.close()
        self._folder.cleanup()
        self._held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tables(self) -> list[Table]:
        answer = self._transport.list_tables(ListTablesRequest())
        self._erasures = {
            Table.from_json(part.definition).uuid: part.erasure for part in answer.tables if part.HasField("erasure")
        }
        tables = [Table.from_json(part.definition) for part in answer.tables]
        return [table for table in tables if not table.is_adopting]

    def _once(self, table: Table, compaction: bool | None) -> Outcome:
        started = self._clock()
        with tracing.span("round", table=table.name), self.tools.progress.round(table.uuid):
            flushed = self._flush_all(table)
            self.tools.progress.step(table.uuid, UPKEEP)
            self.tools.sweep_once(table)
            self._erase(table)
            compacted = None if compaction is False else compact.compact(self.tools, table.name, force=bool(compaction))
            if compaction is not False:
                manifest_rewrite.rewrite(self.tools, table)
            expired = orphans.expire(self.tools, table)
            self._held.report_upkeep(self.tools.debts.messages())
        return Outcome(table.name, flushed, compacted, expired, self._clock() - started)

    def _erase(self, table: Table) -> None:
        """Do the lake's part of an erasure, or forget a finished one."""
        asked = self._erasures.get(table.uuid)
        if asked is None:
            self.tools.debts.end(table.uuid, ERASURE)
            return
        self.tools.progress.step(table.uuid, ERASE)
        erase.erase(self.tools, table, asked)

    def _flush_all(self, table: Table) -> FlushResult | None:
        """Flush what is hot now, in several commits if it is very much. Returns the last one with the sums of all."""
        total = flushed = self._flush(table)
        left = flushed.changes_left if flushed else 0
        while total and left > 0 and (flushed := self._flush(table)):
            rows, deaths, changes = (
                total.rows + flushed.rows,
                total.deaths + flushed.deaths,
                total.changes + flushed.changes,
            )
            total, left = replace(flushed, rows=rows, deaths=deaths, changes=changes), left - flushed.changes
        return total

    def _flush(self, table: Table) -> FlushResult | None:
        with tracing.span("flush", table=table.name):
            flushed = flush(self.tools, table.name)
            tracing.note(rows=flushed.rows if flushed else 0)
        return flushed

    def _begin_due(self, stop: threading.Event) -> None:
        """Begin the rounds that are due. Raises errors of the server."""
        self._held.epoch()
        self.tools.stop = stop
        if self._clock() - self._listed >= POLL_SECONDS:
            tables = self._tables()
            self._obey_new_promises(tables)
            self._known, self._listed = tables, self._clock()
            self._forget_all_but(self._known)
        self._server.went_well()
        running = {begun.table.uuid for begun in self._begun.values()}
        due = [table for table in self._known if table.uuid not in running]
        due = [table for table in due if self._clock() >= self._due.get(table.uuid, 0.0)]
        room = min(ROUND_THREADS, ROUNDS_BEGUN + self.tools.places.waiting_for_spark) - len(self._begun)
        for table in sorted(due, key=lambda table: self._due.get(table.uuid, 0.0))[: max(room, 0)]:
            self._begun[self._submit(self._unless_stopped, table, stop)] = _Begun(table, self._clock())

    def _obey_new_promises(self, tables: list[Table]) -> None:
        """A table whose freshness was changed is tiered by the new one from now on, not after the old one's time."""
        before = {table.uuid: table.lake.freshness_seconds for table in self._known}
        for table in tables:
            promise = float(table.lake.freshness_seconds)
            if table.uuid in self._due and before.get(table.uuid, promise) > promise:
                self._due[table.uuid] = min(self._due[table.uuid], self._clock() + promise)

    def _settle_ended(self, stop: threading.Event) -> None:
        """Settle rounds that have ended, or wait for one until it is time to look for due tables. Raises errors of the
        server, but not of a table.
        """
        running = {begun.table.uuid for begun in self._begun.values()}
        due = min((due for uuid, due in self._due.items() if uuid not in running), default=float("inf"))
        seconds = min(POLL_SECONDS, max(due - self._clock(), PAUSE_SECONDS))
        if self._begun:
            wait(self._begun, seconds, FIRST_COMPLETED)
        else:
            stop.wait(seconds)
        for round_ in [round_ for round_ in self._begun if round_.done()]:
            begun = self._begun.pop(round_)
            self._due[begun.table.uuid] = self._settled(begun, round_)
            self._held.report(self._troubles.problems())
        self._tell_progress()

    def _as_completed(self, rounds: Iterable[Future[Outcome]]) -> Iterator[Future[Outcome]]:
        """The rounds as they end. Their progress is told meanwhile."""
        left = set(rounds)
        while left:
            done, left = wait(left, POLL_SECONDS, FIRST_COMPLETED)
            yield from done
            self._tell_progress()

    def _tell_progress(self) -> None:
        """Tell the server every few seconds which rounds run, if one runs for long."""
        is_long = self.tools.progress.longest() >= TELL_SECONDS
        if self._clock() - self._told < TELL_SECONDS or not (is_long or self._has_told):
            return
        running = self.tools.progress.messages(partial(tasks_of, self.tools.spark)) if is_long else []
        self._held.report_running(running)
        self._told, self._has_told = self._clock(), bool(running)

    def _unless_stopped(self, table: Table, stop: threading.Event) -> FlushResult | bool:
        """A round. False if the service was stopped before or during it, True if nothing was hot."""
        if stop.is_set():
            return False
        try:
            return self._round(table) or True
        except StopAsked:
            return False

    def _submit(self, work: Callable[..., Result], table: Table, *about: Any) -> Future[Result]:
        """Run `work` for a table on a thread with a place. It inherits the caller's deadline and trace."""

        def placed() -> Result:
            with self.tools.places.taken():
                return work(table, *about)

        return self._pool.submit(contextvars.copy_context().run, placed)

    def _settled(self, begun: _Begun, round_: Future[FlushResult | bool]) -> float:
        """Record the outcome of a round. Returns the clock seconds at which the table's next round begins."""
        table, now = begun.table, self._clock()
        try:
            flushed = round_.result()
        except (Fenced, Denied, Stopped):
            raise
        except Exception as error:
            if iceberg_java.has_ended(self.tools.spark):
                raise Stopped(f"Spark has ended, so nothing can be tiered: start the tierer again ({error})") from error
            if self._is_elsewhere(table):
                return now
            return now + self._troubles.failed(table, error).retry_seconds
        if flushed is not False:
            self._troubles.went_well(table)
        self._held.report_upkeep(self.tools.debts.messages())
        if isinstance(flushed, FlushResult):
            if flushed.changes_left:
                return now
            self._pace.took_seconds(table.uuid, now - begun.began)
        current = next((each for each in self._known if each.uuid == table.uuid), table)  # it may promise more by now
        return begun.began + self._pace.until_next(table.uuid, self._budgets.pause(current))

    def _is_elsewhere(self, table: Table) -> bool:
        """True if the table was dropped or renamed while its round ran, as by the end of a rescale. Then no round
        begins before the tables are listed again."""
        found = {each.uuid: each.name for each in self._tables()}.get(table.uuid) != table.name
        self._listed = float("-inf") if found else self._listed
        return found

    def _round(self, table: Table) -> FlushResult | None:
        with tracing.span("round", table=table.name), self.tools.progress.round(table.uuid):
            flushed = self._flush(table)
            self.tools.progress.step(table.uuid, UPKEEP)
            self.tools.sweep_once(table)
            self._compact_beside(table)
            if table.uuid not in self._compacting:
                self._erase(table)
            if flushed:
                self._rounds[table.uuid] = self._rounds.get(table.uuid, 0) + 1
                if self._rounds[table.uuid] % ROUNDS_PER_EXPIRY == 0:
                    self._expire(table)
                    if table.uuid not in self._compacting:
                        manifest_rewrite.rewrite(self.tools, table)
            if self._is_age_due(table):
                self._expire(table)
            if self._clock() - self._looked.setdefault(table.uuid, float("-inf")) >= ORPHAN_CHECK_SECONDS:
                self._looked[table.uuid] = self._clock()
                if table.uuid not in self._compacting:
                    orphans.remove(self.tools, table)
        return flushed

    def _expire(self, table: Table) -> None:
        self._expired[table.uuid] = self._clock()
        orphans.expire(self.tools, table)

    def _is_age_due(self, table: Table) -> bool:
        """Whether snapshots are due by the budget's age, which also bounds them in a table without rounds."""
        age = upkeep_budget(table).snapshot_age_seconds
        return age is not None and self._clock() - self._expired.get(table.uuid, float("-inf")) >= age / AGE_LOOKS

    def _forget_all_but(self, tables: list[Table]) -> None:
        """Forget dropped tables. Their compactions are abandoned, which releases the leases."""
        known = {table.uuid for table in tables}
        self._troubles.keep_only(tables)
        self.tools.debts.keep_only(known)
        memories = (self.tools.known, self._rounds, self._expired, self._looked, self._due)
        for memory in (*memories, self._budgets.rests, self._budgets.compactions, self._pace.took):
            for gone in memory.keys() - known:
                memory.pop(gone)
        for gone in self._compacting.keys() - known:
            if self._compacting[gone].rewritten.done() and not iceberg_java.has_ended(self.tools.spark):
                with suppress(LakestoreError):
                    compact.abandon(self.tools, self._compacting.pop(gone).fork)

    def _compact_beside(self, table: Table) -> None:
        """Start a due compaction, or land a finished one.

        Landing is serial with flushes: it looks up rows that died since the fork in the log up to main's tier point,
        which must not move meanwhile.
        """
        running = self._compacting.get(table.uuid)
        if running is None:
            if self.tools.stop.is_set():
                return
            fork = compact.fork(self.tools, table.name, may_start=self._budgets.may_start(table))
            if fork is not None:
                rewritten = self._background.submit(self._rewrite, table, fork)
                self._compacting[table.uuid] = _Rewrite(fork, rewritten)
            self._budgets.note(table, is_running=fork is not None)
            return
        if not running.rewritten.done():
            return
        del self._compacting[table.uuid]
        error = running.rewritten.exception()
        if error is not None:
            compact.abandon(self.tools, running.fork)
            raise Unavailable(f"the compaction of table {table.name} failed: {error}") from error
        self._budgets.landed(table, compact.land(self.tools, running.fork))

    def _rewrite(self, table: Table, fork: Fork) -> None:
        """Rewrite files on the one thread for that. The table pays for its own rewrite, not for those before it."""
        began = self._clock()
        try:
            compact.rewrite(self.tools, fork)
        finally:
            self._budgets.spent(table, self._clock() - began)


def _awaited(rounds: Iterable[Future[Any]]) -> None:
    """Cancel what has no thread yet and wait for the rest."""
    wait([round_ for round_ in rounds if not round_.cancel()])


def _joined(errors: list[LakestoreError]) -> LakestoreError:
    if len(errors) == 1:
        return errors[0]
    made = type(errors[0])("; ".join(error.message for error in errors), applied=errors[0].applied)
    made.__cause__ = errors[0]
    return made

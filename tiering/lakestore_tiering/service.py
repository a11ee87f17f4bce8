"""The tiering service: rounds of every table by its freshness, compaction beside them, expiry after them.

One holder at a time has the epoch; it is renewed in the background and everything stops once it is lost.
Rounds of all tables run one after the other; only a compaction's rewrite runs beside them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from pyspark.sql import SparkSession

from lakestore import limits
from lakestore.client.transport import Transport
from lakestore.errors import Conflict, Fenced, LakestoreError, NotFound, PlanExpired, Unavailable
from lakestore.model.table import Table
from lakestore.v1.lakestore_pb2 import ListTablesRequest, TiererRequest
from lakestore_spark.hot_rows import Hot
from lakestore_spark.union import lake_name
from lakestore_tiering import compact, expire
from lakestore_tiering.compact import Compacted, Fork
from lakestore_tiering.flush import Flushed, flush, sweep
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.round import COMPACT, STAGE, Round, no_crash

POLL_SECONDS = 0.5
RETRY_SECONDS = 2.0
ROUNDS_PER_EXPIRY = 20
_log = logging.getLogger("lakestore.tiering")


class LakeConnection(Protocol):
    """A connection to a server, as `lakestore.connect(…)` gives it."""

    address: str
    transport: Transport


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one round of one table."""

    table: str
    flushed: Flushed | None
    compacted: Compacted | None
    expired: int
    """Number of expired snapshots."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A compaction whose files are being rewritten beside the rounds."""

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
        self._transport = lake.transport
        self._holder = holder or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._clock = clock
        self._held = _HeldEpoch(lake.transport, self._holder, seconds, clock)
        hot = Hot(spark, lake.transport, lake.address)
        self.tools = Round(spark, lake.transport, hot, self._held.epoch, self._held.confirm, crash)
        self._swept: set[str] = set()
        self._rounds: dict[str, int] = {}
        self._background = ThreadPoolExecutor(1, "lakestore-compact")
        self._compacting: dict[str, _Rewrite] = {}

    def acquire(self, *, wait_seconds: float = 0.0) -> int:
        """Take the epoch; `Unavailable` if another holder still has it after so many seconds."""
        return self._held.acquire(wait_seconds)

    def run_once(self, table: str | None = None, *, compaction: bool | None = None) -> list[Outcome]:
        """One round of every table, or of one. `compaction` forces it, or leaves it out; by default it runs if due."""
        self._held.acquire(self._held.seconds * 2.0)
        return [self._once(found, compaction) for found in self._tables() if table in (None, found.name)]

    def run_forever(self, stop: threading.Event) -> None:
        """Rounds by each table's freshness until told to stop, or until another tierer took over (`Fenced`)."""
        self._held.acquire(float("inf"), stop)
        due: dict[str, float] = {}  # table uuid to seconds of the clock
        while not stop.is_set():
            with suppress(Unavailable, Conflict):
                for table in self._tables():
                    if self._clock() >= due.get(table.uuid, 0.0):
                        due[table.uuid] = self._clock() + self._tick(table)
            stop.wait(POLL_SECONDS)

    def close(self) -> None:
        """Stop compactions and give the epoch up. Again is harmless."""
        self._background.shutdown(wait=True)
        for name in list(self._compacting):
            with suppress(LakestoreError):
                compact.abandon(self.tools, self._compacting.pop(name).fork)
        self.tools.hot.close()
        self._held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tables(self) -> list[Table]:
        answer = self._transport.list_tables(ListTablesRequest())
        return [Table.from_json(part.definition) for part in answer.tables]

    def _once(self, table: Table, compaction: bool | None) -> Outcome:
        started = self._clock()
        self._sweep(table)
        flushed = flush(self.tools, table.name)
        compacted = None if compaction is False else compact.compact(self.tools, table.name, force=bool(compaction))
        return Outcome(table.name, flushed, compacted, expire.expire(self.tools, table), self._clock() - started)

    def _tick(self, table: Table) -> float:
        """One round of a running service; seconds until the next."""
        try:
            self._sweep(table)
            flushed = flush(self.tools, table.name)
            self._compact_beside(table)
            if flushed:
                self._rounds[table.uuid] = self._rounds.get(table.uuid, 0) + 1
                if self._rounds[table.uuid] % ROUNDS_PER_EXPIRY == 0:
                    expire.expire(self.tools, table)
        except (Unavailable, Conflict, PlanExpired) as error:
            _log.warning("round of table %s put off: %s", table.name, error)
            return RETRY_SECONDS
        except NotFound:
            self.tools.known.pop(table.uuid, None)
        return float(table.lake.freshness_seconds)

    def _compact_beside(self, table: Table) -> None:
        """Start a compaction that is due, or land one that is done.

        Landing is serial with flushes, as it looks for the rows that died since the fork in the log up to main's tier
        point, which must not move meanwhile.
        """
        running = self._compacting.get(table.uuid)
        if running is None:
            fork = compact.fork(self.tools, table.name)
            if fork is not None:
                rewritten = self._background.submit(compact.rewrite, self.tools, fork)
                self._compacting[table.uuid] = _Rewrite(fork, rewritten)
            return
        if not running.rewritten.done():
            return
        del self._compacting[table.uuid]
        error = running.rewritten.exception()
        if error is not None:
            compact.abandon(self.tools, running.fork)
            raise Unavailable(f"the compaction of table {table.name} failed: {error}") from error
        compact.land(self.tools, running.fork)

    def _sweep(self, table: Table) -> None:
        """Remove the branches of ended epochs, which may not land any more; once per table."""
        if table.uuid in self._swept:
            return
        with java_errors():
            lake = Iceberg(self.tools.spark, lake_name(table))
            sweep(lake, STAGE)
            sweep(lake, COMPACT)
        self._swept.add(table.uuid)


class _HeldEpoch:
    """The epoch, renewed by a daemon thread while it is held."""

    def __init__(self, transport: Transport, holder: str, seconds: int, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._holder = holder
        self.seconds = seconds
        self._clock = clock
        self._epoch = 0
        self._until = 0.0
        self._ended = threading.Event()

    def epoch(self) -> int:
        """The epoch, or `Fenced` once it may have passed to another."""
        if not self._epoch or self._ended.is_set() or self._clock() >= self._until:
            raise Fenced("this tierer's epoch has ended: start a new one")
        return self._epoch

    def confirm(self) -> None:
        """Ask the server; `Fenced` if another has the epoch."""
        self._ask()

    def acquire(self, wait_seconds: float, stop: threading.Event | None = None) -> int:
        if self._epoch:
            return self.epoch()
        limit = self._clock() + wait_seconds
        while True:
            try:
                self._ask()
                break
            except (Unavailable, Conflict):
                if self._clock() >= limit or (stop is not None and stop.is_set()):
                    raise
                time.sleep(min(POLL_SECONDS, self.seconds / 4))
        threading.Thread(target=self._renew, name="lakestore-epoch", daemon=True).start()
        return self._epoch

    def release(self) -> None:
        if self._epoch and not self._ended.is_set():
            self._ended.set()
            with suppress(LakestoreError):
                self._transport.release_tierer(self._request())

    def _request(self) -> TiererRequest:
        return TiererRequest(holder=self._holder, seconds=self.seconds, epoch=self._epoch)

    def _ask(self) -> None:
        asked = self._clock()
        try:
            answer = self._transport.acquire_tierer(self._request())
        except Fenced:
            self._ended.set()
            raise
        self._epoch, self._until = answer.epoch, asked + answer.seconds

    def _renew(self) -> None:
        while not self._ended.wait(self.seconds / 4):
            # Only Fenced ends the epoch; after any other failure it lasts until its time is over.
            with suppress(LakestoreError):
                self._ask()

"""The duty of rescales: fills the copies of tables, follows their changes, and swaps a copy that has everything. A
branch of a replay is swapped by its user instead.

- All state is in the journal: after a restart, or on another leader, the duty continues at the copy's last commit.
- First the rows that were live when the copy began are copied, then the changes since, bucket by bucket in their order.
- One small commit of rows at a time is in flight, so that commits of users go between them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lakestore.errors import Conflict, Exhausted, Internal, LakestoreError, Stopped, Unavailable
from lakestore.limits import Limits
from lakestore.rows import row_hash
from lakestore_server.catalog import rescaling
from lakestore_server.catalog.rescaling import LakeMark
from lakestore_server.commit.copied_rows import StoredRows, copied_rows
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.host.rate_limited_log import RateLimitedLog
from lakestore_server.host.worker import Worker
from lakestore_server.read.rows import DeadCache, ReadOptions, dead_of, live_at, sent_bytes
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.rescale import CopyKind, Rescale, RescaleEnd
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.rescale")
COPY_ROWS = 4096
"""Rows of one commit into a copy: few next to what producers send, because it goes between their commits."""
IDLE_SECONDS = 5.0
"""Seconds between looks for a rescale that another server began while it led."""
MARKS_MAX = 600
"""Notes of the copy's position, one a second."""
MARK_SECONDS = 1.0
LOG_SECONDS = 60.0
"""Seconds between two log lines of one kind of error of a table."""


@dataclass(frozen=True, slots=True)
class RescaleFigures:
    """The progress of a rescale, as status shows it."""

    copy: str
    """The copy's name."""
    buckets: int
    """The new number of buckets."""
    done: int
    """Offsets of the table whose rows are in the copy."""
    offsets: int
    """Offsets of the table. It grows with every write."""
    waits: str
    """The reason why it has not swapped: `rows`, `lake`, `subscription`, `user` (a filled branch), or the text of an
    error."""
    kind: str = ""
    """Empty for a rescale, `branch` for a branch that follows, `at` for a branch of one position."""

    @staticmethod
    def of(view: View, held: Rescale, waits: str) -> RescaleFigures:
        """The figures in a view."""
        copy, source = view.tables[held.copy].table, view.tables[held.source]
        offsets = sum(held.ends) if held.kind is CopyKind.BRANCH_AT else sum(source.heads())
        return RescaleFigures(copy.name, copy.buckets, sum(held.done), offsets, waits, held.kind)


@dataclass(frozen=True, slots=True)
class RowSum:
    """The number of live rows, and a sum of hashes of all their values."""

    rows: int
    values: int


class RescaleDuty:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine, clock: Clock, check_seconds: float) -> None:
        self._engine, self._clock = engine, clock
        self._running = threading.Lock()
        self._dead = DeadCache(64)
        self._marks: dict[str, deque[LakeMark]] = {}
        """By the copy's uuid."""
        self._marked = 0.0
        self._compared: dict[str, str] = {}
        """By the copy's uuid: why it is not swapped; empty if it has the rows of its source."""
        self._errors = RateLimitedLog(clock, LOG_SECONDS)
        self._waits: Mapping[str, str] = {}
        """By the source's uuid: what the swap waits for."""
        self._check_seconds, idle = check_seconds, max(IDLE_SECONDS, check_seconds)
        self._duty = Worker(
            supervisor=engine.supervisor,
            name="rescale",
            work=self._work,
            failed=_failed,
            every=idle,
            first=check_seconds,
        )
        self._duty.start()

    def wake(self) -> None:
        """Look at the rescales now."""
        self._duty.wake()

    def close(self) -> None:
        """Stop after the commit that is in flight."""
        self._duty.close()

    def figures(self, view: View, uuid: str) -> RescaleFigures | None:
        """The progress of the rescale of a table; None if there is none."""
        held = view.rescales.get(uuid)
        return RescaleFigures.of(view, held, self._waits.get(uuid, _waits(held))) if held else None

    def _work(self) -> None:
        self.run_once()
        if self._engine.view.rescales and self._engine.is_leading and not self._duty.wait(self._check_seconds):
            self._duty.wake()

    def run_once(self) -> None:
        """Bring every copy up to its source, and swap where it is possible."""
        with self._running:
            if not self._engine.is_leading:
                return
            rescales = self._engine.view.rescales
            if not rescales:
                return
            copies = {held.copy for held in rescales.values()}
            self._marks = {uuid: marks for uuid, marks in self._marks.items() if uuid in copies}
            self._compared = {uuid: problem for uuid, problem in self._compared.items() if uuid in copies}
            waits = {}
            for uuid in rescales:
                waits[uuid] = self._tried(uuid)
                if self._duty.is_closing:
                    return
            self._waits = waits

    def _tried(self, source: str) -> str:
        """A round of one rescale; returns what its swap waits for."""
        try:
            return self._round(source)
        except Conflict as error:  # it was altered, moved or ended meanwhile: the next round looks again
            return error.message
        except (Exhausted, Stopped, Unavailable) as error:
            return self._said(source, logging.INFO, error)
        except LakestoreError as error:
            return self._said(source, logging.ERROR, error)

    def _said(self, source: str, level: int, error: LakestoreError) -> str:
        """Log an error once a minute; returns its text."""
        if self._errors.due((source, type(error))):
            log.log(level, "a rescale is tried again: %s", error.message)
        return error.message

    def _round(self, source: str) -> str:
        while not self._duty.is_closing:
            waits = self.step(source)
            if waits is not None:
                return waits
        return "rows"

    def step(self, source: str) -> str | None:
        """One commit of rows, or the swap; returns what the swap waits for, empty without a rescale. None: there is
        more to do at once."""
        view = self._engine.view
        held = view.rescales.get(source)
        if held is None:
            return ""
        if held.copy not in view.tables or held.source not in view.tables:
            self._forget(held)
            return ""
        if held.is_replay:
            waits = _waits(held)
            self._mark(view, held.copy, held.source)
        else:
            waits = self._swapped(view, held) if _is_near(view, held) else "rows"
        if not waits:
            return ""
        several = self._next(view.tables[source], held)
        if not several:
            return waits
        self._copy(view, held, several)
        return None if waits == "rows" else waits

    def _copy(self, view: View, held: Rescale, several: Sequence[StoredRows]) -> None:
        source, copy = view.tables[held.source], view.tables[held.copy].table
        done = rescaling.copy_rows(self._engine, held, copied_rows(source, copy, several))
        self._mark(done.view, held.copy, held.source)

    def _next(self, source: TableState, held: Rescale) -> list[StoredRows]:
        """The next rows to copy: live rows of one bucket, later changes of each bucket. Empty if all are copied."""
        for bucket, (bucket_log, done, end) in enumerate(zip(source.logs, held.done, held.ends, strict=True)):
            if done < end:
                rows_max, _ = _batch(bucket_log, self._engine.limits)
                return [self._live(source, bucket, done, end, rows_max)]
        if held.kind is CopyKind.BRANCH_AT:
            return []
        behind = [bucket for bucket, bucket_log in enumerate(source.logs) if held.done[bucket] < bucket_log.head]
        return [self._changes(source.logs[bucket], bucket, held.done[bucket], len(behind)) for bucket in behind]

    def _changes(self, bucket_log: BucketLog, bucket: int, start: int, buckets: int) -> StoredRows:
        """The next changes of a bucket: a share of one commit, so that no bucket waits for another one."""
        rows_max, bytes_max = _batch(bucket_log, self._engine.limits)
        share = max(rows_max // buckets, 1), max(bytes_max // buckets, 1)
        end = min(bucket_log.end_within(start, *share), bucket_log.head)
        return StoredRows(bucket, end, [(batch, version) for _, batch, version in bucket_log.rows(start, end)])

    def _live(self, source: TableState, bucket: int, start: int, end: int, rows_max: int) -> StoredRows:
        """The next rows of a bucket that were live when the copy began."""
        bucket_log = source.logs[bucket]
        dead = self._dead.dead_offsets(source.table.uuid, bucket, bucket_log, 0, end)
        for rows in live_at(bucket_log, start, end, dead, ReadOptions(rows_max, timed=False)):
            return StoredRows(bucket, int(rows.offsets[-1]) + 1, [(rows.batch, rows.schema_id)])
        return StoredRows(bucket, end, [])

    def _swapped(self, view: View, held: Rescale) -> str:
        """Swap if it is possible; returns what it waits for."""
        marks = self._mark(view, held.copy, held.source)
        source, copy = view.tables[held.source], view.tables[held.copy]
        if any(each.is_shared and held.source in each.tables for each in view.subscriptions.values()):
            return "subscription"
        if rescaling.lake_gap(source, copy, held, marks):
            return "lake"
        if not self._has_same_rows(source, copy, held):
            return "rows"
        try:
            done = rescaling.swap(self._engine, held, marks)
        except Conflict:
            return "rows"
        log.info("table %s has %d buckets now, from LSN %d on", source.table.name, copy.table.buckets, done.view.lsn)
        return ""

    def _has_same_rows(self, source: TableState, copy: TableState, held: Rescale) -> bool:
        """Whether the copy has the rows that the source had where the copying stands; False also if the duty ends
        meanwhile. `Internal` if it has other rows: it is never swapped. Compared once for each copy, because it reads
        both tables."""
        problem = self._compared.get(held.copy)
        if problem is None:
            mine, theirs = self._row_sum(source, held.done), self._row_sum(copy, copy.heads())
            if mine is None or theirs is None:
                return False
            problem = "" if mine == theirs else _unequal(source.table.name, mine, theirs)
            self._compared[held.copy] = problem
        if problem:
            raise Internal(problem)
        return True

    def _row_sum(self, state: TableState, ends: Sequence[int]) -> RowSum | None:
        """The sum of the rows that are live at these offsets; None if the duty ends meanwhile."""
        count, values, names = 0, 0, state.table.storage_schema.names
        for bucket_log, end in zip(state.logs, ends, strict=True):
            for rows in live_at(bucket_log, 0, end, dead_of(bucket_log, 0, end), ReadOptions(timed=False)):
                if self._duty.is_closing:
                    return None
                batch = state.versions.projection(rows.schema_id, state.table).batch(rows.batch)
                hashes = row_hash.hashes([row_hash.column(batch.column(name)) for name in names])
                count, values = count + len(hashes), (values + int(hashes.sum(dtype=np.uint64))) % (1 << 64)
        return RowSum(count, values)

    def marks(self, view: View, held: Rescale) -> list[LakeMark]:
        """The noted positions of a copy."""
        with self._running:
            return self._mark(view, held.copy, held.source)

    def _mark(self, view: View, copy: str, source: str) -> list[LakeMark]:
        """Note the copy's position about once a second."""
        marks = self._marks.setdefault(copy, deque(maxlen=MARKS_MAX))
        held = view.rescales.get(source)
        if held is not None and (not marks or marks[-1].done != held.done):
            now = self._clock.monotonic()
            if not marks or now - self._marked >= MARK_SECONDS:
                self._marked = now
                marks.append(LakeMark(view.lsn, held.done))
        return list(marks)

    def _forget(self, held: Rescale) -> None:
        """End a rescale whose source or copy a restore has removed."""

        def plan(state: State, record: CommitRecord) -> None:
            if state.view.rescales.get(held.source) == held:
                record.rescale.append(RescaleEnd(held.source))

        self._engine.operate(plan)


def _waits(held: Rescale) -> str:
    """The reason why a copy has not swapped, as far as its position tells."""
    return "user" if held.is_replay and held.is_filled else "rows"


def _unequal(name: str, table: RowSum, copy: RowSum) -> str:
    return (
        f"the copy of table {name} has {copy.rows} rows with sum {copy.values:016x}, and the table {table.rows} with"
        f" sum {table.values:016x}: it is not swapped; stop it with `lakestore rescale {name} --abort`, and report this"
    )


def _is_near(view: View, held: Rescale) -> bool:
    """Whether the rest of the rows fits into the commit of the swap."""
    if not held.is_filled:
        return False
    return sum(view.tables[held.source].heads()) - sum(held.done) <= rescaling.SWAP_ROWS_MAX // 2


def _batch(bucket_log: BucketLog, limits: Limits) -> tuple[int, int]:
    """Rows and bytes of one commit into a copy."""
    bytes_max = sent_bytes(limits)
    chunks = bucket_log.chunks
    row_bytes = sum(chunk.size for chunk in chunks) // max(sum(chunk.rows for chunk in chunks), 1) + 1
    return max(min(COPY_ROWS, bytes_max // row_bytes), 1), bytes_max


def _failed(error: Exception) -> None:
    log.error("a round of rescales failed and will be tried again: %s", error)

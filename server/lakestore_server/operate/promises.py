"""The duty that measures the promises of contracts: one row of `lakestore.sla` for each minute and promise.

- Freshness is the highest age, in the minute, of the oldest change that the lake lacks. Completeness is the highest lag
  of the slowest feed behind the clock. Both are looked at every five seconds.
- Availability is the share of the minute in which this server led, took rows and (for keyed tables) had its index. A
  look counts if the one before came at most `PAUSE_SECONDS` ago, so a process that stands still is not available.
- A start fills the minutes since the last row: nobody served then, and nothing else was measured (null).
- A minute that a clock has skipped gets no row. A clock that went back gets none until it passes the last row. Nothing
  is written while the clock is in doubt, for about five minutes after a start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakestore.model.contract.promises import AVAILABILITY, COMPLETENESS, FRESHNESS, MEASURED, Promise
from lakestore.model.system_tables import SLA
from lakestore_server.commit import system_rows
from lakestore_server.commit.engine import Engine
from lakestore_server.host.worker import Worker
from lakestore_server.read.completeness import complete_through_us
from lakestore_server.read.freshness import hot_since_us, tier_point
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.promises")
LOOK_SECONDS = 5.0
PAUSE_SECONDS = 3 * LOOK_SECONDS
MINUTE_US = 60_000_000
SLACK_US = 2_000_000
"""Differences of wall and monotonic time between two looks that count as none."""
GAP_MINUTES_MAX = 31 * 1_440
"""Minutes of a gap that a start fills, counted back from the start."""
WAITING_ROWS_MAX = 100_000
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute that is over."""

    number: int
    """Minutes since 1970."""
    percents: tuple[float, ...]
    """Percent of the minute for which each service was there."""
    is_measured: bool
    """False for a minute in which nobody looked."""


@dataclass(slots=True)
class Uptime:
    """The shares of minutes for which services were there, from looks at them."""

    services: int
    current: int | None = None
    """The minute that runs."""
    _last: tuple[int, float, tuple[bool, ...]] = (0, 0.0, ())
    _whole_us: float = 0.0
    """Time of the current minute that has passed, and for each service the part in which it was there."""
    _parts_us: list[float] = field(default_factory=list)

    def look(self, time_us: int, monotonic: float, there: tuple[bool, ...]) -> list[Minute]:
        """Take a look into account; the minutes that have ended since the last one."""
        number = time_us // MINUTE_US
        if self.current is None:
            self._begin(number, float(time_us % MINUTE_US))
            self._last = time_us, monotonic, there
            return []
        before_us, before, was_there = self._last
        self._last = time_us, monotonic, there
        passed_us = (monotonic - before) * 1e6
        is_paused = passed_us > PAUSE_SECONDS * 1e6
        good = tuple(now and then and not is_paused for now, then in zip(there, was_there, strict=True))
        if abs(time_us - before_us - passed_us) > SLACK_US:
            self._add(passed_us, good)
            return self._end(number) if number > self.current else []
        if number <= self.current:
            self._add(time_us - before_us, good)
            return []
        self._add(max((self.current + 1) * MINUTE_US - before_us, 0), good)
        missed = range(self.current + 1, number)
        ended = self._end(number)
        self._add(time_us % MINUTE_US, good)
        return [*ended, *(Minute(each, (0.0,) * self.services, False) for each in missed)]

    def _begin(self, number: int, whole_us: float = 0.0) -> None:
        self.current, self._whole_us, self._parts_us = number, whole_us, [0.0] * self.services

    def _add(self, us: float, good: tuple[bool, ...]) -> None:
        self._whole_us += us
        for at in range(self.services):
            self._parts_us[at] += us if good[at] else 0.0

    def _end(self, number: int) -> list[Minute]:
        whole_us, parts_us, ended = self._whole_us, self._parts_us, self.current
        self._begin(number)
        if ended is None or not whole_us:
            return []
        return [Minute(ended, tuple(round(100 * part / whole_us, 3) for part in parts_us), True)]


@dataclass(frozen=True, slots=True)
class PromiseFigure:
    """A promise as last measured."""

    promise: str
    promised: float
    measured: float | None
    """None if nothing could be measured: before the first minute, or while a feed has given no time."""
    met: bool | None
    unit: str


_Key = tuple[str, str]
"""Table uuid and kind of a promise."""


class PromiseDuty:
    """One look at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._forget()
        self._duty = Worker(
            supervisor=engine.supervisor, name="promises", work=self.run_once, failed=_failed, every=LOOK_SECONDS
        )
        self._duty.start()

    def close(self) -> None:
        self._duty.close()

    def _forget(self) -> None:
        self._uptime = Uptime(2)
        self._first: int | None = None
        """The first minute that this server measures as the leader; None once the gap before it is filled."""
        self._worst: dict[_Key, float | None] = {}
        self._present: Mapping[_Key, float | None] = {}
        self._percents: tuple[float, ...] = ()
        self._waiting.clear()

    def figures(self, state: TableState) -> list[PromiseFigure]:
        """The promises of a table as last measured: at the last look, availability in the last minute."""
        shown = []
        for promise in _promises(state):
            measured = self._present.get((state.table.uuid, promise.kind))
            if promise.kind == AVAILABILITY and self._percents:
                measured = self._percents[state.table.keyed]
            shown.append(PromiseFigure(promise.kind, promise.value, measured, promise.is_met(measured), promise.unit))
        return shown

    def run_once(self) -> None:
        """One look; at the end of a minute its rows are written."""
        with self._running:
            engine = self._engine
            if not engine.is_leading:
                self._forget()
                return
            view, now = engine.view, engine.time.read()
            tables = [state for state in view.tables.values() if _promises(state)]
            there = self._there(any(p.kind == AVAILABILITY for state in tables for p in _promises(state)))
            if self._uptime.current is None:
                self._first = now.time_us // MINUTE_US
            ended = self._uptime.look(now.time_us, engine.monotonic(), there)
            for minute in ended:
                self._percents = minute.percents
                self._wait(row for state in tables for row in self._rows(state, minute))
                self._worst.clear()
            self._present = self._measured(view, tables, now.time_us)
            for key, measured in self._present.items():
                worst = self._worst.get(key, 0.0)
                self._worst[key] = None if measured is None or worst is None else max(measured, worst)
            if now.may_delete and self._waiting:
                self._write(view, tables)

    def _there(self, is_promised: bool) -> tuple[bool, ...]:
        """Whether a log table and a keyed table take rows now. If anybody was promised it, an empty task on the commit
        loop waits for the commits in flight."""
        engine = self._engine
        takes_rows = not (engine.is_draining or engine.is_disk_full() or engine.loop.pace.is_full())
        if is_promised and takes_rows:
            engine.settled()
        return takes_rows, takes_rows and engine.index.ready

    def _measured(self, view: View, tables: Sequence[TableState], now_us: int) -> dict[_Key, float | None]:
        found: dict[_Key, float | None] = {}
        for state in tables:
            for promise in _promises(state):
                since: int | None = None
                if promise.kind == FRESHNESS:
                    since = hot_since_us(state, tier_point(state), view.marks) or now_us
                elif promise.kind == COMPLETENESS:
                    since = complete_through_us(self._engine, view, state.table.name, now_us)
                else:
                    continue
                lag = None if since is None else max(now_us - since, 0) / 1e6
                found[state.table.uuid, promise.kind] = lag
        return found

    def _rows(self, state: TableState, minute: Minute) -> Iterator[dict[str, Any]]:
        for promise in _promises(state):
            if promise.kind == AVAILABILITY:
                yield _row(state, minute.number, promise, minute.percents[state.table.keyed])
                continue
            key = state.table.uuid, promise.kind
            if not minute.is_measured:
                yield _row(state, minute.number, promise, None)
            elif key in self._worst:  # else the contract is younger than the minute
                yield _row(state, minute.number, promise, self._worst[key])

    def _wait(self, rows: Iterator[dict[str, Any]]) -> None:
        self._waiting += rows
        if len(self._waiting) > WAITING_ROWS_MAX:
            log.error("%d rows of %s could not be written and are left out", len(self._waiting), SLA)
            self._waiting.clear()

    def _write(self, view: View, tables: Sequence[TableState]) -> None:
        last = last_minute(view)
        if self._first is not None:
            for batch in _batches(_gap(tables, last, self._first)):
                system_rows.append_rows(self._engine, SLA, batch)
            self._first = None
        rows = [row for row in self._waiting if row["minute"] > last * MINUTE_US]
        for batch in _batches(rows):
            system_rows.append_rows(self._engine, SLA, batch)
        self._waiting.clear()


def _promises(state: TableState) -> list[Promise]:
    contract = state.table.contract
    return [promise for promise in contract.promises if promise.kind in MEASURED] if contract else []


def _row(state: TableState, minute: int, promise: Promise, measured: float | None) -> dict[str, Any]:
    return {
        "minute": minute * MINUTE_US,
        "table": state.table.name,
        "promise": promise.kind,
        "promised": promise.value,
        "measured": measured,
        "met": promise.is_met(measured),
        "unit": promise.unit,
    }


def last_minute(view: View) -> int:
    """The newest minute in `lakestore.sla`; -1 without a row. If the rows have left the log, the minute before the last
    commit of rows."""
    bucket = view.named(SLA).logs[0]
    if not bucket.head:
        return -1
    newest = [batch.column("minute")[-1] for _, batch, _ in bucket.stored(bucket.head - 1, bucket.head)]
    return newest[-1].value // MINUTE_US if newest else bucket.at_head.time_us // MINUTE_US - 1


def _gap(tables: Sequence[TableState], last: int, first: int) -> Iterator[dict[str, Any]]:
    """The rows of the minutes in which no server looked, since the table has a contract."""
    begins = [
        min(version.contract.at_us for version in state.versions.tables if version.contract) // MINUTE_US
        for state in tables
    ]
    begin = max(min(begins, default=first), last, first - 1 - GAP_MINUTES_MAX)
    for number in range(begin + 1, first):
        for state, since in zip(tables, begins, strict=True):
            for promise in _promises(state) if number > since else ():
                yield _row(state, number, promise, 0.0 if promise.kind == AVAILABILITY else None)


def _batches(rows: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in batches of whole minutes, so that the newest row tells what is there."""
    batch: list[dict[str, Any]] = []
    for row in rows:
        if len(batch) >= BATCH_ROWS and row["minute"] != batch[-1]["minute"]:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _failed(error: Exception) -> None:
    log.error("promises were not measured, and will be at the next look: %s", error)

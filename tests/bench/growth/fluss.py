"""Upserts beside Fluss, which keeps its keys in RocksDB: inserts, then uniform updates, both in one run, taking turns.

Fluss answers without an fsync, as it is shipped; our journal is synced. Processor time is of the servers alone, from
one part's begin to its end, work that they do in the other's turns included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

import lakestore
from tests.bench.growth.keyed import TABLE, producer
from tests.bench.growth.rows import BATCH_ROWS, Rows
from tests.bench.growth_log import Spent, pids
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA
from tests.support.fluss import FlussProcess, FlussProducer
from tests.support.process import ServerProcess

TURNS, UPDATE_SECONDS, CHECKED_KEYS = 3, 30.0, 1_000
WARM_KEYS = 200_000
"""More keys of both tables, before anything is measured: a JVM compiles what it runs."""


class Side:
    """Rows and seconds of one server's turns, and its processor time, by part."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """`pids` gives the server's processes."""
        self._pids = pids
        self._rows, self._seconds = 0, 0.0
        self._before = Spent.of(*pids())

    def took(self, rows: int, seconds: float) -> None:
        """Add a turn."""
        self._rows, self._seconds = self._rows + rows, self._seconds + seconds

    def ended(self) -> tuple[float, float]:
        """(rows a second, processor seconds per million rows) of the part that ends; the next one begins."""
        now = Spent.of(*self._pids())
        found = self._rows / self._seconds, now.since(self._before).seconds / self._rows * 1e6
        self._rows, self._seconds, self._before = 0, 0.0, now
        return found


class Ours:
    """Our table as one producer fills it: commits of 10,000 rows."""

    def __init__(self, table: lakestore.Table, seed: int) -> None:
        self._table, self._rows = table, Rows(seed)

    def insert(self, first: int, count: int) -> tuple[int, float]:
        """(rows, seconds) of inserts of the keys of so many numbers from one on, until all are durable."""
        began = time.perf_counter()
        with producer(self._table) as out:
            for start in range(first, first + count, BATCH_ROWS):
                out.upsert(self._rows.of(np.arange(start, min(start + BATCH_ROWS, first + count), dtype=np.int64)))
        return count, time.perf_counter() - began

    def update(self, known: int, seconds: float) -> tuple[int, float]:
        """(rows, seconds) of updates of keys drawn evenly of the first so many."""
        began, rows = time.perf_counter(), 0
        with producer(self._table) as out:
            while time.perf_counter() - began < seconds:
                out.upsert(self._rows.uniform(known))
                rows += BATCH_ROWS
        return rows, time.perf_counter() - began


def beside(folder: Path, count: int, buckets: int) -> Iterator[Figure]:
    """Inserts of so many keys and half a minute of updates, of both."""
    with (
        FlussProcess(folder / "fluss") as fluss,
        FlussProducer(fluss, buckets) as theirs,
        ServerProcess(folder / "ours") as server,
        lakestore.connect(server.address) as lake,
    ):
        table = lake.create_table(TABLE, SCHEMA, primary_key=["id"], buckets=buckets)
        ours, part = Ours(table, seed=count), -(-count // TURNS)
        theirs.insert(count, WARM_KEYS)
        ours.insert(count, WARM_KEYS)
        mine, other = Side(lambda: pids(server)), Side(lambda: fluss.pids)
        for first in range(0, count, part):
            other.took(*theirs.insert(first, min(part, count - first)))
            mine.took(*ours.insert(first, min(part, count - first)))
            _say(f"{min(first + part, count):,} of {count:,} keys are in both")
        what = f"{count / 1e6:g} M keys, {buckets} buckets, beside Fluss (RocksDB, no fsync)"
        yield _figure(f"inserts of {what}", mine.ended(), other.ended())
        for turn in range(TURNS):
            other.took(*theirs.update(count, UPDATE_SECONDS / TURNS))
            mine.took(*ours.update(count, UPDATE_SECONDS / TURNS))
            _say(f"turn {turn + 1} of {TURNS} of updates")
        yield _figure(f"uniform updates of {what}", mine.ended(), other.ended())
        theirs.check(count, CHECKED_KEYS)
        if table.scan(columns=["id"]).count() != count + WARM_KEYS:
            raise AssertionError("keys are missing")


def _figure(what: str, mine: tuple[float, float], other: tuple[float, float]) -> Figure:
    shown = (
        f"{mine[0]:,.0f} rows/s, Fluss {other[0]:,.0f}: {mine[0] / other[0]:.1f}x;"
        f" {mine[1]:.1f} s of the server's processor per million, Fluss {other[1]:.1f} s"
    )
    return Figure(what, shown, "≥ 1x", mine[0] >= other[0])


def _say(text: str) -> None:
    sys.stderr.write(f"  {time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()

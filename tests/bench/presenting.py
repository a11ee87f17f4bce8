"""Figures of presenting cuts: from a load's request to its answer, over HTTP, as engines wait for it."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import lakestore
from tests.bench.bed import BIG, Bed, ms
from tests.bench.orders import DAYS, IS_SMALL, ROWS, SCHEMA, orders, scaled, told, write
from tests.bench.report import Figure
from tests.bench.scans import GROUPS, QUERIES
from tests.bench.streaming import written

RATE = scaled(100_000)
"""Rows a second of the producer beside queries."""
QUIET_SECONDS, ASKED_SECONDS = (4, 5) if IS_SMALL else (10, 25)
_LOADS = 200
_PRODUCER = """
import sys, time, numpy as np, lakestore
from tests.bench.orders import ROWS, orders
address, name, rate = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(9)
commits = 10
batches = [orders(rng.choice(ROWS, rate // commits, replace=False), 700 + i) for i in range(4 * commits)]
with lakestore.connect(address) as lake:
    table, began = lake.table(name), time.monotonic()
    for number in range(1 << 30):
        table.upsert(batches[number % len(batches)])
        print(time.monotonic(), batches[0].num_rows, flush=True)
        time.sleep(max(0.0, began + (number + 1) / commits - time.monotonic()))
"""
"""Ten commits a second; one that falls behind goes on without a rest until it has caught up."""


def nothing_new(bed: Bed, tiered: Sequence[float]) -> Iterator[Figure]:
    """A table right after its round, first presented and then loaded again, with an ETag and without."""
    median = statistics.median(tiered)
    shown = f"{ms(median)} (of {', '.join(ms(each) for each in sorted(tiered))})"
    yield Figure("presenting a table with nothing new since its round", shown, "≤ 20 ms", median <= 0.02)
    kept, etag = bed.loads(BIG, count=_LOADS)
    same, _ = bed.loads(BIG, count=_LOADS, etag=etag)
    loads = [statistics.median(kept), statistics.median(same)]
    shown = f"p50 {ms(loads[0])}, with its ETag {ms(loads[1])}; p99 {ms(_high(kept, 99))}, {ms(_high(same, 99))}"
    yield Figure("load of a cut that is presented", shown, "p50 ≤ 5 ms", max(loads) <= 0.005)


def one_row_commits(bed: Bed, table: lakestore.Table) -> Iterator[Figure]:
    """Ten thousand commits of one row each, three times over."""
    count, rng, took = scaled(10_000), np.random.default_rng(6), []
    for run in range(3):
        rows = orders(rng.integers(0, ROWS, count), 500 + run)
        written(table, lakestore.Writer.upsert, [rows.slice(at, 1) for at in range(count)])
        took.append(bed.load(table.name))
    median = statistics.median(took)
    shown = f"{ms(median)} (of {', '.join(ms(each) for each in sorted(took))})"
    name = f"presenting {told(ROWS)} rows after {count:,} one-row commits"
    yield Figure(name, shown, "≤ 150 ms", median <= 0.15)


def first(bed: Bed, name: str, hot: int) -> Iterator[Figure]:
    """Hot rows that no load has asked for yet, upon files whose offsets nobody has read yet."""
    v2, v3 = bed.load(name), bed.load(name, "now-v3")
    shown = f"{v2:.2f} s, then as v3 {v3:.2f} s"
    label = f"{told(hot)} hot rows on {told(ROWS)} first presented, offset indexes read"
    yield Figure(label, shown, "≤ 1.5 s", v2 <= 1.5)


def more(bed: Bed, name: str, hot: int) -> Iterator[Figure]:
    """The same number of rows again, upon files whose offsets are known."""
    took = bed.load(name)
    label = f"{told(hot)} more hot rows on {told(ROWS)} presented"
    yield Figure(label, f"{took:.2f} s", "≤ 1.5 s", took <= 1.5)


def partitions(bed: Bed) -> Iterator[Figure]:
    """Updates all over a table of five hundred days."""
    count, hot, rng = scaled(1_000_000), scaled(100_000), np.random.default_rng(7)
    lake = {"partition_by": ["day(created_at)"]}
    table = bed.lake.create_table("bench.days", SCHEMA, primary_key=["order_id"], lake=lake)
    ids = np.arange(count, dtype=np.int64) * (ROWS // count)
    write(table, ids, 600)
    bed.tier(table.name)
    took = []
    for run in range(2):
        write(table, rng.choice(ids, hot, replace=False), 601 + run)
        took.append(bed.load(table.name))
    shown = f"{took[0]:.2f} s, {told(hot)} more {took[1]:.2f} s"
    yield Figure(f"{told(hot)} updates over {DAYS} partitions presented", shown, "≤ 1.5 s", max(took) <= 1.5)


@dataclass(frozen=True, slots=True)
class _Commit:
    """One commit of the producer."""

    at: float
    rows: int


def beside(bed: Bed) -> Iterator[Figure]:
    """A producer alone, then with a query that asks for the newest rows every second."""
    command = [sys.executable, "-c", _PRODUCER, bed.server.address, BIG, str(RATE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            bed.spark_lake.sql(QUERIES[GROUPS].format(BIG)).collect()
            began = time.monotonic()
            time.sleep(QUIET_SECONDS)
            quiet = time.monotonic()
            presented, queries = _asked(bed)
            ended = time.monotonic()
            if process.poll() is not None:
                raise AssertionError("the producer ended by itself: its error is above")
        finally:
            process.kill()
        commits = [_Commit(float(at), int(rows)) for at, rows in map(str.split, process.stdout)]
    alone, asked = _rate(commits, began, quiet), _rate(commits, quiet, ended)
    high = _high(presented, 95)
    shown = f"p50 {ms(statistics.median(presented))}, p95 {ms(high)} of {len(presented)} (query {ms(queries)})"
    said = f"a producer of {told(RATE)} rows/s and a query every second"
    yield Figure(f"presenting beside {said}", shown, "p95 ≤ 300 ms", high <= 0.3)
    shown = f"{asked:,.0f} of {alone:,.0f} rows/s: {asked / alone:.0%}"
    yield Figure(f"producer's rate, {said}", shown, "≥ 85 %", asked >= 0.85 * alone)


def _asked(bed: Bed) -> tuple[list[float], float]:
    """(seconds of presenting for each query that found something new, median seconds of a query)."""
    presented, queries = [], []
    began = time.monotonic()
    while time.monotonic() < began + ASKED_SECONDS:
        before, start = bed.presented(), time.monotonic()
        bed.spark_lake.sql(QUERIES[GROUPS].format(BIG)).collect()
        queries.append(time.monotonic() - start)
        after = bed.presented()
        if after["presented"] > before["presented"]:
            presented.append(after["seconds"] - before["seconds"])
        time.sleep(max(0.0, start + 1 - time.monotonic()))
    return presented, statistics.median(queries)


def _rate(commits: Sequence[_Commit], begin: float, end: float) -> float:
    """Rows a second between two times."""
    return sum(commit.rows for commit in commits if begin <= commit.at < end) / (end - begin)


def _high(times: Sequence[float], percent: int) -> float:
    """A percentile: the smallest time that so many of a hundred do not exceed."""
    return sorted(times)[math.ceil(len(times) * percent / 100) - 1]

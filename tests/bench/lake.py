"""Figures of tiering and of presented cuts, on tables of eight columns like the peers' orders.

One table of ten million rows goes through all of it, so that nothing is loaded twice: many files and nothing deleted,
changes of recent rows, single rows, a tenth; rounds; a compaction, upon which the cuts of 1 % and 10 % are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

import lakestore
from tests.bench import bed, engines, merging, presenting, scans, stream_source
from tests.bench.bed import BIG, Bed, noted, timed
from tests.bench.orders import IS_SMALL, ROWS, SCHEMA, scaled, told, write
from tests.bench.report import Figure
from tests.bench.scans import Cut

FILES = 24
"""Data files of the big table as it is flushed first, about."""
_FILE_BYTES = 90 * ROWS // FILES
_SMALL = "bench.small"
RUNS = 2 if IS_SMALL else 4
"""Flushes and rounds; the first one is not counted."""


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with bed.made(folder) as made:
        with noted("flush"):
            yield from _flush(made)
        with noted("rounds, small table"):
            size = scaled(1_000_000)
            table = made.lake.create_table(_SMALL, SCHEMA, primary_key=["order_id"])
            write(table, np.arange(size), 1)
            made.tier(_SMALL)
            small, _ = yield from _rounds(made, table, size)
        with noted("many files"):
            yield from _many_files(made)
        with noted("rounds, big table"):
            table = made.lake.table(BIG)
            big, tiered = yield from _rounds(made, table, ROWS)
            over = f"round at {told(ROWS)} over round at {told(size)}"
            yield Figure(over, f"{big / small:.2f}x", "flat later", None)
        yield from presenting.nothing_new(made, tiered)
        with noted("MERGE INTO"):
            yield from merging.measure(made, big)
        yield from _cuts(made, table)
        with noted("partitions"):
            yield from presenting.partitions(made)
        with noted("a producer beside"):
            made.tier(BIG)
            yield from presenting.beside(made)


def _flush(made: Bed) -> Iterator[Figure]:
    rates, count = [], scaled(1_000_000)
    for run in range(RUNS):
        table = made.lake.create_table(f"bench.flush_{run}", SCHEMA, primary_key=["order_id"])
        write(table, np.arange(count), run)
        rates.append(count / timed(lambda name=table.name: made.tier(name)))  # type: ignore[misc]
    median = statistics.median(rates[1:])
    shown = f"{median:,.0f} rows/s (first in the session {rates[0]:,.0f})"
    yield Figure(f"flush of {told(count)} new rows", shown, "≥ 300,000", median >= 300_000)


def _rounds(made: Bed, table: lakestore.Table, size: int) -> Generator[Figure, None, tuple[float, list[float]]]:
    """(The median round of 1 % of ten millions in uniform updates, seconds of presenting the table after each)."""
    rng, changed = np.random.default_rng(3), min(scaled(100_000), size // 2)
    took, presented = [], []
    for run in range(RUNS):
        write(table, rng.choice(size, changed, replace=False), 100 + run)
        took.append(timed(lambda: made.tier(table.name)))
        presented.append(made.load(table.name))
    median = statistics.median(took[1:])
    shown = f"{median:.2f} s (first {took[0]:.2f})"
    yield Figure(f"round of {told(changed)} uniform updates on {told(size)} rows", shown, "", None)
    return median, presented


def _many_files(made: Bed) -> Iterator[Figure]:
    """The big table in many files without deletes: streamed, read with changes of its newest rows, then of a tenth."""
    lake = {"target_file_bytes": _FILE_BYTES}
    table = made.lake.create_table(BIG, SCHEMA, primary_key=["order_id"], lake=lake)
    write(table, np.arange(ROWS), 1)
    made.tier(BIG)
    yield from stream_source.measure(made)
    yield from engines.executor(made)
    rng, hot = np.random.default_rng(2), ROWS // 100
    write(table, ROWS - 1 - rng.choice(2 * hot, hot, replace=False), 250)
    yield from scans.recent(made)
    yield from presenting.one_row_commits(made, table)
    write(table, rng.choice(ROWS, ROWS // 10 - hot - 3 * scaled(10_000), replace=False), 251)
    yield from scans.delete_forms(made, 10)
    made.tier(BIG)


def _cuts(made: Bed, table: lakestore.Table) -> Iterator[Figure]:
    """The big table compacted, then with 1 % and 10 % of its rows changed."""
    table.alter(lake={"target_file_bytes": 128 << 20})
    with noted("compaction"):
        made.compact(BIG)
    changed = np.random.default_rng(5).permutation(ROWS)[: ROWS // 10]
    found, done = [], 0
    for percent in (1, 10):
        write(table, changed[done : ROWS * percent // 100], 300 + percent)
        done = ROWS * percent // 100
        with made.lake.snapshot() as snapshot:
            found.append(Cut(percent, str(snapshot.token)))
    with noted("cuts in Spark"):
        yield from presenting.first(made, BIG, done)
        yield from scans.cuts(made, found)
    with noted("other engines"):
        yield from engines.on_cut(made, found[-1])
    write(table, np.random.default_rng(8).choice(ROWS, done, replace=False), 400)
    yield from presenting.more(made, BIG, done)

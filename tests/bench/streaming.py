"""Figures of writers of log tables. One producer over gRPC unless more are named, synced journal."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.client import writer
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, regular_rows, rows
from tests.support.process import ServerProcess


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with ServerProcess(folder / "streaming") as server, lakestore.connect(server.address) as lake:
        yield from _appends(lake)
        yield from _small_commits(lake)
        yield from _single_rows(lake)


def rate(name: str, bar: int, runs: list[float]) -> Figure:
    """The median of some runs against its bar."""
    median = statistics.median(runs)
    shown = f"{median:,.0f} rows/s (of {', '.join(f'{run:,.0f}' for run in sorted(runs))})"
    return Figure(name, shown, f"≥ {bar:,}", median >= bar)


def written(
    table: lakestore.Table,
    send: Callable[[lakestore.Writer, pa.RecordBatch], None],
    batches: Sequence[pa.RecordBatch],
) -> float:
    """Rows a second of batches prepared beforehand, each a commit, until the last is durable."""
    commit_rows, writer.COMMIT_ROWS_MAX = writer.COMMIT_ROWS_MAX, batches[0].num_rows
    try:
        with table.writer() as out:
            began = time.perf_counter()
            for batch in batches:
                send(out, batch)
            out.flush()
            seconds = time.perf_counter() - began
    finally:
        writer.COMMIT_ROWS_MAX = commit_rows
    return float(sum(batch.num_rows for batch in batches)) / seconds


def _appends(lake: lakestore.Lake) -> Iterator[Figure]:
    for size, count, bar in ((10_000, 300, 2_500_000), (100_000, 40, 5_000_000)):
        runs = []
        for run in range(3):
            table = lake.create_table(f"bench.log_{size}_{run}", SCHEMA, buckets=1)
            batches = [rows(np.arange(i * size, (i + 1) * size, dtype=np.int64)) for i in range(count)]
            runs.append(written(table, lakestore.Writer.append, batches))
        yield rate(f"append, {size:,}-row batches", bar, runs)
    runs = []
    for run in range(3):
        table = lake.create_table(f"bench.regular_{run}", SCHEMA, buckets=1)
        batches = [regular_rows(np.arange(i * 100_000, (i + 1) * 100_000, dtype=np.int64)) for i in range(40)]
        runs.append(written(table, lakestore.Writer.append, batches))
    yield rate("append, 100,000-row batches of regular values, which compress", 5_000_000, runs)


def _small_commits(lake: lakestore.Lake) -> Iterator[Figure]:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(23)])
    table = lake.create_table("bench.small", schema)
    batch = pa.record_batch([list(range(10))] * 23, schema=schema)
    took = []
    for _ in range(1_000):
        began = time.perf_counter()
        table.append(batch)
        took.append((time.perf_counter() - began) * 1e3)
    if table.scan().count() != 10_000:
        raise AssertionError("rows are missing")
    median, high = np.percentile(took, [50, 99])
    yield Figure(
        "1,000 commits of 10 rows x 23 columns",
        f"p50 {median:.2f} ms, p99 {high:.2f} ms",
        "p50 ≤ 3 ms",
        bool(median <= 3),
    )


def _single_rows(lake: lakestore.Lake) -> Iterator[Figure]:
    """Appends of one row: from one thread, then from sixteen that share a connection."""
    table = lake.create_table("bench.single", pa.schema([("sent", pa.int64())]), buckets=1)
    batch = pa.record_batch([[1]], names=["sent"])
    took = _appended(table, batch, 1_000)
    median, high = np.percentile(took, [50, 99])
    shown = f"p50 {median:.2f} ms, p99 {high:.2f} ms"
    yield Figure("single-row appends, one thread", shown, "p50 ≤ 1 ms", bool(median <= 1))
    one, many = _together(table, batch, 1), _together(table, batch, 16)
    yield Figure(
        "single-row appends, 16 threads against one",
        f"{many:,.0f} rows/s against {one:,.0f}: {many / one:.1f}x",
        "≥ 5x",
        many / one >= 5,
    )


def _appended(table: lakestore.Table, batch: pa.RecordBatch, count: int) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        table.append(batch)
        took.append((time.perf_counter() - began) * 1e3)
    return took


def _together(table: lakestore.Table, batch: pa.RecordBatch, threads: int) -> float:
    """Rows a second of so many threads that append single rows for a while."""
    count = 1_500
    workers = [threading.Thread(target=_appended, args=(table, batch, count)) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * count / (time.perf_counter() - began)

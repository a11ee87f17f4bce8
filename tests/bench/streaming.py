"""Figures of the server alone: writes, look-ups, latency, recovery. One producer over gRPC, synced journal."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.client import writer
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, rows
from tests.support.process import ServerProcess

GROUP = "Server"


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with ServerProcess(folder / "streaming") as server, lakestore.connect(server.address) as lake:
        yield from _appends(lake)
        yield from _upserts(lake)
        yield from _small_commits(lake)
        yield from _lookups(lake)
        yield from _latency(lake)
    yield from _recovery(folder / "recovery")


def _rate(name: str, bar: int, runs: list[float]) -> Figure:
    median = statistics.median(runs)
    shown = f"{median:,.0f} rows/s (of {', '.join(f'{run:,.0f}' for run in sorted(runs))})"
    return Figure(GROUP, name, shown, f"≥ {bar:,}", median >= bar)


def _written(
    table: lakestore.Table,
    send: Callable[[lakestore.Writer, pa.RecordBatch], None],
    ids: list[np.ndarray[tuple[int], np.dtype[np.int64]]],
) -> float:
    """Rows a second of batches prepared beforehand, until the last is durable."""
    batches = [rows(part) for part in ids]
    commit_rows, writer.COMMIT_ROWS_MAX = writer.COMMIT_ROWS_MAX, len(ids[0])
    try:
        with table.writer() as out:
            began = time.perf_counter()
            for batch in batches:
                send(out, batch)
            out.flush()
            seconds = time.perf_counter() - began
    finally:
        writer.COMMIT_ROWS_MAX = commit_rows
    return sum(map(len, ids)) / seconds


def _ranges(start: int, count: int, size: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return [np.arange(start + i * size, start + (i + 1) * size, dtype=np.int64) for i in range(count)]


def _appends(lake: lakestore.Lake) -> Iterator[Figure]:
    for size, count, bar in ((10_000, 300, 1_500_000), (100_000, 40, 3_000_000)):
        runs = []
        for run in range(3):
            table = lake.create_table(f"bench.log_{size}_{run}", SCHEMA, buckets=1)
            runs.append(_written(table, lakestore.Writer.append, _ranges(0, count, size)))
        yield _rate(f"append, {size:,}-row batches", bar, runs)


def _upserts(lake: lakestore.Lake) -> Iterator[Figure]:
    rng = np.random.default_rng(1)
    ascending, uniform, fresh = [], [], []
    for run in range(3):
        table = lake.create_table(f"bench.keyed_{run}", SCHEMA, primary_key=["id"])
        ascending.append(_written(table, lakestore.Writer.upsert, _ranges(0, 100, 10_000)))
        updates = [rng.integers(0, 1_000_000, 10_000) for _ in range(200)]
        uniform.append(_written(table, lakestore.Writer.upsert, updates))
        ids = rng.permutation(1_000_000)
        parts = [ids[i : i + 10_000] for i in range(0, len(ids), 10_000)]
        other = lake.create_table(f"bench.random_{run}", SCHEMA, primary_key=["id"])
        fresh.append(_written(other, lakestore.Writer.upsert, parts))
    yield _rate("insert of 1 M ascending new keys", 600_000, ascending)
    yield _rate("2 M uniform upserts into 1 M keys", 250_000, uniform)
    yield _rate("insert of 1 M random new keys", 300_000, fresh)


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
        GROUP,
        "1,000 commits of 10 rows x 23 columns",
        f"p50 {median:.2f} ms, p99 {high:.2f} ms",
        "p50 ≤ 3 ms",
        bool(median <= 3),
    )


def _lookups(lake: lakestore.Lake) -> Iterator[Figure]:
    table = lake.table("bench.keyed_0")
    rng = np.random.default_rng(2)
    runs = []
    for _ in range(3):
        batches = [pa.record_batch([rng.integers(0, 1_000_000, 1_000)], names=["id"]) for _ in range(200)]
        began = time.perf_counter()
        for batch in batches:
            table.lookup(batch)
        runs.append(200_000 / (time.perf_counter() - began))
    yield _rate("look-ups in batches of 1,000 keys", 150_000, runs)
    took = []
    for key in rng.integers(0, 1_000_000, 1_000).tolist():
        began = time.perf_counter()
        table.lookup([{"id": key}])
        took.append((time.perf_counter() - began) * 1e3)
    median, high = np.percentile(took, [50, 99])
    yield Figure(GROUP, "single look-up", f"p50 {median:.2f} ms, p99 {high:.2f} ms", "p50 < 1 ms", bool(median < 1))


def _latency(lake: lakestore.Lake) -> Iterator[Figure]:
    """Append to subscriber at 200 rows a second for 10 s."""
    table = lake.create_table("bench.latency", pa.schema([("sent", pa.int64())]), buckets=1)
    took: list[float] = []

    def follow() -> None:
        for batch in table.changes("latest"):
            now = time.perf_counter_ns()
            took.extend((now - sent) / 1e6 for sent in batch.to_arrow()["sent"].to_pylist())
            if len(took) >= 2_000:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    time.sleep(0.5)
    begin = time.perf_counter()
    for i in range(2_000):
        time.sleep(max(0.0, begin + i / 200 - time.perf_counter()))
        table.append(pa.record_batch([[time.perf_counter_ns()]], names=["sent"]))
    reader.join()
    median, high = np.percentile(took, [50, 99])
    yield Figure(
        GROUP,
        "append to subscriber, 200 rows/s",
        f"p50 {median:.2f} ms, p99 {high:.2f} ms",
        "p50 < 3 ms, p99 < 10 ms",
        bool(median < 3 and high < 10),
    )


def _recovery(folder: Path) -> Iterator[Figure]:
    server = ServerProcess(folder)
    with lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.keyed", SCHEMA, primary_key=["id"])
        _written(table, lakestore.Writer.upsert, _ranges(0, 500, 10_000))
    server.kill()
    began = time.perf_counter()
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        found = lake.table("bench.keyed").lookup([{"id": 4_999_999}])
        seconds = time.perf_counter() - began
        if len(found) != 1 or lake.table("bench.keyed").scan().count() != 5_000_000:
            raise AssertionError("rows are missing after recovery")
    yield Figure(GROUP, "kill -9 to first look-up, 5 M rows", f"{seconds:.1f} s", "< 5 s", seconds < 5)

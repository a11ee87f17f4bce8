"""Figures of log readers: scans, projection, latency beside a bulk load, and a hundred subscribers of one table."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.v1 import lakestore_pb2 as pb
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, rows
from tests.support.process import ServerProcess

SCAN_ROWS, BATCH_ROWS = 4_000_000, 100_000
WIDE_COPIES = 4
SUBSCRIBERS = 100
_BULK = """
import sys, numpy as np, lakestore
from tests.bench.rows import rows
with lakestore.connect(sys.argv[1]) as lake:
    table, batch = lake.table("bench.bulk"), rows(np.arange(10_000, dtype=np.int64))
    with table.writer() as out:
        while True:
            out.append(batch)
"""


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with ServerProcess(folder / "reading") as server, lakestore.connect(server.address) as lake:
        yield from _scan(lake)
        yield from _projection(lake)
        yield from _subscribers(lake)
        yield from _latency(lake, server.address)


def _scan(lake: lakestore.Lake) -> Iterator[Figure]:
    table = lake.create_table("bench.scan", SCHEMA, buckets=1)
    _fill(table, [rows(np.arange(BATCH_ROWS, dtype=np.int64))] * (SCAN_ROWS // BATCH_ROWS))
    runs = []
    for _ in range(3):
        began = time.perf_counter()
        found = sum(batch.num_rows for batch in table.scan().to_batches())
        runs.append(found / (time.perf_counter() - began))
        if found != SCAN_ROWS:
            raise AssertionError("rows are missing")
    median = statistics.median(runs)
    yield Figure("scan back as Arrow, hot log", f"{median:,.0f} rows/s", "≥ 10,000,000", median >= 10e6)


def _fill(table: lakestore.Table, batches: list[pa.RecordBatch]) -> None:
    with table.writer() as out:
        for batch in batches:
            out.append(batch)


def _projection(lake: lakestore.Lake) -> Iterator[Figure]:
    """Twenty columns: the five of the peers' page, four times; one of them is its int, or its bigint."""
    fields = [pa.field(f"{field.name}{copy}", field.type) for copy in range(WIDE_COPIES) for field in SCHEMA]
    table = lake.create_table("bench.wide", pa.schema(fields), buckets=1)
    narrow = rows(np.arange(BATCH_ROWS, dtype=np.int64))
    wide = pa.RecordBatch.from_arrays(list(narrow.columns) * WIDE_COPIES, schema=pa.schema(fields))
    _fill(table, [wide] * (SCAN_ROWS // 2 // BATCH_ROWS))
    every = _fetched(lake, "bench.wide", [])
    number, big = (_fetched(lake, "bench.wide", [name]) for name in ("count0", "id0"))
    shown = ", ".join(
        f"{name} {rate / every[0]:.1f}x the rows/s, {size / every[1]:.1%} of the bytes"
        for name, (rate, size) in (("int", number), ("bigint", big))
    )
    met = number[0] / every[0] >= 13 and number[1] / every[1] <= 0.04
    yield Figure("1 of 20 columns against all 20", shown, "≥ 13x, ≤ 4 %", met)


def _fetched(lake: lakestore.Lake, name: str, columns: list[str]) -> tuple[float, int]:
    """(rows a second, bytes over the wire) of a whole read; the median of five."""
    plan = lake.transport.plan(pb.PlanRequest(tables=[name], no_dead=True)).tables[0]
    uuid = lake.table(name).definition.uuid
    runs, size = [], 0
    for _ in range(5):
        found = size = 0
        began = time.perf_counter()
        for bucket in plan.buckets:
            request = pb.FetchRequest(table_uuid=uuid, bucket=bucket.bucket, end=bucket.head, columns=columns)
            for answer in lake.transport.fetch(request):
                size += len(answer.rows)
                with pa.ipc.open_stream(answer.rows) as reader:
                    found += sum(batch.num_rows for batch in reader)
        runs.append(found / (time.perf_counter() - began))
    return statistics.median(runs), size


def _subscribers(lake: lakestore.Lake) -> Iterator[Figure]:
    table = lake.create_table("bench.shared", SCHEMA, buckets=1)
    one, hundred = (_followed(table, lake.snapshot().token, count) for count in (1, SUBSCRIBERS))
    yield Figure(
        f"{SUBSCRIBERS} subscribers of one table against one",
        f"{hundred / 1e6:,.0f} MB/s against {one / 1e6:,.0f} MB/s: {hundred / one:.1f}x",
        "≥ 5x",
        hundred / one >= 5,
    )


def _followed(table: lakestore.Table, start: str, count: int) -> float:
    """Bytes a second that all subscribers together receive while one producer writes a fixed stream."""
    batch = rows(np.arange(1_000, dtype=np.int64))
    commits = 200
    streams = [table.changes(start) for _ in range(count)]
    received = [0] * count
    started = threading.Barrier(count + 1)

    def follow(number: int) -> None:
        wanted = commits * batch.num_rows
        started.wait()
        for change in streams[number]:
            received[number] += change.table.nbytes
            wanted -= len(change)
            if wanted <= 0:
                return

    readers = [threading.Thread(target=follow, args=(number,)) for number in range(count)]
    for reader in readers:
        reader.start()
    started.wait()
    time.sleep(1.0)
    began = time.perf_counter()
    for _ in range(commits):
        table.append(batch)
    for reader in readers:
        reader.join()
    seconds = time.perf_counter() - began
    for stream in streams:
        stream.close()
    return sum(received) / seconds


def _latency(lake: lakestore.Lake, address: str) -> Iterator[Figure]:
    """Append to subscriber at 200 rows a second for 10 s: alone, then beside a producer that writes all it can."""
    median, high = _followed_latency(lake, "bench.latency")
    yield Figure(
        "append to subscriber, 200 rows/s",
        f"p50 {median:.2f} ms, p99 {high:.2f} ms",
        "p50 < 2 ms, p99 < 8 ms",
        median < 2 and high < 8,
    )
    lake.create_table("bench.bulk", SCHEMA, buckets=1)
    bulk = subprocess.Popen([sys.executable, "-c", _BULK, address])
    try:
        time.sleep(2.0)
        before, began = lake.table("bench.bulk").scan().count(), time.perf_counter()
        median, high = _followed_latency(lake, "bench.latency_loaded")
        rate = (lake.table("bench.bulk").scan().count() - before) / (time.perf_counter() - began)
    finally:
        bulk.kill()
        bulk.wait()
    yield Figure(
        "append to subscriber beside a bulk load",
        f"p50 {median:.1f} ms, p99 {high:.1f} ms (bulk {rate:,.0f} rows/s)",
        "p99 < 50 ms",
        high < 50,
    )


def _followed_latency(lake: lakestore.Lake, name: str) -> tuple[float, float]:
    table = lake.create_table(name, pa.schema([("sent", pa.int64())]), buckets=1)
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
    return float(median), float(high)

"""Figures of primary-key tables: writes by each engine, look-ups, changes with before-images, the index.

One producer over gRPC, batches of 10,000 rows, synced journal; keys are uniform where nothing else is said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import lakestore
from lakestore.errors import Unavailable
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, rows
from tests.bench.streaming import rate, written
from tests.support.process import ServerProcess

BATCH_ROWS, SMALL, LARGE = 10_000, 1_000_000, 10_000_000
RUNS = 3
CALLERS = 4
REBUILD_SECONDS_MAX = 600.0
UPSERT = lakestore.Writer.upsert
Ids = npt.NDArray[np.int64]
Rows = Callable[[Ids], pa.RecordBatch]


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    rng = np.random.default_rng(1)
    with ServerProcess(folder / "small") as server, lakestore.connect(server.address) as lake:
        yield from _upserts(lake, rng)
        yield from _strings(lake, rng)
        yield from _engines(lake, rng)
        yield from _changes(lake)
    with ServerProcess(folder / "large") as server, lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.large", SCHEMA, primary_key=["id"])
        _filled(table, LARGE, rows)
        runs = [written(table, UPSERT, _uniform(rng, LARGE, 100)) for _ in range(RUNS)]
        yield rate("1 M uniform upserts into 10 M keys", 220_000, runs)
        yield from _lookups(table, rng)
    yield from _index(folder / "large")


def _uniform(rng: np.random.Generator, keys: int, batches: int, of: Rows = rows) -> list[pa.RecordBatch]:
    return [of(rng.integers(0, keys, BATCH_ROWS)) for _ in range(batches)]


def _skewed(rng: np.random.Generator, keys: int, batches: int) -> list[pa.RecordBatch]:
    """Nine of ten rows have one of the first hundredth of the keys."""
    hot = [rng.random(BATCH_ROWS) < 0.9 for _ in range(batches)]
    return [rows(np.where(h, *(rng.integers(0, keys // n, BATCH_ROWS) for n in (100, 1)))) for h in hot]


def _pieces(ids: Ids, of: Rows = rows) -> list[pa.RecordBatch]:
    return [of(ids[i : i + BATCH_ROWS]) for i in range(0, len(ids), BATCH_ROWS)]


def _filled(table: lakestore.Table, keys: int, of: Rows) -> None:
    with table.writer() as out:
        for start in range(0, keys, 100_000):
            out.upsert(of(np.arange(start, start + 100_000, dtype=np.int64)))


def _upserts(lake: lakestore.Lake, rng: np.random.Generator) -> Iterator[Figure]:
    ascending, uniform, skewed, fresh = [], [], [], []
    for run in range(RUNS):
        table = lake.create_table(f"bench.keyed_{run}", SCHEMA, primary_key=["id"])
        ascending.append(written(table, UPSERT, _pieces(np.arange(SMALL, dtype=np.int64))))
        uniform.append(written(table, UPSERT, _uniform(rng, SMALL, 200)))
        skewed.append(written(table, UPSERT, _skewed(rng, SMALL, 200)))
        other = lake.create_table(f"bench.random_{run}", SCHEMA, primary_key=["id"])
        fresh.append(written(other, UPSERT, _pieces(rng.permutation(SMALL))))
    yield rate("insert of 1 M ascending new keys", 800_000, ascending)
    yield rate("2 M uniform upserts into 1 M keys", 350_000, uniform)
    yield rate("2 M upserts into 1 M keys, 90 % on 1 % of them", 500_000, skewed)
    yield rate("insert of 1 M random new keys", 350_000, fresh)


def _strings(lake: lakestore.Lake, rng: np.random.Generator) -> Iterator[Figure]:
    fields = [pa.field("region", pa.string()), pa.field("customer", pa.string()), *list(SCHEMA)[2:]]
    schema = pa.schema(fields)

    def named(ids: Ids) -> pa.RecordBatch:
        region, customer = (pc.cast(pa.array(numbers), pa.string()) for numbers in (ids % 100, ids))
        keys = [
            pc.binary_join_element_wise("region", region, "-"),
            pc.binary_join_element_wise("customer", customer, "-"),
        ]
        return pa.RecordBatch.from_arrays([*keys, *rows(ids).columns[2:]], schema=schema)

    table = lake.create_table("bench.strings", schema, primary_key=["region", "customer"])
    _filled(table, SMALL, named)
    runs = [written(table, UPSERT, _uniform(rng, SMALL, 100, named)) for _ in range(RUNS)]
    yield rate("1 M uniform upserts into 1 M keys of two strings", 200_000, runs)


def _engines(lake: lakestore.Lake, rng: np.random.Generator) -> Iterator[Figure]:
    def two(ids: Ids) -> pa.RecordBatch:
        return rows(ids).select(["id", "score"])

    engines: Sequence[tuple[str, Any, Rows, int]] = (
        ("2 of 5 columns (partial)", "partial", two, 180_000),
        ("versioned(at)", "versioned(at)", rows, 120_000),
        (
            "aggregate (sum, count, max, last)",
            {"aggregate": {"name": "last", "score": "sum", "count": "sum", "at": "max"}},
            rows,
            120_000,
        ),
    )
    for number, (name, merge, of, bar) in enumerate(engines):
        table = lake.create_table(f"bench.engine_{number}", SCHEMA, primary_key=["id"], merge=merge)
        _filled(table, SMALL, rows)
        runs = [written(table, UPSERT, _uniform(rng, SMALL, 50, of)) for _ in range(RUNS)]
        yield rate(f"500 k uniform upserts into 1 M keys, {name}", bar, runs)


def _changes(lake: lakestore.Lake) -> Iterator[Figure]:
    """Single updates at 200 a second for 10 s, followed with the row before each."""
    schema = pa.schema([("id", pa.int64()), ("sent", pa.int64())])
    table = lake.create_table("bench.changes", schema, primary_key=["id"])
    table.upsert(pa.record_batch([range(1_000), [0] * 1_000], schema=schema))
    took: list[float] = []

    def follow() -> None:
        for batch in table.changes("latest", before_images=True):
            now = time.perf_counter_ns()
            after = batch.to_arrow().filter(pc.field("__change") == "+U")
            took.extend((now - sent) / 1e6 for sent in after["sent"].to_pylist())
            if len(took) >= 2_000:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    time.sleep(0.5)
    begin = time.perf_counter()
    for i in range(2_000):
        time.sleep(max(0.0, begin + i / 200 - time.perf_counter()))
        table.upsert(pa.record_batch([[i % 1_000], [time.perf_counter_ns()]], schema=schema))
    reader.join()
    median, high = np.percentile(took, [50, 99])
    shown = f"p50 {median:.2f} ms, p99 {high:.2f} ms"
    yield Figure("update to subscriber with before-image, 200 rows/s", shown, "p99 < 15 ms", bool(high < 15))


def _lookups(table: lakestore.Table, rng: np.random.Generator) -> Iterator[Figure]:
    for callers, said in ((1, "one caller"), (CALLERS, f"{CALLERS} callers")):
        runs = [_keys_a_second(table, rng, callers) for _ in range(RUNS)]
        yield rate(f"look-ups in batches of 1,000 of 10 M keys, {said}", 250_000, runs)
    took = []
    for key in rng.integers(0, LARGE, 1_000).tolist():
        began = time.perf_counter()
        table.lookup([{"id": key}])
        took.append((time.perf_counter() - began) * 1e3)
    median, high = np.percentile(took, [50, 99])
    shown = f"p50 {median:.2f} ms, p99 {high:.2f} ms"
    yield Figure("single look-up in 10 M keys", shown, "p50 < 0.5 ms", bool(median < 0.5))


def _keys_a_second(table: lakestore.Table, rng: np.random.Generator, callers: int) -> float:
    batches = [pa.record_batch([rng.integers(0, LARGE, 1_000)], names=["id"]) for _ in range(200)]
    with ThreadPoolExecutor(callers) as pool:
        began = time.perf_counter()
        found = sum(pool.map(lambda batch: len(table.lookup(batch)), batches))
        seconds = time.perf_counter() - began
    if found != 200_000:
        raise AssertionError("rows are missing")
    return found / seconds


def _index(folder: Path) -> Iterator[Figure]:
    """The server was stopped in order, so all keys are in runs."""
    size = _bytes_of_runs(folder)
    shown = f"{size / LARGE:.0f} bytes for each of 10 M keys of 8 bytes, {size / 1e6:,.0f} MB"
    yield Figure("index after uniform upserts", shown, "", None)
    for file in (folder / "index").iterdir():
        file.unlink()
    began = time.perf_counter()
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        seconds = _until_found(lake.table("bench.large"), began)
    size = _bytes_of_runs(folder)
    shown = f"{seconds:.1f} s, then {size / LARGE:.0f} bytes per key"
    yield Figure("start with a lost index of 10 M keys to first look-up", shown, "< 40 s", seconds < 40)


def _bytes_of_runs(folder: Path) -> int:
    return sum(run.stat().st_size for run in (folder / "index").glob("*.run"))


def _until_found(table: lakestore.Table, began: float) -> float:
    while time.perf_counter() - began < REBUILD_SECONDS_MAX:
        try:
            if len(table.lookup([{"id": LARGE - 1}])) == 1:
                return time.perf_counter() - began
        except Unavailable:
            time.sleep(0.2)
    raise AssertionError("the index was not rebuilt")

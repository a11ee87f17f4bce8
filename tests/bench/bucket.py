"""The journal in a bucket: our S3 in memory with 60 ms before each request, so times in round trips count.

The start from an empty disk has no wait before requests; `LAKESTORE_BENCH_BUCKET_GB` is its size, 1 unless set.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import lakestore
from jepsen.system.http_proxy import Trouble, Weather
from jepsen.system.store import Store
from lakestore_server.journals.object_log import ObjectLog, create
from lakestore_server.journals.object_store import store_of
from tests.bench.blobs import BATCH_ROWS, ROW_BYTES, batch_of, random_blobs
from tests.bench.report import Figure
from tests.support.kafka_servers import KafkaServers
from tests.support.waiting import until

URL = "s3://lakestore/journal"
ADDED_SECONDS = 0.06
LONE, SMALL_SECONDS, SMALL_PAUSE = 100, 8.0, 0.005
LARGE, LARGE_BYTES = 60, 2_000_000
ROUND_TRIPS = 2.5
START_URL, CHECKPOINTS = "s3://lakestore/journal-of-start", "s3://lakestore/checkpoints"
START_GB = float(os.environ.get("LAKESTORE_BENCH_BUCKET_GB", "1"))
START_SECONDS = 20.0
PATIENCE = 300.0
VALUE = pa.schema([("value", pa.binary())])


def measure(folder: Path) -> Iterator[Figure]:
    """Times of commits alone and of many at once, and the rate of large ones."""
    store = Store()
    store.tell()
    try:
        objects = store_of(URL)
        create(objects, URL)
        store.proxy.breaks(Weather((Trouble.SLOW,), 1.0, ADDED_SECONDS, seed=1))
        trip = median(_seconds(partial(objects.has, "nothing")) for _ in range(20))
        log = ObjectLog(objects, URL, races=False)
        log.open("")
        list(log.read(0, 0.0, to_end=True))
        yield _commits("commit of 1 KB alone", [_lone(log) for _ in range(LONE)], trip)
        yield _commits(f"commits of 1 KB, one each {SMALL_PAUSE * 1e3:.0f} ms", list(_small(log)), trip)
        yield _large(log)
        log.close()
        store.proxy.mend()
        yield _start(folder)
    finally:
        store.close()


def _commits(what: str, times: list[float], trip: float) -> Figure:
    p50, p99 = np.percentile(times, [50, 99])
    shown = f"p50 {p50 * 1e3:.0f}, p99 {p99 * 1e3:.0f} ms: {p99 / trip:.2f} round trips of {trip * 1e3:.0f} ms"
    return Figure(what, shown, f"p99 ≤ {ROUND_TRIPS} round trips", bool(p99 <= ROUND_TRIPS * trip))


def _lone(log: ObjectLog) -> float:
    stored: list[int] = []

    def send() -> None:
        log.send(b"x" * 1_000, stored.append)
        _await(log, stored, 1)

    return _seconds(send)


def _small(log: ObjectLog) -> Iterator[float]:
    sent, times = 0, list[float]()
    end = time.perf_counter() + SMALL_SECONDS
    while (now := time.perf_counter()) < end:
        log.send(b"x" * 1_000, lambda _, now=now: times.append(time.perf_counter() - now))  # type: ignore[misc]
        sent += 1
        log.poll(SMALL_PAUSE)
    _await(log, times, sent)
    return iter(times)


def _large(log: ObjectLog) -> Figure:
    def send() -> None:
        stored: list[int] = []
        for _ in range(LARGE):
            while not log.send(b"y" * LARGE_BYTES, stored.append):
                log.poll(1.0)
        _await(log, stored, LARGE)

    rate = LARGE * LARGE_BYTES / 1e6 / _seconds(send)
    what = "messages of 2 MB, several objects on their way"
    return Figure(what, f"{rate:,.0f} MB/s", "≥ 100 MB/s", rate >= 100)


def _start(folder: Path) -> Figure:
    """The time from the start of a server on an empty disk to its first answer as a leader."""
    create(store_of(START_URL), START_URL)
    batches = [batch_of(blob) for blob in random_blobs()]
    count = int(START_GB * 1e9) // (BATCH_ROWS * ROW_BYTES)
    arguments = ["--checkpoints", CHECKPOINTS]
    with KafkaServers(START_URL, folder / "start", "a", patience=PATIENCE, arguments=arguments) as alone:
        (server,) = alone.servers
        alone.the("leader")
        with lakestore.connect(server.address) as lake, lake.create_table("b.t", VALUE, buckets=4).writer() as writer:
            for number in range(count):
                writer.append(batches[number % len(batches)])
        with lakestore.connect(server.address) as lake:
            until(lambda: lake.status()["store"]["lsn"] > 0, "a checkpoint in the bucket", PATIENCE)
            until(lambda: not lake.status()["store"]["behind_seconds"], "the newest one in the bucket", PATIENCE)
        server.kill()
        shutil.rmtree(server.data)
        began = time.perf_counter()
        alone.start_again(server)
        alone.the("leader")
        seconds = time.perf_counter() - began
        with lakestore.connect(alone.addresses) as lake:
            if lake.table("b.t").scan().count() != count * BATCH_ROWS:
                raise AssertionError("rows are missing")
    what = f"start from an empty disk with {START_GB:g} GB in the bucket"
    return Figure(what, f"{seconds:.1f} s", f"≤ {START_SECONDS:.0f} s", seconds <= START_SECONDS)


def _await(log: ObjectLog, stored: list[int] | list[float], count: int) -> None:
    while len(stored) < count:
        log.poll(1.0)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

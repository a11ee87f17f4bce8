"""The journal in a bucket: our S3 in memory with 60 ms before each request, so times in round trips count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from jepsen.system.http_proxy import Trouble, Weather
from jepsen.system.store import Store
from lakestore_server.journals.object_log import ObjectLog, create
from lakestore_server.journals.object_store import store_of
from tests.bench.report import Figure

GROUP = "Journal in a bucket"
URL = "s3://lakestore/journal"
ADDED_SECONDS = 0.06
LONE, SMALL_SECONDS, SMALL_PAUSE = 100, 8.0, 0.005
LARGE, LARGE_BYTES = 60, 2_000_000
ROUND_TRIPS = 2.5


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
    finally:
        store.close()


def _commits(what: str, times: list[float], trip: float) -> Figure:
    p50, p99 = np.percentile(times, [50, 99])
    shown = f"p50 {p50 * 1e3:.0f}, p99 {p99 * 1e3:.0f} ms: {p99 / trip:.2f} round trips of {trip * 1e3:.0f} ms"
    return Figure(GROUP, what, shown, f"p99 ≤ {ROUND_TRIPS} round trips", bool(p99 <= ROUND_TRIPS * trip))


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
    return Figure(GROUP, what, f"{rate:,.0f} MB/s", "≥ 100 MB/s", rate >= 100)


def _await(log: ObjectLog, stored: list[int] | list[float], count: int) -> None:
    while len(stored) < count:
        log.poll(1.0)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

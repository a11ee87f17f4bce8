"""Figures of freshness: how old the lake gets under load, and how near the price told for it comes.

1. Twenty thousand upserts a second for ten minutes, with a promise of 2 s and compaction beside the rounds.
2. Two loads, each with three promises. The cost of each time is compared with the price told from another one's rounds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import lakestore
from lakestore.model.freshness_price import PastRewrite, PastRound, priced
from lakestore.union.past_rounds import remembered
from lakestore.v1.lakestore_pb2 import StatusRequest
from tests.bench import bed
from tests.bench.bed import Bed
from tests.bench.orders import IS_SMALL, SCHEMA, Ids, orders, scaled, told, write
from tests.bench.report import Figure

HELD_SECONDS = 30 if IS_SMALL else 600
PROMISE = 2
UPSERTS = 20_000
_STEP_SECONDS = 0.1
_SETTLE_SECONDS = 5.0 if IS_SMALL else 20.0
"""From a new promise to the rounds that count."""
BANDS = {2: 15, 4: 30} if IS_SMALL else {2: 60, 6: 120, 15: 240}
"""Promise to the seconds for which it is measured."""
DRIFT_MAX = 0.25
"""Bar of the difference between a price and what was measured."""


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with bed.made(folder) as made:
        yield from _held(made)
        yield from _prices(made)


@dataclass
class Feed:
    """A writer that upserts so many orders a second."""

    table: lakestore.Table
    per_second: int
    draw: Callable[[int, int], Ids]
    """Ids of so many orders, from how many there were before."""
    written: int = 0

    def run(self, stop: threading.Event) -> None:
        began = time.monotonic()
        while not stop.wait(_STEP_SECONDS):
            count = int(self.per_second * (time.monotonic() - began)) - self.written
            if count:
                self.table.upsert(orders(np.unique(self.draw(self.written, count)), self.written))
                self.written += count


@contextmanager
def _running(made: Bed, feeds: list[Feed]) -> Iterator[None]:
    """The service and the feeds, each in a thread."""
    stop = threading.Event()
    threads = [threading.Thread(target=feed.run, args=(stop,)) for feed in feeds]
    threads.append(threading.Thread(target=made.tierer.run_forever, args=(stop,)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _uniform(size: int) -> Callable[[int, int], Ids]:
    rng = np.random.default_rng(7)
    return lambda _, count: rng.integers(0, size, count)


def _held(made: Bed) -> Iterator[Figure]:
    size = scaled(10_000_000)
    lake = {"freshness": f"{PROMISE}s"}
    table = made.lake.create_table("bench.held", SCHEMA, primary_key=["order_id"], lake=lake)
    write(table, np.arange(size), 1)
    made.tier(table.name)
    feed, ages = Feed(table, scaled(UPSERTS), _uniform(size)), []
    with _running(made, [feed]):
        time.sleep(_SETTLE_SECONDS)
        began = time.monotonic()
        while time.monotonic() - began < HELD_SECONDS:
            ages.append(_age(made, table.name))
            time.sleep(_STEP_SECONDS)
        rate = feed.written / (time.monotonic() - began + _SETTLE_SECONDS)
        files = made.files(table.name)
    rounds, rewrites = remembered(made.plan(table.name).metadata_location)
    p50, p99, most = np.percentile(ages, [50, 99, 100])
    what = f"age of the lake at {told(rate)} uniform upserts/s upon {told(size)} rows for {HELD_SECONDS} s"
    shown = f"p50 {p50:.2f} s, p99 {p99:.2f} s, most {most:.2f} s; of the last rounds {len(rewrites)} were compactions"
    yield Figure(what, shown, f"p99 ≤ {PROMISE} s", bool(p99 <= PROMISE and rate >= 0.95 * scaled(UPSERTS)))
    took = median(each.seconds for each in rounds)
    yield Figure("one of these rounds", f"{took:.2f} s", "", None)
    data = sorted(each.bytes for each in files if each.content == "data")
    shown = f"{len(data)} data files, median {median(data) / (1 << 20):.1f} MB; {len(files) - len(data)} delete files"
    yield Figure("live files afterwards, one partition", shown, "≤ 10 data files", len(data) <= 10)
    made.lake.drop_table(table.name, purge=True)


def _age(made: Bed, name: str) -> float:
    """Seconds by which the lake's newest commit is older than the table's."""
    (part,) = json.loads(made.lake.transport.status(StatusRequest(tables=[name])).status)["tables"]
    return float(part["last_commit_us"] - part["tiered_commit_us"]) / 1e6


Window = tuple[list[PastRound], list[PastRewrite]]


def _prices(made: Bed) -> Iterator[Figure]:
    size = scaled(1_000_000)
    feeds = {
        "uniform upserts": Feed(_table(made, "bench.uniform", size), scaled(20_000), _uniform(size)),
        "new rows": Feed(_table(made, "bench.new", 0), scaled(5_000), lambda at, count: np.arange(at, at + count)),
    }
    found: dict[tuple[str, int], Window] = {}
    with _running(made, list(feeds.values())):
        for promise, seconds in BANDS.items():
            for feed in feeds.values():
                feed.table.alter(lake={"freshness": f"{promise}s"})
            time.sleep(_SETTLE_SECONDS)
            had = {name: len(_remembered(made, feed)[1]) for name, feed in feeds.items()}
            began = time.time()
            time.sleep(seconds)
            for name, feed in feeds.items():
                rounds, rewrites = _remembered(made, feed)
                found[name, promise] = [each for each in rounds if each.at >= began], rewrites[had[name] :]
    for name in feeds:
        yield from _compared(name, {promise: found[name, promise] for promise in BANDS})


def _table(made: Bed, name: str, size: int) -> lakestore.Table:
    table = made.lake.create_table(name, SCHEMA, primary_key=["order_id"], lake={"snapshots": 1_000})
    write(table, np.arange(size), 1)
    return table


def _remembered(made: Bed, feed: Feed) -> Window:
    return remembered(made.plan(feed.table.name).metadata_location)


def _compared(name: str, windows: dict[int, Window]) -> Iterator[Figure]:
    """The price of each promise, told from the rounds of the one before, beside what was measured."""
    promises = list(windows)
    for told_from, promise in zip(promises, promises[1:] + promises[:1], strict=True):
        rate, (price,) = priced(*windows[told_from], [promise])
        rounds, _ = windows[promise]
        span, later = rounds[-1].at - rounds[0].at, rounds[1:]
        load = sum(each.changes for each in later) / span / rate.changes
        files = sum(each.files + each.delete_files for each in later)
        pairs = {
            "rounds": (price.rounds, len(later)),
            "files": (price.files, files),
            "bytes": (price.bytes * load, sum(each.bytes for each in later)),
        }
        drift = {what: expected / (3600 / span * measured) - 1 for what, (expected, measured) in pairs.items()}
        shown = ", ".join(f"{what} {off:+.0%}" for what, off in drift.items())
        worst = max(map(abs, drift.values()))
        told_as = f"price of {promise} s from rounds at {told_from} s, {name}, against what was measured"
        yield Figure(told_as, shown, f"± {DRIFT_MAX:.0%}", worst <= DRIFT_MAX)

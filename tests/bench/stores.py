"""Figures of a lake on an S3 server that others wrote, beside the same lake in a folder, by turns.

A proxy before the S3 server counts the requests of server and tierer. It runs in this process, and every request and
every byte to and from the store passes it: that is part of the store's times and of the latency that they are told by.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from jepsen.system.http_proxy import HttpProxy
from jepsen.system.store import SLOW_DOWN
from jepsen.system.store_requests import LIST, StoreRequests
from lakestore.iceberg import places
from lakestore_server.journals.object_store import store_of
from lakestore_tiering.flush import FlushResult
from tests.bench import bed
from tests.bench.bed import BIG, Bed, ms, noted, timed
from tests.bench.growth.accounts import anonymous_bytes, resident_bytes
from tests.bench.orders import IS_SMALL, ROWS, SCHEMA, scaled, told, write
from tests.bench.report import Figure
from tests.bench.scans import GROUPS, QUERIES, SUMS, Form, Times, interleaved, median_of, ratio_of
from tests.support.s3proxy import S3ProxyProcess, environment_of

FOLDER, STORE = "folder", "store"
RATIO_MAX = 1.3
"""Bar of a time on the store beside that in a folder."""
OF_A_ROUND, OF_A_FILE = 12, 4
"""Bar of the requests of a round, and further ones for each data or delete file that it writes."""
RUNS = 2 if IS_SMALL else 5
"""Rounds; the first one is not counted."""
CHANGED_ROUNDS, CHANGED_MAX = 10, 1.2
FILES_MAX, FILE_MB_MIN = 10, 32
FLAT_ROUNDS, FLAT_RUNS, FLAT_MAX = (24, 6, 1.1) if IS_SMALL else (1_000, 20, 1.1)
"""Small rounds, looks at the memory meanwhile, and the bar: the last quarter's memory over the second one's."""
_SMALL = "bench.small"
SMALL_ROWS = 10_000
_LATENCIES = 50


@dataclass(frozen=True)
class Stores:
    """A lake in a folder, a lake on the store, and the store's requests."""

    beds: Mapping[str, Bed]
    requests: StoreRequests
    latency: float
    """Seconds of a small put to the store through the proxy."""

    @property
    def store(self) -> Bed:
        """The lake on the store."""
        return self.beds[STORE]

    def turns(self, run: int) -> list[tuple[str, Bed]]:
        """Both lakes, each time another one first."""
        both = list(self.beds.items())
        return both if run % 2 else both[::-1]

    def taken(self, name: str) -> int:
        """Requests for files of a table since the last call, without lists."""
        mark = f"/{name.split('.')[1]}-"
        return sum(mark in each.key and each.kind != LIST for each in self.requests.take())


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with _made(folder) as on:
        for each in on.beds.values():
            for name, size in ((BIG, ROWS), (_SMALL, SMALL_ROWS)):
                lake = {"snapshots": 1_000} if name == BIG else {}
                table = each.lake.create_table(name, SCHEMA, primary_key=["order_id"], lake=lake)
                write(table, np.arange(size), 1)
                each.tier(name)
        for part in (_rounds, _presented, _union_reads, _changed, _flat):
            with noted(part.__name__.strip("_")):
                yield from part(on)


@contextmanager
def _made(folder: Path) -> Iterator[Stores]:
    requests = StoreRequests()
    with (
        S3ProxyProcess(folder / "s3", stores_files=True) as s3,
        HttpProxy(s3.address, refusal=SLOW_DOWN, watch=requests.note) as proxy,
        _variables(environment_of(proxy.address)),
        bed.made(folder / FOLDER) as local,
        bed.made(folder / STORE, f"s3://{s3.bucket}/lake") as store,
    ):
        objects = store_of(f"s3://{s3.bucket}/nothing")
        took = [timed(partial(objects.put_new, str(number), b"a" * 2_000)) for number in range(_LATENCIES)]
        yield Stores({FOLDER: local, STORE: store}, requests, statistics.median(took))


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, which server, tierer and reader take the store from."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    places.forget_stores()
    try:
        yield
    finally:
        places.forget_stores()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _flushed(on: Bed, name: str) -> FlushResult:
    (outcome,) = on.tierer.run_once(name, compaction=False)
    assert outcome.flushed is not None
    return outcome.flushed


def _over(what: str, took: Mapping[str, list[float]], more: float, said: str) -> Figure:
    """A time on the store beside that in the folder and what its requests cost."""
    local, store = statistics.median(took[FOLDER]), statistics.median(took[STORE])
    shown = f"{store:.2f} s, in a folder {local:.2f} s: {store / local:.2f}x{said}"
    bar = RATIO_MAX * local + more
    return Figure(what, shown, f"≤ {bar:.2f} s", store <= bar)


def _rounds(on: Stores) -> Iterator[Figure]:
    """Rounds of 1 % in uniform updates."""
    rng, took, asked, files = np.random.default_rng(3), {FOLDER: [0.0], STORE: [0.0]}, [], []
    for run in range(RUNS):
        ids = rng.choice(ROWS, scaled(100_000), replace=False)
        for name, each in on.turns(run):
            write(each.lake.table(BIG), ids, 100 + run)
            on.taken(BIG)
            flushed: list[FlushResult] = []
            seconds = timed(lambda: flushed.append(_flushed(each, BIG)))  # noqa: B023
            if name == STORE:
                asked.append(on.taken(BIG))
                files.append(flushed[0].files + flushed[0].delete_files)
            if run:
                took[name].append(seconds)
    for times in took.values():
        del times[0]
    each_file = [f"{count} for {written} files" for count, written in zip(asked, files, strict=True)]
    said = f"; {asked[-1]} requests of {ms(on.latency)}"
    what = f"round of {told(scaled(100_000))} uniform updates on {told(ROWS)} rows"
    yield _over(what, took, asked[-1] * on.latency, said)
    is_met = all(count <= OF_A_ROUND + OF_A_FILE * wrote for count, wrote in zip(asked, files, strict=True))
    bar = f"≤ {OF_A_ROUND} + {OF_A_FILE} per file"
    yield Figure("requests of these rounds", ", ".join(each_file), bar, is_met)


def _presented(on: Stores) -> Iterator[Figure]:
    """The first cut of hot rows that no load has asked for, then cuts of few rows more; a presenter runs already."""
    rng = np.random.default_rng(4)
    changes = [rng.choice(ROWS, scaled(count), replace=False) for count in (100_000, *[1_000] * RUNS)]
    times: dict[str, list[float]] = {}
    for name, each in on.turns(0):
        each.load(_SMALL)
        times[name] = []
        for run, ids in enumerate(changes):
            write(each.lake.table(BIG), ids, 200 + run)
            times[name].append(each.load(BIG))
    first = {name: took[0] for name, took in times.items()}
    warm = {name: statistics.median(took[1:]) for name, took in times.items()}
    shown = f"{first[STORE]:.2f} s, in a folder {first[FOLDER]:.2f} s"
    what = f"first `now`, {told(scaled(100_000))} hot rows on {told(ROWS)}"
    yield Figure(what, shown, "≤ 1.5 s", first[STORE] <= 1.5)
    shown = f"{ms(warm[STORE])}, in a folder {ms(warm[FOLDER])}"
    what = f"`now` after {told(scaled(1_000))} changes more"
    yield Figure(what, shown, "≤ 150 ms", warm[STORE] <= 0.15)


def _union_reads(on: Stores) -> Iterator[Figure]:
    """The same tiered and hot rows by Spark and by DuckDB."""
    forms = {name: Form(each.spark_lake.sql, BIG) for name, each in on.beds.items()}
    answers = {name: form.checked() for name, form in forms.items()}
    if len(set(answers.values())) != 1:
        raise AssertionError(f"the same changes, several answers: {answers}")
    took = interleaved(forms)
    for query in QUERIES:
        yield _beside(f"union read by Spark, {query}", took, query, (STORE, FOLDER), RATIO_MAX)
    for query in (SUMS, GROUPS):
        times: dict[str, list[float]] = {name: [] for name in on.beds}
        for run in range(RUNS):
            for name, each in on.turns(run):
                seconds = timed(lambda: each.lake.sql(QUERIES[query].format(BIG)).to_arrow())  # noqa: B023
                if run:
                    times[name].append(seconds)
        yield _over(f"union read by DuckDB, {query}", times, 0.0, "")


def _beside(what: str, took: Times, query: str, forms: tuple[str, str], bar: float) -> Figure:
    """Times of a query by one form over those by another one."""
    form, plain = forms
    ratio, seconds = ratio_of(took, query, form, plain)
    shown = f"{ratio:.2f}x ({median_of(took, query, plain):.2f} → {seconds:.2f} s)"
    return Figure(what, shown, f"≤ {bar}x", ratio <= bar)


def _changed(on: Stores) -> Iterator[Figure]:
    """Ten rounds of 1 % upon a compacted table, with compaction as it is due."""
    changes, forms = np.random.default_rng(5), dict[str, Form]()
    drawn = [changes.choice(ROWS, ROWS // 100, replace=False) for _ in range(CHANGED_ROUNDS)]
    for name, each in on.beds.items():
        each.compact(BIG)
        clean = each.plan(BIG).snapshot_id
        for run, ids in enumerate(drawn):
            write(each.lake.table(BIG), ids, 300 + run)
            each.tierer.run_once(BIG)
        forms[f"{name}, clean"] = Form(each.spark.sql, f"lake.{BIG} VERSION AS OF {clean}")
        forms[f"{name}, changed"] = Form(each.spark.sql, f"lake.{BIG}")
        if forms[f"{name}, clean"].checked() == forms[f"{name}, changed"].checked():
            raise AssertionError("the changes are not in the lake, or the clean table has them too")
    data = [each.bytes for each in on.store.files(BIG) if each.content == "data"]
    median = statistics.median(data) / (1 << 20)
    is_met = len(data) <= FILES_MAX and (median >= FILE_MB_MIN or IS_SMALL)
    bar = f"≤ {FILES_MAX}, median ≥ {FILE_MB_MIN} MB"
    what = f"live data files after {CHANGED_ROUNDS} rounds of 1 %, one partition"
    yield Figure(what, f"{len(data)}, median {median:.1f} MB", bar, is_met)
    took = interleaved(forms)
    for name in on.beds:
        for query in QUERIES:
            what = f"plain scan afterwards over the clean table, {name}, {query}"
            yield _beside(what, took, query, (f"{name}, changed", f"{name}, clean"), CHANGED_MAX)


def _flat(on: Stores) -> Iterator[Figure]:
    """Memory of server and tierer over many small rounds."""
    made, rng = on.store, np.random.default_rng(6)
    table = made.lake.table(_SMALL)
    looks = _looks(made)
    held: dict[str, list[int]] = {name: [] for name in looks}
    for number in range(FLAT_ROUNDS):
        write(table, rng.choice(SMALL_ROWS, 100, replace=False), 400 + number)
        made.tierer.run_once(_SMALL)
        on.requests.take()
        if (number + 1) % (FLAT_ROUNDS // FLAT_RUNS) == 0:
            for name, look in looks.items():
                held[name].append(look())
    for name, seen in held.items():
        quarter = max(len(seen) // 4, 1)
        early, late = statistics.median(seen[quarter : 2 * quarter]), statistics.median(seen[-quarter:])
        shown = f"{early / 1e6:,.0f} → {late / 1e6:,.0f} MB: {late / early:.2f}x"
        what = f"memory of {name} over {FLAT_ROUNDS:,} rounds"
        yield Figure(what, shown, f"≤ {FLAT_MAX}x", late <= FLAT_MAX * early)


def _looks(made: Bed) -> dict[str, Callable[[], int]]:
    java = made.spark._jvm.java.lang  # type: ignore[union-attr]

    def heap() -> int:
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())

    def tierer() -> int:
        gc.collect()
        return resident_bytes()

    return {
        "the server": lambda: anonymous_bytes(made.server),
        "the tierer's Python, with the proxy": tierer,
        "the tierer's Java, heap after a collection": heap,
    }

"""The cost of many things at rest: 10,000 tables, 4,096 buckets a table, 100,000 segments, 1,000 subscribers.

Each crowd is measured once: the start of a server that has it, a checkpoint with hardly anything to do, status and
metrics, anonymous memory, and the longest commit of one row beside all that.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.v1.lakestore_pb2 import StatusRequest
from tests.bench.growth import accounts
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
CHECKPOINT_BYTES = 1 << 20
_SETTINGS = {"LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": str(CHECKPOINT_BYTES)}
PROBE = "crowd.probe"
CHECKPOINT_WAIT_SECONDS = 180.0
_DONE = re.compile(r" checkpoint lsn=\d+ seconds=([\d.]+)")
"""The server's word of a checkpoint: to ask for its metrics all the time would be the work that is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The figures of one crowd."""

    made_seconds: float
    """Until all of it was there."""
    start_seconds: float
    """Start of a process on its folder to the first answer; 0 of a crowd that a restart ends."""
    checkpoint_seconds: float
    status_seconds: float
    metrics_seconds: float
    commit_max_ms: float
    """The longest commit of one row while checkpoint, status and metrics were made."""
    anonymous_bytes: int
    """Memory of the server and its processes, after all that."""


def measure(folder: Path, scale: float = 1.0) -> Iterator[tuple[str, Crowd]]:
    """(name, figures) of each crowd; with a scale below 1 so much smaller ones."""
    for name, (fill, count) in _CROWDS.items():
        yield name.format(f"{round(count * scale):,}"), _resting(folder / fill.__name__, fill, round(count * scale))
    count = round(1_000 * scale)
    yield f"{count:,} subscribers", _subscribers(folder / "subscribers", count)


def _tables(lake: lakestore.Lake, count: int) -> None:
    """Tables of a bucket each, with a row in each."""
    row = pa.record_batch([[1], [1]], schema=SCHEMA)
    for number in range(count):
        lake.create_table(f"crowd.t{number}", SCHEMA, buckets=1).append(row)


def _buckets(lake: lakestore.Lake, count: int) -> None:
    """One primary-key table, with some keys in every bucket."""
    table = lake.create_table("crowd.wide", SCHEMA, primary_key=["id"], buckets=count)
    table.upsert(pa.record_batch([np.arange(20 * count), np.arange(20 * count)], schema=SCHEMA))


def _segments(lake: lakestore.Lake, count: int) -> None:
    """Tables of 4,096 buckets with rows in every bucket: a segment for each."""
    for number in range(max(count // 4_096, 1)):
        table = lake.create_table(f"crowd.s{number}", SCHEMA, buckets=min(count, 4_096), bucket_key=["id"])
        table.append(pa.record_batch([np.arange(60_000), np.arange(60_000)], schema=SCHEMA))


_CROWDS: dict[str, tuple[Callable[[lakestore.Lake, int], None], int]] = {
    "{} tables": (_tables, 10_000),
    "{} buckets in one table": (_buckets, 4_096),
    "{} segments": (_segments, 100_000),
}


def _resting(folder: Path, fill: Callable[[lakestore.Lake, int], None], count: int) -> Crowd:
    began = time.perf_counter()
    with ServerProcess(folder, environment=_SETTINGS) as server, lakestore.connect(server.address) as lake:
        lake.create_table(PROBE, SCHEMA, buckets=1)
        fill(lake, count)
        made_seconds = time.perf_counter() - began
        for _ in range(2):  # the first one may have begun before
            _checkpoint(server, lake)
    began = time.perf_counter()
    with ServerProcess(folder, environment=_SETTINGS) as server, lakestore.connect(server.address) as lake:
        lake.table(PROBE)
        start_seconds = time.perf_counter() - began
        return _measured(server, lake, made_seconds, start_seconds)


def _measured(server: ServerProcess, lake: lakestore.Lake, made_seconds: float, start_seconds: float) -> Crowd:
    with _probed(lake.table(PROBE)) as took:
        _checkpoint(server, lake)  # the first one after a start looks at all files
        checkpoint_seconds = _checkpoint(server, lake)
        began = time.perf_counter()
        lake.transport.status(StatusRequest())
        status_seconds = time.perf_counter() - began
        began = time.perf_counter()
        urllib.request.urlopen(f"http://{server.host}:{server.http_port}/metrics").read()
        metrics_seconds = time.perf_counter() - began
    return Crowd(
        made_seconds=made_seconds,
        start_seconds=start_seconds,
        checkpoint_seconds=checkpoint_seconds,
        status_seconds=status_seconds,
        metrics_seconds=metrics_seconds,
        commit_max_ms=max(took),
        anonymous_bytes=accounts.anonymous_bytes(server),
    )


def _checkpoint(server: ServerProcess, lake: lakestore.Lake) -> float:
    """The seconds of a checkpoint, which a commit as large as the journal may be has caused."""
    numbers = np.arange(CHECKPOINT_BYTES // 8)
    made = len(_DONE.findall(server.said()))
    lake.table(PROBE).append(pa.record_batch([numbers, numbers], schema=SCHEMA))
    end = time.perf_counter() + CHECKPOINT_WAIT_SECONDS
    while time.perf_counter() < end:
        done = _DONE.findall(server.said())
        if len(done) > made:
            return float(done[-1])
        time.sleep(0.1)
    raise AssertionError("no checkpoint was made")


@contextmanager
def _probed(table: lakestore.Table) -> Iterator[list[float]]:
    """The milliseconds of commits of one row, made while the block runs."""
    took, over = [0.0], threading.Event()
    row = pa.record_batch([[1], [1]], schema=SCHEMA)

    def probe() -> None:
        while not over.wait(0.02):
            began = time.perf_counter()
            table.append(row)
            took.append((time.perf_counter() - began) * 1e3)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def _subscribers(folder: Path, count: int) -> Crowd:
    """Named subscriptions of one table that all wait; made is when all of them have seen a row."""
    seen = threading.Semaphore(0)
    row = pa.record_batch([[1], [1]], schema=SCHEMA)
    with ServerProcess(folder, environment=_SETTINGS) as server, lakestore.connect(server.address) as lake:
        probe, table = (lake.create_table(name, SCHEMA, buckets=1) for name in (PROBE, "crowd.followed"))
        probe.append(row)

        def follow(number: int) -> None:
            for batch in table.changes("earliest", subscription=f"s{number}"):
                batch.ack()
                seen.release()
                return

        began = time.perf_counter()
        threads = [threading.Thread(target=follow, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        measured = _measured(server, lake, 0.0, 0.0)
        table.append(row)
        for _ in range(count):
            seen.acquire()
        made_seconds = time.perf_counter() - began
        for thread in threads:
            thread.join()
    return Crowd(
        made_seconds=made_seconds,
        start_seconds=0.0,
        checkpoint_seconds=measured.checkpoint_seconds,
        status_seconds=measured.status_seconds,
        metrics_seconds=measured.metrics_seconds,
        commit_max_ms=measured.commit_max_ms,
        anonymous_bytes=measured.anonymous_bytes,
    )

"""Lakestore itself, as this checkout has it, with the settings that it is shipped with."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import lakestore
from lakestore.release import RELEASE
from tests.bench.blobs import appended, batch_of
from tests.bench.growth.rows import BATCH_ROWS as KEYED_BATCH_ROWS
from tests.bench.growth.rows import Rows, mixed_numbers
from tests.bench.peers.contest import Contestant, Failed, paced, percentiles
from tests.bench.peers.together import timed_together
from tests.bench.rows import SCHEMA
from tests.support.process import ServerProcess

LOOKUP_KEYS = 1_000
FAIRNESS = "Every commit is synced to the disk before it is acknowledged."


class Lakestore:
    """A server and a connection to it."""

    def __init__(self, server: ServerProcess, lake: lakestore.Lake) -> None:
        self.server, self.lake = server, lake
        self._rows, self._chance = Rows(seed=15), np.random.default_rng(15)

    def log(self, name: str, batches: Sequence[Sequence[bytes]]) -> Callable[[int], float]:
        """Make a log of one column and return what appends so many of the batches, in seconds until all are durable."""
        table = self.lake.create_table(f"bench.{name}", pa.schema([("value", pa.binary())]), buckets=1)
        ready = [batch_of(rows) for rows in batches]
        total = 0

        def append(count: int) -> float:
            nonlocal total
            rows = count * len(batches[0])
            seconds = rows / appended(table, ready, count)
            total += rows
            if (stored := table.scan().count()) != total:
                raise Failed(f"{stored:,} rows of {total:,} are there")
            return seconds

        return append

    def make_keyed(self, name: str, buckets: int, *, is_partial: bool = False) -> None:
        """Make a table of five columns with a key."""
        merge = "partial" if is_partial else "upsert"
        self.lake.create_table(f"bench.{name}", SCHEMA, primary_key=["id"], buckets=buckets, merge=merge)

    def insert(self, name: str, first: int, count: int) -> float:
        """Seconds of inserts of the keys of so many numbers from the first on, until all are durable."""
        began = time.perf_counter()
        with self.lake.table(f"bench.{name}").writer() as out:
            for start in range(first, first + count, KEYED_BATCH_ROWS):
                end = min(start + KEYED_BATCH_ROWS, first + count)
                out.upsert(self._rows.of(np.arange(start, end, dtype=np.int64)))
        return time.perf_counter() - began

    def update(self, name: str, kind: str, keys: int, seconds: float) -> tuple[int, float]:
        """Rows and seconds of updates, until all are durable."""
        began, rows = time.perf_counter(), 0
        with self.lake.table(f"bench.{name}").writer() as out:
            while time.perf_counter() - began < seconds:
                batch = self._rows.of(self._numbers(kind, keys))
                out.upsert(batch.select(["id", "score"]) if kind == "partial" else batch)
                rows += batch.num_rows
        return rows, time.perf_counter() - began

    def _numbers(self, kind: str, keys: int) -> npt.NDArray[np.int64]:
        numbers = self._chance.integers(0, keys, KEYED_BATCH_ROWS)
        if kind == "skewed":
            hot = self._chance.random(KEYED_BATCH_ROWS) < 0.9
            numbers[hot] %= keys // 100
        return numbers

    def check(self, name: str, keys: int) -> None:
        """`Failed` unless all keys are there."""
        rows = self.lake.table(f"bench.{name}").scan(columns=["id"]).count()
        if rows != keys:
            raise Failed(f"{rows:,} of {keys:,} keys are there")

    def lookups(self, name: str, keys: int, seconds: float) -> tuple[int, float]:
        """Keys and seconds of look-ups of 1,000 keys, one call after the other."""
        table, rows = self.lake.table(f"bench.{name}"), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            wanted = mixed_numbers(self._chance.integers(0, keys, LOOKUP_KEYS))
            found = table.lookup(pa.record_batch([wanted], names=["id"])).num_rows
            if found != LOOKUP_KEYS:
                raise Failed(f"{LOOKUP_KEYS - found} of {LOOKUP_KEYS} keys are missing")
            rows += found
        return rows, time.perf_counter() - began

    def singles(self, name: str, keys: int, count: int) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds of look-ups one after the other."""
        table, took = self.lake.table(f"bench.{name}"), []
        for key in mixed_numbers(self._chance.integers(0, keys, count)).tolist():
            began = time.perf_counter()
            found = table.lookup([{"id": key}]).num_rows
            took.append((time.perf_counter() - began) * 1e3)
            if found != 1:
                raise Failed("a key is missing")
        return percentiles(took)

    def delay(self, name: str, rate: int, seconds: float) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds from the append of a row to a subscriber that has it."""
        table = self.lake.create_table(f"bench.{name}", pa.schema([("sent", pa.int64())]), buckets=1)
        count, took, follows = int(rate * seconds), list[float](), threading.Event()

        def follow() -> None:
            for batch in table.changes("earliest"):
                now = time.perf_counter_ns()
                took.extend((now - sent) / 1e6 for sent in batch.to_arrow()["sent"].to_pylist())
                follows.set()
                if len(took) > count:
                    return

        reader = threading.Thread(target=follow)
        reader.start()
        with table.writer() as out:
            out.append(pa.record_batch([[0]], names=["sent"]))
            follows.wait()
            for _ in paced(rate, count):
                out.append(pa.record_batch([[time.perf_counter_ns()]], names=["sent"]))
        reader.join()
        return percentiles(took[1:])

    def fan(self, name: str, subscribers: int, batches: Sequence[Sequence[bytes]]) -> float:
        """Seconds until each subscriber has all rows of the batches."""
        table = self.lake.create_table(f"bench.{name}", pa.schema([("value", pa.binary())]), buckets=1)
        ready, count = [batch_of(rows) for rows in batches], sum(map(len, batches))
        all_follow = threading.Barrier(subscribers + 1)

        def follow() -> None:
            rows = 0
            for batch in table.changes("earliest"):
                if not rows:
                    all_follow.wait()
                rows += batch.to_arrow().num_rows
                if rows > count:
                    return

        readers = [threading.Thread(target=follow) for _ in range(subscribers)]
        for reader in readers:
            reader.start()
        table.append(ready[0].slice(0, 1))
        all_follow.wait()
        began = time.perf_counter()
        appended(table, ready, len(ready))
        for reader in readers:
            reader.join()
        return time.perf_counter() - began

    def fill_wide(self, name: str, batches: Sequence[npt.NDArray[np.float64]]) -> None:
        """Make a log of doubles; the columns of the arrays are its columns."""
        names = [f"c{number}" for number in range(batches[0].shape[1])]
        table = self.lake.create_table(f"bench.{name}", pa.schema([(each, pa.float64()) for each in names]), buckets=1)
        with table.writer() as out:
            for batch in batches:
                out.append(pa.record_batch([pa.array(column) for column in batch.T], names=names))

    def scan_wide(self, name: str, columns: int, count: int) -> float:
        """Seconds of a read of the first columns of all rows."""
        began, rows, total = time.perf_counter(), 0, 0.0
        for batch in self.lake.table(f"bench.{name}").scan(columns=[f"c{n}" for n in range(columns)]).to_batches():
            rows += batch.num_rows
            total += pc.sum(batch.column(0)).as_py()
        if math.isnan(total):
            raise Failed("a value is missing")
        if rows != count:
            raise Failed(f"{rows:,} of {count:,} rows are there")
        return time.perf_counter() - began

    def recover(self, name: str, keys: int) -> float:
        """Seconds from the start of a server that was killed to the answer to a look-up."""
        began = self._restart()
        self.singles(name, keys, 1)
        return time.perf_counter() - began

    def fill_log(self, name: str, batches: Sequence[Sequence[bytes]], count: int) -> int:
        """Make a log and append so many of the batches; the rows that it has."""
        self.log(name, batches)(count)
        return self.count(name)

    def recover_log(self, name: str, batches: Sequence[Sequence[bytes]]) -> tuple[float, float, int]:
        """Append batches and kill the server. Seconds from its start to an append and to a count, and the count."""
        appended(self.lake.table(f"bench.{name}"), [batch_of(rows) for rows in batches], len(batches))
        began = self._restart()
        self.lake.table(f"bench.{name}").append(batch_of(batches[0][:1]))
        append = time.perf_counter() - began
        rows = self.count(name)
        return append, time.perf_counter() - began, rows

    def _restart(self) -> float:
        """Kill the server and start it again; the time of the start."""
        self.lake.close()
        self.server.kill()
        began = time.perf_counter()
        self.server = ServerProcess(self.server.data)
        self.lake = lakestore.connect(self.server.address)
        return began

    def together(self, name: str, batch: pa.RecordBatch, writers: int, count: int) -> tuple[list[float], float]:
        """Milliseconds of the commits of so many connections, and the seconds of all."""
        self.lake.create_table(f"bench.{name}", batch.schema)
        with ExitStack() as stack:
            lakes = [stack.enter_context(lakestore.connect(self.server.address)) for _ in range(writers)]
            tables = [lake.table(f"bench.{name}") for lake in lakes]
            return timed_together([partial(table.append, batch) for table in tables], count)

    def aggregates(self, name: str, columns: Sequence[str]) -> float:
        """Milliseconds of a query for an aggregate of each column."""
        sums = ", ".join(columns)
        began = time.perf_counter()
        self.lake.sql(f"SELECT {sums} FROM bench.{name}")
        return (time.perf_counter() - began) * 1e3

    def commits(self, name: str, batch: pa.RecordBatch, count: int) -> list[float]:
        """Milliseconds of so many appends of a small batch, one after the other. Makes the table if need be."""
        table = self.lake.create_table(f"bench.{name}", batch.schema, if_not_exists=True)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            table.append(batch)
            took.append((time.perf_counter() - began) * 1e3)
        return took

    def count(self, name: str) -> int:
        """Rows of a table."""
        return self.lake.table(f"bench.{name}").scan().count()

    def close(self) -> None:
        """Stop the server."""
        self.lake.close()
        self.server.stop()


@contextmanager
def _started(folder: Path) -> Iterator[Lakestore]:
    server = ServerProcess(folder)
    system = Lakestore(server, lakestore.connect(server.address))
    try:
        yield system
    finally:
        system.close()


CONTESTANT = Contestant("Lakestore", RELEASE, _started, FAIRNESS)

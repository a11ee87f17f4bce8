"""Logs that grow: random rows, rows of random columns, bytes that are written of each, and reads of them beside Kafka.

`make bench growth ARGS="--keys '' --log all"` measures them. `LAKESTORE_BENCH_GB` is the size of the log of random
rows, 10 unless set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import lakestore
from jepsen.system.kafka import KafkaProcess, Topics
from tests.bench.blobs import BATCH_ROWS, POOL, ROW_BYTES, TURN_BATCHES, appended, batch_of, random_blobs, sent
from tests.bench.report import Figure, Part
from tests.bench.rows import SCHEMA, rows
from tests.support.process import ServerProcess

GB = float(os.environ.get("LAKESTORE_BENCH_GB", "10"))
READ_TURNS = 3
GATHERED = {"LAKESTORE_LIMITS_EXTENT_BYTES": str((1 << 31) - 1)}
"""The environment of a server that writes every row of a log a second time, into a segment."""
COLUMNS_BATCH_ROWS, COLUMNS_BATCHES = 100_000, 600


@dataclass(frozen=True, slots=True)
class Spent:
    """A process's own account of its work."""

    written: int
    """Bytes that it had the disk write."""
    seconds: float
    """Of processor time."""

    @staticmethod
    def of(*pids: int) -> Spent:
        """The sum of some processes so far."""
        written, ticks = 0, 0
        for pid in pids:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            io = {name: int(value) for name, value in (line.split(": ") for line in lines)}
            written += io["write_bytes"] - io["cancelled_write_bytes"]
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return Spent(written, ticks / os.sysconf("SC_CLK_TCK"))

    def since(self, before: Spent) -> Spent:
        """The work since then."""
        return Spent(self.written - before.written, self.seconds - before.seconds)


def random_columns(seed: int = 15) -> pa.RecordBatch:
    """A batch of rows of five random columns."""
    return rows(np.random.default_rng(seed).integers(0, 1 << 62, COLUMNS_BATCH_ROWS))


def pids(server: ServerProcess) -> list[int]:
    """The server and its children."""
    below = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, below)]


def blobs(folder: Path) -> Iterator[Figure]:
    """Random rows of 1 KB in batches of 1 MB: how many bytes are written of each, and what they cost."""
    turns = max(int(GB * 1e9 / (TURN_BATCHES * BATCH_ROWS * ROW_BYTES)), 1)
    batches = [batch_of(each) for each in random_blobs()]
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.rows", pa.schema([("value", pa.binary())]), buckets=1)
        before = Spent.of(*pids(server))
        rate = appended(table, batches, turns * TURN_BATCHES)
        _settled(lake)
        spent = Spent.of(*pids(server)).since(before)
        if table.scan().count() != turns * TURN_BATCHES * BATCH_ROWS:
            raise AssertionError("rows are missing")
    nbytes = turns * TURN_BATCHES * BATCH_ROWS * ROW_BYTES
    yield Figure(f"{nbytes / 1e9:.1f} GB of random 1 KB rows in 1 MB batches", f"{rate / 1e3:,.0f} MB/s", "", None)
    once = spent.written / nbytes
    yield Figure("bytes written per byte of such rows", f"{once:.3f}", "≤ 1.15", once <= 1.15)
    cost = 1e9 * spent.seconds / nbytes
    yield Figure("processor time of the server per GB of them", f"{cost:.2f} s", "", None)


def columns(folder: Path) -> Iterator[Figure]:
    """Rows of five random columns in batches of 100,000."""
    batches = [random_columns(seed) for seed in range(POOL // 4)]
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.columns", SCHEMA, buckets=1)
        before = Spent.of(*pids(server))
        rate = appended(table, batches, COLUMNS_BATCHES)
        _settled(lake)
        spent = Spent.of(*pids(server)).since(before)
        if table.scan(columns=["count"]).count() != COLUMNS_BATCHES * COLUMNS_BATCH_ROWS:
            raise AssertionError("rows are missing")
    count = COLUMNS_BATCHES * COLUMNS_BATCH_ROWS
    shown = f"{rate:,.0f} rows/s"
    yield Figure(f"{count / 1e6:.0f} M rows of 5 random columns, 100k-row batches", shown, "≥ 6 M", rate >= 6e6)
    once = spent.written / (batches[0].nbytes * COLUMNS_BATCHES)
    yield Figure("bytes written per byte of these rows", f"{once:.3f}", "≤ 1.15", once <= 1.15)
    cost = spent.seconds / count * 1e6
    yield Figure("processor time of the server per million of them", f"{cost:.3f} s", "", None)


def reads(folder: Path) -> Iterator[Figure]:
    """Half a gigabyte of random rows back: where they lie as the journal wrote them, where they were gathered in
    segments, and from Kafka. All take turns; the first read of each is of what was just written."""
    blobs = random_blobs()
    with ExitStack() as held:
        broker = held.enter_context(KafkaProcess(folder / "kafka", sync_every_message=True))
        Topics(broker.address).make("rows")
        sent(broker.address, "rows", blobs)
        ways: dict[str, Callable[[], int]] = {}
        for name, environment in (("kept where the journal wrote them", {}), ("gathered in segments", GATHERED)):
            server = held.enter_context(ServerProcess(folder / str(len(ways)), environment=environment))
            table = _filled(held.enter_context(lakestore.connect(server.address)), blobs)
            ways[f"scan of random 1 KB rows of a log, {name}"] = partial(_scanned, table)
            ways[f"stream of them, {name}"] = partial(_streamed, table)
        ways["Kafka's consumer reads them, message by message"] = partial(_consumed, broker.address)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(READ_TURNS):
            for name, read in ways.items():
                times[name].append(_timed(read, TURN_BATCHES * BATCH_ROWS))
    nbytes = TURN_BATCHES * BATCH_ROWS * ROW_BYTES
    for name, seconds in times.items():
        shown = ", ".join(f"{nbytes / 1e6 / each:,.0f}" for each in seconds)
        yield Figure(name, f"{shown} MB/s, turn by turn", "", None)
    kept, gathered = (list(times.values())[at : at + 2] for at in (0, 2))
    for name, ours, before in zip(("scan", "stream"), kept, gathered, strict=True):
        ratio = median(before) / median(ours)
        said = f"{name} of rows that stay in the journal's files, against gathered ones"
        yield Figure(said, f"{ratio:.2f}x", "≥ 0.9x", ratio >= 0.9)


def _filled(lake: lakestore.Lake, blobs: Sequence[Sequence[bytes]]) -> lakestore.Table:
    """A log with the rows of a turn, of which a checkpoint holds nearly all."""
    table = lake.create_table("bench.rows", pa.schema([("value", pa.binary())]), buckets=1)
    appended(table, [batch_of(each) for each in blobs], TURN_BATCHES)
    _settled(lake)
    return table


def _scanned(table: lakestore.Table) -> int:
    return sum(batch.num_rows for batch in table.scan().to_batches())


def _streamed(table: lakestore.Table) -> int:
    return sum(batch.to_arrow().num_rows for batch in table.changes("earliest", until="now"))


def _consumed(address: str) -> int:
    """The rows that Kafka's consumer brings from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
        }
    )
    consumer.assign([TopicPartition("rows", 0, OFFSET_BEGINNING)])
    count, wanted = 0, TURN_BATCHES * BATCH_ROWS
    while count < wanted and (messages := consumer.consume(min(10_000, wanted - count), 10.0)):
        count += sum(message.error() is None and len(message.value() or b"") == ROW_BYTES for message in messages)
    consumer.close()
    return count


def _timed(read: Callable[[], int], count: int) -> float:
    began = time.perf_counter()
    if read() != count:
        raise AssertionError("rows are missing")
    return time.perf_counter() - began


def _settled(lake: lakestore.Lake) -> None:
    """Wait until no checkpoint is due: what it writes counts."""
    time.sleep(3.0)


PARTS = {
    "blobs": Part("Growth: bytes of a log", blobs),
    "columns": Part("Growth: columns of a log", columns),
    "reads": Part("Growth: reads of a log", reads),
}

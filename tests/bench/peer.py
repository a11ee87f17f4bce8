"""One producer of 1 KB rows, beside Kafka with an fsync of every append: both in one run, taking turns.

The rows are of random bytes, as those of Kafka's own performance tool; rows of one letter are a figure of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

import lakestore
from jepsen.system.kafka import KafkaProcess, Topics
from tests.bench.growth_log import BATCH_ROWS, ROW_BYTES, TURN_BATCHES, appended, batch_of, random_blobs, sent
from tests.bench.report import Figure
from tests.support.process import ServerProcess

GROUP = "Server"
ROUNDS = 3


def measure(folder: Path) -> Iterator[Figure]:
    """Megabytes a second of both, and the ratio."""
    with (
        KafkaProcess(folder / "kafka", sync_every_message=True) as kafka,
        ServerProcess(folder / "peer") as server,
        lakestore.connect(server.address) as lake,
    ):
        yield _beside(
            kafka, lake, "random", random_blobs(), "random 1 KB rows in 1 MB batches, beside Kafka with fsync"
        )
        same = [[b"x" * ROW_BYTES] * BATCH_ROWS]
        yield _beside(kafka, lake, "same", same, "1 KB rows of one letter in 1 MB batches, beside Kafka with fsync")


def _beside(kafka: KafkaProcess, lake: lakestore.Lake, name: str, rows: Sequence[Sequence[bytes]], what: str) -> Figure:
    ours, theirs = [], []
    batches = [batch_of(each) for each in rows]
    for run in range(ROUNDS):
        Topics(kafka.address).make(f"{name}{run}")
        theirs.append(sent(kafka, f"{name}{run}", rows) * ROW_BYTES / 1e6)
        table = lake.create_table(f"bench.{name}{run}", pa.schema([("value", pa.binary())]), buckets=1)
        ours.append(appended(table, batches, TURN_BATCHES) * ROW_BYTES / 1e6)
        if table.scan().count() != TURN_BATCHES * BATCH_ROWS:
            raise AssertionError("rows are missing")
    mine, other = statistics.median(ours), statistics.median(theirs)
    shown = f"{mine:,.0f} MB/s, Kafka {other:,.0f} MB/s: {mine / other:.2f}x"
    return Figure(GROUP, what, shown, "≥ 0.8x", mine / other >= 0.8)

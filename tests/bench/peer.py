"""One producer of 1 KB rows, beside Kafka with an fsync of every append: both in one run, taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import lakestore
from jepsen.system.kafka import KafkaProcess
from tests.bench.report import Figure
from tests.support.process import ServerProcess

GROUP = "Server"
ROW_BYTES, BATCH_ROWS, BATCHES, ROUNDS = 1_000, 1_000, 500, 3


def measure(folder: Path) -> Iterator[Figure]:
    """Megabytes a second of both, and the ratio."""
    ours, theirs = [], []
    with (
        KafkaProcess(folder / "kafka", sync_every_message=True) as kafka,
        ServerProcess(folder / "peer") as server,
        lakestore.connect(server.address) as lake,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.address})
        for run in range(ROUNDS):
            admin.create_topics([NewTopic(f"rows{run}", 1, 1)])[f"rows{run}"].result()
            theirs.append(_kafka(kafka, f"rows{run}"))
            ours.append(_ours(lake, f"bench.rows{run}"))
    mine, other = statistics.median(ours), statistics.median(theirs)
    yield Figure(
        GROUP,
        "1 KB rows in 1 MB batches, beside Kafka with fsync",
        f"{mine:,.0f} MB/s, Kafka {other:,.0f} MB/s: {mine / other:.2f}x",
        "≥ 0.8x",
        mine / other >= 0.8,
    )


def _ours(lake: lakestore.Lake, name: str) -> float:
    table = lake.create_table(name, pa.schema([("value", pa.binary())]), buckets=1)
    batch = pa.record_batch([pa.array([b"x" * ROW_BYTES] * BATCH_ROWS)], names=["value"])
    began = time.perf_counter()
    with table.writer() as out:
        for _ in range(BATCHES):
            out.append(batch)
    seconds = time.perf_counter() - began
    if table.scan().count() != BATCHES * BATCH_ROWS:
        raise AssertionError("rows are missing")
    return BATCHES * BATCH_ROWS * ROW_BYTES / 1e6 / seconds


def _kafka(kafka: KafkaProcess, topic: str) -> float:
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "acks": "all",
            "batch.size": 1 << 20,
            "linger.ms": 5,
            "message.max.bytes": 8 << 20,
            "queue.buffering.max.kbytes": 256 << 10,
            "on_delivery": lambda error, _: failed.append(error) if error else None,
        }
    )
    messages = [{"value": b"x" * ROW_BYTES}] * BATCH_ROWS
    began = time.perf_counter()
    for _ in range(BATCHES):
        rest = messages
        while rest:
            sent = producer.produce_batch(topic, [dict(message) for message in rest])
            rest = rest[sent:]
            producer.poll(0.01 if rest else 0)
    producer.flush()
    seconds = time.perf_counter() - began
    if failed:
        raise AssertionError(f"Kafka refused rows: {failed[0]}")
    return BATCHES * BATCH_ROWS * ROW_BYTES / 1e6 / seconds

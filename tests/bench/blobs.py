"""Rows of 1 KB in batches of 1 MB, and the turns of a producer that appends them: to Lakestore, and to Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import lakestore
from tests.bench.peers.contestants import kafka

ROW_BYTES, BATCH_ROWS = 1_000, 1_000
TURN_BATCHES = 500
POOL = 64
"""Different batches, sent one after the other again and again: no window of a compressor reaches from one to the next.
"""


def random_blobs(seed: int = 15) -> list[list[bytes]]:
    """Batches of rows of random bytes, as Kafka's own performance tool sends."""
    chance = np.random.default_rng(seed)
    return [[chance.bytes(ROW_BYTES) for _ in range(BATCH_ROWS)] for _ in range(POOL)]


def batch_of(rows: Sequence[bytes]) -> pa.RecordBatch:
    """A record batch with one binary column `value`, one row for each element of `rows`."""
    return pa.record_batch([pa.array(rows, pa.binary())], names=["value"])


def appended(table: lakestore.Table, batches: Sequence[pa.RecordBatch], count: int) -> float:
    """Rows a second of so many batches, until the last is durable."""
    began = time.perf_counter()
    with table.writer() as out:
        for number in range(count):
            out.append(batches[number % len(batches)])
    return float(count * batches[0].num_rows) / (time.perf_counter() - began)


def sent(address: str, topic: str, batches: Sequence[Sequence[bytes]]) -> float:
    """Rows a second of a turn to Kafka, until the last is acknowledged."""
    ready = [kafka.messages(rows) for rows in batches]
    return TURN_BATCHES * BATCH_ROWS / kafka.appended(address, kafka.THROUGHPUT, topic, ready, TURN_BATCHES)

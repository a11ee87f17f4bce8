"""Upserts batch after batch, as a stream makes them: the time of a batch and the memory of Spark as batches go on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import SparkSession

from tests.bench.orders import MILLION, told
from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import lakestore_lake, spark_iceberg
from tests.bench.peers.order_changes import OrderLake, OrderTable

ROWS, CHANGED, BATCHES, PART = MILLION, 20_000, 12, 3
READABLE, BATCH, LATE = "a batch until it is readable", "a batch until the lake has it", "the last three batches"
ALL = "all twelve batches"
MEMORY = "growth of Spark's heap, after a collection"
MEMORY_CAUSE = (
    "All three share one heap, and what a collection leaves differs by tens of megabytes from round to round. Nothing"
    " like the gigabytes of the issue came in twelve batches."
)
CAUSE = "The tierer compacts in some rounds. Iceberg's users call that themselves."


class StreamedLake(OrderLake, Protocol):
    """The methods that this workload calls on a system."""

    spark: SparkSession
    """Its session; all contestants share the JVM and its heap."""


def heap(spark: SparkSession) -> float:
    """Megabytes in use on the JVM's heap after a full collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def prepare(system: StreamedLake, scale: float) -> tuple[StreamedLake, int, int]:
    """A turn fills a table of its own."""
    return system, int(ROWS * scale), int(CHANGED * scale)


def turn(stage: tuple[StreamedLake, int, int], number: int) -> Mapping[str, float]:
    """Seconds of batches into a new table, and megabytes."""
    system, rows, changed = stage
    table = OrderTable(system, rows, changed, suffix=f"_stream{number}")
    before = heap(system.spark)
    changes = [change for _ in range(BATCHES) if (change := table.change()) is not None]
    return {
        READABLE: statistics.median(change.readable for change in changes),
        BATCH: statistics.median(change.in_lake for change in changes),
        ALL: sum(change.in_lake for change in changes),
        LATE: statistics.median(change.in_lake for change in changes[-PART:]),
        MEMORY: max(heap(system.spark) - before, 0.0),
    }


WORKLOAD = Workload(
    title="Streaming upserts into a lake",
    what=(
        f"{BATCHES} batches of {told(CHANGED)} uniformly chosen orders, one after the other, are upserted into a table"
        f" of {told(ROWS)} orders. Iceberg's tables are set as in apache/iceberg #17241, where executors of v3 run out"
        " of memory after hours: buckets of the key, merge-on-read, distribution by hash, fan-out writers. A run of"
        " minutes shows how the heap grows, not the end. Nobody calls a compaction."
    ),
    measures=(
        Measure(READABLE, "s", LESS, 2),
        Measure(BATCH, "s", LESS, 2, CAUSE),
        Measure(ALL, "s", LESS, 2, CAUSE),
        Measure(LATE, "s", LESS, 2, CAUSE),
        Measure(MEMORY, "MB", LESS, 0, MEMORY_CAUSE),
    ),
    contestants=(
        lakestore_lake.CONTESTANT,
        spark_iceberg.contestant(2, is_streaming=True),
        spark_iceberg.contestant(3, is_streaming=True),
    ),
    prepare=prepare,
    turn=turn,
)

"""Records of a Kafka topic into a table: how many a second, how late, in how many files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from tests.bench.peers.contest import LESS, Failed, Measure, Workload
from tests.bench.peers.contestants import kafka_sinks

RECORDS, SINGLES, LIMIT_SECONDS, LOOK_SECONDS, TOPIC = 300_000, 10, 60.0, 0.05, "orders"
RATE, LAG, FILES = "records until readable", "lag of one record, median", "data files afterwards"
RATE_CAUSE = (
    "Up to half of the time is the start of the bridge's process: its imports take 1 to 3 seconds, which depends on the"
    " pace of the machine. The job of Spark starts in a process that runs already."
)


class Sink(Protocol):
    """The methods that this workload calls on a system."""

    def send(self, topic: str, count: int) -> int:
        """Send so many records to a topic; the number of all in it."""

    def running(self, topic: str, table: str) -> AbstractContextManager[None]:
        """Take a topic from its beginning into a new table in the block."""

    def rows(self, table: str) -> int:
        """The rows of a table that a query would see, by what the system knows without one."""

    def counted(self, table: str) -> int:
        """The rows that a query counts."""

    def files(self, table: str) -> int:
        """The data files of a table in the lake."""


def prepare(system: Sink, scale: float) -> Sink:
    """Fill the topic, and take it once."""
    system.send(TOPIC, max(int(RECORDS * scale), 1_000))
    turn(system, -1)
    return system


def turn(system: Sink, number: int) -> Mapping[str, float]:
    """Records a second into a new table, seconds of lag, files."""
    table = f"orders{number + 1}"
    count = system.send(TOPIC, 1)
    began = time.perf_counter()
    with system.running(TOPIC, table):
        _until(system, table, count)
        rate = count / (time.perf_counter() - began)
        lags = []
        for _ in range(SINGLES):
            count = system.send(TOPIC, 1)
            began = time.perf_counter()
            _until(system, table, count)
            lags.append(time.perf_counter() - began)
    if (rows := system.counted(table)) != count:
        raise Failed(f"{rows:,} rows of {count:,} are there")
    return {RATE: rate, LAG: statistics.median(lags), FILES: system.files(table)}


def _until(system: Sink, table: str, count: int) -> None:
    ends = time.monotonic() + LIMIT_SECONDS
    while (rows := system.rows(table)) < count:
        if time.monotonic() > ends:
            raise Failed(f"{rows:,} rows of {count:,} are there after {LIMIT_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


WORKLOAD = Workload(
    title="Kafka to a table",
    what=(
        f"A topic of {kafka_sinks.PARTITIONS} partitions has {RECORDS:,} JSON records of about 200 bytes. The first row"
        " counts from the start of the job, connector or bridge process to the moment when a query sees all of them."
        f" Then {SINGLES} records are sent one after the other, each when the one before is seen. Every 50 ms the bench"
        " looks at the number of rows, which Lakestore's server and the newest snapshot of the others' tables know, and"
        " a query counts them at the end. Lakestore's tierer runs all the time. The data files are many where each"
        " record is a batch of its own."
    ),
    measures=(
        Measure(RATE, "records/s", cause=RATE_CAUSE),
        Measure(LAG, "s", LESS, 2),
        Measure(FILES, "files", LESS, 0),
    ),
    contestants=(kafka_sinks.LAKESTORE, kafka_sinks.SPARK, kafka_sinks.CONNECT),
    prepare=prepare,
    turn=turn,
)

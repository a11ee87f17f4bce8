"""Append of 1 KB rows to a log by one producer, of random bytes and of one letter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tests.bench.blobs import BATCH_ROWS, ROW_BYTES, TURN_BATCHES, random_blobs
from tests.bench.peers.contest import Measure, Workload
from tests.bench.peers.contestants import fluss, kafka, lakestore

WARM_BATCHES = 100
RANDOM, SAME = "rows of random bytes", "rows of one letter"
RANDOM_CAUSE = "Kafka's default and Fluss acknowledge rows in the page cache, Lakestore when they are on the disk."
SAME_CAUSE = (
    "Kafka's and Fluss's clients compress what they send, so their servers take and keep a fraction of the bytes."
    " Lakestore's client sends rows as they are, and the server syncs them before it compresses them for its segments."
)
Append = Callable[[int], float]


class Log(Protocol):
    """The methods that this workload calls on a system."""

    def log(self, name: str, batches: Sequence[Sequence[bytes]]) -> Append:
        """Make a log and return what appends so many of the batches, in seconds until all are acknowledged."""


def prepare(system: Log, scale: float) -> tuple[Mapping[str, Append], int]:
    """Two logs with some rows, by measure; and the batches of a turn."""
    logs = {
        RANDOM: system.log("random", random_blobs()),
        SAME: system.log("same", [[b"x" * ROW_BYTES] * BATCH_ROWS]),
    }
    count = max(int(TURN_BATCHES * scale), 1)
    for append in logs.values():
        append(min(WARM_BATCHES, count))
    return logs, count


def turn(stage: tuple[Mapping[str, Append], int], _: int) -> dict[str, float]:
    """Megabytes a second of each log."""
    logs, count = stage
    return {name: count * BATCH_ROWS * ROW_BYTES / 1e6 / append(count) for name, append in logs.items()}


WORKLOAD = Workload(
    title="Append to a log",
    what=(
        f"One producer appends {TURN_BATCHES * BATCH_ROWS:,} rows of {ROW_BYTES:,} bytes, 1 MB in each call, to a log"
        " of one bucket or partition. Each client sends as many of them together as it is set to (Lakestore: up to"
        " 8 MB). A turn ends when the last row is acknowledged."
    ),
    measures=(Measure(RANDOM, "MB/s", cause=RANDOM_CAUSE), Measure(SAME, "MB/s", cause=SAME_CAUSE)),
    contestants=(
        lakestore.CONTESTANT,
        kafka.contestant(kafka.THROUGHPUT, is_synced=True),
        kafka.contestant(kafka.THROUGHPUT, is_synced=False),
        fluss.contestant(),
    ),
    prepare=prepare,
    turn=turn,
    warm_rounds=3,
)

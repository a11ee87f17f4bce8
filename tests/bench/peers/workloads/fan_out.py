"""One producer, eight subscribers that each get all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tests.bench.blobs import BATCH_ROWS, ROW_BYTES, random_blobs
from tests.bench.peers.contest import Measure, Workload
from tests.bench.peers.contestants import fluss, kafka, lakestore

SUBSCRIBERS, BATCHES = 8, 64
TOGETHER = f"received by {SUBSCRIBERS} subscribers together"


class Fan(Protocol):
    """The methods that this workload calls on a system."""

    def fan(self, name: str, subscribers: int, batches: Sequence[Sequence[bytes]]) -> float:
        """Seconds until each subscriber of a new log has all rows of the batches."""


class Stage(NamedTuple):
    """A system and the rows of a turn."""

    system: Fan
    batches: Sequence[Sequence[bytes]]


def prepare(system: Fan, scale: float) -> Stage:
    """Warm the system up."""
    stage = Stage(system, random_blobs()[: max(int(BATCHES * scale), 1)])
    system.fan("warm", SUBSCRIBERS, stage.batches)
    return stage


def turn(stage: Stage, number: int) -> Mapping[str, float]:
    """Megabytes a second of all subscribers."""
    seconds = stage.system.fan(f"fan{number}", SUBSCRIBERS, stage.batches)
    return {TOGETHER: SUBSCRIBERS * len(stage.batches) * BATCH_ROWS * ROW_BYTES / 1e6 / seconds}


WORKLOAD = Workload(
    title="Fan-out",
    what=(
        f"One producer appends {BATCHES * BATCH_ROWS:,} random rows of {ROW_BYTES:,} bytes to a log, {SUBSCRIBERS}"
        " subscribers (in Kafka: consumer groups) follow it, all in one process. A turn ends when each has all rows."
        " The clients of Lakestore and Kafka are Python, Fluss's is Java."
    ),
    measures=(Measure(TOGETHER, "MB/s"),),
    contestants=(
        lakestore.CONTESTANT,
        kafka.contestant(kafka.THROUGHPUT, is_synced=True),
        kafka.contestant(kafka.THROUGHPUT, is_synced=False),
        fluss.contestant(),
    ),
    prepare=prepare,
    turn=turn,
    warm_rounds=2,
)

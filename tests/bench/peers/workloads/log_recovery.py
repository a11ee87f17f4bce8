"""From the start of a server that was killed by kill -9 to a log that takes an append and gives all rows back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tests.bench.blobs import BATCH_ROWS, ROW_BYTES, TURN_BATCHES, random_blobs
from tests.bench.peers.contest import LESS, Failed, Measure, Workload
from tests.bench.peers.contestants import kafka, lakestore

TABLE, APPEND, COUNT = "log", "start to first acknowledged append", "start to the count of all rows"
OPEN_BATCHES = 20


class RecoveringLog(Protocol):
    """The methods that this workload calls on a system."""

    def fill_log(self, name: str, batches: Sequence[Sequence[bytes]], count: int) -> int:
        """Make a log and append so many of the batches; the rows that it has."""

    def recover_log(self, name: str, batches: Sequence[Sequence[bytes]]) -> tuple[float, float, int]:
        """Append some batches and kill the server; seconds from its start to an acknowledged append and to a count,
        and the rows counted."""


class Stage(NamedTuple):
    """A filled system."""

    system: RecoveringLog
    batches: Sequence[Sequence[bytes]]
    rows: int


def prepare(system: RecoveringLog, scale: float) -> Stage:
    """Fill the log."""
    blobs = random_blobs()
    rows = system.fill_log(TABLE, blobs, max(int(TURN_BATCHES * scale), 1))
    return Stage(system, blobs[:OPEN_BATCHES], rows)


def turn(stage: Stage, number: int) -> Mapping[str, float]:
    """Seconds; then all acknowledged rows are there."""
    append, count, rows = stage.system.recover_log(TABLE, stage.batches)
    wanted = stage.rows + (number + 1) * (len(stage.batches) * BATCH_ROWS + 1)
    if rows != wanted:
        raise Failed(f"{rows:,} rows of {wanted:,} are there")
    return {APPEND: append, COUNT: count}


WORKLOAD = Workload(
    title="Recovery of a log after kill -9",
    what=(
        f"A log has {TURN_BATCHES * BATCH_ROWS:,} rows of {ROW_BYTES:,} bytes. {OPEN_BATCHES * BATCH_ROWS:,} more are"
        " appended, then the server is killed and started again. Times from the start of the process to the"
        " acknowledgement of the append of one row by a new client, and to the number of rows."
    ),
    measures=(Measure(APPEND, "s", LESS, 2), Measure(COUNT, "s", LESS, 2)),
    contestants=(
        lakestore.CONTESTANT,
        kafka.contestant(kafka.THROUGHPUT, is_synced=True, server=kafka.QUICK_SESSIONS),
        kafka.contestant(kafka.THROUGHPUT, is_synced=False, server=kafka.QUICK_SESSIONS),
    ),
    prepare=prepare,
    turn=turn,
)

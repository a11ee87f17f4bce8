"""Reads of one column of twenty, and of all twenty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tests.bench.peers.contest import Measure, Workload
from tests.bench.peers.contestants import fluss, kafka, lakestore

COLUMNS, BATCH_ROWS, BATCHES, TABLE = 20, 10_000, 100, "wide"
READS = {1: f"1 of {COLUMNS} columns", COLUMNS: f"all {COLUMNS} columns"}
Arrays = Sequence[npt.NDArray[np.float64]]


class Wide(Protocol):
    """The methods that this workload calls on a system."""

    def fill_wide(self, name: str, batches: Arrays) -> None:
        """Make a log with the rows of the arrays, whose columns are its columns."""

    def scan_wide(self, name: str, columns: int, count: int) -> float:
        """Seconds of a read of the first columns of all rows."""


def prepare(system: Wide, scale: float) -> tuple[Wide, int]:
    """Fill the log, and read it once."""
    chance, count = np.random.default_rng(15), max(int(BATCHES * scale), 1)
    system.fill_wide(TABLE, [chance.random((BATCH_ROWS, COLUMNS)) for _ in range(count)])
    for columns in READS:
        system.scan_wide(TABLE, columns, count * BATCH_ROWS)
    return system, count * BATCH_ROWS


def turn(stage: tuple[Wide, int], _: int) -> Mapping[str, float]:
    """Rows a second of each read."""
    system, count = stage
    return {name: count / system.scan_wide(TABLE, columns, count) for columns, name in READS.items()}


WORKLOAD = Workload(
    title="Column pruning",
    what=(
        f"One client reads a log of {BATCHES * BATCH_ROWS:,} rows with {COLUMNS} random doubles each, from its"
        " beginning to its end. The first column is summed. Fluss prunes columns in its server. Kafka has no"
        " columns: its consumer gets whole rows and need not decode them here. The clients of Lakestore and Kafka are"
        " Python, Fluss's is Java and gives row after row. Kafka's figure is the pace of its Python consumer, which"
        " makes an object of each row."
    ),
    measures=[Measure(name, "rows/s") for name in READS.values()],
    contestants=(lakestore.CONTESTANT, kafka.contestant(kafka.THROUGHPUT, is_synced=False), fluss.contestant()),
    prepare=prepare,
    turn=turn,
)

"""Small commits one after the other: 10 rows of 23 columns each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from tests.bench.peers.contest import LESS, Failed, Measure, Workload, percentiles
from tests.bench.peers.contestants import ducklake, lakestore, py_iceberg

ROWS, COLUMNS, TURN_COMMITS, WARM_COMMITS, TABLE = 10, 23, 333, 10, "small"
HALF, TAIL = "one commit, p50", "one commit, p99"
BATCH = pa.record_batch([list(range(ROWS))] * COLUMNS, names=[f"c{number}" for number in range(COLUMNS)])


class Commits(Protocol):
    """What a contestant of this workload does."""

    def commits(self, name: str, batch: pa.RecordBatch, count: int) -> list[float]:
        """Milliseconds of so many commits of a batch, one after the other. Makes the table if need be."""

    def count(self, name: str) -> int:
        """Rows of a table."""


class Stage(NamedTuple):
    """A system, and the commits of a turn."""

    system: Commits
    commits: int


def prepare(system: Commits, scale: float) -> Stage:
    """Make the table."""
    system.commits(TABLE, BATCH, WARM_COMMITS)
    return Stage(system, max(int(TURN_COMMITS * scale), 10))


def turn(stage: Stage, number: int) -> Mapping[str, float]:
    """Milliseconds of a commit."""
    values = percentiles(stage.system.commits(TABLE, BATCH, stage.commits))
    rows, wanted = stage.system.count(TABLE), (WARM_COMMITS + stage.commits * (number + 1)) * ROWS
    if rows != wanted:
        raise Failed(f"{rows:,} of {wanted:,} rows are there")
    return dict(zip((HALF, TAIL), values, strict=True))


WORKLOAD = Workload(
    title="Small commits",
    what=(
        f"One client commits {ROWS} rows of {COLUMNS} integers, {TURN_COMMITS} times in a turn, each commit after the"
        " last one is acknowledged. All turns go into one table. Nothing is compacted."
    ),
    measures=(Measure(HALF, "ms", LESS, 2), Measure(TAIL, "ms", LESS, 2)),
    contestants=(lakestore.CONTESTANT, ducklake.CONTESTANT, py_iceberg.APPENDS),
    prepare=prepare,
    turn=turn,
)

"""Small commits one after the other: 10 rows of 23 columns each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from tests.bench.peers.contest import LESS, Failed, Measure, Workload, percentiles
from tests.bench.peers.contestants import ducklake, lakestore, py_iceberg

ROWS, COLUMNS, TURN_COMMITS, WARM_COMMITS, TABLE = 10, 23, 333, 10, "small"
HALF, TAIL, SUMS = "one commit, p50", "one commit, p99", "nine aggregates over all rows"
KINDS = ("count(c0)", "sum(c1)", "avg(c2)", "min(c3)", "max(c4)", "sum(c5 * c6)", "count(DISTINCT c7)")
AGGREGATES = (*KINDS, "stddev(c8)", "sum(c9)")
READS = 5
CAUSE = (
    "A query asks the server for a cut and for the rows, and its text is read by two parsers. DuckLake keeps ten rows"
    " in its catalog, a DuckDB file of the same process."
)
BATCH = pa.record_batch([list(range(ROWS))] * COLUMNS, names=[f"c{number}" for number in range(COLUMNS)])


class Commits(Protocol):
    """The methods that this workload calls on a system."""

    def commits(self, name: str, batch: pa.RecordBatch, count: int) -> list[float]:
        """Milliseconds of so many commits of a batch, one after the other. Makes the table if need be."""

    def count(self, name: str) -> int:
        """Rows of a table."""

    def aggregates(self, name: str, columns: Sequence[str]) -> float:
        """Milliseconds of a query for such expressions over all rows of a table."""


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
    read = statistics.median(stage.system.aggregates(TABLE, AGGREGATES) for _ in range(READS))
    return {**dict(zip((HALF, TAIL), values, strict=True)), SUMS: read}


WORKLOAD = Workload(
    title="Small commits",
    what=(
        f"One client commits {ROWS} rows of {COLUMNS} integers, {TURN_COMMITS} times in a turn, each commit after the"
        " last one is acknowledged. All turns go into one table. Nothing is compacted. Then one query asks for nine"
        " aggregates of the columns over all rows, which includes the commits just made: Lakestore by `lake.sql`,"
        " DuckLake by its SQL, PyIceberg by a scan whose rows DuckDB aggregates."
    ),
    measures=(Measure(HALF, "ms", LESS, 2), Measure(TAIL, "ms", LESS, 2), Measure(SUMS, "ms", LESS, 1, CAUSE)),
    contestants=(lakestore.CONTESTANT, ducklake.CONTESTANT, py_iceberg.APPENDS),
    prepare=prepare,
    turn=turn,
)

"""500 small commits one after the other, of 10 rows of 23 columns each, and a query over them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from tests.bench.peers.contest import LESS, Failed, Measure, Workload, percentiles
from tests.bench.peers.contestants import ducklake, lakestore, py_iceberg

ROWS, COLUMNS, COMMITS, PART = 10, 23, 500, 10
HALF, TAIL, SUMS = "one commit, p50", "one commit, p99", "nine aggregates over all rows"
FIRST, LAST, GROWTH = "the first 50 commits, median", "the last 50 commits, median", "the last 50 over the first 50"
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
        """Milliseconds of so many commits of a batch into a new table, one after the other."""

    def count(self, name: str) -> int:
        """Rows of a table."""

    def aggregates(self, name: str, columns: Sequence[str]) -> float:
        """Milliseconds of a query for such expressions over all rows of a table."""


def prepare(system: Commits, scale: float) -> tuple[Commits, int]:
    """Warm the system up with a table of its own."""
    system.commits("warm", BATCH, PART)
    system.aggregates("warm", AGGREGATES)
    return system, max(int(COMMITS * scale), 2 * PART)


def turn(stage: tuple[Commits, int], number: int) -> Mapping[str, float]:
    """Milliseconds of a commit of a new table, and of the query."""
    system, count = stage
    name = f"small{number}"
    took = system.commits(name, BATCH, count)
    if (rows := system.count(name)) != count * ROWS:
        raise Failed(f"{rows:,} of {count * ROWS:,} rows are there")
    tenth = count // PART
    first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
    growth = {FIRST: first, LAST: last, GROWTH: last / first}
    read = statistics.median(system.aggregates(name, AGGREGATES) for _ in range(READS))
    return {**dict(zip((HALF, TAIL), percentiles(took), strict=True)), **growth, SUMS: read}


WORKLOAD = Workload(
    title="Small commits",
    what=(
        f"One client makes {COMMITS} commits of {ROWS} rows of {COLUMNS} integers in a new table, each after the last"
        " one is acknowledged. Nothing is compacted and no snapshot expires. Then one query asks for nine aggregates of"
        " the columns over all rows, which includes the commits just made: Lakestore by `lake.sql`, DuckLake by its"
        " SQL, PyIceberg by a scan whose rows DuckDB aggregates."
    ),
    measures=(
        *(Measure(name, "ms", LESS, 2) for name in (HALF, TAIL, FIRST, LAST)),
        Measure(GROWTH, "times", LESS, 2, "Neither grows by more than a few percent in 500 commits."),
        Measure(SUMS, "ms", LESS, 1, CAUSE),
    ),
    contestants=(lakestore.CONTESTANT, ducklake.CONTESTANT, py_iceberg.APPENDS),
    prepare=prepare,
    turn=turn,
)

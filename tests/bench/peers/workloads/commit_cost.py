"""500 small commits of one table, one after the other: does a later commit take longer than an early one?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from tests.bench.peers.contest import LESS, Failed, Measure, Workload
from tests.bench.peers.contestants import ducklake, lakestore, py_iceberg
from tests.bench.peers.workloads.small_writes import BATCH, ROWS, Commits

COMMITS, PART = 500, 10
FIRST, LAST, GROWTH = "the first tenth, median", "the last tenth, median", "the last tenth over the first"


def prepare(system: Commits, scale: float) -> tuple[Commits, int]:
    """Warm the system up with a table of its own."""
    system.commits("warm", BATCH, PART)
    return system, max(int(COMMITS * scale), 2 * PART)


def turn(stage: tuple[Commits, int], number: int) -> Mapping[str, float]:
    """Milliseconds of a commit of a new table."""
    system, count = stage
    name = f"cost{number}"
    took = system.commits(name, BATCH, count)
    if (rows := system.count(name)) != count * ROWS:
        raise Failed(f"{rows:,} of {count * ROWS:,} rows are there")
    tenth = count // PART
    first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
    return {FIRST: first, LAST: last, GROWTH: last / first}


WORKLOAD = Workload(
    title="Cost of a commit over 500 commits",
    what=(
        f"One client makes {COMMITS} commits of {ROWS} rows of 23 integers in a new table, one after the other. Nothing"
        " is compacted and no snapshot expires. The last row says how a commit's time grows with the commits before it."
    ),
    measures=(Measure(FIRST, "ms", LESS, 2), Measure(LAST, "ms", LESS, 2), Measure(GROWTH, "times", LESS, 2)),
    contestants=(lakestore.CONTESTANT, ducklake.CONTESTANT, py_iceberg.APPENDS),
    prepare=prepare,
    turn=turn,
)

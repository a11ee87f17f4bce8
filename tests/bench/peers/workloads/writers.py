"""Eight writers that commit small batches to one table at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from tests.bench.peers.contest import LESS, Failed, Measure, Workload, percentiles
from tests.bench.peers.contestants import ducklake, lakestore
from tests.bench.peers.workloads.small_writes import BATCH, ROWS

WRITERS, COMMITS = 8, 100
RATE, HALF, TAIL = "commits of all writers", "one commit, p50", "one commit, p99"
CAUSE = "A DuckLake writer that loses a race waits 100 ms and more, and leaves the two cores to the others meanwhile."


class Writers(Protocol):
    """The methods that this workload calls on a system."""

    def together(self, name: str, batch: pa.RecordBatch, writers: int, count: int) -> tuple[list[float], float]:
        """Milliseconds of each commit of a new table by so many writers with `count` commits each, and the seconds of
        all of them. Raises `Failed` if a commit is refused."""

    def count(self, name: str) -> int:
        """Rows of a table."""


class Stage(NamedTuple):
    """A system, and the commits of a writer."""

    system: Writers
    commits: int


def prepare(system: Writers, scale: float) -> Stage:
    """Warm the system up."""
    stage = Stage(system, max(int(COMMITS * scale), 5))
    system.together("warm", BATCH, WRITERS, 5)
    return stage


def turn(stage: Stage, number: int) -> Mapping[str, float]:
    """Commits a second, and milliseconds of one."""
    name = f"together{number}"
    took, seconds = stage.system.together(name, BATCH, WRITERS, stage.commits)
    rows, wanted = stage.system.count(name), WRITERS * stage.commits * ROWS
    if rows != wanted:
        raise Failed(f"{rows:,} of {wanted:,} rows are there")
    half, tail = percentiles(took)
    return {RATE: len(took) / seconds, HALF: half, TAIL: tail}


WORKLOAD = Workload(
    title="Eight writers of one table",
    what=(
        f"{WRITERS} clients, each with a connection of its own, commit {ROWS} rows of 23 integers to one new table,"
        f" {COMMITS} times each. A commit that loses a race is tried again by the system; its time counts as one."
        " DuckLake's catalog is in PostgreSQL, for its catalog in a DuckDB file takes one process (ducklake #1094"
        " reports the races of several writers)."
    ),
    measures=(Measure(RATE, "commits/s"), Measure(HALF, "ms", LESS, 2, CAUSE), Measure(TAIL, "ms", LESS, 2)),
    contestants=(lakestore.CONTESTANT, ducklake.ON_POSTGRES),
    prepare=prepare,
    turn=turn,
)

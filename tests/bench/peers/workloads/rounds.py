"""Ten rounds of changes, and what a scan costs afterwards."""

from __future__ import annotations

import statistics

from tests.bench.orders import MILLION, told
from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import ducklake, lakestore_lake, paimon, spark_iceberg
from tests.bench.peers.order_changes import OrderLake, OrderTable

ROWS, CHANGED, ROUNDS, SCANS = MILLION, 10_000, 10, 3
ROUND, SLOWEST, ALL = "a round, median of the ten", "the slowest of them", "all ten rounds"
BEFORE, AFTER, GROWTH = "scan before", "scan afterwards", "scan afterwards over before"
CAUSE = (
    "DuckLake's merge is one statement in one process of DuckDB. A round of Lakestore asks the server for the changes,"
    " writes files and commits to a catalog. It was not taken apart beside Paimon."
)
SLOWEST_CAUSE = "The tierer compacts in some rounds. Iceberg's users call that themselves."
SCAN_CAUSE = "DuckDB scans DuckLake in milliseconds. Why Spark scans Iceberg's own tables sooner is not known yet."


def prepare(system: OrderLake, scale: float) -> tuple[OrderLake, int, int]:
    """A turn fills a table of its own."""
    return system, int(ROWS * scale), int(CHANGED * scale)


def turn(stage: tuple[OrderLake, int, int], number: int) -> dict[str, float]:
    """Seconds of rounds and scans of a new table."""
    system, rows, changed = stage
    table = OrderTable(system, rows, changed, suffix=f"_{number}")
    before = statistics.median(table.scan() for _ in range(SCANS))
    took = [change.in_lake for _ in range(ROUNDS) if (change := table.change()) is not None]
    after = statistics.median(table.scan() for _ in range(SCANS))
    rounds = {ROUND: statistics.median(took), SLOWEST: max(took), ALL: sum(took)}
    return {**rounds, BEFORE: before, AFTER: after, GROWTH: after / before}


WORKLOAD = Workload(
    title="Rounds of changes and the scan afterwards",
    what=(
        f"Ten changes of 1 % of the rows, uniformly chosen, go into a table of {told(ROWS)} orders one after another,"
        " until the files of the lake have them. Before and afterwards the table is scanned for three sums, without"
        " anything hot, by Spark or, of DuckLake, by DuckDB. Nobody calls a compaction; what a system does by itself"
        " within a round counts."
    ),
    measures=(
        Measure(ROUND, "s", LESS, 2, CAUSE),
        Measure(SLOWEST, "s", LESS, 2, SLOWEST_CAUSE),
        Measure(ALL, "s", LESS, 2, CAUSE),
        Measure(BEFORE, "s", LESS, 2, SCAN_CAUSE),
        Measure(AFTER, "s", LESS, 2, SCAN_CAUSE),
        Measure(GROWTH, "times", LESS, 2, "Paimon merges sorted runs in a scan, before the ten rounds too."),
    ),
    contestants=(
        lakestore_lake.CONTESTANT,
        spark_iceberg.contestant(2),
        spark_iceberg.contestant(3),
        paimon.CONTESTANT,
        ducklake.CONTESTANT,
    ),
    prepare=prepare,
    turn=turn,
)

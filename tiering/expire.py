"""Snapshot expiry, files included. Tags stay: `lakestore-tier`, and the pins of readers."""

from __future__ import annotations

import time
from collections.abc import Callable

from lakestore.schema import Table
from lakestore.spark.union import lake_name
from lakestore.tiering.iceberg import Iceberg, java_errors
from lakestore.tiering.lake import Round

SNAPSHOTS_KEPT = 20
SNAPSHOT_SECONDS_KEPT = 3600.0
"""Younger snapshots stay, however many there are."""


def expire(
    tools: Round,
    table: Table,
    *,
    keep_last: int = SNAPSHOTS_KEPT,
    keep_seconds: float = SNAPSHOT_SECONDS_KEPT,
    clock: Callable[[], float] = time.time,
) -> int:
    """Expire what is older than `keep_seconds` and not among the last `keep_last`; how many snapshots went."""
    with java_errors():
        lake = Iceberg(tools.spark, lake_name(table))
        before = lake.snapshot_count()
        if before <= keep_last:
            return 0
        older_than = int((clock() - keep_seconds) * 1000)
        lake.table.expireSnapshots().expireOlderThan(older_than).retainLast(keep_last).commit()
        lake.refresh()
        tools.crash("expired")
        return before - lake.snapshot_count()

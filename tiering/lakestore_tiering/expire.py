"""Snapshot expiry, files included. Snapshots that a tag, a branch or a reader's lease names stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore_spark.union import lake_name
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.round import Round

SNAPSHOTS_KEPT = 20
SNAPSHOT_SECONDS_KEPT = 3600.0


def expire(
    tools: Round,
    table: Table,
    *,
    keep_last: int = SNAPSHOTS_KEPT,
    keep_seconds: float = SNAPSHOT_SECONDS_KEPT,
    clock: Callable[[], float] = time.time,
) -> int:
    """Expire snapshots older than `keep_seconds` and not among main's last `keep_last`; the number of expired ones."""
    with java_errors():
        lake = Iceberg(tools.spark, lake_name(table))
        kept = {int(snapshot.snapshotId()) for snapshot in islice(lake.ancestry(), keep_last)} | lake.referenced()
        older_than_ms = (clock() - keep_seconds) * 1000
        gone = [number for number, made_ms in lake.snapshots() if made_ms < older_than_ms and number not in kept]
        count = _expire(lake, gone)
        tools.crash("expired")
        return count


def _expire(lake: Iceberg, snapshots: Sequence[int]) -> int:
    """Expire the snapshots, except for the ones that the catalog refuses because a reader holds them; their number.

    A refusal does not say which snapshot is held, so the list is halved until each part is taken or is a single one.
    """
    if not snapshots:
        return 0
    update = lake.table.expireSnapshots().expireOlderThan(0)
    for number in snapshots:
        update = update.expireSnapshotId(number)
    try:
        with java_errors():
            update.commit()
    except Invalid:
        lake.refresh()
        if len(snapshots) == 1:
            return 0
        half = len(snapshots) // 2
        return _expire(lake, snapshots[:half]) + _expire(lake, snapshots[half:])
    lake.refresh()
    return len(snapshots)

"""Snapshot expiry, files included. Snapshots that a tag, a branch or a reader's lease names stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.round import Round

SNAPSHOTS_KEPT = 20
"""Number of main's newest snapshots that stay whatever their age."""
SNAPSHOTS_KEPT_MAX = 100
"""Number of main's newest snapshots behind which the others go whatever their age: each round writes metadata anew."""
SNAPSHOT_SECONDS_KEPT = 3600.0


def expire(
    tools: Round,
    table: Table,
    *,
    keep_last: int = SNAPSHOTS_KEPT,
    keep_most: int = SNAPSHOTS_KEPT_MAX,
    keep_seconds: float = SNAPSHOT_SECONDS_KEPT,
    clock: Callable[[], float] = time.time,
) -> int:
    """Expire snapshots older than `keep_seconds` and not among main's last `keep_last`, and all but `keep_most`.

    The number of expired ones.
    """
    with java_errors():
        lake, _ = tools.standing(table.name)
        main = [int(snapshot.snapshotId()) for snapshot in lake.ancestry()]
        kept, many = set(main[:keep_last]) | lake.referenced(), set(main[keep_most:])
        older_than_ms = (clock() - keep_seconds) * 1000
        gone = [
            number
            for number, made_ms in lake.snapshots()
            if number not in kept and (made_ms < older_than_ms or number in many)
        ]
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

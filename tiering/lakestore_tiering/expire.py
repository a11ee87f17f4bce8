"""Snapshot expiry, files included. Snapshots that a tag, a branch or a reader's lease names stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.round import Round

SNAPSHOTS_KEPT = 20
"""Number of main's newest snapshots that stay whatever their age, unless the table keeps fewer."""


def expire(
    tools: Round,
    table: Table,
    *,
    keep_last: int | None = None,
    keep_seconds: float | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Expire snapshots older than the table's `snapshot_seconds` and not among main's last, and all but `snapshots`.

    The number of expired ones. Each round writes all metadata anew, so its size is bounded by number as well as by age.
    """
    newest = min(SNAPSHOTS_KEPT, table.lake.snapshots) if keep_last is None else keep_last
    older_than_ms = (clock() - (table.lake.snapshot_seconds if keep_seconds is None else keep_seconds)) * 1000
    with tools.turn_of(table), java_errors():
        seen, count = tools.seen(table), 0
        if seen is None or _gone(seen, newest, table.lake.snapshots, older_than_ms):
            lake, _ = tools.standing(table)
            count = _expire(lake, _gone(lake, newest, table.lake.snapshots, older_than_ms))
        tools.crash("expired")
        return count


def _gone(lake: Iceberg, newest: int, most: int, older_than_ms: float) -> list[int]:
    """The snapshots that may go: beyond main's `most` last, or old and not among its `newest`."""
    main = [int(snapshot.snapshotId()) for snapshot in lake.ancestry()]
    kept, many = set(main[:newest]) | lake.referenced(), set(main[most:])
    return [
        number
        for number, made_ms in lake.snapshots()
        if number not in kept and (made_ms < older_than_ms or number in many)
    ]


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
    return len(snapshots)

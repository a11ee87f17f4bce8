"""The tools of a round: the session, the server, the epoch, and a memory of each table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from lakestore import limits
from lakestore.client.transport import Transport
from lakestore.errors import Conflict, LakestoreError, Unavailable
from lakestore.union import plan
from lakestore.union.plan import ReadPlan, TableScan
from lakestore_spark.hot_rows import Hot
from lakestore_spark.union import lake_name
from lakestore_tiering.dead_rows import OffsetIndexes
from lakestore_tiering.iceberg_java import Iceberg
from lakestore_tiering.live_files import LiveFiles
from lakestore_tiering.record import Record

STANDING_ATTEMPTS = 5
STAGE, COMPACT = "lakestore_stage_", "lakestore_compact_"
"""Prefixes of our branches, before the epoch and a random end."""


def no_crash(point: str) -> None:
    """Nothing: the crash point of a round outside tests."""


@dataclass(slots=True)
class TableMemory:
    """The memory of a table between rounds; all of it can be read again."""

    files: LiveFiles = field(default_factory=LiveFiles)
    indexes: OffsetIndexes = field(default_factory=OffsetIndexes)


@dataclass(slots=True)
class Round:
    """The tools that the steps of a round share."""

    spark: SparkSession
    transport: Transport
    hot: Hot
    epoch: Callable[[], int]
    """The epoch now held, or `Fenced`."""
    confirm: Callable[[], None]
    """Ask the server whether the epoch is still held; `Fenced` if not."""
    crash: Callable[[str], None] = no_crash
    """Called with the name of each finished step; tests raise or kill there."""
    known: dict[str, TableMemory] = field(default_factory=dict)
    """Table uuid to its memory."""

    def plan(self, name: str) -> ReadPlan:
        """One cut of one table, leased."""
        asked = plan.request([name], lease_seconds=limits.LEASE_SECONDS_DEFAULT)
        return plan.decode(self.transport.plan(asked))

    def of(self, scan: TableScan) -> TableMemory:
        """The memory of a table."""
        return self.known.setdefault(scan.table.uuid, TableMemory())

    def open(self, scan: TableScan) -> tuple[Iceberg, Record]:
        """The lake table and its tier record, which must be the plan's."""
        lake = Iceberg(self.spark, lake_name(scan.table))
        record = _planned(lake, scan)
        if record is None or record.tier_point != tuple(part.tier_point for part in scan.buckets):
            raise Unavailable(f"the lake of table {scan.table.name} moved since the plan: plan again")
        return lake, record

    def standing(self, lake: Iceberg, name: str) -> Record:
        """The tier record of the lake table's main as it is now."""
        for _ in range(STANDING_ATTEMPTS):
            lake.refresh()
            asked = plan.request([name], no_dead=True)
            found = _planned(lake, plan.decode(self.transport.plan(asked)).scan(name))
            if found is not None:
                return found
        raise Unavailable(f"the lake of table {name} moves faster than it can be looked at: try again")

    def failed(self, lake: Iceberg, name: str, before: Record, error: LakestoreError) -> LakestoreError:
        """The error of a commit that failed: `Fenced` if another tierer took over, else `Conflict` if main moved.

        Main may also have moved by a late commit of our own, whose answer was lost in an earlier round.
        """
        self.confirm()
        try:
            now = self.standing(lake, name)
        except LakestoreError:
            return error
        if now.tier_point != before.tier_point:
            return Conflict(f"the lake table {lake.name} moved since the plan: plan again")
        return error


def _planned(lake: Iceberg, scan: TableScan) -> Record | None:
    """The tier record of main as a plan gives it; None if main is not at a snapshot that the plan knows.

    Iceberg's history is asked only where there is no journal to ask, for another engine's expiry cuts it.
    """
    if scan.tier is None:
        return lake.record() or Record.empty(scan.table.buckets)
    return Record.of(scan.tier) if lake.current_id() in scan.tier.snapshot_ids else None

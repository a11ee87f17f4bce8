"""The tools of a round: the session, the server, the epoch, and a memory of each table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from lakestore.client.transport import Transport
from lakestore.errors import Conflict, LakestoreError, NotFound, Unavailable
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.model.names import VERSION_MARK
from lakestore.model.table import Table
from lakestore.union import plan
from lakestore.union.plan import ReadPlan, TableScan
from lakestore_spark.leases import LEASE_SECONDS, SessionLeases
from lakestore_spark.session import LAKE
from lakestore_spark.types import quoted
from lakestore_tiering.hot_rows import Hot
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.live_files import LiveFiles
from lakestore_tiering.record import Record


def lake_name(table: Table) -> str:
    """The lake table's name in Spark SQL."""
    return f"{LAKE}.{quoted(table.namespace)}.{quoted(table.short_name)}"


def version_name(table: Table) -> str:
    """The name under which the catalog gives the lake table with this schema version, before main has it."""
    return f"{LAKE}.{quoted(table.namespace)}.{quoted(f'{table.short_name}{VERSION_MARK}{table.schema_id}')}"


STANDING_ATTEMPTS = 5
_VERSIONS_SINCE = 2
"""Protocol of the first server whose catalog shows the versions of a table's schema."""
STAGE, COMPACT = "lakestore_stage_", "lakestore_compact_"
"""Prefixes of our branches, before the epoch and a random end."""


class StopAsked(Exception):
    """The service was told to stop before a step began its Spark job."""


def no_crash(point: str) -> None:
    """Nothing: the crash point of a round outside tests."""


@dataclass(slots=True)
class TableMemory:
    """The memory of a table between rounds; all of it can be read again."""

    files: LiveFiles = field(default_factory=LiveFiles)
    lake: Iceberg | None = None
    """The lake table as it was loaded or committed last; None after a step that failed."""
    turn: threading.RLock = field(default_factory=threading.RLock)
    """Held by the one step that works on the table. Taken again by a step within a step, as in tests."""


@dataclass(slots=True)
class Round:
    """The tools that the steps of all rounds share. Rounds of several tables run in several threads."""

    spark: SparkSession
    transport: Transport
    hot: Hot
    leases: SessionLeases
    """The leases of the rounds under way, renewed for as long as they take."""
    epoch: Callable[[], int]
    """The epoch now held, or `Fenced`."""
    confirm: Callable[[], None]
    """Ask the server whether the epoch is still held; `Fenced` if not."""
    crash: Callable[[str], None] = no_crash
    """Called with the name of each finished step; tests raise or kill there."""
    indexes: OffsetCache = field(default_factory=OffsetCache)
    """Offset indexes of all tables, by table uuid."""
    spark_turn: threading.RLock = field(default_factory=threading.RLock)
    """Held while a round has a job of Spark's: each takes all cores, and the memory of several might not suffice.

    Taken again by a step that flushes in the midst of a rewrite, as tests do."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the service is told to stop: no step begins a Spark job from then on."""
    known: dict[str, TableMemory] = field(default_factory=dict)
    """Table uuid to its memory."""
    forks: dict[str, str] = field(default_factory=dict)
    """Table uuid to the branch of its compaction under way."""
    swept: set[str] = field(default_factory=set)
    """Uuids of the tables whose branches this tierer has looked at."""

    def plan(self, name: str) -> ReadPlan:
        """One cut of one table, leased until `leases.release`."""
        made = plan.decode(self.transport.plan(plan.request([name], lease_seconds=LEASE_SECONDS)))
        self.leases.hold(made.lease)
        return made

    def of(self, scan: TableScan) -> TableMemory:
        """The memory of a table."""
        return self.known.setdefault(scan.table.uuid, TableMemory())

    @contextmanager
    def sparks_turn(self) -> Iterator[None]:
        """Hold `spark_turn`; `StopAsked` if the service was told to stop while the step waited for it."""
        with self.spark_turn:
            if self.stop.is_set():
                raise StopAsked
            yield

    @contextmanager
    def turn_of(self, table: Table) -> Iterator[None]:
        """Hold the turn of a table for one step.

        Two steps can meet at one table although each table has one round at a time: flushes go by names, and a rename
        gives the table another round's name. After a step that failed the lake table is loaded again, for the kept one
        may be the cause.
        """
        memory = self.known.setdefault(table.uuid, TableMemory())
        with memory.turn:
            try:
                yield
            except BaseException:
                memory.lake = None
                raise

    def seen(self, table: Table) -> Iceberg | None:
        """The lake table as this tierer saw it last, which may be before another engine's commit; None if never."""
        memory = self.known.get(table.uuid)
        return memory.lake if memory else None

    def open(self, scan: TableScan) -> tuple[Iceberg, Record]:
        """The lake table and its tier record, which must be the plan's. Branches that nobody works on go."""
        lake = self._kept(scan)
        record = _planned(lake, scan)
        if record is None or record.tier_point != tuple(part.tier_point for part in scan.buckets):
            raise Unavailable(f"the lake of table {scan.table.name} moved since the plan: plan again")
        self._sweep(lake, scan.table.uuid)
        return lake, record

    def _kept(self, scan: TableScan) -> Iceberg:
        """The lake table at the plan's metadata file or a later one, loaded only if it has moved since it was seen."""
        memory = self.of(scan)
        kept = memory.lake
        name = self.lake_name(scan.lake_table)
        if kept is None or kept.name != name or kept.metadata_location() != scan.metadata_location:
            kept = memory.lake = self.lake(scan.lake_table)
        return kept

    def sweep_once(self, table: Table) -> None:
        """Remove what earlier tierers left of a table, also of one without hot rows."""
        if table.uuid not in self.swept:
            with self.turn_of(table), java_errors():
                self._sweep(self.standing(table)[0], table.uuid)

    def lake(self, version: Table) -> Iceberg:
        """The lake table with the schema of a version, and with no property but Lakestore's own.

        `NotFound` if another table has the name now.
        """
        lake = Iceberg(self.spark, self.lake_name(version))
        _check_same(version, lake.uuid())
        return lake

    def lake_name(self, version: Table) -> str:
        """The lake table's name in Spark with the schema of a version."""
        knows = self.transport.server.protocol >= _VERSIONS_SINCE
        return version_name(version) if knows else lake_name(version)

    def discard_staged(self, lake: Iceberg, snapshot: int | None, files: Sequence[str]) -> None:
        """Remove the manifests of a staged snapshot, which the catalog has dropped as its files landed."""
        if snapshot is None or lake.table.snapshot(snapshot) is not None:
            return
        for path in files:
            lake.table.io().deleteFile(path)

    def _sweep(self, lake: Iceberg, table_uuid: str) -> None:
        """Remove the branches that this epoch or an earlier one left behind; a later one's are not ours to judge."""
        for branch in (*lake.branches(STAGE), *lake.branches(COMPACT)):
            working = self.forks.get(table_uuid)
            number = branch.removeprefix(STAGE).removeprefix(COMPACT).split("_")[0]
            if branch != working and number.isdecimal() and int(number) <= self.epoch():
                lake.drop_branch(branch)
        self.swept.add(table_uuid)

    def standing(self, table: Table) -> tuple[Iceberg, Record]:
        """The lake table and the tier record of its main as they are now; `NotFound` if another table has its name."""
        for _ in range(STANDING_ATTEMPTS):
            scan = plan.decode(self.transport.plan(plan.request([table.name], no_dead=True))).scan(table.name)
            _check_same(table, scan.table.uuid)
            lake = self.of(scan).lake = self.lake(scan.lake_table)
            found = _planned(lake, scan)
            if found is not None:
                return lake, found
        raise Unavailable(f"the lake of table {table.name} moves faster than it can be looked at: try again")

    def failed(self, table: Table, before: Record, error: LakestoreError) -> LakestoreError:
        """The error of a commit that failed: `Fenced` if another tierer took over, else `Conflict` if main moved.

        Main may also have moved by a late commit of our own, whose answer was lost in an earlier round.
        """
        self.confirm()
        try:
            now = self.standing(table)[1]
        except LakestoreError:
            return error
        if now.tier_point != before.tier_point:
            return Conflict(f"the lake of table {table.name} moved since the plan: plan again")
        return error


def _check_same(table: Table, uuid: str) -> None:
    """Refuse the answer to a question by name if it is of another table: the table was renamed after it was listed."""
    if uuid != table.uuid:
        raise NotFound(f"table {table.name} was renamed, and another table has its name now: the next round knows both")


def _planned(lake: Iceberg, scan: TableScan) -> Record | None:
    """The tier record of main as a plan gives it; None if main is not at a snapshot that the plan knows.

    Iceberg's history is asked only where there is no journal to ask, for another engine's expiry cuts it.
    """
    if scan.tier is None:
        return lake.record() or Record.empty(scan.table.buckets)
    return Record.of(scan.tier) if lake.current_id() in scan.tier.snapshot_ids else None

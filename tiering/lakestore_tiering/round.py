"""The tools of a round: session, server, epoch, and a memory of each table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from lakestore.client.transport import Transport
from lakestore.errors import Conflict, LakestoreError, NotFound, Unavailable
from lakestore.iceberg.cache import DerivedCache
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.model.names import VERSION_MARK
from lakestore.model.table import Table
from lakestore.union import plan
from lakestore.union.plan import ReadPlan, TableScan
from lakestore.union.tier_record import Record
from lakestore_spark.leases import LEASE_SECONDS, SessionLeases
from lakestore_spark.session import LAKE
from lakestore_spark.types import quote_name
from lakestore_tiering.debts import TableDebts
from lakestore_tiering.hot_rows import Hot
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.live_files import LiveFiles, MainFiles
from lakestore_tiering.progress import RoundProgress
from lakestore_tiering.schedule import Places


def lake_name(table: Table) -> str:
    """The lake table's name in Spark SQL."""
    return f"{LAKE}.{quote_name(table.namespace)}.{quote_name(table.short_name)}"


def version_name(table: Table) -> str:
    """Catalog name of the lake table with this schema version, before main has it."""
    return f"{LAKE}.{quote_name(table.namespace)}.{quote_name(f'{table.short_name}{VERSION_MARK}{table.schema_id}')}"


STANDING_ATTEMPTS = 5
ROUNDS_AT_ONCE = 4
"""Rounds with a place: one waits for the server while another prepares its commit."""
STAGE, COMPACT = "lakestore_stage_", "lakestore_compact_"
"""Prefixes of our branches. The epoch and a random suffix follow."""


class StopAsked(Exception):
    """The service was stopped before a step began its Spark job."""


def no_crash(point: str) -> None:
    """Does nothing: the crash point outside tests."""


@dataclass(slots=True)
class TableMemory:
    """The memory of a table between rounds. All of it can be read again."""

    files: LiveFiles = field(default_factory=LiveFiles)
    lake: Iceberg | None = None
    """The lake table as last loaded or committed; None after a failed step."""
    turn: threading.RLock = field(default_factory=threading.RLock)
    """Held by the one step that works on the table. Reentrant for a step inside a step, as in tests."""


@dataclass(slots=True)
class Round:
    """Tools shared by the steps of all rounds, which run in several threads."""

    spark: SparkSession
    transport: Transport
    hot: Hot
    leases: SessionLeases
    epoch: Callable[[], int]
    """Returns the epoch. Raises `Fenced`."""
    confirm: Callable[[], None]
    """Asks the server about the epoch. Raises `Fenced`."""
    crash: Callable[[str], None] = no_crash
    """Called with the name of each finished step; tests raise or kill there."""
    indexes: OffsetCache = field(default_factory=OffsetCache)
    """Offset indexes of all tables, by table uuid."""
    derived: DerivedCache = field(default_factory=DerivedCache)
    """The cache of manifests as columns."""
    spark_turn: threading.RLock = field(default_factory=threading.RLock)
    """Held during a Spark job: a job takes all cores, and memory may not suffice for several.

    Reentrant for a flush during a rewrite, as in tests.
    """
    places: Places = field(default_factory=lambda: Places(ROUNDS_AT_ONCE))
    """A round holds a place, but not while it waits for Spark or uses it."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the service is stopped. No step begins a Spark job afterwards."""
    known: dict[str, TableMemory] = field(default_factory=dict)
    forks: dict[str, str] = field(default_factory=dict)
    """Table uuid to the branch of its running compaction."""
    progress: RoundProgress = field(default_factory=RoundProgress)
    debts: TableDebts = field(default_factory=TableDebts)
    """The debts of all tables' upkeep."""
    erased: dict[str, tuple[str, frozenset[int]]] = field(default_factory=dict)
    """Table uuid to the id of the last erasure whose files were rewritten, and the snapshots from before."""
    swept: set[str] = field(default_factory=set)
    """Uuids of the tables whose old branches were removed."""

    def plan(self, name: str, changes_max: int = 0, hot_bytes_max: int = 0) -> ReadPlan:
        """One cut of one table, leased until `leases.release`. The bounds are for its hot offsets."""
        request = plan.request(
            [name], lease_seconds=LEASE_SECONDS, changes_max=changes_max, hot_bytes_max=hot_bytes_max
        )
        made = plan.decode(self.transport.plan(request))
        self.leases.hold(made.lease)
        return made

    def of(self, scan: TableScan) -> TableMemory:
        return self.known.setdefault(scan.table.uuid, TableMemory())

    @contextmanager
    def sparks_turn(self) -> Iterator[None]:
        """Hold `spark_turn`. Raises `StopAsked` if the service was stopped meanwhile."""
        with self.places.lent(), self.spark_turn:
            if self.stop.is_set():
                raise StopAsked
            yield

    @contextmanager
    def turn_of(self, table: Table) -> Iterator[None]:
        """Hold a table's turn for one step.

        Two steps can meet at one table, because flushes go by name and a rename gives a table the name of another
        round. After a failed step the lake table is loaded again, because the kept one may be the cause. An error of
        the storage is `Unavailable`: the next round tries again.
        """
        memory = self.known.setdefault(table.uuid, TableMemory())
        with memory.turn:
            try:
                yield
            except OSError as error:
                memory.lake = None
                told = str(error).split("\n")[0]
                raise Unavailable(f"the files of table {table.name} cannot be used now: {told}") from error
            except BaseException:
                memory.lake = None
                raise

    def main_files(self, table: Table, lake: Iceberg) -> MainFiles:
        """The files of a table's main. Indexes of files that left it are removed."""
        files = self.known.setdefault(table.uuid, TableMemory()).files
        main = files.at_main(lake, self.derived)
        self.indexes.forget(table.uuid, files.removed_paths())
        return main

    def last_seen(self, table: Table) -> Iceberg | None:
        """The lake table as last seen; another engine may have committed since. None if it was never seen."""
        memory = self.known.get(table.uuid)
        return memory.lake if memory else None

    def open(self, scan: TableScan) -> tuple[Iceberg, Record]:
        """The lake table and its tier record, which must equal the plan's. Abandoned branches are removed."""
        lake = self._kept(scan)
        record = _planned(lake, scan)
        if record is None or record.tier_point != tuple(part.tier_point for part in scan.buckets):
            raise Unavailable(f"the lake of table {scan.table.name} moved since the plan: plan again")
        self._sweep(lake, scan.table.uuid)
        return lake, record

    def _kept(self, scan: TableScan) -> Iceberg:
        memory = self.of(scan)
        kept = memory.lake
        name = self.lake_name(scan.lake_table)
        if kept is None or kept.name != name or kept.metadata_location() != scan.metadata_location:
            kept = memory.lake = self.lake(scan.lake_table)
        return kept

    def sweep_once(self, table: Table) -> None:
        """Remove an earlier tierer's leftovers of a table, also without hot rows."""
        if table.uuid not in self.swept:
            with self.turn_of(table), java_errors():
                self._sweep(self.standing(table)[0], table.uuid)

    def lake(self, version: Table) -> Iceberg:
        """The lake table with a version's schema and Lakestore's properties. `NotFound` for another table."""
        lake = Iceberg(self.spark, self.lake_name(version))
        _check_same(version, lake.uuid())
        return lake

    def lake_name(self, version: Table) -> str:
        """The lake table's name in Spark with the schema of a version."""
        return version_name(version)

    def discard_staged(self, lake: Iceberg, snapshot: int | None, files: Sequence[str]) -> None:
        """Remove the manifests of a staged snapshot. The catalog dropped the snapshot when its files landed."""
        if snapshot is None or lake.table.snapshot(snapshot) is not None:
            return
        for path in files:
            lake.table.io().deleteFile(path)

    def _sweep(self, lake: Iceberg, table_uuid: str) -> None:
        """Remove branches of this epoch and earlier ones. Branches of a later epoch are left alone."""
        for branch in (*lake.branches(STAGE), *lake.branches(COMPACT)):
            working = self.forks.get(table_uuid)
            number = branch.removeprefix(STAGE).removeprefix(COMPACT).split("_")[0]
            if branch != working and number.isdecimal() and int(number) <= self.epoch():
                lake.drop_branch(branch)
        self.swept.add(table_uuid)

    def standing(self, table: Table) -> tuple[Iceberg, Record]:
        """The lake table and main's tier record now. Raises `NotFound` if another table has the name."""
        for _ in range(STANDING_ATTEMPTS):
            scan = plan.newest(self.transport.plan, table.name)
            _check_same(table, scan.table.uuid)
            lake = self.of(scan).lake = self.lake(scan.lake_table)
            found = _planned(lake, scan)
            if found is not None:
                return lake, found
        raise Unavailable(f"the lake of table {table.name} moves faster than it can be looked at: try again")

    def failed(self, table: Table, before: Record, error: LakestoreError) -> LakestoreError:
        """The error of a failed commit: `Fenced` if another tierer took over, `Conflict` if main moved.

        Main may also have moved by our own late commit whose answer was lost in an earlier round.
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
    if uuid != table.uuid:
        raise NotFound(f"table {table.name} was renamed, and another table has its name now: the next round knows both")


def _planned(lake: Iceberg, scan: TableScan) -> Record | None:
    """Main's tier record from the plan; None if main is at an unknown snapshot.

    Iceberg's history is used only without a journal, because another engine's expiry cuts it.
    """
    if scan.tier is None:
        return lake.record() or Record.empty(scan.table.buckets)
    return Record.of(scan.tier) if lake.current_id() in scan.tier.snapshot_ids else None

"""One round of one table: its hot rows and the deaths in the lake, in one Iceberg commit.

Iceberg's writer stages rows in a branch, which the landing transaction removes. The live sum is computed from the
written files and the deletes, so the catalog refuses a lost or doubled row.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lakestore.errors import Conflict, Corrupt, LakestoreError, NotFound
from lakestore.iceberg.offset_cache import DeadRows, OffsetCache
from lakestore.iceberg.row_search import by_bucket, packed
from lakestore.model.table import Table
from lakestore.rows.live_sum import moved
from lakestore.rows.ranges import Offsets, OffsetSet
from lakestore.union.plan import ReadPlan, TableScan
from lakestore.union.tier_record import Record
from lakestore_tiering import small_rows, snapshot_files
from lakestore_tiering.iceberg_java import JAVA_FAILURES, Iceberg, LakeFile, java_errors, java_list, record_of
from lakestore_tiering.position_deletes import Deletes, write_deletes
from lakestore_tiering.progress import COMMIT, ROWS, SPARK, WAIT
from lakestore_tiering.round import STAGE, Round

Found = DeadRows[LakeFile]
_NONE: Offsets = np.empty(0, dtype=np.int64)


CHANGES_MAX = 5_000_000
"""Offsets that one round takes. A larger backlog takes several commits."""
HOT_BYTES_MAX = 2 << 30
"""Stored bytes of these offsets. A round of wide rows would otherwise fill the temporary folder of the hot rows."""


@dataclass(frozen=True, slots=True)
class FlushResult:
    """Numbers of rows and deaths of a round."""

    table: str
    rows: int
    deaths: int
    files: int
    delete_files: int
    tier_point: tuple[int, ...]
    snapshot_id: int
    changes: int = 0
    """Offsets that the round took."""
    changes_left: int = 0
    """Offsets that it left to the next round, because there were too many for one commit."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that are written but not yet in main."""

    branch: str
    """The branch with the rows; empty if Arrow wrote them to files that nothing names yet."""
    snapshot_id: int | None
    files: Sequence[LakeFile] = ()
    manifests: Sequence[str] = ()
    """Files that describe only the staged snapshot."""


def flush(tools: Round, name: str) -> FlushResult | None:
    """Bring a table's hot rows into the lake, the oldest ones if there are very many. None if nothing is hot."""
    began = time.monotonic()
    cut = tools.plan(name, CHANGES_MAX, HOT_BYTES_MAX)
    try:
        scan = cut.scan(name)
        if not scan.hot_rows:
            return None
        with tools.turn_of(scan.table), java_errors():
            return _round(tools, cut, scan, began)
    finally:
        tools.leases.release(cut.lease)


def _round(tools: Round, cut: ReadPlan, scan: TableScan, began: float) -> FlushResult:
    """One round: stage the hot rows, write deletes for the dead ones, commit both.

    Nothing is visible before the commit, so a broken round is repeated from its start.
    """
    epoch = tools.epoch()
    lake, record = tools.open(scan)
    if record.schema_id != scan.table.schema_id:
        # Staged with the version's schema. The commit of these rows moves main's schema.
        lake = tools.of(scan).lake = tools.lake(scan.table)
    tools.progress.step(scan.table.uuid, ROWS, scan.hot_rows)
    staged = _stage(tools, lake, cut, scan, epoch)
    tools.progress.step(scan.table.uuid, COMMIT)
    tools.crash("staged")
    with stage_errors(lake, scan.table.name, staged.branch):
        flushed = _landed(tools, cut, scan, lake, record, staged, began)
    tools.discard_staged(lake, staged.snapshot_id, staged.manifests)
    tools.crash("after-commit")
    return flushed


@contextmanager
def stage_errors(lake: Iceberg, name: str, branch: str) -> Iterator[None]:
    """Name the cause if staged files are missing because `branch` was removed; empty if Arrow wrote."""
    try:
        with java_errors():
            yield
    except (NotFound, FileNotFoundError) as error:
        with java_errors():
            lake.refresh()
            there = not branch or branch in lake.branches(branch)
        if there:
            raise
        raise Conflict(
            f"branch {branch} of lake table {name}, which held the rows of this round, was removed while the round ran,"
            " by a janitor or another engine's maintenance: nothing is lost, the next round stages the rows again"
        ) from error


def _landed(
    tools: Round,
    cut: ReadPlan,
    scan: TableScan,
    lake: Iceberg,
    record: Record,
    staged: StagedRows,
    began: float,
) -> FlushResult:
    # From here on the commit is refused if another engine rewrites a file with dead rows. Otherwise the deaths would be
    # lost.
    base = lake.current_id()
    main, dead = tools.main_files(scan.table, lake), scan.cold_dead()
    found = tools.indexes.find(main.holding(packed(dead)), dead, scan.table.uuid)
    check_found(scan.table, dead, found)
    deletes = write_deletes(lake, found)
    tools.crash("deaths-written")
    born, died = _born(scan, tools.indexes, staged), by_bucket([part.keys for part in found])
    after = Record(
        epoch=tools.epoch(),
        tier_from=record.tier_point,
        tier_point=tuple(part.head for part in scan.buckets),
        live_sum=sums_after(record.live_sum, born, died),
        lsn=cut.lsn,
        schema_id=scan.table.schema_id,
        numbered_on=base if scan.table.lake.adopted and main.is_numbered() else None,
    )
    tools.crash("before-commit")
    try:
        landed = lake.retry(lambda: commit(lake, after, base, staged, found, deletes, began))
    except LakestoreError as error:
        raise tools.failed(scan.table, record, error) from error
    return FlushResult(
        table=scan.table.name,
        rows=sum(file.rows for file in staged.files),
        deaths=sum(len(part.positions) for part in found),
        files=len(staged.files),
        delete_files=len(deletes.added),
        tier_point=after.tier_point,
        snapshot_id=landed,
        changes=scan.hot_rows,
        changes_left=cut.changes_left,
    )


def _stage(tools: Round, lake: Iceberg, cut: ReadPlan, scan: TableScan, epoch: int) -> StagedRows:
    files = small_rows.write(tools, lake, cut, scan)
    if files is not None:
        return StagedRows("", None, files)
    tools.progress.step(scan.table.uuid, WAIT)
    with tools.sparks_turn():
        return _staged_by_spark(tools, lake, cut, scan, epoch)


def _staged_by_spark(tools: Round, lake: Iceberg, cut: ReadPlan, scan: TableScan, epoch: int) -> StagedRows:
    tools.spark.sparkContext.setJobGroup(scan.table.uuid, f"Lakestore: round of table {scan.table.name}")
    tools.progress.step(scan.table.uuid, SPARK)
    branch = f"{STAGE}{epoch}_{uuid.uuid4().hex[:12]}"
    hot = tools.hot.frame(lake, scan, cut.lease)
    if hot is None:
        return StagedRows("", None)
    lake.fork(branch)
    writer = hot.frame.writeTo(f"{lake.name}.branch_{branch}")
    for key, value in _write_options(scan.table, hot.task_bytes).items():
        writer = writer.option(key, value)
    writer.append()
    lake.refresh()
    snapshot = lake.branch_snapshot(branch)
    files = snapshot_files.changes(lake, snapshot).added
    return StagedRows(branch, int(snapshot.snapshotId()), files, lake.own_manifests(snapshot))


def _write_options(table: Table, task_bytes: int) -> dict[str, str]:
    """Options of written files, passed with each write because anybody may change table properties.

    Rows of one partition go to several tasks if they are more than `task_bytes`, so a hot partition does not make the
    round as slow as one task.
    """
    lake = table.lake
    return {
        "write-format": "parquet",
        "compression-codec": "zstd",
        "target-file-size-bytes": str(lake.target_file_bytes),
        "advisory-partition-size": str(task_bytes),
        "distribution-mode": "range" if lake.sort_by else "hash" if lake.partition_by else "none",
    }


def check_found(table: Table, dead: Mapping[int, OffsetSet], dead_rows: Sequence[Found]) -> None:
    """Raise `Corrupt` unless each dead row was found in the lake."""
    wanted = sum(map(len, dead.values()))
    got = sum(len(part.positions) for part in dead_rows)
    if wanted != got:
        raise Corrupt(f"table {table.name}: {wanted} rows died in the lake, but {got} of them were found there")


def _born(scan: TableScan, indexes: OffsetCache, staged: StagedRows) -> dict[int, Offsets]:
    """The offsets in the staged files. Raises `Corrupt` if they are not the hot ranges' rows.

    They are read from the files, not from the plan: the live sum must describe the files.
    """
    born = by_bucket([indexes.of(file, scan.table.uuid).keys for file in staged.files])
    for bucket, offsets in born.items():
        plan = scan.buckets[bucket]
        inside = bool(np.all((offsets >= plan.tier_point) & (offsets < plan.head)))
        if not inside or bool(np.any(offsets[1:] == offsets[:-1])):
            raise Corrupt(f"table {scan.table.name}: the staged files hold other rows of bucket {bucket} than were hot")
    return born


def sums_after(before: Sequence[int], born: Mapping[int, Offsets], died: Mapping[int, Offsets]) -> tuple[int, ...]:
    """Live sums by bucket after births and deaths."""
    return tuple(moved(total, born.get(i, _NONE), died.get(i, _NONE)) for i, total in enumerate(before))


def commit(
    lake: Iceberg,
    record: Record,
    base: int | None,
    staged: StagedRows,
    dead_rows: Sequence[Found],
    deletes: Deletes,
    began: float,
) -> int:
    """Commit staged rows and deletes with a tier record; `began` is monotonic. Returns the new snapshot."""
    transaction = lake.transaction()
    update = _delta(lake, transaction, base, dead_rows, deletes) if dead_rows else transaction.newAppend()
    for file in staged.files:
        update = update.addRows(file.java) if dead_rows else update.appendFile(file.java)
    try:
        return lake.land(transaction, update, record, staged.branch, staged.snapshot_id, time.monotonic() - began)
    except JAVA_FAILURES as error:
        return lake.find_landed(error, lambda snapshot: record_of(snapshot) == record)


def _delta(lake: Iceberg, transaction: Any, base: int | None, dead_rows: Sequence[Found], deletes: Deletes) -> Any:
    delta = transaction.newRowDelta()
    if base is not None:
        delta = delta.validateFromSnapshot(base)
    paths = java_list(lake.jvm, [part.file.path for part in dead_rows])
    delta = delta.validateDataFilesExist(paths).validateDeletedFiles()
    for java in deletes.added:
        delta = delta.addDeletes(java)
    for java in deletes.removed:
        delta = delta.removeDeletes(java)
    return delta

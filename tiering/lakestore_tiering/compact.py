"""Compaction of a lake table while flushes continue.

Iceberg's rewrite runs on a branch forked from main. Landing is serial with flushes: rows that died since the fork are
looked up by offset in the new files, and one commit swaps data files and delete files. The log since the fork's tier
point is leased until then, because it names these deaths.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lakestore.errors import Conflict, Corrupt, LakestoreError
from lakestore.iceberg.manifest_entries import Longs
from lakestore.iceberg.row_search import Flags
from lakestore.model.columns import PREV
from lakestore.model.contract.promises import upkeep_budget
from lakestore.model.table import Table
from lakestore.rows.ranges import Offsets, OffsetSet
from lakestore.union.plan import TableScan
from lakestore.union.tier_record import Record
from lakestore.v1.lakestore_pb2 import FetchRequest
from lakestore_spark.session import LAKE
from lakestore_spark.types import quote_name
from lakestore_tiering import adopted_files, debts, snapshot_files
from lakestore_tiering.debts import COMPACTION, Debt
from lakestore_tiering.hot_rows import fetch
from lakestore_tiering.iceberg_java import JAVA_FAILURES, Iceberg, LakeFile, java_errors
from lakestore_tiering.live_files import FileColumns, MainFiles
from lakestore_tiering.position_deletes import Deletes, write_deletes
from lakestore_tiering.round import COMPACT, Round, StopAsked
from lakestore_tiering.snapshot_files import Changes

SMALL_FILES_MIN = 8
"""Files of a wrong size in one partition that make a rewrite worth its cost."""
DELETED_SHARE_MIN = 0.3
"""Share of deleted rows at which a file is rewritten."""
DELETED_BYTES_SHARE_MIN = 1 / 1024
"""Share of the target size below which deleted rows alone are no reason to rewrite a file.

The rewrite is a Spark job of seconds and spares a reader a few thousand rows. The file is rewritten with
`SMALL_FILES_MIN` others.
"""
GROUP_BYTES_MAX = 100 << 30
_SMALL, _LARGE = 0.75, 1.8


def deleted_share_min(table: Table) -> float:
    """The share of deleted rows at which a file of a table is rewritten: the budget must be within reach."""
    return min(upkeep_budget(table).delete_ratio or 1.0, DELETED_SHARE_MIN)


def rewrite_options(
    target_bytes: int, *, force: bool, deleted_share: float = DELETED_SHARE_MIN, erases: bool = False
) -> dict[str, str]:
    """Options of Iceberg's rewrite that match `due`. With `erases` every file with a deleted row is rewritten."""
    return {
        **({"delete-file-threshold": "1"} if erases else {}),
        "target-file-size-bytes": str(target_bytes),
        "min-input-files": str(SMALL_FILES_MIN),
        "delete-ratio-threshold": str(deleted_share),
        "max-file-group-size-bytes": str(GROUP_BYTES_MAX),
        "rewrite-all": str(force).lower(),
    }


def due(files: FileColumns, target_bytes: int) -> bool:
    """True if the rewrite would take any of a table's files."""
    return bool(np.any(_taken(files, target_bytes)))


def _debt(files: FileColumns, taken: Flags, target_bytes: int) -> Debt:
    """The debt of compaction. Its note says why small files are left."""
    left = int(np.count_nonzero(~taken & (files.bytes < int(target_bytes * _SMALL))))
    why = f"{left:,} more are small, with fewer than {SMALL_FILES_MIN} in their partition" if left else ""
    return Debt(COMPACTION, int(np.count_nonzero(taken)), why)


def _taken(files: FileColumns, target_bytes: int, deleted_share: float = DELETED_SHARE_MIN) -> Flags:
    """True for each file that the rewrite would take, as Iceberg's planner chooses groups of one partition."""
    wrong = (files.bytes < int(target_bytes * _SMALL)) | (files.bytes > int(target_bytes * _LARGE))
    dirty = (files.deleted > 0) & (np.minimum(files.deleted, files.rows) >= deleted_share * files.rows)
    chosen = np.flatnonzero(wrong | dirty)
    taken = np.zeros(len(files.bytes), np.bool_)
    if not len(chosen):
        return taken
    groups = _groups(files.partitions[chosen], files.bytes[chosen])
    count = np.bincount(groups)
    size = np.bincount(groups, weights=files.bytes[chosen])
    is_worth = dirty[chosen] & (files.bytes[chosen] >= target_bytes * DELETED_BYTES_SHARE_MIN)
    wanted = (
        (count >= SMALL_FILES_MIN)
        | ((count > 1) & (size > target_bytes))
        | (size > int(target_bytes * _LARGE))
        | (np.bincount(groups, weights=is_worth) > 0)
    )
    taken[chosen] = wanted[groups]
    return taken


def _groups(partitions: Longs, sizes: Longs) -> Longs:
    """A number for each file's group: the files of one partition, in order, up to `GROUP_BYTES_MAX`."""
    _, groups = np.unique(partitions, return_inverse=True)
    free = int(groups.max()) + 1
    for number in np.flatnonzero(np.bincount(groups, weights=sizes) > GROUP_BYTES_MAX).tolist():
        size = 0
        for place in np.flatnonzero(groups == number).tolist():
            if size and size + int(sizes[place]) > GROUP_BYTES_MAX:
                number, free, size = free, free + 1, 0
            groups[place] = number
            size += int(sizes[place])
    return groups


@dataclass(frozen=True, slots=True)
class Fork:
    """A running compaction: its branch and the state at the fork."""

    scan: TableScan
    branch: str
    snapshot_id: int
    tier_point: tuple[int, ...]
    lease: str
    epoch: int
    began: float
    """Seconds since 1970."""
    whole: bool
    erases: bool = False
    """Whether every file with a deleted row is rewritten."""
    adopted: frozenset[str] = frozenset()
    """Paths of adopted files, which are rewritten instead of all others."""


@dataclass(frozen=True, slots=True)
class _Swap:
    """The files that a landing swaps in main."""

    branch: str
    snapshot_id: int
    """Snapshot of the rewrite on the branch."""
    old: Sequence[LakeFile]
    new: Sequence[LakeFile]
    outdated: Sequence[Any]
    """Java delete files that cover only old files."""
    deletes: Deletes
    """Deletes for rows of the new files that died since the fork."""
    seconds: float
    """Seconds of the rewrite."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction."""

    table: str
    files_before: int
    files_after: int
    deaths: int
    snapshot_id: int


def compact(tools: Round, name: str, *, force: bool = False, erases: bool = False) -> CompactionResult | None:
    """Fork, rewrite and land. None if nothing was worth it."""
    started = fork(tools, name, force=force, erases=erases)
    if started is None:
        return None
    try:
        with tools.sparks_turn():
            rewrite(tools, started)
    except (LakestoreError, StopAsked):
        with suppress(LakestoreError):
            abandon(tools, started)
        raise
    return land(tools, started)


def fork(tools: Round, name: str, *, force: bool = False, may_start: bool = True, erases: bool = False) -> Fork | None:
    """Begin a compaction if one is due: fork a branch from main and lease the log from its tier point.

    Without `may_start` only the debts are computed.
    """
    cut = tools.plan(name)
    made = None
    try:
        scan = cut.scan(name)
        if scan.in_lake:
            with tools.turn_of(scan.table), java_errors():
                made = _forked(tools, scan, cut.lease, force=force, may_start=may_start, erases=erases)
        return made
    finally:
        if made is None:
            tools.leases.release(cut.lease)


def _forked(tools: Round, scan: TableScan, lease: str, *, force: bool, may_start: bool, erases: bool) -> Fork | None:
    lake, record = tools.open(scan)
    current = lake.current_id()
    if current is None:
        return None
    main = tools.main_files(scan.table, lake)
    files = main.columns()
    due_files = _taken(files, scan.table.lake.target_file_bytes, deleted_share_min(scan.table))
    taken = files.deleted > 0 if erases else due_files
    tools.debts.count_deleted(scan.table.uuid, int(files.rows.sum()), int(np.minimum(files.deleted, files.rows).sum()))
    debt = _debt(files, taken, scan.table.lake.target_file_bytes)
    tools.debts.put(scan.table.uuid, debt, *debts.of_manifests(main))
    whole = force or files.foreign > 0
    if not (may_start and (whole or bool(np.any(taken)))):
        return None
    adopted = adopted_files.adopted(lake, scan.lake_table, current) if scan.table.lake.adopted else frozenset[str]()
    epoch = tools.epoch()
    branch = f"{COMPACT}{epoch}_{uuid.uuid4().hex[:12]}"
    lake.fork(branch)
    tools.forks[scan.table.uuid] = branch
    tools.crash("compact-forked")
    return Fork(scan, branch, current, record.tier_point, lease, epoch, time.time(), whole, erases, adopted)


def rewrite(tools: Round, started: Fork) -> None:
    """Let Iceberg rewrite the branch while flushes of main continue."""
    target_bytes = started.scan.table.lake.target_file_bytes
    if started.adopted:
        with java_errors():
            lake = tools.lake(started.scan.lake_table)
            adopted_files.rewrite(lake, started.scan.lake_table, started.branch, started.snapshot_id, started.adopted)
        tools.crash("compact-rewritten")
        return
    share = deleted_share_min(started.scan.table)
    options = rewrite_options(target_bytes, force=started.whole, deleted_share=share, erases=started.erases)
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    # Main may still have the columns' names and the sort order of an earlier version.
    main = started.scan.lake_table.lake
    curve = main.z_order_by
    strategy = "sort" if main.sort_by or curve else "binpack"
    columns = ", ".join(map(quote_name, curve)).replace("\\", "\\\\").replace("'", "\\'")
    order = f"sort_order => 'zorder({columns})', " if columns else ""
    # With the catalog's name: otherwise Spark looks for a catalog named like the namespace and logs that there is none.
    with java_errors():
        name = tools.lake(started.scan.lake_table).name
        tools.spark.sql(
            f"CALL {LAKE}.system.rewrite_data_files(table => '{name}', branch => '{started.branch}', "
            f"strategy => '{strategy}', {order}options => map({pairs}))"
        ).collect()
    tools.crash("compact-rewritten")


def land(tools: Round, started: Fork) -> CompactionResult | None:
    """Swap the files in main. None if the rewrite found nothing to do. Not during a flush of the table."""
    try:
        with tools.turn_of(started.scan.table), java_errors():
            return _land(tools, started)
    except Conflict:
        # Main moved on without the compaction. Its branch would keep the old files forever.
        with suppress(LakestoreError):
            abandon(tools, started)
        raise
    finally:
        _done(tools, started)


def abandon(tools: Round, started: Fork) -> None:
    """Drop a compaction's branch and lease."""
    try:
        with java_errors():
            tools.lake(started.scan.lake_table).drop_branch(started.branch)
    finally:
        _done(tools, started)


def _land(tools: Round, started: Fork) -> CompactionResult | None:
    lake, record = tools.standing(started.scan.table)
    snapshot = lake.branch_snapshot(started.branch)
    if int(snapshot.snapshotId()) == started.snapshot_id:
        lake.drop_branch(started.branch)
        return None
    base = lake.current_id()
    assert base is not None
    changes = snapshot_files.changes(lake, snapshot)
    live = tools.main_files(started.scan.table, lake)
    old = _replaced(lake, started, changes, live)
    new = changes.added
    found = tools.indexes.find(new, _died_since(tools, started, record), started.scan.table.uuid)
    deletes = write_deletes(lake, found)
    tools.crash("compact-before-landing")
    took = max(snapshot.timestampMillis() / 1_000 - started.began, 0.0)
    swap = _Swap(started.branch, int(snapshot.snapshotId()), old, new, _outdated(old, live), deletes, took)
    is_numbered = started.scan.table.lake.adopted and live.is_numbered(changes.removed)
    numbered_on = base if is_numbered else None
    after = replace(record, epoch=tools.epoch(), tier_from=record.tier_point, numbered_on=numbered_on)
    staged = lake.own_manifests(snapshot)
    try:
        landed = lake.retry(lambda: _landed(lake, after, base, swap))
    except LakestoreError as error:
        raise tools.failed(started.scan.table, record, error) from error
    tools.discard_staged(lake, swap.snapshot_id, staged)
    tools.crash("compact-landed")
    deaths = sum(len(part.positions) for part in found)
    return CompactionResult(started.scan.table.name, len(old), len(new), deaths, landed)


def _replaced(lake: Iceberg, started: Fork, changes: Changes, live: MainFiles) -> list[LakeFile]:
    """Files of main that the rewrite replaces. Nothing is landed if another engine took one of them."""
    files = live.at_paths(changes.removed)
    if files is not None:
        return files
    lake.drop_branch(started.branch)
    raise Conflict(f"table {started.scan.table.name}: another engine rewrote files while they were compacted")


def _died_since(tools: Round, started: Fork, record: Record) -> dict[int, OffsetSet]:
    """The fork's rows that died before main's tier point, by bucket.

    Flushes wrote deletes for the old files, which the landing replaces. The log names the deaths, and they are looked
    up by offset in the new files.
    """
    if not started.scan.table.keyed:
        return {}
    dead = {}
    for bucket, (start, end) in enumerate(zip(started.tier_point, record.tier_point, strict=True)):
        if start < end:
            superseded = OffsetSet.of(_superseded(tools, started, bucket, start, end))
            dead[bucket] = OffsetSet(superseded.below(start))
    return dead


def _superseded(tools: Round, started: Fork, bucket: int, start: int, end: int) -> list[Offsets]:
    request = FetchRequest(
        table_uuid=started.scan.table.uuid,
        bucket=bucket,
        start=start,
        end=end,
        columns=[PREV],
        lease=started.lease,
    )
    parts = []
    for batch in fetch(tools.transport, request):
        prevs = batch.column(PREV).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        parts.append(prevs[prevs >= 0])
    return parts


def _outdated(old: Sequence[LakeFile], live: MainFiles) -> list[Any]:
    """Java delete files that cover only old files."""
    replaced = {file.path for file in old}
    deletes = {key: delete for file in old for key, delete in file.deletes.items()}
    cover = live.covered_by({key for key, delete in deletes.items() if not delete.alone})
    return [delete.java for key, delete in deletes.items() if delete.alone or cover[key] <= replaced]


def _landed(lake: Iceberg, record: Record, base: int, swap: _Swap) -> int:
    """Swap the files in main, validated against snapshot `base`. Returns the new snapshot."""
    if swap.deletes.added and not swap.outdated:
        raise Corrupt("rows of compacted files died, but no delete file of theirs says so")
    transaction = lake.transaction()
    update = transaction.newRewrite().validateFromSnapshot(base)
    for java in [*(file.java for file in swap.old), *swap.outdated]:
        update = update.deleteFile(java)
    for java in [*(file.java for file in swap.new), *swap.deletes.added]:
        update = update.addFile(java)
    try:
        return lake.land(transaction, update, record, swap.branch, swap.snapshot_id, swap.seconds)
    except JAVA_FAILURES as error:
        source = str(swap.snapshot_id)
        return lake.find_landed(error, lambda snapshot: snapshot.summary().get("source-snapshot-id") == source)


def _done(tools: Round, started: Fork) -> None:
    if tools.forks.get(started.scan.table.uuid) == started.branch:
        del tools.forks[started.scan.table.uuid]
    tools.leases.release(started.lease)

"""The lake's part of an erasure: no file of the lake keeps a row that was dead at its floor.

1. Rows of a log table are deleted, in one tier commit with their number: with it the server counts them no more.
2. Every data file with a deleted row is rewritten, by the compaction, while flushes go on.
3. The manifests are rewritten: the old ones have the bounds of values of the files that are gone.
4. Every snapshot from before expires, with the files that only it names. At the deadline the files go that no snapshot
   names: no flush and no compaction of the table runs beside this.

A kill at any place costs a repetition. The server is told by a debt whose note begins with the erasure's id: its count
is the number of snapshots that are left, because a reader leases them or a tag names them.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from pyroaring import BitMap64

from lakestore.iceberg.row_search import by_bucket, packed
from lakestore.model.table import Table
from lakestore.rows.ranges import OffsetSet
from lakestore.v1.lakestore_pb2 import LakeErasure
from lakestore_tiering import compact, flush, manifest_rewrite, orphans
from lakestore_tiering.debts import ERASURE, Debt
from lakestore_tiering.iceberg_java import TIER_TAG, Iceberg, java_errors
from lakestore_tiering.position_deletes import write_deletes
from lakestore_tiering.round import Round

_PIN = "lakestore-pin-"
_MAIN = "main"


def erase(tools: Round, table: Table, asked: LakeErasure) -> None:
    """Do what can be done now. Not during a flush or a compaction of the table."""
    with tools.turn_of(table), java_errors():
        _, record = tools.standing(table)
    if any(point < floor for point, floor in zip(record.tier_point, asked.floors, strict=True)):
        return  # the next round has the deletes
    known = tools.erased.get(table.uuid)
    if known is None or known[0] != asked.id:
        if asked.rows:
            _delete(tools, table, asked)
            tools.crash("erase-deleted")
        _rewrite(tools, table)
        with tools.turn_of(table), java_errors():
            lake, _ = tools.standing(table)
            older = {number for number, _ in lake.snapshots()} - {lake.current_id()}
        known = tools.erased[table.uuid] = asked.id, frozenset(older)
        tools.crash("erase-rewritten")
    with tools.turn_of(table), java_errors():
        lake, _ = tools.standing(table)
        if asked.past:
            _drop_refs(lake, known[1])
        held = lake.referenced_snapshots()
        there = known[1] & {number for number, _ in lake.snapshots()}
        orphans.expire_snapshots(lake, sorted(there - held))
        tools.crash("erase-expired")
        lake, _ = tools.standing(table)
        left = known[1] & {number for number, _ in lake.snapshots()}
        names = _names(lake, left)
    if asked.past and not left:
        orphans.remove(tools, table, keep_seconds=0.0)  # of killed rounds, with versions that the log has forgotten
    tools.derived.remove_others(table.uuid, ())  # decoded manifests have bounds of values
    note = f"{asked.id}{', named by ' + ', '.join(names) if names else ''}"
    tools.debts.put(table.uuid, Debt(ERASURE, len(left), note))


def _delete(tools: Round, table: Table, asked: LakeErasure) -> None:
    """Delete rows of a log table, whose log ends above them. The catalog compares the sums."""
    began = time.monotonic()
    parts = enumerate(map(BitMap64.deserialize, asked.rows))
    dead = {bucket: OffsetSet(np.asarray(part.to_array(), np.int64)) for bucket, part in parts if part}
    with tools.turn_of(table), java_errors():
        lake, record = tools.standing(table)
        base, main = lake.current_id(), tools.main_files(table, lake)
        found = tools.indexes.find(main.holding(packed(dead)), dead, table.uuid)
        flush.check_found(table, dead, found)
        sums = flush.sums_after(record.live_sum, {}, by_bucket([part.keys for part in found]))
        after = replace(
            record, epoch=tools.epoch(), tier_from=record.tier_point, live_sum=sums, numbered_on=None, erasure=asked.id
        )
        deletes = write_deletes(lake, found)
        tools.crash("erase-found")
        lake.retry(lambda: flush.commit(lake, after, base, flush.StagedRows("", None), found, deletes, began))


def _rewrite(tools: Round, table: Table) -> None:
    """Rewrite files and manifests, until no manifest has an entry of a file that is gone."""
    compact.compact(tools, table.name, erases=True)
    manifest_rewrite.rewrite(tools, table, force=True)
    if _has_old_entries(tools, table):  # of a single manifest, which Iceberg's rewrite leaves alone
        compact.compact(tools, table.name, force=True)
        manifest_rewrite.rewrite(tools, table, force=True)
    with tools.turn_of(table), java_errors():
        lake, _ = tools.standing(table)
        current = lake.current_id()
        tag = lake.table.refs().get(TIER_TAG)
        if tag is not None and int(tag.snapshotId()) != current:
            lake.retry(lambda: lake.table.manageSnapshots().replaceTag(TIER_TAG, current).commit())


def _has_old_entries(tools: Round, table: Table) -> bool:
    with tools.turn_of(table), java_errors():
        lake, _ = tools.standing(table)
        snapshot = lake.table.currentSnapshot()
        return any(bool(each.hasDeletedFiles()) for each in snapshot.allManifests(lake.table.io()))


def _names(lake: Iceberg, snapshots: frozenset[int]) -> list[str]:
    """Tags and branches of users that name one of these snapshots."""
    refs = lake.table.refs()
    named = [str(name) for name in refs if int(refs[name].snapshotId()) in snapshots]
    return sorted(name for name in named if not name.startswith(_PIN))


def _drop_refs(lake: Iceberg, snapshots: frozenset[int]) -> None:
    """Remove tags and branches that name one of these snapshots: the deadline is over."""
    for name in _names(lake, snapshots):
        if name == _MAIN:
            continue
        is_tag = bool(lake.table.refs()[name].isTag())
        manage = lake.table.manageSnapshots()
        (manage.removeTag(name) if is_tag else manage.removeBranch(name)).commit()

"""A group of requests as one journal frame: the step between the queue and the disk. No I/O but the index.

The group is one commit: its rows are numbered together, in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.livesum import moved
from lakestore.server.assign import ABSENT, Assigned, assign
from lakestore.server.bucket import DELETE, INSERT, UPDATE
from lakestore.server.index import Index, live
from lakestore.server.journal import Frame, RowsPart
from lakestore.server.prepare import Answer, Change, Request
from lakestore.server.slots import Asked, Entries, Resolved, resolved
from lakestore.server.state import TableState, View
from lakestore.server.versions import stored_schema

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Commit:
    """A frame to write, and what to do once it is durable."""

    frame: Frame
    answers: list[Answer]
    keys: list[tuple[Sequence[bytes], list[int]]]
    """Index entries to put."""


@dataclass(slots=True)
class _Heads:
    """Where each bucket of a table stands inside the commit."""

    next: list[int]
    sums: list[int]
    rows: list[int]

    @staticmethod
    def of(state: TableState) -> _Heads:
        return _Heads(
            state.heads(), [log.at_head.live_sum for log in state.logs], [log.at_head.live_rows for log in state.logs]
        )


@dataclass(slots=True)
class _Builder:
    frame: Frame
    results: dict[int, list[Any]] = field(default_factory=dict)
    """id of a change to its result."""
    keys: list[tuple[Sequence[bytes], list[int]]] = field(default_factory=list)


def build(group: Sequence[Request], view: View, index: Index, lsn: int, time_us: int) -> Commit:
    """The commit that these requests are."""
    builder = _Builder(Frame(lsn, time_us))
    by_table: dict[str, list[Change]] = {}
    for request in group:
        for change in request.changes:
            by_table.setdefault(change.table.uuid, []).append(change)
    for uuid, changes in by_table.items():
        heads = _Heads.of(view.tables[uuid])
        if changes[0].table.keyed:
            _keyed(builder, changes, view.tables[uuid], heads, index)
        else:
            for change in changes:
                _appended(builder, change, heads)
    answers = []
    for request in group:
        results = [builder.results[id(change)] for change in request.changes]
        answers.append(Answer(lsn, results))
        if request.producer:
            builder.frame.producers.append(
                [request.producer, request.epoch, request.sequence, results, request.progress]
            )
    return Commit(builder.frame, answers, builder.keys)


def _slices(buckets: npt.NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """(bucket, first row, row after the last) of each run of sorted buckets."""
    if not len(buckets):
        return []
    cuts = np.flatnonzero(buckets[1:] != buckets[:-1]) + 1
    starts = [0, *cuts.tolist()]
    return [(int(buckets[a]), a, b) for a, b in zip(starts, [*starts[1:], len(buckets)], strict=True)]


def _appended(builder: _Builder, change: Change, heads: _Heads) -> None:
    for bucket, first, last in _slices(change.buckets):
        start, count = heads.next[bucket], last - first
        born = np.arange(start, start + count, dtype=np.int64)
        batch = change.batch.slice(first, count)
        _add(builder, change, heads, bucket, batch, born, born[:0])
    builder.results[id(change)] = [change.table.name, change.batch.num_rows, 0, 0, 0, change.table.schema_id]


def _add(
    builder: _Builder, change: Change, heads: _Heads, bucket: int, batch: pa.RecordBatch, born: Ints, died: Ints
) -> None:
    heads.sums[bucket] = moved(heads.sums[bucket], born, died)
    heads.rows[bucket] += len(born) - len(died)
    start = heads.next[bucket]
    heads.next[bucket] += batch.num_rows
    at_end = heads.sums[bucket], heads.rows[bucket]
    builder.frame.rows.append(RowsPart(change.table.uuid, bucket, start, batch, *at_end, change.table.schema_id))


def _keyed(builder: _Builder, changes: list[Change], state: TableState, heads: _Heads, index: Index) -> None:
    keys: Sequence[bytes] = changes[0].keys if len(changes) == 1 else [k for c in changes for k in c.keys]
    deletes = np.concatenate([np.full(len(c.keys), c.delete) for c in changes])
    buckets = np.concatenate([c.buckets for c in changes])
    found = _resolved(keys, changes, state, index, deletes)
    assigned = assign(found.keys, deletes, buckets, live(found.values), heads.next)
    at = 0
    for change in changes:
        part = slice(at, at + len(change.keys))
        at = part.stop
        _keyed_change(builder, change, found.part(part), _part(assigned, part), heads)


def _resolved(
    keys: Sequence[bytes],
    changes: Sequence[Change],
    state: TableState,
    index: Index,
    deletes: npt.NDArray[np.bool_],
) -> Resolved:
    """The index's word on all keys of a table's changes, each under its own slot."""

    def columns() -> list[pa.Array]:
        return [pa.concat_arrays([c.batch.column(name) for c in changes]) for name in state.table.primary_key]

    return resolved(state, Asked(keys, columns), index.find, deletes)


def _part(assigned: Assigned, rows: slice) -> Assigned:
    return Assigned(assigned.kept[rows], assigned.change[rows], assigned.prev[rows], assigned.offset[rows])


def _keyed_change(builder: _Builder, change: Change, found: Resolved, rows: Assigned, heads: _Heads) -> None:
    batch, buckets, keys = change.batch, change.buckets, found.keys
    missing = 0
    if not rows.kept.all():
        kept = np.flatnonzero(rows.kept)
        missing = len(rows.kept) - len(kept)
        rows = Assigned(rows.kept[kept], rows.change[kept], rows.prev[kept], rows.offset[kept])
        batch, buckets = batch.take(pa.array(kept)), buckets[kept]
        keys = [keys[i] for i in kept.tolist()]
    stored = pa.RecordBatch.from_arrays(
        [pa.array(rows.change), pa.array(rows.prev), *batch.columns], schema=stored_schema(change.table)
    )
    entries = Entries.of(keys, rows.offset, rows.change == DELETE, buckets, found.links)
    for bucket, first, last in _slices(buckets):
        prev, kind = rows.prev[first:last], rows.change[first:last]
        born = rows.offset[first:last][kind != DELETE]
        _add(builder, change, heads, bucket, stored.slice(first, last - first), born, prev[prev != ABSENT])
        builder.frame.rows[-1].slots = entries.named(first, last)
    counts = np.bincount(rows.change, minlength=3)
    builder.results[id(change)] = [
        change.table.name,
        int(counts[INSERT]),
        int(counts[UPDATE]),
        int(counts[DELETE]),
        missing,
        change.table.schema_id,
    ]
    if keys:
        builder.keys.append((keys, entries.values.tolist()))

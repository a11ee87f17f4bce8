"""A group of requests as one journal record: the step between the queue and the disk. It reads the index and old rows.

The group is one commit: its rows are numbered together, in the order of the requests. Plain upserts and deletes of a
table are numbered at once; where rows are merged, change after change, each one finding what those before it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError
from lakestore.model.table import Table
from lakestore.rows.live_sum import moved
from lakestore_server.arrays.grouping import Groups
from lakestore_server.commit.merge.current_rows import OldRows, runs
from lakestore_server.commit.merge.engines import CurrentRows, Merged, merged
from lakestore_server.commit.numbering import ABSENT, Assigned, assign
from lakestore_server.commit.queue import IndexEntries
from lakestore_server.commit.request import Change, Request
from lakestore_server.index.collisions import Entries, FoundKeys, KeyQuery, resolved
from lakestore_server.index.entry import FLAG, is_live, live
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import IndexKeys, joined
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE
from lakestore_server.state.commit_record import Answer, ChangeResult, CommitRecord, KeySlot, ProducerCommit, RowsPart
from lakestore_server.state.table_versions import stored_schema
from lakestore_server.state.view import TableState, View

Ints = npt.NDArray[np.int64]


class RequestRefused(Exception):
    """A request whose rows cannot be merged; nothing of its group is written yet."""

    def __init__(self, change: Change, error: LakestoreError) -> None:
        super().__init__(error.message)
        self.change, self.error = change, error

    def among(self, group: Sequence[Request]) -> Request:
        """The request that it is about."""
        return next(request for request in group if any(change is self.change for change in request.changes))


class GroupTooLarge(Exception):
    """A group that takes too much memory of the rows that are there: fewer of its requests go into one commit."""

    def __init__(self, error: Invalid) -> None:
        super().__init__(error.message)
        self.error = error
        """For a request that is alone."""


@dataclass(slots=True)
class Commit:
    """A record to write, and what to do once it is durable."""

    record: CommitRecord
    answers: list[Answer]
    entries: IndexEntries
    """To be put into the index."""


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
    record: CommitRecord
    old_bytes_max: int
    old_bytes: int = 0
    """Of rows that were there."""
    results: dict[int, ChangeResult] = field(default_factory=dict)
    """id of a change to its result."""
    entries: list[tuple[IndexKeys, Ints]] = field(default_factory=list)


def build(group: Sequence[Request], view: View, index: Index, lsn: int, time_us: int, old_bytes_max: int) -> Commit:
    """The commit that these requests are; or `RequestRefused`, and the others may be built again without that one.

    `GroupTooLarge` if they need more than `old_bytes_max` of the rows that are there.
    """
    builder = _Builder(CommitRecord(lsn, time_us), old_bytes_max)
    by_table: dict[str, list[Change]] = {}
    for request in group:
        for change in request.changes:
            by_table.setdefault(change.table.uuid, []).append(change)
    for uuid, changes in by_table.items():
        state = view.tables[uuid]
        heads = _Heads.of(state)
        if not state.table.keyed:
            for change in changes:
                _appended(builder, change, heads)
        elif all(_is_plain(change, state.table) for change in changes):
            _keyed(builder, changes, state, heads, index)
        else:
            _Merging(builder, state, heads).run(changes, index)
    answers = []
    for request in group:
        results = tuple(builder.results[id(change)] for change in request.changes)
        answers.append(Answer(lsn, results))
        if request.producer:
            builder.record.producers.append(
                ProducerCommit(request.producer, request.epoch, request.sequence, results, request.progress)
            )
    return Commit(builder.record, answers, builder.entries)


def _is_plain(change: Change, table: Table) -> bool:
    """Whether rows replace what is there, whatever it is."""
    if change.delete:
        return not table.merge.folds and table.deletes != "ignore"
    return not (table.merge.folds or table.skip_unchanged or change.insert)


def _appended(builder: _Builder, change: Change, heads: _Heads) -> None:
    for bucket, first, last in runs(change.buckets):
        start, count = heads.next[bucket], last - first
        born = np.arange(start, start + count, dtype=np.int64)
        batch = change.batch.slice(first, count)
        _add(builder, change, heads, bucket, batch, born, born[:0])
    builder.results[id(change)] = ChangeResult(
        change.table.name, inserted=change.batch.num_rows, schema_id=change.table.schema_id
    )


def _add(
    builder: _Builder,
    change: Change,
    heads: _Heads,
    bucket: int,
    batch: pa.RecordBatch,
    born: Ints,
    died: Ints,
    slots: Sequence[KeySlot] = (),
) -> RowsPart:
    heads.sums[bucket] = moved(heads.sums[bucket], born, died)
    heads.rows[bucket] += len(born) - len(died)
    start = heads.next[bucket]
    heads.next[bucket] += batch.num_rows
    part = RowsPart(
        change.table.uuid,
        bucket,
        start,
        batch,
        heads.sums[bucket],
        heads.rows[bucket],
        change.table.schema_id,
        slots,
    )
    builder.record.rows.append(part)
    return part


def _keyed(builder: _Builder, changes: list[Change], state: TableState, heads: _Heads, index: Index) -> None:
    deletes = np.concatenate([np.full(len(c.keys), c.delete) for c in changes])
    buckets = np.concatenate([c.buckets for c in changes])
    found = _resolved(changes, state, index)
    assigned = assign(found.keys, deletes, buckets, live(found.values), heads.next)
    at = 0
    for change in changes:
        part = slice(at, at + len(change.keys))
        at = part.stop
        _keyed_change(builder, change, found.part(part), _part(assigned, part), heads)


def _resolved(changes: Sequence[Change], state: TableState, index: Index) -> FoundKeys:
    """The index's word on all keys of a table's changes, each under its own slot."""
    keys = joined([c.keys for c in changes])
    deletes = np.concatenate([np.full(len(c.keys), c.delete) for c in changes])

    def columns() -> list[pa.Array]:
        return [pa.concat_arrays([c.batch.column(name) for c in changes]) for name in state.table.primary_key]

    return resolved(state, KeyQuery(keys, columns), index.find, deletes)


def _part(assigned: Assigned, rows: slice) -> Assigned:
    return Assigned(assigned.kept[rows], assigned.change[rows], assigned.prev[rows], assigned.offset[rows])


def _keyed_change(builder: _Builder, change: Change, found: FoundKeys, rows: Assigned, heads: _Heads) -> None:
    batch, buckets, keys = change.batch, change.buckets, found.keys
    missing = 0
    if not rows.kept.all():
        kept = np.flatnonzero(rows.kept)
        missing = len(rows.kept) - len(kept)
        rows = Assigned(rows.kept[kept], rows.change[kept], rows.prev[kept], rows.offset[kept])
        batch, buckets = batch.take(pa.array(kept)), buckets[kept]
        keys = keys.take(kept)
    stored = pa.RecordBatch.from_arrays(
        [pa.array(rows.change), pa.array(rows.prev), *batch.columns], schema=stored_schema(change.table)
    )
    entries = Entries.of(keys, rows.offset, rows.change == DELETE, buckets, found.links)
    for bucket, first, last in runs(buckets):
        prev, kind = rows.prev[first:last], rows.change[first:last]
        born = rows.offset[first:last][kind != DELETE]
        died, slots = prev[prev != ABSENT], entries.named(first, last)
        _add(builder, change, heads, bucket, stored.slice(first, last - first), born, died, slots)
    builder.results[id(change)] = _result(change.table, rows.change, not_found=missing)
    if len(keys):
        builder.entries.append((keys, entries.values))


def _result(table: Table, kinds: npt.NDArray[np.int8], *, not_found: int) -> ChangeResult:
    """The counts of stored records by their kind."""
    counts = np.bincount(kinds, minlength=3)
    inserted, updated, deleted = int(counts[INSERT]), int(counts[UPDATE]), int(counts[DELETE])
    return ChangeResult(table.name, inserted, updated, deleted, not_found, table.schema_id)


class _Merging:
    """The changes of one table, each merged into what is there."""

    def __init__(self, builder: _Builder, state: TableState, heads: _Heads) -> None:
        self._builder, self._state, self._table, self._heads = builder, state, state.table, heads
        self._remembers = state.table.merge.engine == "versioned"
        self._old = OldRows(state, builder.record.lsn, builder.record.time_us, self._claim)

    def _claim(self, nbytes: int) -> None:
        self._builder.old_bytes += nbytes
        if self._builder.old_bytes > self._builder.old_bytes_max:
            raise GroupTooLarge(
                Invalid(
                    f"table {self._table.name}: with the rows that are there, those of this commit take more than"
                    f" {self._builder.old_bytes_max} bytes: send fewer rows at once"
                )
            )

    def run(self, changes: Sequence[Change], index: Index) -> None:
        """Merge and number them in their order."""
        whole = _resolved(changes, self._state, index)
        places_of, values = whole.keys.places(), whole.values
        at = 0
        for change in changes:
            part = slice(at, at + len(change.keys))
            at = part.stop
            mine = places_of[part]
            groups = Groups.by(mine)
            places = mine[groups.first]
            found = self._found(groups, change.buckets[groups.first], values[places])
            try:
                made = merged(change, self._table, found)
            except LakestoreError as error:
                raise RequestRefused(change, error) from error
            except pa.ArrowException as error:
                problem = Invalid(f"table {self._table.name}: the rows cannot be merged: {error}")
                raise RequestRefused(change, problem) from error
            after = self._numbered(change, groups, made, values[places], whole.part(part))
            values[places[made.keys]] = after

    def _found(self, groups: Groups, buckets: npt.NDArray[np.int32], values: Ints) -> CurrentRows:
        """What the index names, as values."""
        alive, offsets = is_live(values), values & ~FLAG
        remembered = np.zeros(len(values), dtype=np.bool_)
        if self._remembers and (flagged := np.flatnonzero(values >= FLAG)).size:
            remembered[flagged] = self._old.holds(buckets[flagged], offsets[flagged])

        def rows(keys: Ints, names: Sequence[str]) -> dict[str, pa.Array]:
            return self._old.take(buckets[keys], offsets[keys], names)

        return CurrentRows(groups, alive, remembered, rows)

    def _numbered(self, change: Change, groups: Groups, made: Merged, values: Ints, known: FoundKeys) -> Ints:
        """Store the records; each one's value for the index."""
        rows = groups.first[made.keys]
        buckets = change.buckets[rows]
        offset = np.empty(len(rows), dtype=np.int64)
        for bucket, first, last in runs(buckets):
            offset[first:last] = self._heads.next[bucket] + np.arange(last - first)
        prev = np.where(is_live(values), values, ABSENT)[made.keys]
        before = Groups.by(made.keys).before
        prev = np.where(before >= 0, offset[before], prev)
        stored = pa.RecordBatch.from_arrays(
            [pa.array(made.change), pa.array(prev), *made.batch.columns], schema=stored_schema(self._table)
        )
        deletes = made.change == DELETE
        whole = len(rows) == len(known.keys) and groups.distinct
        keys = known.keys if whole else known.keys.take(rows)
        entries = Entries.of(keys, offset, deletes, buckets, known.links, remembers=self._remembers)
        for bucket, first, last in runs(buckets):
            superseded = prev[first:last]
            born, died = offset[first:last][~deletes[first:last]], superseded[superseded != ABSENT]
            batch, slots = stored.slice(first, last - first), entries.named(first, last)
            self._old.add(_add(self._builder, change, self._heads, bucket, batch, born, died, slots))
        self._builder.results[id(change)] = replace(
            _result(self._table, made.change, not_found=made.not_found),
            ignored=made.ignored,
            unchanged=made.unchanged,
            folded=made.folded,
        )
        if len(keys):
            self._builder.entries.append((keys, entries.values))
        return np.where(deletes, offset | FLAG if self._remembers else ABSENT, offset)

"""A group of requests as one commit record: the step between queue and disk. It reads the index and old rows.

The rows of a group are numbered together, in the order of the requests. Plain upserts and deletes of a table are
numbered at once. Where rows are merged, each change is numbered after the ones before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Internal, LakestoreError
from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore.wire import errors
from lakestore_server.commit.draft import ABSENT, Draft, GroupTooLarge, RequestRefused, RowOutcomes, TableDraft, assign
from lakestore_server.commit.in_flight import PendingCommit
from lakestore_server.commit.merge.current_rows import runs
from lakestore_server.commit.merge.engines import MergedChanges
from lakestore_server.commit.merge.kept_columns import refusal
from lakestore_server.commit.request import IndexEntries, Request, TableChange
from lakestore_server.files.journal import encode
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.collisions import Entries, FoundKeys, KeyQuery, resolved
from lakestore_server.index.entry import live
from lakestore_server.index.key_index import Index
from lakestore_server.state.chunk import DELETE
from lakestore_server.state.commit_record import (
    Answer,
    Buffer,
    ChangeResult,
    CommitRecord,
    ProducerCommit,
    RegistersMove,
)
from lakestore_server.state.state import State
from lakestore_server.state.view import View, stored_schema


@dataclass(slots=True)
class BuiltCommit:
    """A record to write, and the work for the time when it is durable."""

    record: CommitRecord
    answers: list[Answer]
    entries: IndexEntries


def build(group: Sequence[Request], view: View, index: Index, record: CommitRecord, limits: Limits) -> BuiltCommit:
    """The commit of these requests. Raises `RequestRefused`, after which the others may be built again, or
    `GroupTooLarge` if they need more than `batch_memory_bytes` of existing rows.
    """
    draft = Draft(record, limits.batch_memory_bytes, limits.message_bytes)
    _store(group, view, index, draft)
    answers = []
    for request in group:
        results = tuple(_result(draft, change) for change in request.changes if not change.is_letters)
        answers.append(Answer(record.lsn, results))
        if request.producer:
            draft.record.producers.append(_producer_commit(request, results))
        draft.record.parts += request.parts
        if request.moves.each:
            draft.record.registers.append(_registers_move(request))
    return BuiltCommit(draft.record, answers, draft.entries)


def _store(group: Sequence[Request], view: View, index: Index, draft: Draft) -> None:
    by_table: dict[str, list[TableChange]] = {}
    for request in group:
        for change in request.changes:
            by_table.setdefault(change.table.uuid, []).append(change)
    for uuid, changes in by_table.items():
        table = TableDraft(draft, view.tables[uuid])
        if not table.table.keyed:
            for change in changes:
                _append(table, change)
        elif all(_is_plain(change, table.table) for change in changes):
            _replace(table, changes, index)
        else:
            MergedChanges(table).run(changes, index)
    if draft.baseless:
        raise refusal(group, draft.baseless)


def _result(draft: Draft, change: TableChange) -> ChangeResult:
    result = draft.results[id(change)]
    outcome = change.outcome
    if not outcome.broken:
        return result
    return replace(result, dead_letters=outcome.dead_letters, ignored=result.ignored + outcome.dropped)


def _producer_commit(request: Request, results: tuple[ChangeResult, ...]) -> ProducerCommit:
    return ProducerCommit(
        request.producer,
        request.epoch,
        request.sequence,
        results,
        request.progress,
        request.owner,
        request.is_named,
    )


def _registers_move(request: Request) -> RegistersMove:
    moves = [move for move in request.moves.each if not move.stays]
    return RegistersMove(tuple([move.register for move in moves]), tuple([m.after for m in moves]), request.moves.mark)


def _is_plain(change: TableChange, table: Table) -> bool:
    """Whether rows replace existing rows whatever these hold."""
    if change.delete:
        return not table.merge.folds and table.deletes != "ignore"
    return not (table.merge.folds or table.skip_unchanged or change.insert or change.marks.kept)


def _append(table: TableDraft, change: TableChange) -> None:
    for bucket, first, last in runs(change.buckets):
        start, count = table.next[bucket], last - first
        born = np.arange(start, start + count, dtype=np.int64)
        if count == change.batch.num_rows:
            table.add(bucket, change.batch, born, born[:0], message=change.message)
        else:
            table.add(bucket, change.batch.slice(first, count), born, born[:0])
    inserted, definition = change.batch.num_rows, change.table
    table.draft.results[id(change)] = ChangeResult(definition.name, inserted, schema_id=definition.schema_id)


def _replace(table: TableDraft, changes: Sequence[TableChange], index: Index) -> None:
    deletes = np.concatenate([np.full(len(c.keys), c.delete) for c in changes])
    buckets = np.concatenate([c.buckets for c in changes])
    found = table.found(changes, index)
    yield_point()
    assigned = assign(found.keys, deletes, buckets, live(found.values), table.next)
    at = 0
    for change in changes:
        yield_point()
        part = slice(at, at + len(change.keys))
        at = part.stop
        _replace_by(table, change, found.part(part), _part(assigned, part))


def store_as_is(table: TableDraft, change: TableChange, deletes: npt.NDArray[np.bool_], index: Index) -> None:
    """Store rows as they are, whatever the merge engine: another table has them already, in another layout."""
    if not table.table.keyed:
        _append(table, change)
        return
    query = KeyQuery(change.keys, lambda: [change.batch.column(name) for name in table.table.primary_key])
    found = resolved(table.state, query, index.find, deletes)
    assigned = assign(found.keys, deletes, change.buckets, live(found.values), table.next)
    _replace_by(table, change, found, assigned)


def _part(assigned: RowOutcomes, rows: slice) -> RowOutcomes:
    return RowOutcomes(assigned.kept[rows], assigned.change[rows], assigned.prev[rows], assigned.offset[rows])


def _replace_by(table: TableDraft, change: TableChange, found: FoundKeys, rows: RowOutcomes) -> None:
    batch, buckets, keys = change.batch, change.buckets, found.keys
    missing = 0
    if not rows.kept.all():
        kept = np.flatnonzero(rows.kept)
        missing = len(rows.kept) - len(kept)
        rows = RowOutcomes(rows.kept[kept], rows.change[kept], rows.prev[kept], rows.offset[kept])
        batch, buckets = batch.take(pa.array(kept)), buckets[kept]
        keys = keys.take(kept)
    stored = pa.RecordBatch.from_arrays(
        [pa.array(rows.change), pa.array(rows.prev), *batch.columns], schema=stored_schema(change.table)
    )
    yield_point()
    entries = Entries.of(keys, rows.offset, rows.change == DELETE, buckets, found.links)
    for bucket, first, last in runs(buckets):
        prev, kind = rows.prev[first:last], rows.change[first:last]
        born = rows.offset[first:last][kind != DELETE]
        died, slots = prev[prev != ABSENT], entries.named(first, last)
        table.add(bucket, stored.slice(first, last - first), born, died, slots)
    table.draft.results[id(change)] = table.counted(rows.change, not_found=missing)
    if len(keys):
        table.draft.entries.append((keys, entries.values))


log = logging.getLogger("lakestore.engine")


class Unmade(Exception):
    """A group that became no commit."""

    def __init__(self, error: LakestoreError, *, is_of_one: bool) -> None:
        super().__init__(error.message)
        self.error, self.is_of_one = error, is_of_one
        """Whether the error may concern one request only, so that the others can be committed without it."""


class GaveWay(Exception):
    """A group that returns to the queue, because small commits went first at a yield point."""


def defect(error: Exception, what: str, count: int) -> Internal:
    """The error for an unexpected exception."""
    log.error("%s %d not made, nothing of that is written", what, count, exc_info=error)
    return errors.defect(error, "no")


def try_build(
    group: Sequence[Request], state: State, index: Index, record: CommitRecord, limits: Limits
) -> tuple[PendingCommit, Sequence[Buffer]]:
    """The commit of these requests, and its bytes; or `RequestRefused`, `Unmade` or `GaveWay`."""
    try:
        commit = build(group, state.view, index, record, limits)
        yield_point()
        view, encoded = state.view_after(commit.record), encode(commit.record)
    except (RequestRefused, GaveWay):
        raise
    except GroupTooLarge as large:
        raise Unmade(large.error, is_of_one=True) from large
    except LakestoreError as error:
        raise Unmade(error, is_of_one=False) from error
    except Exception as error:  # whatever one request does to the code, the others of its group continue
        raise Unmade(defect(error, "requests:", len(group)), is_of_one=True) from error
    queued = [request.queued for request in group]
    answers = [(request.answer, answer) for request, answer in zip(group, commit.answers, strict=True)]
    broken = [(c.table.name, c.outcome.broken) for r in group for c in r.changes if c.outcome.broken]
    return PendingCommit(commit.record, view, commit.entries, queued, answers, broken=broken), encoded

"""The batches of a change stream: the commits of a range as messages, equal for all streams of one shape.

A batch holds rows of one schema version and names it. A before-image is shown in the version of its change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakestore.limits import Limits
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.token import LogPosition, Place, Token
from lakestore.rows.ipc import encoded_parts
from lakestore.rows.ranges import OffsetSet
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.batch_cache import OF_CONSUMER_BYTES, EncodedBatch, StreamRun
from lakestore_server.changes.filter import Condition, RowCondition, filtered
from lakestore_server.commit import request
from lakestore_server.read.rows import (
    ReadOptions,
    Rows,
    bounded,
    changes,
    live_at,
    project,
    sent_bytes,
    with_before_images,
)
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import PREV
from lakestore_server.state.view import TableState, Versions, View


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a stream that decide its messages."""

    tables: tuple[str, ...]
    """Uuids of the tables, in the order of the request."""
    before_images: bool
    columns: tuple[tuple[int, ...], ...]
    """Per table the ids of the columns to show; empty shows all columns of a version."""
    where: tuple[Condition, ...] = ()
    """The condition on the rows of each table; empty for no condition."""

    def of_tables(self, tables: tuple[str, ...]) -> Shape:
        """The same for the tables that have the places of these after a swap."""
        return replace(self, tables=tables)

    def condition(self, versions: Versions, table: Table) -> RowCondition | None:
        """The condition on rows of a version of a table; None if all rows are sent."""
        return RowCondition.bind(self.where[self.tables.index(table.uuid)], versions, table) if self.where else None


def run(view: View, shape: Shape, at: LogPosition, limit: int, limits: Limits) -> StreamRun:
    """The next messages after a position: about a batch of rows from each bucket, no commit after `limit`."""
    upto = _upto(view, shape, at.lsn, limit, limits)
    return StreamRun(upto, tuple(_between(view, shape, replace(at, tables=shape.tables), upto, limits)))


def message(
    table: Table, batch: pa.RecordBatch, token: Token, bytes_max: int, *, snapshot: bool, goes_on: bool = False
) -> EncodedBatch:
    """Rows as a message. If the message ends inside a commit (`goes_on`), its token is the position before that commit.
    Raises `Invalid`, which names the row, if a single row exceeds `bytes_max`."""
    made = bare(table, token)
    made.snapshot, made.goes_on = snapshot, goes_on
    encoded = EncodedBatch.encode(made, encoded_parts(batch.schema, [batch]))
    if len(encoded.data) + OF_CONSUMER_BYTES > bytes_max:
        raise request.unsendable(batch, table, bytes_max)
    return encoded


def bare(table: Table, token: Token) -> pb.ChangeBatch:
    """A message with the definition of a table and no rows."""
    return pb.ChangeBatch(table=table.name, token=str(token), schema_id=table.schema_id, table_uuid=table.uuid)


def progress(table: Table, token: Token) -> EncodedBatch:
    """A message without rows: the stream has nothing to send up to the token."""
    made = bare(table, token)
    made.progress = True
    return EncodedBatch.encode(made)


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """Live rows of one bucket as inserts."""

    batch: pa.RecordBatch
    """The rows; empty if the condition matched none."""
    end: int
    """The offset after the rows, where the snapshot continues."""


def live_piece(
    state: TableState, shape: Shape, place: Place, lsn: int, dead: OffsetSet, limits: Limits
) -> list[LiveBatch]:
    """The next batches of a bucket's live rows at a cut, from `place` on; empty at the end. `dead` holds the offsets
    that the log supersedes below the cut."""
    log = state.logs[place.bucket]
    for found in live_at(log, place.offset, log.at_lsn(lsn).end, dead, _piece_options(log, limits)):
        return list(_inserts(state, shape, place.bucket, found, lsn, limits))
    return []


def _inserts(
    state: TableState, shape: Shape, bucket: int, found: Rows, lsn: int, limits: Limits
) -> Iterator[LiveBatch]:
    table = state.versions.at(lsn)
    condition = shape.condition(state.versions, table)
    rows = found if condition is None else found.filter(condition.mask(found.batch, found.schema_id))
    inserts = replace(rows, change=np.zeros(len(rows.offsets), dtype=np.int8))
    at = 0
    shown = project(state.versions.projection(rows.schema_id, table), inserts, shown_columns(table, shape), bucket)
    for batch in bounded(shown, sent_bytes(limits)):
        at += batch.num_rows
        # The last batch ends after all rows that were read, also rows that the condition left out.
        last = found.offsets[-1] if at == len(rows.offsets) else rows.offsets[at - 1]
        yield LiveBatch(batch, int(last) + 1)


def shown_columns(table: Table, shape: Shape) -> list[str]:
    """The system columns, then the user's columns. Chosen columns are found by id; a version without a column omits
    it."""
    names = {column.id: column.name for column in table.columns}
    chosen = shape.columns[shape.tables.index(table.uuid)] if shape.columns else tuple(names)
    return [*SYSTEM_TYPES, *[names[number] for number in chosen if number in names]]


def _upto(view: View, shape: Shape, lsn: int, limit: int, limits: Limits) -> int:
    upto = limit
    nbytes = sent_bytes(limits) // 2 // sum(len(view.by_uuid(uuid).logs) for uuid in shape.tables)
    for uuid in shape.tables:
        upto = view.by_uuid(uuid).versions.until(lsn, upto)
        for log in view.by_uuid(uuid).logs:
            start = log.at_lsn(lsn).end
            reach = run_end(log, shape, start, limits.changes_batch_rows, nbytes)
            if log.head > reach:
                upto = min(upto, log.lsn_reaching(start, reach))
    return upto


def run_end(log: BucketLog, shape: Shape, start: int, rows_max: int, bytes_max: int) -> int:
    """The offset up to which about `rows_max` rows and `bytes_max` bytes lie after `start`. The bytes include
    before-images if the stream reads them: one small update of a large row would otherwise let a run grow far beyond a
    message."""
    reach = log.end_within(start, rows_max, bytes_max)
    if start >= log.head or not log.keyed or not (shape.before_images or shape.where):
        return reach
    prev = np.concatenate([part.to_numpy() for part in log.column(PREV, start, min(reach, log.head))])
    replaced = np.flatnonzero(prev >= 0)
    over = int(np.searchsorted(np.cumsum(log.sizes(prev[replaced])), bytes_max, side="right"))
    return reach if over == len(replaced) else max(start + int(replaced[over]), start + 1)


def _between(view: View, shape: Shape, at: LogPosition, upto: int, limits: Limits) -> list[EncodedBatch]:
    """The commits in (at, upto], table by table, in batches that fit into a message. Only the last batch carries the
    new token: a consumer that stops before it reads all of these commits again."""
    batches: list[tuple[Table, pa.RecordBatch]] = []
    for uuid in shape.tables:
        state = view.by_uuid(uuid)
        table = state.versions.at(at.lsn + 1)
        ranges = [(log.at_lsn(at.lsn).end, log.at_lsn(upto).end) for log in state.logs]
        batch = table_batch(state, table, shape, ranges)
        if batch is not None:
            batches += [(table, piece) for piece in bounded(batch, sent_bytes(limits))]
    last, most = len(batches) - 1, limits.message_bytes
    return [
        message(table, batch, replace(at, lsn=upto) if i == last else at, most, snapshot=False, goes_on=i < last)
        for i, (table, batch) in enumerate(batches)
    ]


def table_batch(
    state: TableState, table: Table, shape: Shape, ranges: Sequence[tuple[int, int]]
) -> pa.RecordBatch | None:
    """The changes of a range of each bucket in LSN order; None if there are none. The ranges begin and end at commits
    of one schema version."""
    parts: list[pa.RecordBatch] = []
    lsns: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for bucket, (log, (start, end)) in enumerate(zip(state.logs, ranges, strict=True)):
        if start >= end:
            continue
        commits = log.commits(start, end)
        for rows in _seen(log, start, end, state.versions, table, shape):
            projection = state.versions.projection(rows.schema_id, table)
            parts.append(project(projection, rows, shown_columns(table, shape), bucket))
            lsns.append(commits.lsn[np.searchsorted(commits.end, rows.offsets, side="right")])
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(lsns), kind="stable")
    return pa.concat_batches(parts).take(pa.array(order))


def _piece_options(log: BucketLog, limits: Limits) -> ReadOptions:
    row_bytes = sum(chunk.size for chunk in log.chunks) // max(sum(chunk.rows for chunk in log.chunks), 1) + 1
    return ReadOptions(max(min(limits.fetch_batch_rows, sent_bytes(limits) // row_bytes), 1))


def _seen(log: BucketLog, start: int, end: int, versions: Versions, table: Table, shape: Shape) -> Iterator[Rows]:
    condition, needed = shape.condition(versions, table), versions.stored_names(table, shown_columns(table, shape))
    if condition is not None:
        yield from filtered(log, start, end, condition, needed, images=shape.before_images)
        return
    for rows in changes(log, start, end, ReadOptions(needed=needed)):
        yield with_before_images(log, rows, versions) if shape.before_images and log.keyed else rows

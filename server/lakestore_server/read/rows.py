"""Rows of a bucket's range for readers: chosen columns, system columns, live rows only, before-images."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.limits import DEFAULT, Limits
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.rows.ipc import crc32c, crc32c_of, encode, encoded_parts, message_size
from lakestore.rows.projection import Projection
from lakestore.rows.ranges import OffsetSet
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.fields import size_of
from lakestore.wire.row_messages import RowMessage
from lakestore_server.arrays import flat_batch
from lakestore_server.commit import request
from lakestore_server.state.bucket_log import BucketLog, Needed
from lakestore_server.state.chunk import CHANGE, DELETE, PREV, StoredBatch
from lakestore_server.state.view import Versions

Ints = npt.NDArray[np.int64]
CHANGE_NAMES = pa.array(["+I", "+U", "-D", "-U"])
BEFORE = 3
MESSAGE_BYTES = 4 << 20
"""About the bytes of a message of a row stream: large enough to be cheap, small enough to overlap."""
_SMALL_ROWS = 1_024
"""Mean number of rows up to which the batches of a message are copied into one. A batch costs encoder, decoder and
DuckDB 5 to 50 µs: 1,000 batches of 10 rows took DuckDB 54 ms, one batch of 10,000 rows 2 ms."""
_HEAD_BYTES = 32
"""Upper bound of the bytes of a `RowBatch` besides its rows: three tags, two lengths, a checksum and the pad."""
_AROUND_BYTES = 1 << 10
"""Upper bound of a column's bytes in a message besides its values, except for nested columns of very many fields."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Stored rows of one bucket with their offsets, times and changes."""

    batch: pa.RecordBatch
    offsets: Ints
    times_us: Ints
    change: npt.NDArray[np.int8]
    schema_id: int = 0
    """The table's version of the batch."""

    def filter(self, mask: npt.NDArray[np.bool_]) -> Rows:
        if mask.all():
            return self
        batch = self.batch.filter(pa.array(mask))
        return Rows(batch, self.offsets[mask], self.times_us[mask], self.change[mask], self.schema_id)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The needs of a reader; anything else costs nothing."""

    rows_max: int = DEFAULT.fetch_batch_rows
    """The most rows of one piece."""
    timed: bool = True
    """Whether times are needed; without them all are zero."""
    needed: Needed | None = None
    """Stored columns that are needed; all by default."""
    wanted: Callable[[StoredBatch], bool] | None = None
    """Whether a stored piece has rows for the reader; by default every piece has."""


def read(log: BucketLog, start: int, end: int, options: ReadOptions = ReadOptions()) -> Iterator[Rows]:
    """The rows of [start, end) in pieces."""
    for at, batch, schema_id in log.rows(start, end, options.rows_max, options.needed, options.wanted):
        yield _rows(log, np.arange(at, at + batch.num_rows, dtype=np.int64), batch, schema_id, options)


def _rows(log: BucketLog, offsets: Ints, batch: pa.RecordBatch, schema_id: int, options: ReadOptions) -> Rows:
    change = batch.column(CHANGE).to_numpy() if log.keyed else np.zeros(batch.num_rows, dtype=np.int8)
    times = log.times_at(offsets) if options.timed else np.zeros(batch.num_rows, dtype=np.int64)
    return Rows(batch, offsets, times, change, schema_id)


def live(log: BucketLog, start: int, end: int, dead: OffsetSet, options: ReadOptions = ReadOptions()) -> Iterator[Rows]:
    """The rows of [start, end) that are no deletes and not in `dead`."""
    for rows in read(log, start, end, options):
        if not log.keyed:
            yield rows
            continue
        kept = rows.filter((rows.change != DELETE) & ~dead.contains(rows.offsets))
        if len(kept.offsets):
            yield kept


def live_at(
    log: BucketLog, start: int, end: int, dead: OffsetSet, options: ReadOptions = ReadOptions()
) -> Iterator[Rows]:
    """The rows of offsets [start, end) that are live at a cut, including rows of the base; `dead` is `dead_of(log, 0,
    cut)`. Rows of a log table below its log start are only in the lake and not included."""
    if not log.keyed:
        yield from live(log, start, end, dead, options)
        return
    for offsets, batch, schema_id in log.stored(start, end, options.rows_max, options.needed, options.wanted):
        mask = (batch.column(CHANGE).to_numpy() != DELETE) & ~dead.contains(offsets)
        if mask.any():
            whole = mask.all()
            kept = batch if whole else batch.filter(pa.array(mask))
            yield _rows(log, offsets if whole else offsets[mask], kept, schema_id, options)


def dead_of(log: BucketLog, start: int, end: int) -> OffsetSet:
    """Every offset that [start, end) supersedes; from 0 on only offsets whose rows the log may still hold."""
    if start == 0 and log.keyed and log.base.end <= end:
        return OffsetSet.of(log.dead_below(end))
    return OffsetSet.of(log.prevs(start, end))


def changes(log: BucketLog, start: int, end: int, options: ReadOptions = ReadOptions()) -> Iterator[Rows]:
    """The changes of [start, end): its records without tombstones of keys that had no row, because readers of rows see
    no change there."""
    for rows in read(log, start, end, options):
        if not log.keyed:
            yield rows
            continue
        seen = rows.filter((rows.change != DELETE) | (rows.batch.column(PREV).to_numpy() >= 0))
        if len(seen.offsets):
            yield seen


def with_before_images(log: BucketLog, rows: Rows, versions: Versions) -> Rows:
    """Changes with the row before each update in front of it, and deletes with the removed row."""
    return imaged(log, rows, rows.batch.column(PREV).to_numpy(), versions, updates=True)


def imaged(log: BucketLog, rows: Rows, prev: Ints, versions: Versions, *, updates: bool) -> Rows:
    """Changes with the rows at `prev` (-1 for none), shown in the version of their change. Deletes carry the removed
    row; with `updates` each update is preceded by the row before it."""
    wanted = (prev >= 0) & (updates | (rows.change == DELETE))
    has_prev = np.flatnonzero(wanted)
    if not len(has_prev):
        return rows
    old = log.take(prev[has_prev], versions.shown_as(versions.numbered(rows.schema_id)))
    updated = rows.change[has_prev] != DELETE
    both = pa.concat_batches([rows.batch, old])
    count = len(rows.offsets)
    place = np.arange(count, dtype=np.int64)
    deleted = has_prev[~updated]
    place[deleted] = count + np.flatnonzero(~updated)
    order = np.argsort(np.concatenate([np.arange(count) * 2 + 1, has_prev[updated] * 2]), kind="stable")
    source = np.concatenate([place, count + np.flatnonzero(updated)])[order]
    row = np.concatenate([np.arange(count), has_prev[updated]])[order]
    change = np.concatenate([rows.change, np.full(int(updated.sum()), BEFORE, dtype=np.int8)])[order]
    return Rows(both.take(pa.array(source)), rows.offsets[row], rows.times_us[row], change, rows.schema_id)


def project(shape: Projection, rows: Rows, columns: Sequence[str], bucket: int) -> pa.RecordBatch:
    """The user and system columns of rows, by the names of the target's definition."""
    user = shape.named(rows.batch, [name for name in columns if name not in SYSTEM_TYPES and name != PREV])
    count = len(rows.offsets)
    arrays = [user[name] if name in user else _system(name, rows, bucket, count) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def sent_bytes(limits: Limits) -> int:
    """Bytes of the rows that a reader is sent at once: `read_batch_bytes`, or half a message if that is less. The other
    half is for the bytes around the values. A single row may be larger."""
    return min(limits.read_batch_bytes, max(limits.message_bytes // 2, 1))


def bounded(batch: pa.RecordBatch, bytes_max: int = DEFAULT.read_batch_bytes) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that fit into a message; a single row may be larger."""
    if batch.num_rows <= 1 or message_size(batch) <= bytes_max or batch.nbytes <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from bounded(batch.slice(0, half), bytes_max)
    yield from bounded(batch.slice(half), bytes_max)


def sendable(shape: Projection, rows: Rows, columns: Sequence[str], bucket: int, limits: Limits) -> pa.RecordBatch:
    """The rows that `project` makes; `Invalid`, which names the row, if no message holds a single one."""
    batch, bytes_max = project(shape, rows, columns, bucket), limits.message_bytes
    if message_size(batch) + _AROUND_BYTES * len(batch.schema) <= bytes_max:
        return batch
    row = int(np.argmax(flat_batch.of_rows(batch, np.arange(batch.num_rows))))
    alone = batch.slice(row, 1)
    if len(encode(alone.schema, [alone])) + _HEAD_BYTES > bytes_max:
        raise request.unsendable(alone, shape.target, bytes_max, (bucket, int(rows.offsets[row])))
    return batch


def message(*batches: pa.RecordBatch) -> pb.RowBatch:
    """Rows in their wire form."""
    data = encode(batches[0].schema, batches)
    return pb.RowBatch(rows=data, crc32c=crc32c(data))


def messages(batches: Iterable[pa.RecordBatch], limits: Limits) -> Iterator[RowMessage]:
    """Rows as a stream: large batches are cut to fit into a message, small ones are joined."""
    waiting: list[pa.RecordBatch] = []
    size, together = 0, min(MESSAGE_BYTES, sent_bytes(limits))
    for batch in batches:
        for piece in bounded(batch, sent_bytes(limits)):
            size += message_size(piece)
            if waiting and size > together:
                yield from _sent(_joined(waiting, limits.fetch_batch_rows), limits.message_bytes)
                waiting, size = [], message_size(piece)
            waiting.append(piece)
    if waiting:
        yield from _sent(_joined(waiting, limits.fetch_batch_rows), limits.message_bytes)


def _joined(batches: Sequence[pa.RecordBatch], rows_max: int) -> Sequence[pa.RecordBatch]:
    """Small batches as few, of at most so many rows."""
    rows = sum(batch.num_rows for batch in batches)
    if len(batches) == 1 or rows > len(batches) * _SMALL_ROWS:
        return batches
    whole = pa.concat_batches(batches)
    return [whole.slice(at, rows_max) for at in range(0, max(rows, 1), rows_max)]


def _sent(batches: Sequence[pa.RecordBatch], bytes_max: int) -> Iterator[RowMessage]:
    """Rows as one message, or as several if their many columns make one too large."""
    parts, first = encoded_parts(batches[0].schema, batches), batches[0]
    if size_of(parts) + _HEAD_BYTES <= bytes_max or (len(batches) == 1 and first.num_rows <= 1):
        yield RowMessage(parts, crc32c_of(parts))
        return
    half = first.num_rows // 2
    for part in [[batch] for batch in batches] if len(batches) > 1 else [[first.slice(0, half)], [first.slice(half)]]:
        yield from _sent(part, bytes_max)


def _system(name: str, rows: Rows, bucket: int, count: int) -> pa.Array:
    if name == "__change":
        return CHANGE_NAMES.take(pa.array(rows.change))
    if name == "__bucket":
        return pa.array(np.full(count, bucket, dtype=np.int32))
    if name == "__offset":
        return pa.array(rows.offsets)
    if name == PREV:
        return rows.batch.column(PREV) if PREV in rows.batch.schema.names else pa.array(np.full(count, -1))
    return pa.array(rows.times_us).cast(SYSTEM_TYPES["__timestamp"])


class DeadCache:
    """Dead sets of ranges that several splits of a read use."""

    def __init__(self, ranges_max: int, bytes_max: int = DEFAULT.dead_cache_bytes) -> None:
        self._ranges_max, self._bytes_max, self._bytes = ranges_max, bytes_max, 0
        self._lock = threading.Lock()
        self._sets: OrderedDict[tuple[str, int, int, int, int], OffsetSet] = OrderedDict()

    def dead_offsets(self, table: str, bucket: int, log: BucketLog, start: int, end: int) -> OffsetSet:
        """Every offset that [start, end) supersedes."""
        # Rows that were dropped meanwhile need not be in the set, and an older view may still have them.
        key = (table, bucket, start, end, log.compactions if start < log.base.end else 0)
        with self._lock:
            if key in self._sets:
                self._sets.move_to_end(key)
                return self._sets[key]
        dead = dead_of(log, start, end)
        with self._lock:
            self._bytes += dead.nbytes - (self._sets[key].nbytes if key in self._sets else 0)
            self._sets[key] = dead
            while len(self._sets) > self._ranges_max or (self._bytes > self._bytes_max and len(self._sets) > 1):
                self._bytes -= self._sets.popitem(last=False)[1].nbytes
        return dead

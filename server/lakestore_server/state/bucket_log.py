"""The log of one bucket as an immutable value: chunks of rows in offset order and the commit index.

- A chunk is a segment file or rows in memory. `append`, `freeze` and `install` return a new log; readers of an old log
  are not affected.
- Small chunks in memory are joined, sixteen of one size at a time and 16 MB at most. An append never fails: if chunks
  cannot be joined, there are more of them.
- Chunks of a keyed table stay below the log start, with the rows that are live there (the base). Compaction drops their
  other rows; a compacted chunk knows which rows are left.
- Chunks of a log table count rows that an erasure took since (`erased`). Positions do not.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Internal, PositionExpired
from lakestore_server.arrays import flat_batch
from lakestore_server.arrays.flat_batch import FlatBatch
from lakestore_server.arrays.gather import GatheredRows, Plan
from lakestore_server.state.chunk import CHANGE, PREV, Chunk, CommitIndex, Ints, MemoryChunk, Position, StoredBatch

JOIN_COUNT = 16
JOIN_ROWS_MAX = 65_536
JOIN_BYTES_MAX = 64 << 10
"""Chunks in memory of at least this many rows or bytes are not joined before a checkpoint cuts segments."""
_EMPTY: Ints = np.empty(0, dtype=np.int64)
_FIRST: Ints = np.zeros(1, dtype=np.int64)


Shown = Callable[[pa.RecordBatch, int], pa.RecordBatch]
"""A stored batch and its schema version in the reader's form."""
Needed = Callable[[int], Sequence[str]]
"""Schema version to the stored columns that a reader needs."""


def _as_stored(batch: pa.RecordBatch, _: int) -> pa.RecordBatch:
    return batch


def _end(chunk: Chunk) -> int:
    return chunk.end


def _level(chunk: Chunk) -> int:
    rows = chunk.end - chunk.start
    if chunk.size >= JOIN_BYTES_MAX:
        return 3
    return 0 if rows < 256 else 1 if rows < 4096 else 2 if rows < JOIN_ROWS_MAX else 3


@dataclass(frozen=True)
class BucketLog:
    """The rows of a bucket from its log start to its head."""

    schema: pa.Schema
    """Storage schema, with `__change` and `__prev` in front for keyed tables."""
    chunks: tuple[Chunk, ...] = ()
    sealed: int = 0
    """The number of leading chunks that are segments or that a running checkpoint cuts into segments."""
    at_head: Position = field(default_factory=Position)
    base: Position = field(default_factory=Position)
    """The bucket at its log start. Its LSN is the table's log start: earlier commits are unknown."""
    compactions: int = 0
    """The number of times that rows below the log start were dropped since the server's start."""
    floor: int = 0
    """The head at the last truncate since the server's start: nothing is stored below it."""
    erased: Position = field(default_factory=Position)
    """The sum and number of the rows that the last erasure took from a log table, and its commit. All lay below the log
    start. The indexes of chunks count them in earlier commits."""

    @property
    def head(self) -> int:
        return self.at_head.end

    @property
    def keyed(self) -> bool:
        """Whether rows have `__prev`."""
        return bool(self.schema.names[:1] == [CHANGE])

    def append(self, chunk: MemoryChunk) -> BucketLog:
        if chunk.start != self.head:
            raise Internal(f"rows at {chunk.start} do not follow head {self.head}")
        return replace(self, chunks=_joined((*self.chunks, chunk), self.sealed), at_head=chunk.index.position(-1))

    def freeze(self) -> BucketLog:
        """The log whose present chunks are not joined with later ones."""
        return self if self.sealed == len(self.chunks) else replace(self, sealed=len(self.chunks))

    def install(self, segments: Sequence[Chunk]) -> BucketLog:
        standing = [chunk for chunk in segments if chunk.end > self.floor]
        kept = tuple(chunk for chunk in standing if self.keyed or chunk.end > self.base.end)
        before, later = self.chunks[: self.sealed], self.chunks[self.sealed :]
        compactions = self.compactions + (sum(c.rows for c in kept) < sum(c.rows for c in before))
        return replace(self, chunks=(*kept, *later), sealed=len(kept), compactions=compactions)

    def truncated(self, lsn: int, time_us: int) -> BucketLog:
        """The log without rows, after a commit that removes all of them; offsets continue."""
        end = Position(self.head, 0, 0, time_us, lsn)
        compactions = self.compactions + 1
        return BucketLog(self.schema, at_head=end, base=end, compactions=compactions, floor=self.head)

    def from_lsn(self, lsn: int) -> BucketLog:
        """The log without the commits up to `lsn`; a chunk that reaches further stays whole."""
        base = replace(self.at_lsn(lsn), lsn=lsn)
        return self.above(base)

    def above(self, base: Position) -> BucketLog:
        """The log that starts at `base`, which is one of its commit ends. Live rows below it stay."""
        if self.keyed:
            return replace(self, base=base)
        kept = tuple(chunk for chunk in self.chunks if chunk.end > base.end)
        sealed = max(self.sealed - (len(self.chunks) - len(kept)), 0)
        return replace(self, chunks=kept, sealed=sealed, base=base)

    def without(self, lost: Position) -> BucketLog:
        """The log of a log table without rows below its log start, from the commit `lost.lsn` on."""
        earlier = replace(self, erased=lost)
        return replace(earlier, base=earlier.counted(self.base), at_head=earlier.counted(self.at_head))

    def counted(self, found: Position) -> Position:
        """A position of a chunk without the erased rows that it counts."""
        gone = self.erased
        if found.lsn >= gone.lsn:
            return found
        total = (found.live_sum - gone.live_sum) % (1 << 64)
        return replace(found, live_sum=total, live_rows=found.live_rows - gone.live_rows)

    @cached_property
    def _batches(self) -> list[StoredBatch]:
        return [piece for chunk in self.chunks for piece in chunk.batches()]

    @cached_property
    def _starts(self) -> Ints:
        return np.concatenate([_EMPTY, *(chunk.starts for chunk in self.chunks)])

    def _first_beyond(self, offset: int) -> int:
        """The number of the first chunk that ends above an offset. An array of all ends would be built for each message
        of a reader at the head, because every commit makes a new log."""
        return bisect_right(self.chunks, offset, key=_end)

    def _chunks_beyond(self, offset: int) -> Iterator[Chunk]:
        return (self.chunks[number] for number in range(self._first_beyond(offset), len(self.chunks)))

    def at_lsn(self, lsn: int) -> Position:
        """The bucket at the last commit at or before `lsn`."""
        if lsn < self.base.lsn:
            raise PositionExpired(
                f"changes are kept from LSN {self.base.lsn} on, and the position is LSN {lsn}: read a snapshot"
            )
        return self._last(lsn, lambda index: index.lsn)

    def at_time(self, time_us: int) -> Position:
        """The bucket at the last commit at or before a time, or the log start if there is none."""
        return self._last(time_us, lambda index: index.time_us)

    def _last(self, value: int, values: Callable[[CommitIndex], Ints]) -> Position:
        at = bisect_right(self.chunks, value, key=lambda chunk: values(chunk.index)[0]) - 1
        if at < 0:
            return self.base
        index = self.chunks[at].index
        found = index.position(int(np.searchsorted(values(index), value, side="right")) - 1)
        return self.counted(found) if found.lsn > self.base.lsn else self.base

    def lsn_beyond(self, end: int) -> int | None:
        """The first commit after the log start that ends above `end`; None if `end` is the head."""
        end = max(end, self.base.end)
        at = self._first_beyond(end)
        if at == len(self.chunks):
            return None
        index = self.chunks[at].index
        return int(index.lsn[np.searchsorted(index.end, end, side="right")])

    def at_end(self, end: int) -> tuple[int, Position] | None:
        """(lsn, position) of the commit that ends at `end`; None if none does."""
        if end <= self.base.end:
            return (self.base.lsn, self.base) if end == self.base.end else None
        at = bisect_left(self.chunks, end, key=_end)
        if at == len(self.chunks):
            return None
        index = self.chunks[at].index
        i = int(np.searchsorted(index.end, end))
        if i == len(index.end) or index.end[i] != end:
            return None
        return int(index.lsn[i]), self.counted(index.position(i))

    def end_within(self, start: int, rows_max: int, bytes_max: int) -> int:
        """The offset up to which about `rows_max` rows and `bytes_max` stored bytes lie after `start`; at least one
        row."""
        at, rows, room = start, rows_max, float(bytes_max)
        for chunk in self._chunks_beyond(start):
            row_bytes = max(chunk.size / (chunk.end - chunk.start), 1.0)
            taken = min(chunk.end - at, rows, int(room / row_bytes))
            at, rows, room = at + taken, rows - taken, room - taken * row_bytes
            if at < chunk.end:
                break
        return max(at, start + 1)

    def bytes_between(self, start: int, end: int) -> int:
        """About the stored bytes of the offsets [start, end)."""
        total = 0.0
        for chunk in self._chunks_beyond(start):
            if chunk.start >= end:
                break
            offsets = min(chunk.end, end) - max(chunk.start, start)
            total += chunk.size * offsets / (chunk.end - chunk.start)
        return int(total)

    def lsn_reaching(self, start: int, reach: int) -> int:
        """The LSN of the last commit that ends at or before `reach`, or of the first one after `start`."""
        commits = self.commits(start, min(reach, self.head))
        if len(commits.lsn):
            return int(commits.lsn[-1])
        beyond = self.lsn_beyond(start)
        assert beyond is not None, "nothing lies beyond the head"
        return beyond

    def commits(self, start: int, end: int) -> CommitIndex:
        """The commits with rows in [start, end), both commit ends."""
        chunks = itertools.takewhile(lambda chunk: chunk.start < end, self._chunks_beyond(start))
        parts = [chunk.index for chunk in chunks]
        return CommitIndex.joined(parts).between(start, end)

    def times_at(self, offsets: Ints) -> Ints:
        if not len(offsets):
            return _EMPTY
        last = int(offsets.max())
        index = self.chunks[self._first_beyond(last)].index
        commit_end = int(index.end[np.searchsorted(index.end, last, side="right")])
        commits = self.commits(int(offsets.min()), commit_end)
        return np.asarray(commits.time_us[np.searchsorted(commits.end, offsets, side="right")])

    def rows(
        self,
        start: int,
        end: int,
        rows_max: int = 1 << 62,
        needed: Needed | None = None,
        wanted: Callable[[StoredBatch], bool] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch, int]]:
        """(first offset, batch, schema version) triples that cover [start, end), each with at most `rows_max` rows.
        With `needed`, batches of compressed segments have only those columns. A log restored without rows that only the
        lake had is complete from its start on."""
        if start < self.base.end and start < end and (self.keyed or self.base.live_rows):
            raise PositionExpired(
                f"changes are kept from offset {self.base.end} on, and offset {start} was asked for: read a snapshot"
            )
        for offsets, batch, schema_id in self.stored(start, end, rows_max, needed, wanted):
            yield int(offsets[0]), batch, schema_id

    def stored(
        self,
        start: int,
        end: int,
        rows_max: int = 1 << 62,
        needed: Needed | None = None,
        wanted: Callable[[StoredBatch], bool] | None = None,
    ) -> Iterator[tuple[Ints, pa.RecordBatch, int]]:
        """(offsets, batch, schema version) of what is left of [start, end), also below the log start; see `rows`. A
        piece that is not `wanted` is not loaded."""
        first = max(int(np.searchsorted(self._starts, start, side="right")) - 1, 0)
        for piece in self._batches[first:]:
            if piece.start >= end:
                return
            low, high, offsets = piece.between(start, end)
            if low >= high or (wanted is not None and not wanted(piece)):
                continue
            batch = piece.load(needed(piece.schema_id) if needed else None)
            for at in range(low, high, rows_max):
                upto = min(at + rows_max, high)
                yield offsets[at - low : upto - low], batch.slice(at, upto - at), piece.schema_id

    def column(self, name: str, start: int, end: int) -> list[pa.Array]:
        return [batch.column(name) for _, batch, _ in self.rows(start, end)]

    def prevs(self, start: int, end: int) -> list[Ints]:
        """Every superseded offset named in [start, end)."""
        if not self.keyed:
            return []
        arrays = [column.to_numpy() for column in self.column(PREV, start, end)]
        return [array[array >= 0] for array in arrays]

    def dead_below(self, end: int) -> list[Ints]:
        """Every superseded offset whose row may still be stored, as of a commit end at or above the log start."""
        prevs = [batch.column(PREV).to_numpy() for _, batch, _ in self.stored(0, end)]
        return [*(array[array >= 0] for array in prevs), *(chunk.kills() for chunk in self.chunks)]

    def holds(self, offsets: Ints) -> npt.NDArray[np.bool_]:
        """For each offset, whether its record is stored; it may be gone below the log start."""
        there = np.zeros(len(offsets), dtype=np.bool_)
        piece_of = np.searchsorted(self._starts, offsets, side="right") - 1
        for number in np.unique(piece_of[piece_of >= 0]).tolist():
            here = np.flatnonzero(piece_of == number)
            there[here] = self._batches[number].places(offsets[here]) >= 0
        return there

    def located(self, offsets: Ints) -> Iterator[tuple[Ints, StoredBatch, Ints]]:
        """(places in `offsets`, piece, rows in it) of these offsets, piece by piece in offset order."""
        if len(offsets) == 1:
            piece, row = self.place_of(int(offsets[0]))
            yield _FIRST, piece, np.array((row,), dtype=np.int64)
            return
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        piece_of = np.searchsorted(self._starts, wanted, side="right") - 1
        rows = wanted - self._starts[piece_of]
        cuts = [0, *(np.flatnonzero(np.diff(piece_of)) + 1).tolist(), len(wanted)]
        for first, last in itertools.pairwise(cuts if len(wanted) else []):
            piece = self._batches[int(piece_of[first])]
            if piece.left is not None or wanted[last - 1] >= piece.end:
                rows[first:last] = piece.places(wanted[first:last])
                if rows[first:last].min() < 0:
                    raise Internal(f"no row is left at offset {int(wanted[first + rows[first:last].argmin()])}")
            yield order[first:last], piece, rows[first:last]

    def place_of(self, offset: int) -> tuple[StoredBatch, int]:
        """(piece, row in it) of one offset."""
        piece = self._batches[int(self._starts.searchsorted(offset, "right")) - 1]
        row = piece.place(offset)
        if row < 0:
            raise Internal(f"no row is left at offset {offset}")
        return piece, row

    def values(self, name: str, offsets: Ints) -> npt.NDArray[Any]:
        """A system column at these offsets."""
        found = np.empty(len(offsets), dtype=np.int64)
        for each in self._fetched(offsets, lambda _: [name]):
            values = each.batch().column(0).to_numpy()
            found[np.concatenate([pick.places for pick in each.picks])] = values
        return found

    def sizes(self, offsets: Ints) -> Ints:
        """The bytes of each of the rows at these offsets."""
        found = np.empty(len(offsets), dtype=np.int64)
        for each in self._fetched(offsets, None):
            found[np.concatenate([pick.places for pick in each.picks])] = each.sizes()
        return found

    def take(
        self,
        offsets: Ints,
        shown: Shown = _as_stored,
        needed: Needed | None = None,
        claim: Callable[[int], None] | None = None,
    ) -> pa.RecordBatch:
        """The rows at these offsets, in order; `shown` converts them to one schema version. With `needed`, `shown` gets
        only those columns. `claim` is called with the bytes before they are copied."""
        if not len(offsets):
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        parts, order = [], []
        for each in self._fetched(offsets, needed):
            if claim is not None:
                claim(int(each.sizes().sum()))
            parts.append(shown(each.batch(), each.picks[0].piece.schema_id))
            order += [pick.places for pick in each.picks]
        found = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
        return in_order(found, np.concatenate(order))

    def _fetched(self, offsets: Ints, needed: Needed | None) -> Iterator[FetchedRows]:
        alike: dict[int, list[Pick]] = {}
        for places, piece, rows in self.located(offsets):
            alike.setdefault(piece.schema_id, []).append(Pick(0, piece, places, rows))
        for version, picks in alike.items():
            yield from fetched(picks, needed(version) if needed else None)


def in_order(found: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Rows by their places."""
    if len(places) <= 1 or (places[1:] > places[:-1]).all():
        return found
    back = np.empty(len(places), dtype=np.int64)
    back[places] = np.arange(len(places))
    return found.take(pa.array(back))


def _joined(chunks: tuple[Chunk, ...], sealed: int) -> tuple[Chunk, ...]:
    """Join the last chunks while sixteen of them have one size. Never fails, because the rows are in the journal."""
    while len(chunks) - sealed >= JOIN_COUNT:
        tail = chunks[-JOIN_COUNT:]
        level = _level(tail[-1])
        if level == 3 or any((_level(c), c.schema_id) != (level, tail[-1].schema_id) for c in tail):
            return chunks
        joined = _one(tail)
        if joined is None:
            return chunks
        chunks = (*chunks[:-JOIN_COUNT], joined)
    return chunks


def _one(chunks: Sequence[Chunk]) -> Chunk | None:
    """Chunks as one, of at most 16 MB; None without memory for it: they can be read one by one."""
    try:
        batch = pa.concat_batches([piece.load() for chunk in chunks for piece in chunk.batches()])
        return MemoryChunk(chunks[0].start, batch, CommitIndex.joined([c.index for c in chunks]), chunks[0].schema_id)
    except (MemoryError, pa.ArrowException):
        return None


PIECES_MIN, ROWS_MAX = 4, 512
"""Gathering pays from this many pieces on, up to this many rows of each on average."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Rows in one piece of a bucket."""

    bucket: int
    piece: StoredBatch
    places: Ints
    """Places of the rows in the answer."""
    rows: Ints
    """Places of the rows in the piece."""

    def among(self, kept: npt.NDArray[np.bool_]) -> Pick:
        return replace(self, places=self.places[kept], rows=self.rows[kept])


class FetchedRows(Protocol):
    """Rows that were located and not copied yet."""

    @property
    def picks(self) -> Sequence[Pick]:
        """The picks, in the order of `batch`."""

    def sizes(self) -> Ints:
        """The bytes of each row."""

    def batch(self) -> pa.RecordBatch: ...


def fetched(picks: Sequence[Pick], names: Sequence[str] | None) -> Sequence[FetchedRows]:
    """The rows of picks of one schema version, with these stored columns (by default all)."""
    flat = [pick for pick in picks if pick.piece.flat is not None]
    if len(flat) < PIECES_MIN or sum(len(pick.rows) for pick in flat) > ROWS_MAX * len(flat):
        return [_Single(pick, names) for pick in picks]
    parts = [pick.piece.flat() for pick in flat if pick.piece.flat is not None]
    schema = parts[0].batch.schema
    names = schema.names if names is None else names
    if not Plan.is_plain(schema, names):
        return [_Single(pick, names) for pick in picks]
    return [_many(flat, parts, Plan(schema, names)), *(_Single(pick, names) for pick in picks if not pick.piece.flat)]


def _many(picks: Sequence[Pick], parts: Sequence[FlatBatch], plan: Plan) -> FetchedRows:
    gathered = plan.gather(parts, [len(pick.rows) for pick in picks], np.concatenate([pick.rows for pick in picks]))
    return _Many(picks, gathered)


@dataclass(frozen=True, slots=True)
class _Many:
    """Rows of many pieces."""

    picks: Sequence[Pick]
    gathered: GatheredRows

    def sizes(self) -> Ints:
        return self.gathered.sizes()

    def batch(self) -> pa.RecordBatch:
        return self.gathered.batch()


class _Single:
    """Rows of one piece."""

    def __init__(self, pick: Pick, names: Sequence[str] | None) -> None:
        self.picks = (pick,)
        self._rows = pick.rows
        batch = pick.piece.load_rows(pick.rows, names)
        self._batch = batch if names is None else batch.select(names)

    def sizes(self) -> Ints:
        return flat_batch.of_rows(self._batch, self._rows)

    def batch(self) -> pa.RecordBatch:
        if len(self._rows) == 1:
            return self._batch.slice(int(self._rows[0]), 1)
        return self._batch.take(pa.array(self._rows))

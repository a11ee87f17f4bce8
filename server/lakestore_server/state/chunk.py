"""Chunks: runs of rows of one bucket, with a commit index: the commit of each offset, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.model import columns
from lakestore_server.arrays.flat_batch import FlatBatch


@dataclass(frozen=True)
class Position:
    """A bucket at a commit end."""

    end: int = 0
    live_sum: int = 0
    live_rows: int = 0
    time_us: int = 0
    lsn: int = 0


@dataclass(frozen=True, slots=True)
class CommitIndex:
    """One entry per commit of the bucket, in LSN order."""

    lsn: Ints
    time_us: Ints
    end: Ints
    """Head of the bucket after the commit."""
    live_sum: npt.NDArray[np.uint64]
    live_rows: Ints

    @staticmethod
    def one(lsn: int, time_us: int, end: int, live_sum: int, live_rows: int) -> CommitIndex:
        return CommitIndex(
            np.array([lsn], dtype=np.int64),
            np.array([time_us], dtype=np.int64),
            np.array([end], dtype=np.int64),
            np.array([live_sum], dtype=np.uint64),
            np.array([live_rows], dtype=np.int64),
        )

    def of(self, offsets: Ints) -> CommitIndex:
        """The commits of these offsets, and the last commit."""
        which = np.searchsorted(self.end, offsets, side="right")
        return self._at(np.union1d(which, np.array([len(self.end) - 1])))

    def between(self, start: int, end: int) -> CommitIndex:
        """The commits with rows in [start, end), both commit ends."""
        first, last = np.searchsorted(self.end, [start, end], side="right")
        return self._at(slice(int(first), int(last)))

    def less(self, base: Position) -> CommitIndex:
        """The commits above a position, as if there were no rows below it."""
        above = self._at(slice(int(np.searchsorted(self.end, base.end, side="right")), len(self.end)))
        sums, rows = above.live_sum - np.uint64(base.live_sum), above.live_rows - base.live_rows
        return CommitIndex(above.lsn, above.time_us, above.end, sums, rows)

    def position(self, i: int) -> Position:
        """The bucket after one of the commits."""
        return Position(
            int(self.end[i]), int(self.live_sum[i]), int(self.live_rows[i]), int(self.time_us[i]), int(self.lsn[i])
        )

    def _at(self, which: slice | Ints) -> CommitIndex:
        rows = self.live_rows[which]
        return CommitIndex(self.lsn[which], self.time_us[which], self.end[which], self.live_sum[which], rows)

    @staticmethod
    def joined(parts: Sequence[CommitIndex]) -> CommitIndex:
        if not parts:
            none = np.empty(0, dtype=np.int64)
            return CommitIndex(none, none, none, none.astype(np.uint64), none)
        return CommitIndex(
            np.concatenate([p.lsn for p in parts]),
            np.concatenate([p.time_us for p in parts]),
            np.concatenate([p.end for p in parts]),
            np.concatenate([p.live_sum for p in parts]),
            np.concatenate([p.live_rows for p in parts]),
        )


Ints = npt.NDArray[np.int64]
CHANGE, PREV = "__change", columns.PREV
"""System columns before the rows of keyed tables: the record's kind, and the offset that it supersedes."""
INSERT, UPDATE, DELETE = 0, 1, 2
"""Kinds of records."""
_NONE: Ints = np.empty(0, dtype=np.int64)


class Chunk(Protocol):
    """Rows [start, end) of a bucket."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def index(self) -> CommitIndex: ...

    @property
    def size(self) -> int:
        """Estimated bytes."""

    @property
    def rows(self) -> int:
        """The number of rows; less than the number of offsets if some are gone."""

    @property
    def schema_id(self) -> int:
        """The table's version in which the rows are stored."""

    def kills(self) -> Ints:
        """Offsets superseded by records that are gone from here; sorted."""

    def batches(self) -> Sequence[StoredBatch]:
        """The chunk's record batches, in offset order."""

    @property
    def starts(self) -> Ints:
        """The first offset of each batch."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One record batch of a chunk, loaded on demand."""

    start: int
    end: int
    load: BatchLoader
    schema_id: int = 0
    left: Callable[[], Ints] | None = None
    """Returns the offsets of the rows that are left; None if no row of the range is gone."""
    flat: Callable[[], FlatBatch] | None = None
    """Returns the batch for readers of few rows; None if it can only be loaded whole."""

    def load_rows(self, rows: Ints, names: Sequence[str] | None) -> pa.RecordBatch:
        """The batch with at least these columns (by default all); only these rows may be read."""
        if self.flat is None:
            return self.load(names)
        flat = self.flat()
        if not flat.watch.is_needless:
            every = flat.batch.schema.names
            flat.touch_rows(rows, [every.index(name) for name in (every if names is None else names)])
        return flat.batch

    def offsets(self) -> Ints:
        return self.between(self.start, self.end)[2]

    def between(self, start: int, end: int) -> tuple[int, int, Ints]:
        """(place of the first row, place after the last, offsets) of its rows in [start, end)."""
        if self.left is None:
            low, high = max(start, self.start), min(end, self.end)
            return low - self.start, high - self.start, np.arange(low, high, dtype=np.int64)
        held = self.left()
        first, last = (int(at) for at in np.searchsorted(held, [start, end]))
        return first, last, held[first:last]

    def place(self, offset: int) -> int:
        """The place of one offset in the batch; -1 for a row that is gone."""
        if self.left is None:
            return offset - self.start if offset < self.end else -1
        held = self.left()
        at = int(np.searchsorted(held, offset))
        return at if at < len(held) and held[at] == offset else -1

    def places(self, offsets: Ints) -> Ints:
        """The places of these offsets in the batch; -1 for rows that are gone."""
        if self.left is None:
            return np.where(offsets < self.end, offsets - self.start, -1)
        held = self.left()
        if not len(held):
            return np.full(len(offsets), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(held, offsets), len(held) - 1)
        return np.where(held[at] == offsets, at, -1)


class BatchLoader(Protocol):
    """Returns a record batch and checks its bytes the first time. With `names`, at least these columns."""

    def __call__(self, names: Sequence[str] | None = None) -> pa.RecordBatch: ...


class NoWatch:
    """A `Watch` for bytes that may all be read."""

    is_needless = True

    def touch(self, first: Ints, last: Ints) -> None: ...


class LazyFlat:
    """A batch in one piece of memory, prepared for readers of few rows on the first call."""

    __slots__ = ("_batch", "_flat", "_memory")

    def __init__(self, batch: pa.RecordBatch, memory: pa.Buffer) -> None:
        self._batch, self._memory = batch, memory
        self._flat: FlatBatch | None = None

    def __call__(self) -> FlatBatch:
        if self._flat is None:
            self._flat = FlatBatch(self._batch, self._memory, NoWatch())
        return self._flat


@dataclass(frozen=True, slots=True)
class MemoryChunk:
    """Rows that are in the journal and not yet in a segment."""

    start: int
    batch: pa.RecordBatch
    index: CommitIndex
    schema_id: int = 0
    flat: Callable[[], FlatBatch] | None = None
    """The `flat` of the one batch."""
    size: int = field(init=False)
    """Bytes of the batch; Arrow would count them at every call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", int(self.batch.nbytes))

    @property
    def end(self) -> int:
        return self.start + int(self.batch.num_rows)

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    def kills(self) -> Ints:
        """No offset: every record is here."""
        return _NONE

    @property
    def starts(self) -> Ints:
        return np.array([self.start], dtype=np.int64)

    def batches(self) -> Sequence[StoredBatch]:
        return (StoredBatch(self.start, self.end, lambda names=None: self.batch, self.schema_id, None, self.flat),)

"""Local compaction of primary-key tables: below the log start only rows that live there have to stay.

A checkpoint rewrites segments that lie below the log start and are mostly superseded, and small neighbours together,
without the superseded rows and the deletes. A record that goes leaves the offset that it superseded in its segment
while that row is still there, so whoever folds what is stored never meets a dead row without its death.
What a bucket may lose is known from the `__prev` columns below the log start, each of which is read once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakestore.errors import Corrupt
from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore_server.files.new_segment import SparseRows
from lakestore_server.files.segment import Segment
from lakestore_server.index.collisions import hashed
from lakestore_server.index.entry import FLAG, table_prefix
from lakestore_server.index.keys import IndexKeys, encoded, joined
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CHANGE, DELETE, PREV, Chunk, Ints
from lakestore_server.state.commit_index import CommitIndex
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.compaction")
FORGET_KEYS = 4_096
"""Looked up at once on the commit loop."""
_EMPTY: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Base:
    """Knowledge of a bucket's rows below its log start."""

    upto: int = 0
    """Up to where changes were looked at: a log start."""
    dead: BitMap64 = field(default_factory=BitMap64)
    """Superseded below it, or a delete that may go; and still stored."""
    waiting: Ints = field(default_factory=lambda: _EMPTY)
    """Deletes that stay for a time."""
    waiting_us: Ints = field(default_factory=lambda: _EMPTY)
    """When each was committed; ascending."""
    is_settled: bool = False
    """Whether the last look at its segments found nothing to do, and nothing has changed since."""
    floor: int = 0
    """The head at which the log was emptied last."""

    def advance(self, held: BucketLog, now_us: int, keep_us: int) -> None:
        """Take in the changes up to the start of the log; deletes stay until they are older than `keep_us`."""
        end = held.base.end
        if held.floor > self.floor:
            self.floor = self.upto = held.floor
            self.dead, self.waiting, self.waiting_us = BitMap64(), _EMPTY, _EMPTY
        if end > self.upto:
            superseded = [chunk.kills() for chunk in held.chunks] if not self.upto else []
            deleted = [_EMPTY]
            for offsets, batch, _ in held.stored(self.upto, end):
                prev = batch.column(PREV).to_numpy()
                superseded.append(prev[prev >= 0])
                deleted.append(offsets[batch.column(CHANGE).to_numpy() == DELETE])
            found = np.concatenate([_EMPTY, *superseded])
            dead = BitMap64(found[held.holds(found)])
            self._deleted(held, np.concatenate(deleted), keep_us)
            self.dead |= dead
            self.upto, self.is_settled = end, False
        over = int(np.searchsorted(self.waiting_us, now_us - keep_us, side="right"))
        if over:
            self.dead |= BitMap64(self.waiting[:over])
            self.waiting, self.waiting_us = self.waiting[over:], self.waiting_us[over:]
            self.is_settled = False

    def _deleted(self, held: BucketLog, offsets: Ints, keep_us: int) -> None:
        if keep_us:
            times_us = np.concatenate([self.waiting_us, held.times_at(offsets)])
            self.waiting, self.waiting_us = np.concatenate([self.waiting, offsets]), times_us
        else:
            self.dead |= BitMap64(offsets)

    def within(self, start: int, end: int) -> BitMap64:
        """The dead of [start, end)."""
        return self.dead & BitMap64(range(start, end))


@dataclass(slots=True)
class SegmentRun:
    """Neighbouring segments that become one."""

    chunks: list[Chunk]
    live: int
    """Rows, and offsets that gone records superseded, that stay."""
    size: int
    """About how many bytes stay."""
    due: bool
    """Whether it is to be rewritten even if it stays alone."""

    @property
    def start(self) -> int:
        """First offset."""
        return self.chunks[0].start

    @property
    def end(self) -> int:
        """Offset after the last."""
        return self.chunks[-1].end

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(chunk.size for chunk in self.chunks)


def runs_due(
    chunks: Sequence[Chunk], base: Base, limits: Limits, busy: frozenset[int] = frozenset()
) -> list[SegmentRun]:
    """The runs of a bucket's chunks to rewrite; only chunks that end at or below `base.upto` are looked at, and none
    whose identity says that others are busy with it.

    A segment half of which is gone; and a small one with the next one, unless it is twice as large: so a bucket has a
    logarithmic number of them, and a row that lives is rewritten as often, or paid for by the dead.
    """
    done: list[SegmentRun] = []
    runs: list[SegmentRun] = []
    for chunk in chunks:
        if chunk.end > base.upto or not isinstance(chunk, Segment):
            break
        if id(chunk) in busy:
            done, runs = done + runs, []
            continue
        runs.append(_alone(chunk, base))
        while len(runs) > 1 and _belong(runs[-2], runs[-1], limits):
            last = runs.pop()
            before = runs[-1]
            runs[-1] = SegmentRun(before.chunks + last.chunks, before.live + last.live, before.size + last.size, True)
    return [run for run in done + runs if run.due]


def _alone(chunk: Chunk, base: Base) -> SegmentRun:
    kills = chunk.kills()
    dead = base.dead.range_cardinality(chunk.start, chunk.end)
    stale = len(kills) - len(BitMap64(kills) & base.dead) if len(kills) else 0
    held, gone = chunk.rows + len(kills), dead + stale
    size = chunk.size * (held - gone) // max(held, 1)
    return SegmentRun([chunk], held - gone, size, gone > 0 and 2 * gone >= held)


def _belong(before: SegmentRun, after: SegmentRun, limits: Limits) -> bool:
    return (
        before.live + 1 < 2 * (after.live + 1)
        and before.chunks[0].schema_id == after.chunks[0].schema_id
        and before.live + after.live <= limits.segment_rows
        and before.size + after.size <= limits.segment_bytes
        and before.nbytes + after.nbytes <= max(limits.compaction_bytes, limits.segment_bytes)
    )


def left_of(run: SegmentRun, base: Base, gone: BitMap64) -> SparseRows | None:
    """The rows that stay of a run when all of `gone` go, those of other runs too; None when nothing stays."""
    dead = _array(base.within(run.start, run.end))
    batches: list[pa.RecordBatch] = []
    offsets: list[Ints] = []
    kills = [chunk.kills() for chunk in run.chunks]
    for piece in (piece for chunk in run.chunks for piece in chunk.batches()):
        held, batch = piece.offsets(), piece.load()
        goes = _members(held, dead)
        prev = batch.column(PREV).to_numpy()[goes]
        kills.append(prev[prev >= 0])
        batches.append(batch.filter(pa.array(~goes)))
        offsets.append(held[~goes])
    kept = np.concatenate(offsets)
    superseded = _array(BitMap64(np.concatenate(kills)) & (base.dead - gone))
    if not len(kept) and not len(superseded):
        return None
    index = CommitIndex.joined([chunk.index for chunk in run.chunks]).of(kept)
    rows = pa.concat_batches(batches)
    return SparseRows(run.start, run.end, run.chunks[0].schema_id, rows, kept, superseded, index)


def _forgotten(run: SegmentRun, base: Base, state: TableState) -> tuple[IndexKeys, Ints]:
    """(keys, offsets) of the deletes that go from a run; keys that the index keeps by hash stay in their chains."""
    prefix, dead = table_prefix(state.table.number), _array(base.within(run.start, run.end))
    found: list[IndexKeys] = []
    offsets = [_EMPTY]
    for piece in (piece for chunk in run.chunks for piece in chunk.batches()):
        held, batch = piece.offsets(), piece.load()
        goes = _members(held, dead) & (batch.column(CHANGE).to_numpy() == DELETE)
        rows = batch.filter(pa.array(goes))
        names = state.versions.numbered(piece.schema_id).primary_key
        found.append(encoded([rows.column(name) for name in names], prefix))
        offsets.append(held[goes])
    gone, all_keys = np.concatenate(offsets), joined(found)
    whole = np.delete(np.arange(len(gone)), hashed(all_keys))
    return all_keys.take(whole), gone[whole]


def _array(offsets: BitMap64) -> Ints:
    return np.frombuffer(offsets.to_array(), dtype=np.uint64).astype(np.int64)


def _members(offsets: Ints, among: Ints) -> npt.NDArray[np.bool_]:
    if not len(among):
        return np.zeros(len(offsets), dtype=np.bool_)
    at = np.minimum(np.searchsorted(among, offsets), len(among) - 1)
    return np.asarray(among[at] == offsets)


@dataclass(slots=True)
class Compactions:
    """Sums since the start."""

    segments: int = 0
    """Rewritten."""
    rows: int = 0
    """Dropped."""
    reclaimed_bytes: dict[str, int] = field(default_factory=dict)
    """Table uuid to what its rewritten segments are smaller by."""


@dataclass(frozen=True, slots=True)
class _Swap:
    """The effect of a checkpoint under way on one bucket."""

    key: tuple[str, int]
    chunks: list[Chunk]
    gone: BitMap64
    segments: int
    nbytes: int
    forgotten: list[tuple[IndexKeys, Ints]]
    """Keys of deletes that were remembered, and the offsets that the index may have for them."""


class Compactor:
    """The choice of segments that each checkpoint rewrites. Belongs to the checkpointer and its thread."""

    def __init__(self, limits: Limits, busy: Callable[[], frozenset[int]] = frozenset) -> None:
        """`busy` has the identities of segments that others are rewriting."""
        self._limits, self._busy = limits, busy
        self._bases: dict[tuple[str, int], Base] = {}
        self._broken: set[tuple[str, int]] = set()
        self._swaps: list[_Swap] = []
        self._room = 0
        self._forgotten: list[tuple[IndexKeys, Ints]] = []
        self._skips = self._is_full = False
        self.figures = Compactions()

    def begin(self, view: View) -> None:
        """A checkpoint of a view begins."""
        kept = view.kept
        self._bases = {key: base for key, base in self._bases.items() if key[0] in kept}
        self._swaps, self._room, self._is_full = [], self._limits.compaction_bytes, False

    def compacted(
        self, state: TableState, bucket: int, cut: list[Chunk] | None, now_us: int, write: Callable[[SparseRows], Chunk]
    ) -> list[Chunk] | None:
        """A bucket's chunks with some of them rewritten; None where nothing is to do, or cannot be done now.

        `cut` are its chunks if they are not the log's any more. What fails here fails no checkpoint.
        """
        key, held = (state.table.uuid, bucket), state.logs[bucket]
        if self._skips or self._is_full or not held.keyed or not held.base.end or key in self._broken:
            return None
        base = self._bases.setdefault(key, Base())
        base.is_settled &= cut is None
        try:
            base.advance(held, now_us, _deletes_stay_us(state.table))
            if base.is_settled:
                return None
            return self._rewritten(state, key, base, list(held.chunks) if cut is None else cut, write)
        except (OSError, MemoryError) as error:
            self._is_full = True
            log.error("local compaction waits for the next checkpoint: %s", error)
        except (Corrupt, pa.ArrowException) as error:
            self._broken.add(key)
            log.error("bucket %d of table %s is compacted no more: %s", bucket, state.table.name, error)
        return None

    def _rewritten(
        self,
        state: TableState,
        key: tuple[str, int],
        base: Base,
        chunks: list[Chunk],
        write: Callable[[SparseRows], Chunk],
    ) -> list[Chunk] | None:
        runs = self._affordable(runs_due(chunks, base, self._limits, self._busy()))
        if not runs:
            return None
        gone = BitMap64()
        for run in runs:
            gone |= base.within(run.start, run.end)
        after, replaced, added = list(chunks), 0, 0
        for run in runs:
            left = left_of(run, base, gone)
            new = [write(left)] if left else []
            first = after.index(run.chunks[0])
            after[first : first + len(run.chunks)] = new
            replaced, added = replaced + run.nbytes, added + sum(chunk.size for chunk in new)
        remembers = state.table.merge.engine == "versioned"
        forgotten = [_forgotten(run, base, state) for run in runs] if remembers else []
        count = sum(len(run.chunks) for run in runs)
        self._swaps.append(_Swap(key, after, gone, count, replaced - added, forgotten))
        return after

    def _affordable(self, runs: list[SegmentRun]) -> list[SegmentRun]:
        """The first runs, as many as a checkpoint may read; one is always done."""
        chosen = []
        for run in runs:
            if self._room <= 0:
                break
            self._room -= run.nbytes
            chosen.append(run)
        return chosen

    def installed(self) -> bool:
        """The checkpoint is durable, its segments are served; whether more is due that may succeed at once."""
        for swap in self._swaps:
            self._bases[swap.key].dead -= swap.gone
            self.figures.segments += swap.segments
            self.figures.rows += len(swap.gone)
            before = self.figures.reclaimed_bytes.get(swap.key[0], 0)
            self.figures.reclaimed_bytes[swap.key[0]] = before + swap.nbytes
        more = self._room <= 0
        for swap in self._swaps:
            base = self._bases[swap.key]
            base.is_settled = not runs_due(swap.chunks, base, self._limits, self._busy())
            more |= not base.is_settled
        self._forgotten += [each for swap in self._swaps for each in swap.forgotten]
        skipped = self._skips
        self._swaps, self._skips = [], False
        return skipped or (more and not self._is_full)

    def forgotten(self) -> Iterator[tuple[IndexKeys, Ints]]:
        """Keys, and what the index may still name for them although its record is gone; few at a time, each once."""
        while self._forgotten:
            found, offsets = self._forgotten.pop()
            for at in range(0, len(found), FORGET_KEYS):
                part = slice(at, at + FORGET_KEYS)
                yield found.part(part), offsets[part] | FLAG

    def failed(self) -> None:
        """The checkpoint failed: the next one is made without rewriting, so that what fails here cannot fail it."""
        self._skips, self._swaps = self._skips or bool(self._swaps), []


def _deletes_stay_us(table: Table) -> int:
    return table.tombstone_seconds * 1_000_000 if table.merge.engine == "versioned" else 0

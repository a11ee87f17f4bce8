"""Local compaction of keyed tables: below the log start only live rows must stay.

Segments below the log start that are mostly superseded, and small neighbours together, are rewritten without superseded
rows and deletes. A checkpoint rewrites small ones; large ones are rewritten beside checkpoints (`merging`) and named by
the next checkpoint.

- A record that is dropped leaves the offset it superseded in its segment while this row is stored. So a fold of the
  stored rows never meets a dead row without the record of its death.
- The `__prev` columns below the log start, each read once, say which rows a bucket may lose.
- A table with an erasure loses every dead row below its log start in the next checkpoint, whatever it costs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakestore.errors import Corrupt
from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore_server.files.new_segment import SparseRows
from lakestore_server.files.segment import Segment
from lakestore_server.index.entry import FLAG
from lakestore_server.index.keys import IndexKeys
from lakestore_server.segments.segment_run import Rewrite, SegmentRun, dropped_deletes, left_of, within
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CHANGE, DELETE, PREV, Chunk, Ints
from lakestore_server.state.erasure import ErasureStep
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.compaction")
FORGET_KEYS = 4_096
"""Keys looked up in one step of the commit loop."""
BESIDE_BYTES = 4 << 20
"""Larger runs of segments are rewritten beside checkpoints at a bounded rate: one run would take longer than the rest
of a checkpoint's work on the bucket."""
URGENT_TIMES = 4
"""A bucket with this many checkpoints' worth of due bytes is compacted without pauses, because its rows die faster than
they are compacted."""
Amount = float | npt.NDArray[np.float64]
Truth = bool | npt.NDArray[np.bool_]
R = TypeVar("R")
_EMPTY: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Base:
    """The known facts about a bucket's rows below its log start."""

    upto: int = 0
    """Log start up to which changes were read."""
    dead: BitMap64 = field(default_factory=BitMap64)
    """Stored rows below it that are superseded, and deletes that may be dropped."""
    waiting: Ints = field(default_factory=lambda: _EMPTY)
    """Deletes that stay for a time."""
    waiting_us: Ints = field(default_factory=lambda: _EMPTY)
    """Commit time of each of these deletes, ascending."""
    is_settled: bool = False
    """Whether the last look at the bucket's segments found nothing to do and nothing has changed since."""
    floor: int = 0
    """The head at the last truncate."""
    turn: int = 0
    """Number, since the start, of the last checkpoint that planned large runs of the bucket."""

    def advance(self, held: BucketLog, now_us: int, keep_us: int) -> None:
        """Read the changes up to the log start; deletes stay until they are older than `keep_us`."""
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


def beside_bytes(limits: Limits) -> float:
    """`BESIDE_BYTES`, or infinity if nothing is written beside checkpoints."""
    return BESIDE_BYTES if limits.merge_bytes else math.inf


def runs_due(
    chunks: Sequence[Chunk], base: Base, limits: Limits, busy: frozenset[int] = frozenset()
) -> list[SegmentRun]:
    """The runs of a bucket's chunks to rewrite. Only chunks that end at or below `base.upto` count, without those in
    `busy`. A segment is due if half of it is gone. A small segment joins the next one unless it is twice as large, so a
    bucket has a logarithmic number of segments and a live row is rewritten as often."""
    done: list[SegmentRun] = []
    runs: list[SegmentRun] = []
    for chunk in chunks:
        if chunk.end > base.upto or not isinstance(chunk, Segment):
            break
        if id(chunk) in busy:
            done, runs = done + runs, []
            continue
        join_last(runs, _alone(chunk, base), lambda before, after: _belong(before, after, limits), _joined)
    return [run for run in done + runs if run.due]


def runs_with_dead(chunks: Sequence[Chunk], base: Base, busy: frozenset[int]) -> list[SegmentRun]:
    """Each segment below `base.upto` with a dead row, or with the offset of a row that is gone, as a run of its own."""
    ended = (chunk for chunk in chunks if chunk.end <= base.upto and isinstance(chunk, Segment))
    return [run for chunk in ended if id(chunk) not in busy and (run := _alone(chunk, base)).has_dead]


def erasing_logs(view: View) -> frozenset[str]:
    """Uuids of the tables whose erasure has moved the log start: every dead row below it goes."""
    held = (each for each in view.erasures.values() if each.step is ErasureStep.LOG)
    tables = (table for each in held for table in each.tables if table.uuid in view.tables)
    return frozenset(t.uuid for t in tables if view.tables[t.uuid].log_start_lsn >= t.lsn)


def _alone(chunk: Chunk, base: Base) -> SegmentRun:
    kills = chunk.kills()
    dead = base.dead.range_cardinality(chunk.start, chunk.end)
    stale = len(kills) - len(BitMap64(kills) & base.dead) if len(kills) else 0
    held, gone = chunk.rows + len(kills), dead + stale
    size = chunk.size * (held - gone) // max(held, 1)
    return SegmentRun([chunk], held - gone, size, bool(is_mostly_gone(held, gone)), gone > 0)


def _belong(before: SegmentRun, after: SegmentRun, limits: Limits) -> bool:
    is_alike = before.chunks[0].schema_id == after.chunks[0].schema_id
    first, last = (Amounts(each.live, each.size, each.nbytes) for each in (before, after))
    return is_alike and bool(are_joined(first, last, limits))


def _joined(before: SegmentRun, after: SegmentRun) -> SegmentRun:
    has_dead = before.has_dead or after.has_dead
    return SegmentRun(before.chunks + after.chunks, before.live + after.live, before.size + after.size, True, has_dead)


class Amounts(NamedTuple):
    """The amounts of one or several runs that decide whether neighbours are joined."""

    live: Amount
    """Rows that stay."""
    size: Amount
    """Bytes that stay."""
    nbytes: Amount
    """Bytes to read."""


def are_joined(before: Amounts, after: Amounts, limits: Limits) -> Truth:
    """Whether a run is joined with the next one: the next is at least half as large and both fit into a segment."""
    is_level = before.live + 1 < 2 * (after.live + 1)
    fits = (before.live + after.live <= limits.segment_rows) & (before.size + after.size <= limits.segment_bytes)
    found: Truth = (
        is_level & fits & (before.nbytes + after.nbytes <= max(limits.compaction_bytes, limits.segment_bytes))
    )
    return found


def is_mostly_gone(held: Amount, gone: Amount) -> Truth:
    """Whether so much of a segment is gone that it is rewritten even alone."""
    found: Truth = (gone > 0) & (2 * gone >= held)
    return found


def join_last(runs: list[R], new: R, belong: Callable[[R, R], bool], joined: Callable[[R, R], R]) -> None:
    """Append a run, then join the last two as long as they belong together."""
    runs.append(new)
    while len(runs) > 1 and belong(runs[-2], runs[-1]):
        last = runs.pop()
        runs[-1] = joined(runs[-1], last)


@dataclass(slots=True)
class Compactions:
    """Sums since the start."""

    segments: int = 0
    rows: int = 0
    reclaimed_bytes: dict[str, int] = field(default_factory=dict)
    """Table uuid to the bytes by which its rewritten segments are smaller."""


@dataclass(frozen=True, slots=True)
class _Swap:
    """The effect of a running checkpoint on one bucket."""

    key: tuple[str, int]
    chunks: list[Chunk]
    gone: BitMap64
    segments: int
    nbytes: int
    dropped_deletes: list[tuple[IndexKeys, Ints]]
    """Keys of dropped deletes, and the offsets that the index may have for them."""


class Compactor:
    """Chooses the segments that each checkpoint rewrites. Belongs to the checkpointer's thread."""

    def __init__(self, limits: Limits, busy: Callable[[], frozenset[int]] = frozenset) -> None:
        """`busy` returns the identities of segments that others rewrite."""
        self._limits, self._busy = limits, busy
        self._bases: dict[tuple[str, int], Base] = {}
        self._broken: set[tuple[str, int]] = set()
        self._swaps: list[_Swap] = []
        self._room = 0
        self._forgotten: list[tuple[IndexKeys, Ints]] = []
        self._skips = self._is_full = False
        self._beside_bytes = beside_bytes(limits)
        self._large: list[tuple[str, int]] = []
        """Buckets with runs to rewrite after this checkpoint."""
        self._erasing: frozenset[str] = frozenset()
        """Uuids of the tables that lose all their dead rows in this checkpoint."""
        self._turn = 0
        self.figures = Compactions()

    def begin(self, view: View) -> None:
        kept = view.kept
        self._bases = {key: base for key, base in self._bases.items() if key[0] in kept}
        self._swaps, self._room, self._is_full = [], self._limits.compaction_bytes, False
        self._large = []
        self._erasing = erasing_logs(view)

    def compacted(
        self, state: TableState, bucket: int, cut: list[Chunk] | None, now_us: int, write: Callable[[SparseRows], Chunk]
    ) -> list[Chunk] | None:
        """A bucket's chunks with some of them rewritten; None if nothing is due or possible now. `cut` are its chunks
        if they differ from the log's. A failure here fails no checkpoint."""
        key, held = (state.table.uuid, bucket), state.logs[bucket]
        if self._skips or self._is_full or not held.keyed or not held.base.end or key in self._broken:
            return None
        base = self._bases.setdefault(key, Base())
        base.is_settled &= cut is None and key[0] not in self._erasing
        try:
            base.advance(held, now_us, 0 if key[0] in self._erasing else _deletes_stay_us(state.table))
            if base.is_settled:
                return None
            return self._rewritten(state, key, base, list(held.chunks) if cut is None else cut, write)
        except (OSError, MemoryError) as error:
            self._is_full = True
            log.error("local compaction waits for the next checkpoint: %s", error)
        except (Corrupt, pa.ArrowException) as error:
            self._broken.add(key)
            log.error("bucket %d of table %s is not compacted any more: %s", bucket, state.table.name, error)
        return None

    def _rewritten(
        self,
        state: TableState,
        key: tuple[str, int],
        base: Base,
        chunks: list[Chunk],
        write: Callable[[SparseRows], Chunk],
    ) -> list[Chunk] | None:
        if key[0] in self._erasing:
            runs = runs_with_dead(chunks, base, self._busy())
        else:
            due = runs_due(chunks, base, self._limits, self._busy())
            if any(map(self._goes_beside, due)):
                self._large.append(key)
            runs = self._affordable([run for run in due if not self._goes_beside(run)])
        if not runs:
            return None
        gone = BitMap64()
        for run in runs:
            gone |= within(base.dead, run)
        after, replaced, added = list(chunks), 0, 0
        for run in runs:
            left = left_of(run, base.dead, gone)
            new = [write(left)] if left else []
            first = after.index(run.chunks[0])
            after[first : first + len(run.chunks)] = new
            replaced, added = replaced + run.nbytes, added + sum(chunk.size for chunk in new)
        remembers = state.table.merge.engine == "versioned"
        lost = [dropped_deletes(run, base.dead, state) for run in runs] if remembers else []
        count = sum(len(run.chunks) for run in runs)
        self._swaps.append(_Swap(key, after, gone, count, replaced - added, lost))
        return after

    def _goes_beside(self, run: SegmentRun) -> bool:
        return run.nbytes > self._beside_bytes

    def _affordable(self, runs: list[SegmentRun]) -> list[SegmentRun]:
        chosen = []
        for run in runs:
            if self._room <= 0:
                break
            self._room -= run.nbytes
            chosen.append(run)
        return chosen

    def planned(self, view: View) -> Iterator[Rewrite]:
        """The large runs to rewrite beside checkpoints, by a view at this checkpoint. Buckets that waited longest come
        first."""
        kept = view.kept
        self._turn += 1
        known_ones = [key for key in self._large if key in self._bases]
        # otherwise the first buckets would take all room
        for key in sorted(known_ones, key=lambda key: self._bases[key].turn):
            state, base = kept.get(key[0]), self._bases[key]
            if state is None:
                continue
            held = state.logs[key[1]]
            if held.floor > base.floor:  # truncated since: nothing is known of it yet
                continue
            due = [run for run in runs_due(held.chunks, base, self._limits, self._busy()) if self._goes_beside(run)]
            is_urgent = sum(run.nbytes for run in due) > URGENT_TIMES * self._limits.compaction_bytes
            known, base.turn = base.dead.copy(), self._turn if due else base.turn
            yield from (Rewrite(key, state, run, known, is_urgent) for run in due)

    def _count(self, key: tuple[str, int], gone: BitMap64, segments: int, nbytes: int) -> None:
        self._bases[key].dead -= gone
        self.figures.segments += segments
        self.figures.rows += len(gone)
        before = self.figures.reclaimed_bytes.get(key[0], 0)
        self.figures.reclaimed_bytes[key[0]] = before + nbytes

    def rewritten(self, made: Rewrite, size: int, lost: Sequence[tuple[IndexKeys, Ints]]) -> None:
        """Note that the durable checkpoint names the rewritten segment, a file of `size` bytes, instead of the run."""
        if made.key in self._bases:
            self._count(made.key, made.gone, len(made.run.chunks), made.run.nbytes - size)
        self._forgotten += lost

    def installed(self) -> bool:
        """Note that the checkpoint is durable and its segments are served; True if more is due."""
        for swap in self._swaps:
            self._count(swap.key, swap.gone, swap.segments, swap.nbytes)
        more = self._room <= 0
        for swap in self._swaps:
            base = self._bases[swap.key]
            base.is_settled = not runs_due(swap.chunks, base, self._limits)
            due = runs_due(swap.chunks, base, self._limits, self._busy())
            more |= any(not self._goes_beside(run) for run in due)
        self._forgotten += [each for swap in self._swaps for each in swap.dropped_deletes]
        skipped = self._skips
        self._swaps, self._skips = [], False
        return skipped or (more and not self._is_full)

    def forgotten(self) -> Iterator[tuple[IndexKeys, Ints]]:
        """Keys of dropped records and the offsets that the index may still have for them; a few at a time, each
        once."""
        while self._forgotten:
            found, offsets = self._forgotten.pop()
            for at in range(0, len(found), FORGET_KEYS):
                part = slice(at, at + FORGET_KEYS)
                yield found.part(part), offsets[part] | FLAG

    def failed(self) -> None:
        """Note a failed checkpoint: the next one rewrites nothing, so that a failing rewrite cannot fail it."""
        self._skips, self._swaps = self._skips or bool(self._swaps), []


def _deletes_stay_us(table: Table) -> int:
    return table.tombstone_seconds * 1_000_000 if table.merge.engine == "versioned" else 0

"""A table's life under even updates, simulated: checkpoints, merges of the index's runs, compaction of segments.

Numbers of entries and rows alone, by the rules that the duties have: each update meets any key with the same
chance, so that the live part of old rows and the union of runs are known without drawing a key. Time goes by
checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakestore.limits import DEFAULT, Limits
from lakestore_server.duties.compaction import Amounts, are_joined, is_mostly_gone, join_last
from lakestore_server.duties.merging import groups, is_mergeable
from lakestore_server.duties.segment_cut import SMALL_TOGETHER, is_taken_along
from lakestore_server.index.levels import due

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A table with a primary key, and how it is used."""

    keys: float
    rate: float
    """Updates a second, evenly over all keys."""
    stored_bytes: float
    """A row in a segment."""
    checkpoint_rows: float
    buckets: int = 4
    retention_seconds: float = math.inf
    """Time for which the log is kept; older rows stay while they are live."""
    limits: Limits = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Churned:
    """A life as far as it was simulated."""

    checkpoints: int
    entries_written: float
    """Entries of runs that were written for each update."""
    entries_most: float
    """Entries of all runs at once, for each key; while runs are merged their output counts too."""
    entries_read: float
    """Entries of the largest merge."""
    rows_written: float
    """Rows of segments that were written for each update."""
    rows_most: float
    """Stored rows at once, of the whole table."""
    rows_by_day: tuple[float, ...]
    """Stored rows at the end of each day."""
    segments_most: int
    runs_most: int


class Runs:
    """The runs of the index, newest first, by their entries; the oldest holds every key."""

    def __init__(self, keys: float) -> None:
        self._keys = keys
        self.sizes = [keys]
        self.written = 0.0
        self.most = keys
        self.largest = 0.0

    def add(self, rows: float) -> None:
        """The run of a checkpoint, and the merges that are due then."""
        self.sizes.insert(0, -self._keys * math.expm1(-rows / self._keys))
        self.written += self.sizes[0]
        while count := due([round(size) for size in self.sizes]):
            absent = 1.0
            for size in self.sizes[:count]:
                absent *= 1 - size / self._keys
            merged = self._keys * (1 - absent)
            self.most = max(self.most, sum(self.sizes) + merged)
            self.largest = max(self.largest, sum(self.sizes[:count]))
            self.sizes[:count] = [merged]
            self.written += merged
        self.most = max(self.most, sum(self.sizes))


class _Run(NamedTuple):
    """Neighbouring segments that become one."""

    first: int
    end: int
    amounts: Amounts
    is_due: bool

    def joined(self, after: _Run) -> _Run:
        """This one with the next."""
        amounts = Amounts(*(a + b for a, b in zip(self.amounts, after.amounts, strict=True)))
        return _Run(self.first, after.end, amounts, True)


@dataclass(slots=True)
class Bucket:
    """The segments of a bucket: [start, end) of each, and the rows that are stored."""

    life: Life
    starts: Floats = field(default_factory=lambda: np.empty(0))
    ends: Floats = field(default_factory=lambda: np.empty(0))
    held: Floats = field(default_factory=lambda: np.empty(0))
    head: float = 0.0
    written: float = 0.0

    @property
    def keys(self) -> float:
        """Keys of this bucket."""
        return self.life.keys / self.life.buckets

    def fill(self) -> None:
        """Every key once, in segments as large as they may be."""
        count = max(math.ceil(self.keys / self._rows_max), 1)
        bounds = np.linspace(0, self.keys, count + 1)
        self.starts, self.ends, self.held = bounds[:-1], bounds[1:], np.diff(bounds)
        self.head = self.keys

    @property
    def _rows_max(self) -> float:
        limits = self.life.limits
        return min(limits.segment_rows, limits.segment_bytes / self.life.stored_bytes)

    def live(self) -> Floats:
        """The rows of each segment that no later one supersedes."""
        return self._below(self.ends) - self._below(self.starts)

    def _below(self, offsets: Floats) -> Floats:
        """Live rows below offsets: every key was inserted once, and later rows live on by chance."""
        later = np.maximum(offsets, self.keys)
        of_first = np.minimum(offsets, self.keys) * math.exp(-(self.head - self.keys) / self.keys)
        grown: Floats = np.exp(-(self.head - later) / self.keys) - math.exp(-(self.head - self.keys) / self.keys)
        return of_first + self.keys * grown

    def cut(self, rows: float) -> None:
        """A segment of new rows, with small ones before it."""
        limits, stored = self.life.limits, self.life.stored_bytes
        start, size, base = self.head, rows, self.log_start
        first, most = len(self.starts), SMALL_TOGETHER * limits.shared_segment_bytes
        while first and self.ends[first - 1] > base:
            before = float(self.held[first - 1])
            if not is_taken_along(before, before * stored, size, size * stored, limits.segment_rows, most):
                break
            first -= 1
            start, size = float(self.starts[first]), size + before
        self.head += rows
        self._replace(first, len(self.starts), [(start, self.head, size)])

    def merge(self) -> None:
        """Make neighbours in the log one, as merging beside serving does, once they are enough."""
        limits, stored = self.life.limits, self.life.stored_bytes
        first = end = len(self.starts)
        while first and is_mergeable(float(self.held[first - 1]) * stored, limits):
            if self.starts[first - 1] < self.log_start:
                break
            first -= 1
        sizes = (self.held[first:end] * stored).tolist()
        for low, high in reversed(list(groups(sizes, limits))):  # from behind, so that places stay
            rows = float(self.held[first + low : first + high].sum())
            span = float(self.starts[first + low]), float(self.ends[first + high - 1])
            self._replace(first + low, first + high, [(*span, rows)])

    @property
    def log_start(self) -> float:
        """The offset below which only live rows have to stay."""
        return max(self.head - self.life.rate / self.life.buckets * self.life.retention_seconds, 0.0)

    def compact(self) -> None:
        """Rewrite the segments below the log start that are half dead, and small neighbours together."""
        below = int(np.searchsorted(self.ends, self.log_start, side="right"))
        if not below:
            return
        live, held, stored = self.live()[:below], self.held[:below], self.life.stored_bytes
        is_dead = np.asarray(is_mostly_gone(held, held - live))
        before, after = (
            Amounts(live[part], live[part] * stored, held[part] * stored) for part in (slice(None, -1), slice(1, None))
        )
        joins = are_joined(before, after, self.life.limits)
        if is_dead.any() or np.asarray(joins).any():
            self._rewrite(live, is_dead)

    def _rewrite(self, live: Floats, is_dead: npt.NDArray[np.bool_]) -> None:
        stored, limits = self.life.stored_bytes, self.life.limits
        runs: list[_Run] = []
        for at, rows in enumerate(live.tolist()):
            held = float(self.held[at])
            run = _Run(at, at + 1, Amounts(rows, rows * stored, held * stored), bool(is_dead[at]))
            join_last(runs, run, lambda a, b: bool(are_joined(a.amounts, b.amounts, limits)), _Run.joined)
        room = limits.compaction_bytes / self.life.buckets
        for first, end, amounts, is_due in reversed(runs):  # from behind, so that places stay
            if is_due and room > 0:
                room -= float(amounts.nbytes)
                self._replace(first, end, [(float(self.starts[first]), float(self.ends[end - 1]), float(amounts.live))])

    def _replace(self, first: int, end: int, new: list[tuple[float, float, float]]) -> None:
        self.written += sum(rows for *_, rows in new)
        parts = np.array([each for each in new if each[2] >= 1]).reshape(-1, 3).T
        for name, values in zip(("starts", "ends", "held"), parts, strict=True):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[:first], values, old[end:]]))


def simulate(life: Life, seconds: float) -> Churned:
    """So long a life, after every key was written once."""
    runs, bucket = Runs(life.keys), Bucket(life)
    bucket.fill()
    rows = life.checkpoint_rows
    steps = max(round(seconds * life.rate / rows), 1)
    each_day = max(round(86_400 * life.rate / rows), 1)
    rows_most, segments_most, runs_most = 0.0, 0, 0
    by_day: list[float] = []
    for step in range(1, steps + 1):
        runs.add(rows)
        before = float(bucket.held.sum())
        bucket.cut(rows / life.buckets)
        bucket.merge()
        bucket.compact()
        after = float(bucket.held.sum())
        rows_most = max(rows_most, before + rows / life.buckets, after)
        segments_most, runs_most = max(segments_most, len(bucket.held)), max(runs_most, len(runs.sizes))
        if step % each_day == 0:
            by_day.append(after * life.buckets)
    updates = steps * rows
    return Churned(
        checkpoints=steps,
        entries_written=runs.written / updates,
        entries_most=runs.most / life.keys,
        entries_read=runs.largest,
        rows_written=bucket.written * life.buckets / updates,
        rows_most=rows_most * life.buckets,
        rows_by_day=tuple(by_day),
        segments_most=segments_most * life.buckets,
        runs_most=runs_most,
    )

"""Steps: runs of the log as hot data files; which of them a cut reads, what is to be fetched, what may merge. Pure.

A step holds every version of the rows of its range (per bucket, from one commit end to another) and what each record of
the range superseded. Steps are written once and shared by all cuts that read a part of their range; a cut hides what
it does not show. A *settled* step begins where the log may no longer have every version: it holds the rows that live at
its end, so only cuts from its end on read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore.iceberg.manifests import File
from lakestore.iceberg.row_search import BUCKET_SHIFT, OFFSET_MASK
from lakestore.model.table import Table
from lakestore.rows.live_sum import live_sum
from lakestore_server.snapshots.shape import Shape

Ints = npt.NDArray[np.int64]
Heads = tuple[int, ...]
"""An offset per bucket: a commit end, so any two are in the same order in every bucket."""

ABSORBED_OFFSETS_MAX = 1 << 16
"""Offsets of earlier steps that are fetched again with new ones, rather than left as small files."""
MERGED_STEPS = 4
"""Neighbours of one size that are merged into a step of the next."""
LEVEL_OFFSETS = 1 << 14
"""Offsets below which all steps are of one size; each next size is `MERGED_STEPS` times as large."""
GROWN_OFFSETS, GROWN_BYTES = 1 << 19, 16 << 20
"""Offsets, and bytes of files, from which on a step is left as it is: merging would make hardly fewer files of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Kills:
    """The records that superseded a row."""

    killers: Ints
    """bucket << 48 | offset of each such record, sorted."""
    victims: Ints
    """bucket << 48 | offset of the row that it superseded."""

    @staticmethod
    def none() -> Kills:
        """No records."""
        return Kills(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def joined(parts: Sequence[Kills]) -> Kills:
        """The records of parts whose ranges follow one another in each bucket."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Kills.none()
        killers = np.concatenate([part.killers for part in parts])
        victims = np.concatenate([part.victims for part in parts])
        order = np.argsort(killers, kind="stable")
        return Kills(killers[order], victims[order])

    def within(self, start: Heads, end: Heads) -> Kills:
        """The records in [start, end) of each bucket."""
        parts = runs(self.killers, start, end)
        return Kills(sliced(self.killers, parts), sliced(self.victims, parts))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A run of the log as hot data files; equal to itself alone."""

    number: int
    start: Heads
    end: Heads
    shape: Shape
    """The version of the table that the files have."""
    files: tuple[File, ...]
    kills: Kills
    born: tuple[int, ...]
    """Per bucket, the live sum of the rows in the files."""
    died: tuple[int, ...]
    """Per bucket, the live sum of the rows that the records superseded."""
    settled: bool = False

    @property
    def offsets(self) -> int:
        """Offsets of the range."""
        return sum(self.end) - sum(self.start)

    @property
    def rows(self) -> int:
        """Rows in the files."""
        return sum(file.rows for file in self.files)

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a step that a cut shows."""

    step: Step
    start: Heads
    end: Heads

    @property
    def is_whole(self) -> bool:
        """Whether all of the step is shown."""
        return self.start == self.step.start and self.end == self.step.end

    @property
    def kills(self) -> Kills:
        """The records of the part that superseded a row."""
        return self.step.kills if self.is_whole else self.step.kills.within(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of the log that no usable step has."""

    start: Heads
    end: Heads

    @property
    def offsets(self) -> int:
        """Offsets of the range."""
        return sum(self.end) - sum(self.start)


def runs(keys: Ints, start: Heads, end: Heads) -> list[tuple[int, int]]:
    """The runs of sorted packed keys whose offsets are in [start, end) of their bucket, bucket by bucket."""
    shifted = np.arange(len(start), dtype=np.int64) << BUCKET_SHIFT
    begins = np.searchsorted(keys, shifted + np.asarray(start, np.int64)).tolist()
    ends = np.searchsorted(keys, shifted + np.asarray(end, np.int64)).tolist()
    return [(a, b) for a, b in zip(begins, ends, strict=True) if a < b]


def inside(keys: Ints, start: Heads, end: Heads) -> Ints:
    """The sorted packed keys whose offsets are in [start, end) of their bucket."""
    return sliced(keys, runs(keys, start, end))


def outside(keys: Ints, start: Heads, end: Heads) -> Ints:
    """The places of the sorted packed keys whose offsets are not in [start, end) of their bucket."""
    mask = np.ones(len(keys), dtype=np.bool_)
    for a, b in runs(keys, start, end):
        mask[a:b] = False
    return np.flatnonzero(mask)


def sliced(array: Ints, parts: Sequence[tuple[int, int]]) -> Ints:
    """These runs of an array one behind the other."""
    if len(parts) == 1:
        return array[parts[0][0] : parts[0][1]]
    return np.concatenate([array[a:b] for a, b in parts]) if parts else array[:0]


def is_readable(step: Step, table: Table) -> bool:
    """Whether a reader of this version of the table reads the step's files right.

    Columns are found by id and widened; one that came later and has a value in older rows is not in the files.
    """
    if step.shape.table.schema_id > table.schema_id:
        return False
    known = {column.id for column in step.shape.table.columns}
    return all(column.id in known or column.initial is None for column in table.columns)


def cover(steps: Iterable[Step], table: Table, start: Heads, end: Heads) -> list[Window | Gap]:
    """The parts that show [start, end) of the log, in order and without overlap.

    At each place it is the step that reaches furthest of those that fit; a gap where none does.
    """
    usable = [step for step in steps if is_readable(step, table)]
    found: list[Window | Gap] = []
    at = start
    while sum(at) < sum(end):
        here = [step for step in usable if _shows(step, at, end)]
        if here:
            step = max(here, key=lambda step: (min(sum(step.end), sum(end)), step.offsets))
            upto = step.end if sum(step.end) <= sum(end) else end
            found.append(Window(step, at, upto))
        else:
            later = [step.start for step in usable if not step.settled and sum(at) < sum(step.start) < sum(end)]
            upto = min(later, key=sum, default=end)
            found.append(Gap(at, upto))
        at = upto
    return found


def _shows(step: Step, at: Heads, end: Heads) -> bool:
    if step.settled:
        return step.start == at and sum(step.end) <= sum(end)
    return sum(step.start) <= sum(at) < sum(step.end)


def absorbed(parts: Sequence[Window | Gap]) -> list[Window | Gap]:
    """The parts with small last steps fetched anew together with the gap behind them, so that small steps do not add
    up; as a counter in base two carries over."""
    if not parts or not isinstance(parts[-1], Gap):
        return list(parts)
    kept, gap = list(parts[:-1]), parts[-1]
    taken = 0
    while kept:
        last = kept[-1]
        offsets = sum(last.end) - sum(last.start)
        if isinstance(last, Window) and (last.step.settled or not last.is_whole):
            break
        if taken + offsets > ABSORBED_OFFSETS_MAX or (isinstance(last, Window) and offsets > gap.offsets):
            break
        kept.pop()
        gap, taken = Gap(last.start, gap.end), taken + offsets
    return [*kept, gap]


def to_merge(windows: Sequence[Window]) -> tuple[Step, ...]:
    """Neighbouring steps of one size that are worth one step; none if there are not enough of them.

    Only steps that are shown whole: none reaches over a tier point in use.
    """
    run: list[Step] = []
    for window in reversed(windows):
        step = window.step
        fits = window.is_whole and not step.settled and step.offsets < GROWN_OFFSETS and step.nbytes < GROWN_BYTES
        if run and not (fits and _is_like(step, run[0])):
            run = []
        if fits:
            run.insert(0, step)
        if len(run) == MERGED_STEPS:
            return tuple(run)
    return ()


def _is_like(one: Step, other: Step) -> bool:
    """Whether steps are of one size and of one version of the table."""
    return _size(one) == _size(other) and one.shape.schema == other.shape.schema


def _size(step: Step) -> int:
    size, offsets = 0, step.offsets
    while offsets > LEVEL_OFFSETS:
        size, offsets = size + 1, offsets // MERGED_STEPS
    return size


def live_sums(keys: Ints, buckets: int) -> list[int]:
    """The live sum of the rows of these sorted packed keys, per bucket."""
    edges = np.searchsorted(keys, np.arange(buckets + 1, dtype=np.int64) << BUCKET_SHIFT)
    return [live_sum(keys[a:b] & OFFSET_MASK) for a, b in itertools.pairwise(edges)]

"""Steps: log ranges written as hot data files. Decides which steps a cut reads, what to fetch, and what to merge.
Pure.

- A step has every row version of its range (per bucket, from one commit end to another), and the offsets that the range
  superseded.
- A step is written once. Every cut that needs a part of its range reads it, and hides the rest.
- A *settled* step begins where the log may already lack versions. It has only the rows that are alive at its end, so
  only cuts at or after its end read it.
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
"""One offset for each bucket, at the end of a commit. Any two of them are ordered the same way in every bucket."""

ABSORBED_OFFSETS_MAX = 1 << 16
"""Small last steps with up to this many offsets are fetched again together with new rows, instead of staying small
files.
"""
MERGED_STEPS = 4
"""This many neighbouring steps of one size are merged into a step of the next size."""
LEVEL_OFFSETS = 1 << 14
"""All steps below this many offsets have the same size; each next size is `MERGED_STEPS` times larger."""
GROWN_OFFSETS, GROWN_BYTES = 1 << 19, 16 << 20
"""Steps with this many offsets or bytes are not merged: merging would hardly reduce the number of files."""


@dataclass(frozen=True, slots=True, eq=False)
class Kills:
    """Records of a range that superseded earlier rows."""

    superseding: Ints
    """bucket << 48 | offset of each such record, sorted."""
    superseded: Ints
    """bucket << 48 | offset of the row that each record superseded."""

    @staticmethod
    def none() -> Kills:
        return Kills(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def joined(parts: Sequence[Kills]) -> Kills:
        """The records of consecutive ranges."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Kills.none()
        superseding = np.concatenate([part.superseding for part in parts])
        superseded = np.concatenate([part.superseded for part in parts])
        order = np.argsort(superseding, kind="stable")
        return Kills(superseding[order], superseded[order])

    def within(self, start: Heads, end: Heads) -> Kills:
        """The records in [start, end) of each bucket."""
        parts = runs(self.superseding, start, end)
        return Kills(sliced(self.superseding, parts), sliced(self.superseded, parts))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A log range as hot data files. Compared by identity."""

    number: int
    start: Heads
    end: Heads
    shape: Shape
    """The schema version of the files."""
    files: tuple[File, ...]
    kills: Kills
    born: tuple[int, ...]
    """For each bucket, the live sum of the rows in the files."""
    died: tuple[int, ...]
    """For each bucket, the live sum of the rows that the range superseded."""
    settled: bool = False

    @property
    def offsets(self) -> int:
        """The number of offsets in the range."""
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
        """Whether the whole step is shown."""
        return self.start == self.step.start and self.end == self.step.end

    @property
    def kills(self) -> Kills:
        """The superseding records in the window."""
        return self.step.kills if self.is_whole else self.step.kills.within(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Gap:
    """A log range that no usable step covers."""

    start: Heads
    end: Heads

    @property
    def offsets(self) -> int:
        """The number of offsets in the range."""
        return sum(self.end) - sum(self.start)


def runs(keys: Ints, start: Heads, end: Heads) -> list[tuple[int, int]]:
    """Runs of the sorted packed keys whose offsets are in [start, end) of their bucket, as index pairs, bucket by
    bucket.
    """
    shifted = np.arange(len(start), dtype=np.int64) << BUCKET_SHIFT
    begins = np.searchsorted(keys, shifted + np.asarray(start, np.int64)).tolist()
    ends = np.searchsorted(keys, shifted + np.asarray(end, np.int64)).tolist()
    return [(a, b) for a, b in zip(begins, ends, strict=True) if a < b]


def inside(keys: Ints, start: Heads, end: Heads) -> Ints:
    """The sorted packed keys whose offsets are in [start, end) of their bucket."""
    return sliced(keys, runs(keys, start, end))


def outside(keys: Ints, start: Heads, end: Heads) -> Ints:
    """The indexes of the sorted packed keys whose offsets are not in [start, end) of their bucket."""
    mask = np.ones(len(keys), dtype=np.bool_)
    for a, b in runs(keys, start, end):
        mask[a:b] = False
    return np.flatnonzero(mask)


def sliced(array: Ints, parts: Sequence[tuple[int, int]]) -> Ints:
    """These runs of an array, concatenated."""
    if len(parts) == 1:
        return array[parts[0][0] : parts[0][1]]
    return np.concatenate([array[a:b] for a, b in parts]) if parts else array[:0]


def is_readable(step: Step, table: Table) -> bool:
    """Whether a reader with this schema version reads the step's files correctly.

    Columns are matched by field id and widened. A later column whose value in older rows is not null is missing in the
    files.
    """
    if step.shape.table.schema_id > table.schema_id:
        return False
    known = {column.id for column in step.shape.table.columns}
    return all(column.id in known or column.initial is None for column in table.columns)


def cover(steps: Iterable[Step], table: Table, start: Heads, end: Heads) -> list[Window | Gap]:
    """Windows and gaps that cover [start, end) of the log, in order and without overlap.

    At each place the fitting step that reaches furthest is taken, or a gap if none fits.
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
    """The parts, with small last steps turned into a gap together with the gap after them. Otherwise small steps
    would add up; this way their sizes grow like the digits of a binary counter.
    """
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
    """Neighbouring steps of one size that should be merged; empty if there are too few.

    Only steps that are shown whole are merged, so none reaches beyond a tier point in use.
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
    """Whether two steps have the same size and schema version."""
    return _size(one) == _size(other) and one.shape.schema == other.shape.schema


def _size(step: Step) -> int:
    size, offsets = 0, step.offsets
    while offsets > LEVEL_OFFSETS:
        size, offsets = size + 1, offsets // MERGED_STEPS
    return size


def live_sums(keys: Ints, buckets: int) -> list[int]:
    """The live sum of rows with these sorted packed keys, for each bucket."""
    edges = np.searchsorted(keys, np.arange(buckets + 1, dtype=np.int64) << BUCKET_SHIFT)
    return [live_sum(keys[a:b] & OFFSET_MASK) for a, b in itertools.pairwise(edges)]

"""When rows of a bucket may expire: for each block of offsets the lowest time that its live rows can have.

A record never changes, so a block's bound only grows, whatever becomes of its rows; blocks with nothing due are passed
over without reading. Times are in the unit of their column: microseconds or days.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
BLOCK_ROWS = 4096
SPARE_BLOCKS = 4096
LAST_US = (1 << 63) - 1
_DAY_US = 86_400_000_000
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class ExpiryBounds:
    """The bounds of one bucket."""

    upto: int = 0
    """Offsets below are counted in."""
    blocks: Ints = field(default_factory=lambda: _NONE)
    """The blocks that hold a time, ascending."""
    bounds: Ints = field(default_factory=lambda: _NONE)
    """The lowest time of each."""
    done: tuple[int, int] = (0, 0)
    """(offset, time): below that offset, every row with that time or a lower one is dead."""

    def fresh(self, offsets: Ints, times: Ints, limit: int) -> npt.NDArray[np.bool_]:
        """Which rows are due at the limit and not known to be dead."""
        upto, until = self.done
        due: npt.NDArray[np.bool_] = (times <= limit) & ((offsets >= upto) | (times > until))
        return due

    def finish(self, limit: int) -> None:
        """Everything that is due at the limit has been dealt with."""
        if not self.done[0] or limit >= self.done[1]:
            self.done = self.upto, limit

    def add(self, offsets: Ints, times: Ints) -> None:
        """Count more rows in; ascending."""
        if not len(offsets):
            return
        blocks, lowest = _lowest(offsets, times)
        if len(self.blocks) and self.blocks[-1] == blocks[0]:
            lowest[0] = min(lowest[0], self.bounds[-1])
            self.blocks, self.bounds = self.blocks[:-1], self.bounds[:-1]
        self.blocks = np.concatenate([self.blocks, blocks])
        self.bounds = np.concatenate([self.bounds, lowest])

    def until(self, limit: int) -> Ints:
        """Blocks in which a time may lie at or before the limit."""
        found: Ints = self.blocks[self.bounds <= limit]
        return found

    def settle(self, first: int, last: int, offsets: Ints, times: Ints) -> None:
        """These blocks were read, and these rows of them are left; no others count any more."""
        low, high = np.searchsorted(self.blocks, [first, last + 1])
        blocks, lowest = _lowest(offsets, times) if len(offsets) else (_NONE, _NONE)
        self.blocks = np.concatenate([self.blocks[:low], blocks, self.blocks[high:]])
        self.bounds = np.concatenate([self.bounds[:low], lowest, self.bounds[high:]])

    def outgrown(self, rows: int) -> bool:
        """Whether most blocks have no rows any more, of so many that are stored: then count them in anew."""
        return len(self.blocks) > SPARE_BLOCKS + 4 * (rows // BLOCK_ROWS)

    @property
    def next(self) -> int | None:
        """The lowest bound of all; None if no row has a time."""
        bounds = self.bounds  # whoever asks for figures is in another thread than the rounds
        return int(bounds.min()) if len(bounds) else None


def _lowest(offsets: Ints, times: Ints) -> tuple[Ints, Ints]:
    """Blocks of ascending offsets, and the lowest time in each."""
    block_of = offsets // BLOCK_ROWS
    starts = np.concatenate([[0], np.flatnonzero(np.diff(block_of)) + 1])
    return block_of[starts], np.minimum.reduceat(times, starts)


def runs(blocks: Ints, length_max: int) -> list[tuple[int, int]]:
    """(first, last) of neighbouring blocks, no more than so many together."""
    if not len(blocks):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(blocks) > 1) + 1).tolist(), len(blocks)]
    return [
        (int(blocks[at]), int(blocks[min(at + length_max, end) - 1]))
        for start, end in pairwise(cuts)
        for at in range(start, end, length_max)
    ]


def limit_of(now_us: int, seconds: int, kind: pa.DataType) -> int:
    """The highest time in a column of that type whose rows are over."""
    limit = now_us - seconds * 1_000_000
    return limit // _DAY_US if pa.types.is_date(kind) else limit


def moment_of(time: int, seconds: int, kind: pa.DataType) -> int:
    """When a row with that time is over, in microseconds."""
    return min((time * _DAY_US if pa.types.is_date(kind) else time) + seconds * 1_000_000, LAST_US)


def times_of(column: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Times of a column in its own unit, and which rows have one."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    plain = column.view(pa.int32()) if pa.types.is_date(column.type) else column.view(pa.int64())
    return plain.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False), there

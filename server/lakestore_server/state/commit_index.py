"""The commit index of a run of offsets: which commit each of them is of, and how the bucket stood after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


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
    """One entry per commit that touched the bucket, in LSN order."""

    lsn: Ints
    time_us: Ints
    end: Ints
    """Head of the bucket after the commit."""
    live_sum: npt.NDArray[np.uint64]
    live_rows: Ints

    @staticmethod
    def one(lsn: int, time_us: int, end: int, live_sum: int, live_rows: int) -> CommitIndex:
        """The index of a single commit."""
        return CommitIndex(
            np.array([lsn], dtype=np.int64),
            np.array([time_us], dtype=np.int64),
            np.array([end], dtype=np.int64),
            np.array([live_sum], dtype=np.uint64),
            np.array([live_rows], dtype=np.int64),
        )

    def of(self, offsets: Ints) -> CommitIndex:
        """The commits that these offsets are of, and the last one."""
        which = np.searchsorted(self.end, offsets, side="right")
        return self._at(np.union1d(which, np.array([len(self.end) - 1])))

    def between(self, start: int, end: int) -> CommitIndex:
        """The commits whose rows lie in [start, end), both commit ends."""
        first, last = np.searchsorted(self.end, [start, end], side="right")
        return self._at(slice(int(first), int(last)))

    def less(self, base: Position) -> CommitIndex:
        """The commits above a position, as if there had been no rows below it."""
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
        """The index of neighbouring chunks."""
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

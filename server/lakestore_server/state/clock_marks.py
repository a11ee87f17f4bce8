"""Times of commits whose stamps are ahead: a stamp cannot go back, so a wrong clock leaves stamps in the future.

A mark says that everything up to a commit was made at a time or earlier. Marks are ascending in both. One per minute is
kept and older ones are thinned out, which makes times of old commits later, never earlier.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

MARKS_MAX = 1_024
SPAN_US = 60_000_000


class ClockMark(NamedTuple):
    """One mark."""

    lsn: int
    time_us: int


class ClockMarks(tuple[ClockMark, ...]):
    """All marks, as a value."""

    __slots__ = ()

    @staticmethod
    def from_pairs(pairs: Sequence[Sequence[int]]) -> ClockMarks:
        return ClockMarks(ClockMark(*pair) for pair in pairs)

    def noted(self, lsn: int, time_us: int) -> ClockMarks:
        """With a mark for the newest commit; marks of later times are dropped."""
        kept = list(self)
        while kept and (kept[-1].time_us >= time_us or kept[-1].time_us // SPAN_US == time_us // SPAN_US):
            kept.pop()
        kept.append(ClockMark(lsn, time_us))
        if len(kept) > MARKS_MAX:
            kept = [*kept[1 : MARKS_MAX // 2 : 2], *kept[MARKS_MAX // 2 :]]
        return ClockMarks(kept)

    def time_us(self, lsn: int, stamp_us: int) -> int:
        """The latest time at which a commit may have been made."""
        at = bisect.bisect_left(self, (lsn,))
        return min(stamp_us, self[at].time_us) if at < len(self) else stamp_us

    def lsn(self, time_us: int) -> int:
        """The newest commit that a mark dates at or before this time; 0 if there is none."""
        at = bisect.bisect_right(self, time_us, key=lambda mark: mark.time_us)
        return self[at - 1].lsn if at else 0


NO_MARKS = ClockMarks()

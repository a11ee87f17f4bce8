"""Times of commits whose stamps are ahead of them: a stamp cannot fall, so a clock once wrong leaves such stamps.

A mark says that everything up to a commit was made at a time or before. Marks ascend in both; one a minute is kept,
and the older ones thin out, which makes times of old commits later, never earlier.
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
    def of(pairs: Sequence[Sequence[int]]) -> ClockMarks:
        """The marks of such pairs."""
        return ClockMarks(ClockMark(*pair) for pair in pairs)

    def noted(self, lsn: int, time_us: int) -> ClockMarks:
        """With a mark for the newest commit. One of a later time says nothing any more."""
        kept = list(self)
        while kept and (kept[-1].time_us >= time_us or kept[-1].time_us // SPAN_US == time_us // SPAN_US):
            kept.pop()
        kept.append(ClockMark(lsn, time_us))
        if len(kept) > MARKS_MAX:
            kept = [*kept[1 : MARKS_MAX // 2 : 2], *kept[MARKS_MAX // 2 :]]
        return ClockMarks(kept)

    def time_us(self, lsn: int, stamp_us: int) -> int:
        """The time before which a commit was made, as far as it is known."""
        at = bisect.bisect_left(self, (lsn,))
        return min(stamp_us, self[at].time_us) if at < len(self) else stamp_us

    def lsn(self, time_us: int) -> int:
        """The newest commit that a mark says was made until then; 0 if no mark says so."""
        at = bisect.bisect_right(self, time_us, key=lambda mark: mark.time_us)
        return self[at - 1].lsn if at else 0


NO_MARKS = ClockMarks()

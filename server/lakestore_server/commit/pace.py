"""The pace at which rows are taken while a checkpoint runs: the room that the journal has, over the time that is left.

A recovery is to read no more than `journal_bytes`. Rows taken faster than checkpoints make room would fill that, and
then stand still. So a part of the room is kept at each moment, less and less of it: as long as the checkpoint is in
time the part of its time that is left, and then ever more slowly less. Whoever would take from that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakestore.limits import Limits

SECONDS_AT_FIRST = 1.0
"""A checkpoint's time before one was measured."""
LATE_PART = 0.75
"""The part of the time that a checkpoint has taken so far which it is taken to need at least: it may be late."""
LATE_LEFT = LATE_PART / (1 + LATE_PART)
"""The part of the room that is kept when that begins to hold."""
LEFT_MIN = 0.001
"""The part of the room that counts as left at least: a wait is to have an end."""


@dataclass(slots=True)
class JournalSize:
    """Bytes of records that a recovery would read."""

    since_checkpoint: int
    frozen: int = 0
    """Bytes of the records that the running checkpoint makes needless."""

    @property
    def untrimmed(self) -> int:
        """All of them."""
        return self.frozen + self.since_checkpoint

    def freeze(self) -> None:
        """Note that a checkpoint begins."""
        self.frozen += self.since_checkpoint
        self.since_checkpoint = 0


class Pace:
    """Waits of large requests, which the queue asks for under its lock; what a checkpoint notes needs none."""

    def __init__(self, size: JournalSize, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._size, self._limits, self._monotonic = size, limits, monotonic
        self._began: float | None = None
        self._room = 0
        """The room that the journal had when the checkpoint began."""
        self._last = self._seconds = SECONDS_AT_FIRST
        """The time that the last checkpoint took, and the shorter one of the last two: one alone may have been slow."""

    def is_full(self, stretch: float = 1.0) -> bool:
        """Whether a recovery would have to read as much journal as the limit, times `stretch`, allows."""
        return self._size.untrimmed >= self._limits.journal_bytes * stretch

    def begin(self) -> None:
        """Note that a checkpoint begins."""
        self._size.freeze()
        self._room = self._left()
        self._began = self._monotonic()

    def end(self) -> None:
        """Note that its journal is needed no more."""
        self._size.frozen = 0
        if self._began is not None:
            took = self._monotonic() - self._began
            self._last, self._seconds = took, min(took, self._last)
        self._began = None

    def give_up(self) -> None:
        """Note that it failed: nobody knows when the next one ends before it begins."""
        self._began = None

    def wait(self, coming: int) -> float:
        """Seconds until a request may go, beside so many bytes that are on their way to the journal; 0 for at once."""
        began = self._began
        if began is None:
            return 0.0
        left = max((self._left() - coming) / max(self._room, 1), LEFT_MIN)
        if left > LATE_LEFT:
            moment = self._seconds * (1 - left)
        else:
            moment = self._seconds * (1 - LATE_LEFT) * (LATE_LEFT / left) ** LATE_PART
        return max(began + moment - self._monotonic(), 0.0)

    def _left(self) -> int:
        return self._limits.journal_bytes - self._size.untrimmed

"""The pace at which rows are taken while a checkpoint runs: the room that the journal has, over the time that is left.

A recovery is to read no more than `journal_bytes`. Rows taken faster than checkpoints make room would fill that, and
then stand still; so the nearer the end of the room is, the longer each request waits for its turn, and none stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakestore.limits import Limits

SECONDS_AT_FIRST = 1.0
"""A checkpoint's time before one was measured."""
FURTHER_PART = 0.5
"""The part of the time that a checkpoint has taken so far which it is taken to need at least: it may be late."""


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
    """Turns of large requests, which the queue asks for under its lock; what a checkpoint notes needs none."""

    def __init__(self, size: JournalSize, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._size, self._limits, self._monotonic = size, limits, monotonic
        self._began: float | None = None
        self._last = self._seconds = SECONDS_AT_FIRST
        """The time that the last checkpoint took, and the shorter one of the last two: one alone may have been slow."""
        self._next = 0.0
        """The moment of the next turn."""
        self.held_seconds = 0.0
        """Spent by requests in waiting for their turns, added up."""

    def is_full(self, stretch: float = 1.0) -> bool:
        """Whether a recovery would have to read as much journal as the limit, times `stretch`, allows."""
        return self._size.untrimmed >= self._limits.journal_bytes * stretch

    def begin(self) -> None:
        """Note that a checkpoint begins."""
        self._size.freeze()
        self._began = self._next = self._monotonic()

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

    def wait(self) -> float:
        """Seconds until the next turn; 0 if it may be taken now."""
        return max(self._next - self._monotonic(), 0.0) if self._began is not None else 0.0

    def take(self, nbytes: int, waiting: int) -> None:
        """Take a turn for so many bytes, beside those that wait to be written."""
        began, now = self._began, self._monotonic()
        if began is None:
            return
        room = self._limits.journal_bytes - self._size.untrimmed - waiting
        left = max(began + self._seconds - now, (now - began) * FURTHER_PART)
        self._next = now + left * nbytes / max(room, nbytes)

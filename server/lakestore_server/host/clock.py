"""The clock seam: wall time for commits, monotonic time for leases."""

from __future__ import annotations

import time
from typing import Protocol

JUMP_SECONDS = 3_600.0
PAUSE_SECONDS_MAX = 86_400.0


class Clock(Protocol):
    """The source of time."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class RealClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Wall time."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Monotonic time."""
        return time.monotonic()


class JumpWatch:
    """A watch over the time of day: after a jump, duties that compare times with the clock pause for its length."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = (clock.now_us(), clock.monotonic())
        self._paused_until = float("-inf")

    def look(self) -> tuple[int, float]:
        """(the time in microseconds, the seconds of its jump since the last look or 0)."""
        before_us, before = self._last
        now_us, now = self._last = (self._clock.now_us(), self._clock.monotonic())
        jump = abs((now_us - before_us) / 1e6 - (now - before))
        if jump <= JUMP_SECONDS:
            return now_us, 0.0
        self._paused_until = now + min(jump, PAUSE_SECONDS_MAX)
        return now_us, jump

    @property
    def left(self) -> float:
        """Seconds of pause that are left."""
        return max(self._paused_until - self._clock.monotonic(), 0.0)

    @property
    def paused(self) -> bool:
        """Whether a jump was too short ago."""
        return self._clock.monotonic() < self._paused_until

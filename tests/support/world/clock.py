"""A clock that a test sets: wall time, and monotonic seconds that no setting changes.

By itself it stands still. `elapsed` makes time pass: a little with each read (`ticks`), as in the machine
(`time.monotonic`), or as a simulated world says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

START_US = 1_790_000_000_000_000


class HandClock:
    """`Clock`."""

    def __init__(
        self, us: int = START_US, elapsed: Callable[[], float] = lambda: 0.0, *, since: float | None = None
    ) -> None:
        """`us` is the wall time when `elapsed` gives `since`, or now."""
        self._elapsed, self._since = elapsed, elapsed() if since is None else since
        self._us, self._advanced_us, self._jumped_us = us, 0, 0
        self._frozen_us: int | None = None

    @classmethod
    def real(cls) -> HandClock:
        """The machine's clock, which a test sets ahead."""
        return cls(time.time_ns() // 1_000, time.monotonic)

    @property
    def us(self) -> int:
        """Wall time. To set it lets time go by, on both clocks."""
        return self._running_us(self._elapsed())

    @us.setter
    def us(self, us: int) -> None:
        self._advanced_us += us - self.us

    def now_us(self) -> int:
        """Wall time, which may stand still."""
        elapsed = self._elapsed()
        return self._running_us(elapsed) if self._frozen_us is None else self._frozen_us

    def monotonic(self) -> float:
        """Seconds that no setting of the wall clock changes."""
        return self._elapsed() + self._advanced_us / 1e6

    def advance(self, seconds: float) -> None:
        """Time goes by, on both clocks."""
        self._advanced_us += int(seconds * 1e6)

    def jump(self, seconds: float) -> None:
        """The wall clock is set, forward or back; it runs again if it stood still."""
        self._jumped_us, self._frozen_us = self._jumped_us + int(seconds * 1e6), None

    def set_off(self, seconds: float) -> None:
        """The wall clock is off by so many seconds from what it would be without jumps; it runs."""
        self._jumped_us, self._frozen_us = int(seconds * 1e6), None

    def freeze(self) -> None:
        """The wall clock stands still until the next jump."""
        self._frozen_us = self.us

    def _running_us(self, elapsed: float) -> int:
        return self._us + self._advanced_us + self._jumped_us + int((elapsed - self._since) * 1e6)


def ticks(seconds: float = 1e-6) -> Callable[[], float]:
    """Time that passes with each read."""
    numbers = count(1)
    return lambda: next(numbers) * seconds

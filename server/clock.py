"""The clock seam: wall time for commits, monotonic time for leases."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

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

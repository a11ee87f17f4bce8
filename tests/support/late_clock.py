"""A real clock that a test sets ahead, for leases that no test can wait for."""

from __future__ import annotations

from lakestore_server.host.clock import RealClock


class LateClock(RealClock):
    """The machine's clock, later by what the test says."""

    def __init__(self) -> None:
        self._seconds = self._jumped_seconds = 0.0

    def now_us(self) -> int:
        """Wall time."""
        return super().now_us() + int((self._seconds + self._jumped_seconds) * 1e6)

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return super().monotonic() + self._seconds

    def advance(self, seconds: float) -> None:
        """Time goes by, on both clocks."""
        self._seconds += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set."""
        self._jumped_seconds += seconds

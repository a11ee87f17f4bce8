"""Rate-limited log lines with the number of omitted ones, so that a caller in a loop cannot fill the log."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from lakestore_server.host.clock import Clock

CAUSES_MAX = 1_000
"""The most causes that are tracked. For one more, the cause that was logged longest ago is forgotten."""


@dataclass(slots=True)
class _Cause:
    told: float
    left: int
    """Lines that are left in this period."""
    untold: int = 0


class RateLimitedLog:
    """Counts by cause. Thread-safe."""

    def __init__(self, clock: Clock, seconds: float, times: int = 1) -> None:
        self._clock, self._seconds, self._times = clock, seconds, times
        self._lock = threading.Lock()
        self._causes: dict[Hashable, _Cause] = {}

    def due(self, cause: Hashable) -> int:
        """The number of occurrences since the last line if a line is due; 0 if not."""
        now = self._clock.monotonic()
        with self._lock:
            found = self._causes.get(cause)
            if found is None or now - found.told >= self._seconds:
                self._causes.pop(cause, None)
                self._causes[cause] = _Cause(now, self._times - 1)
                if len(self._causes) > CAUSES_MAX:
                    del self._causes[next(iter(self._causes))]
                return 1 + (found.untold if found else 0)
            if found.left:
                found.left -= 1
                return 1
            found.untold += 1
            return 0

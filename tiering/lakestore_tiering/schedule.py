"""When the rounds of tables begin, and how many run at once.

1. A round begins early enough to end within the table's freshness: what a reader of the lake misses is then younger.
2. A round needs one of a few places. While it waits for Spark or uses it, others have its place.
3. A table has one round at a time. No round waits for the round of another table to end.

Example: the rounds of a table with a freshness of 10 s take 2 s. A round begins 8 s after the one before began, so a
row that has just missed a round is in the lake 10 s later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from lakestore.model.freshness_price import REST_SHARE, ROUNDS_KEPT


class Places:
    """The places of rounds that run at once. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._local = threading.local()
        self._lock = threading.Lock()
        self.waiting_for_spark = 0
        """Rounds that have lent their place."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a place on this thread."""
        with self._free:
            self._local.has = True
            try:
                yield
            finally:
                self._local.has = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have this thread's place, if it has one. At the end it waits for a place again."""
        if not getattr(self._local, "has", False):
            yield
            return
        self._lend(1)
        self._local.has = False
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()
            self._local.has = True
            self._lend(-1)

    def _lend(self, change: int) -> None:
        with self._lock:
            self.waiting_for_spark += change


class Pace:
    """The seconds that rounds with rows took, by table. Used by one thread."""

    def __init__(self) -> None:
        self.took: dict[str, deque[float]] = {}
        """Table uuid to the seconds of its last rounds."""

    def took_seconds(self, uuid: str, seconds: float) -> None:
        self.took.setdefault(uuid, deque(maxlen=ROUNDS_KEPT)).append(seconds)

    def until_next(self, uuid: str, freshness_seconds: float) -> float:
        """Seconds from the beginning of a round to the beginning of the next one."""
        expected = max(self.took.get(uuid, ()), default=0.0)
        return max(freshness_seconds - expected, freshness_seconds * REST_SHARE)

"""Something of which there is only so much: memory for requests that are being decoded, open streams.

A request that finds none left waits a little, then is told to come again later. A request larger than the pool takes
the whole pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakestore.errors import Exhausted

RETRY_AFTER_SECONDS = 0.5
Claim = Callable[[int], None]
"""Takes more, or raises `Exhausted`."""


class Permits:
    """A pool of permits; thread-safe."""

    def __init__(self, most: int, wait_seconds: float, refusal: str) -> None:
        self._most, self._wait_seconds, self._refusal = most, wait_seconds, refusal
        self._held = 0
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """The permits that are taken now."""
        return self._held

    @contextmanager
    def taken(self, amount: int) -> Iterator[Claim]:
        """Hold so many permits while the block runs, or `Exhausted`; the block is given a `Claim` to take more."""
        mine = 0

        def claim(more: int) -> None:
            nonlocal mine
            more = min(more, self._most - mine)
            with self._changed:
                if not self._changed.wait_for(lambda: self._held + more <= self._most, self._wait_seconds):
                    raise Exhausted(self._refusal, retry_after=RETRY_AFTER_SECONDS)
                self._held += more
            mine += more

        try:
            claim(amount)
            yield claim
        finally:
            with self._changed:
                self._held -= mine
                self._changed.notify_all()

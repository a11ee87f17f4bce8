"""Retries: growing pauses with jitter, never shorter than the server asked for.

Also the caller's deadline: `within(seconds)` bounds every call inside the block, retries and pauses included.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lakestore.client.scope import pause
from lakestore.errors import Exhausted, LakestoreError, LimitReached, Stopped, Unavailable

RETRY_SECONDS = 60.0
PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS = 0.02, 1.0
# A separate generator: retries must not change the numbers of a program that seeds `random`.
_CHANCE = random.SystemRandom()
_DEADLINE: ContextVar[float | None] = ContextVar("lakestore_deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Calls inside end by then. An outer block's earlier deadline still applies."""
    end = time.monotonic() + seconds
    outer = _DEADLINE.get()
    reset = _DEADLINE.set(end if outer is None else min(end, outer))
    try:
        yield
    finally:
        _DEADLINE.reset(reset)


def without_deadline() -> None:
    """Drop the caller's deadline for the rest of this context, for work that outlives the call."""
    _DEADLINE.set(None)


def seconds_to_deadline(most: float) -> float:
    """The seconds that a call may take: `most`, or the rest of the caller's deadline."""
    end = _DEADLINE.get()
    return most if end is None else min(most, max(end - time.monotonic(), 0.0))


def has_deadline() -> bool:
    """True if the caller has set a deadline."""
    return _DEADLINE.get() is not None


def is_passing(error: LakestoreError) -> bool:
    """True if the same request may succeed later."""
    return isinstance(error, (Unavailable, Exhausted)) and not isinstance(error, (Stopped, LimitReached))


class Backoff:
    """The pauses between the tries of one request. Call `reset` after an answer."""

    def __init__(
        self,
        seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = pause,
        chance: Callable[[], float] = _CHANCE.random,
    ) -> None:
        self._seconds = RETRY_SECONDS if seconds is None else seconds
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._end: float | None = None
        self._pause = PAUSE_FIRST_SECONDS

    def reset(self) -> None:
        self._end, self._pause = None, PAUSE_FIRST_SECONDS

    def wait(self, error: LakestoreError) -> bool:
        """Pause before another try. False, at once, if a retry is pointless or too late."""
        if not is_passing(error):
            return False
        now = self._clock()
        if self._end is None:
            self._end = now + seconds_to_deadline(self._seconds)
        # Half of the pause is random, so writers that were refused together do not return together.
        pause = max(self._pause * (0.5 + self._chance()), error.retry_after * (1.0 + self._chance() / 2))
        if now + pause > self._end:
            return False
        self._sleep(pause)
        self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
        return True

"""Groups of calls that another thread can end together, pauses included, and work that one thread does for several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

from lakestore.errors import Invalid, LakestoreError, Unavailable


class Cancelled(Invalid):
    """The caller ended the call itself; never retried."""


class Scope:
    """Calls and nested scopes that end together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Any, None] = {}
        self._over = threading.Event()

    @contextmanager
    def holding(self, call: Any) -> Iterator[None]:
        """Register a call, anything with `cancel`, during the block."""
        self.add(call)
        try:
            yield
        finally:
            self.discard(call)

    def add(self, call: Any) -> None:
        """Register a call. It is cancelled at once if the scope has ended."""
        with self._lock:
            self._calls[call] = None
        if self._over.is_set():
            call.cancel()

    def discard(self, call: Any) -> None:
        with self._lock:
            self._calls.pop(call, None)

    @property
    def is_cancelled(self) -> bool:
        return self._over.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the scope."""
        self._over.wait(seconds)

    def cancel(self) -> None:
        """End the running calls and every later one. Idempotent."""
        self._over.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


SCOPE: ContextVar[Scope | None] = ContextVar("lakestore_scope", default=None)
"""The scope of calls made in this context."""


def pause(seconds: float) -> None:
    """Sleep, but not beyond the end of the current scope."""
    scope = SCOPE.get()
    if scope is None:
        time.sleep(seconds)
    else:
        scope.pause(seconds)


class _Flight:
    """Work that runs."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: LakestoreError | None = None


class SingleFlight:
    """Work that one thread does while others wait for it, each within its own time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Flight | None = None

    def run(self, work: Callable[[float], object], seconds: float) -> None:
        """Do the work within so many seconds, or wait for the thread that does it and raise its error. Look afterwards
        whether it is done: the other thread may have been cancelled.
        """
        with self._lock:
            flight, is_mine = self._running or _Flight(), self._running is None
            self._running = flight
        if is_mine:
            try:
                work(seconds)
            except LakestoreError as failure:
                flight.failure = failure
                raise
            finally:
                with self._lock:
                    self._running = None
                flight.done.set()
        elif not flight.done.wait(max(seconds, 0.0)):
            raise Unavailable("the server did not answer in time: try again")
        elif flight.failure is not None and not isinstance(flight.failure, Cancelled):
            raise copy(flight.failure)

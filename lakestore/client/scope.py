"""Groups of calls that another thread can end together, pauses between retries included."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


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

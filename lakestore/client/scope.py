"""Calls that can be ended together from another thread: the pauses between their tries as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Scope:
    """Calls, and scopes inside, that end together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Any, None] = {}
        self._over = threading.Event()

    @contextmanager
    def holding(self, call: Any) -> Iterator[None]:
        """The call, anything with `cancel`, while the block runs."""
        self.add(call)
        try:
            yield
        finally:
            self.discard(call)

    def add(self, call: Any) -> None:
        """A call that ends with this scope; at once if the scope has ended."""
        with self._lock:
            self._calls[call] = None
        if self._over.is_set():
            call.cancel()

    def discard(self, call: Any) -> None:
        """A call that has ended by itself."""
        with self._lock:
            self._calls.pop(call, None)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for its calls any more."""
        return self._over.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep, or until the scope ends."""
        self._over.wait(seconds)

    def cancel(self) -> None:
        """End the calls that run, and every later one. Again is harmless."""
        self._over.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


SCOPE: ContextVar[Scope | None] = ContextVar("lakestore_scope", default=None)
"""The scope of the calls made here."""


def pause(seconds: float) -> None:
    """Sleep, no longer than the scope of the calls made here goes on."""
    scope = SCOPE.get()
    if scope is None:
        time.sleep(seconds)
    else:
        scope.pause(seconds)

"""Wake-ups: a stream hears of the commits that touch its tables and sleeps through all others."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Bells:
    """Events by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}

    @contextmanager
    def heard(self, keys: Iterable[str]) -> Iterator[threading.Event]:
        """An event that is set by every ring of one of the keys while the block runs."""
        bell, wanted = threading.Event(), tuple(keys)
        with self._lock:
            for key in wanted:
                self._waiting.setdefault(key, set()).add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                for key in wanted:
                    self._waiting[key].discard(bell)
                    if not self._waiting[key]:
                        del self._waiting[key]

    @property
    def listeners(self) -> int:
        """The number of streams that are open and hear of commits; 0 once all have ended."""
        with self._lock:
            return len(set[threading.Event]().union(*self._waiting.values()))

    def ring(self, keys: Iterable[str]) -> None:
        """Wake who listens to one of the keys."""
        if not self._waiting:
            return
        with self._lock:
            woken = set().union(*(self._waiting.get(key, ()) for key in keys))
        for bell in woken:
            bell.set()

    def ring_all(self) -> None:
        """Wake everybody."""
        self.ring(list(self._waiting))

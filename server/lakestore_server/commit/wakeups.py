"""Wake-ups: a stream hears of the commits that touch its tables and sleeps through all others.

A stream is a generator. Where it has nothing to send it yields a `Pause`, and is to be asked again when that is over:
`waited` sleeps in the caller's thread, a port lets go of the thread and hears of the bell by its `listener`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
EVERY = "*"
"""The key that every ring rings as well; no table's uuid and no subscription's key."""


class Bell(threading.Event):
    """An event that calls its listener whenever it is set. The listener must not wait."""

    listener: Callable[[], None] | None = None

    def set(self) -> None:
        """Set the event, and call the listener."""
        super().set()
        if self.listener is not None:
            self.listener()


@dataclass(frozen=True, slots=True)
class Pause:
    """A stream's word that it has nothing to send until its bell rings, or a time is over."""

    bell: Bell
    seconds: float | None = None

    def wait(self) -> None:
        """Sleep until it is over."""
        self.bell.wait(self.seconds)


def waited(items: Generator[T | Pause]) -> Iterator[T]:
    """The items of a stream, its pauses slept through in the caller's thread."""
    with closing(items):
        for item in items:
            if isinstance(item, Pause):
                item.wait()
            else:
                yield item


class Bells:
    """Bells by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[Bell, None]] = {}
        """Key to its bells, in the order in which they came: that is the order in which they are rung."""

    @contextmanager
    def heard(self, keys: Iterable[str]) -> Iterator[Bell]:
        """A bell that is rung with every one of the keys while the block runs."""
        bell, wanted = Bell(), tuple(keys)
        with self._lock:
            for key in wanted:
                self._waiting.setdefault(key, {})[bell] = None
        try:
            yield bell
        finally:
            with self._lock:
                for key in wanted:
                    self._waiting[key].pop(bell, None)
                    if not self._waiting[key]:
                        del self._waiting[key]

    @property
    def listeners(self) -> int:
        """The number of streams that are open and hear of commits; 0 once all have ended."""
        with self._lock:
            return len(set[Bell]().union(*self._waiting.values()))

    def ring(self, keys: Iterable[str]) -> None:
        """Wake who listens to one of the keys."""
        if not self._waiting:
            return
        with self._lock:
            woken = {bell: None for key in sorted({*keys, EVERY}) for bell in self._waiting.get(key, ())}
        for bell in woken:
            bell.set()

    def ring_all(self) -> None:
        """Wake everybody."""
        self.ring(list(self._waiting))

"""Values that can be made again, kept by name in bounded memory: the least recently used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A value that knows its memory."""

    @property
    def nbytes(self) -> int:
        """Bytes, about."""


T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """Values by name, as many as the bound on their bytes allows; one that is larger alone stays alone. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self.nbytes = bytes_max, 0
        """Bytes of all that is kept."""
        self.evicted = 0
        """Values that went for lack of room."""
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()

    def get(self, name: str) -> T | None:
        """The value of a name, if it is kept."""
        with self._lock:
            found = self._held.get(name)
            if found is None:
                return None
            self._held.move_to_end(name)
            return found[0]

    def put(self, name: str, value: T) -> None:
        """Keep a value."""
        nbytes = value.nbytes
        with self._lock:
            self._drop(name)
            self._held[name] = value, nbytes
            self.nbytes += nbytes
            while self.nbytes > self._bytes_max and len(self._held) > 1:
                self._drop(next(iter(self._held)))
                self.evicted += 1

    def drop(self, name: str) -> None:
        """Forget a value."""
        with self._lock:
            self._drop(name)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def _drop(self, name: str) -> None:
        gone = self._held.pop(name, None)
        self.nbytes -= gone[1] if gone else 0

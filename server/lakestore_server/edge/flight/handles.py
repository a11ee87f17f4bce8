"""Handles of values that the port keeps between calls: prepared statements, transactions, session options.

- A handle is random and belongs to its principal: nobody else finds anything by it.
- Each principal has a bounded number and bounded bytes; beyond them its least recently used entry is dropped.
- An entry that nobody used for an hour is dropped. A restart drops all of them.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from lakestore.errors import NotFound
from lakestore_server.host.clock import Clock

ENTRIES_MAX, BYTES_MAX = 1_000, 8 << 20
"""The most entries of one kind for one principal, and their bytes."""
IDLE_SECONDS = 3_600.0
_ENTRY_BYTES = 500
"""Memory of an entry without its content."""
Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    nbytes: int
    used: float


class Handles(Generic[Value]):
    """The entries of one kind. Thread-safe."""

    def __init__(self, clock: Clock, what: str) -> None:
        """`what` names the kind in the error for a handle without entry."""
        self._clock, self.what = clock, what
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, bytes], _Entry[Value]] = OrderedDict()
        """By owner and handle, least recently used first."""
        self._bytes: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, owner: str, value: Value, nbytes: int = 0) -> bytes:
        """Keep a value; returns its handle."""
        handle = secrets.token_hex(16).encode()
        self.put(owner, handle, value, nbytes)
        return handle

    def put(self, owner: str, handle: bytes, value: Value, nbytes: int = 0) -> None:
        """Keep a value under a handle, instead of the present one."""
        with self._lock:
            self._drop((owner, handle))
            self._expire()
            nbytes += _ENTRY_BYTES
            self._entries[owner, handle] = _Entry(value, nbytes, self._clock.monotonic())
            self._bytes[owner] += nbytes
            self._counts[owner] += 1
            while self._counts[owner] > 1 and (self._counts[owner] > ENTRIES_MAX or self._bytes[owner] > BYTES_MAX):
                self._drop(next(key for key in self._entries if key[0] == owner))

    def get(self, owner: str, handle: bytes) -> Value:
        """The value of a handle, or `NotFound`."""
        with self._lock:
            self._expire()
            entry = self._entries.get((owner, handle))
            if entry is None:
                said = "it was closed, was idle for an hour, or the server restarted"
                raise NotFound(f"there is no such {self.what}: {said}")
            self._entries.move_to_end((owner, handle))
            entry.used = self._clock.monotonic()
            return entry.value

    def close(self, owner: str, handle: bytes) -> bool:
        """Drop an entry; whether there was one."""
        with self._lock:
            return self._drop((owner, handle))

    def _expire(self) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used > oldest:
                return
            self._drop(key)

    def _drop(self, key: tuple[str, bytes]) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        for counter, amount in ((self._bytes, entry.nbytes), (self._counts, 1)):
            counter[key[0]] -= amount
            if not counter[key[0]]:
                del counter[key[0]]
        return True

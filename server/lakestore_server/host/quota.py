"""Something of which there is only so much: memory for requests that are being decoded, open streams.

A request that finds none left waits a little, then is told to come again later. A request larger than the pool takes
the whole pool. An owner may take no more than a share, and does not wait for it: the rest is for others.
"""

from __future__ import annotations

import mmap
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from lakestore.errors import Exhausted
from lakestore.limits import Limits

SLAB_BYTES_MIN = 128 << 10
"""The smallest slab, and the shortest message that is worth one."""


class BufferPool:
    """A pool of slabs, each of a power of two of bytes. Thread-safe: slabs come back in any thread, at any moment."""

    def __init__(self, idle_bytes: int) -> None:
        """At most so many bytes lie idle."""
        self._idle_bytes = idle_bytes
        self._idle: dict[int, deque[mmap.mmap]] = {}

    @property
    def idle_bytes(self) -> int:
        """The bytes of slabs that nobody uses."""
        return sum(size * len(slabs) for size, slabs in list(self._idle.items()))

    def held(self, data: bytes) -> pa.Buffer:
        """A copy of a message, whose slab comes back when nobody holds it any more; itself if there is no slab."""
        try:
            slab = self._taken(len(data))
        except (OSError, MemoryError):
            return pa.py_buffer(data)
        with memoryview(slab) as view:
            view[: len(data)] = data
        address = np.frombuffer(slab, np.uint8).ctypes.data
        return pa.foreign_buffer(address, len(data), base=_Loan(self, slab))

    def _taken(self, nbytes: int) -> mmap.mmap:
        size = max(SLAB_BYTES_MIN, 1 << (nbytes - 1).bit_length())
        try:
            return self._idle.setdefault(size, deque()).pop()
        except IndexError:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give_back(self, slab: mmap.mmap) -> None:
        """Take a slab back. It holds no lock, for it may come from the collector, in the midst of anything."""
        if self.idle_bytes + len(slab) <= self._idle_bytes:
            self._idle[len(slab)].append(slab)


class _Loan:
    """A slab for as long as somebody holds it."""

    __slots__ = ("_slab", "_slabs")

    def __init__(self, slabs: BufferPool, slab: mmap.mmap) -> None:
        self._slabs, self._slab = slabs, slab

    def __del__(self) -> None:
        self._slabs.give_back(self._slab)


RETRY_AFTER_SECONDS = 0.5
Claim = Callable[[int], None]
"""Takes more, or raises `Exhausted`."""


def share_of(limit: int, limits: Limits) -> int:
    """The part of a limit that one principal may take."""
    return max(1, limit * limits.principal_percent // 100)


class Quota:
    """A pool of permits; thread-safe."""

    def __init__(
        self, most: int, wait_seconds: float, refusal: str, share: int | None = None, *, beyond: int = 0
    ) -> None:
        """`beyond`: permits that only urgent requests take, and before all others."""
        self._beyond, self._held_urgently = beyond, 0
        self._most, self._wait_seconds, self._refusal = most, wait_seconds, refusal
        self._share = most if share is None else share
        self._held = 0
        self._held_by: Counter[str] = Counter()
        """Owner to permits held; nobody's are not counted."""
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """The permits that are taken now."""
        return self._held

    @contextmanager
    def taken(self, amount: int, owner: str = "", *, waits: bool = True, is_urgent: bool = False) -> Iterator[Claim]:
        """Hold so many permits while the block runs, or `Exhausted`; the block is given a `Claim` to take more.

        Without an owner nothing is counted against a share. Who has taken permits already must not wait for more.
        """
        mine, seconds = 0, self._wait_seconds if waits else 0.0

        def claim(more: int) -> None:
            nonlocal mine
            more = min(more, self._most - mine)
            with self._changed:
                if owner and self._held_by[owner] + more > self._share:
                    raise Exhausted(
                        f"{owner} has {self._held_by[owner]} of them: {self._refusal}", retry_after=RETRY_AFTER_SECONDS
                    )
                if not self._changed.wait_for(lambda: more <= self._left(is_urgent=is_urgent), seconds):
                    raise Exhausted(self._refusal, retry_after=RETRY_AFTER_SECONDS)
                self._held += more
                self._held_urgently += more * is_urgent
                if owner:
                    self._held_by[owner] += more
            mine += more

        try:
            claim(amount)
            yield claim
        finally:
            with self._changed:
                self._held -= mine
                self._held_urgently -= mine * is_urgent
                if owner:
                    self._held_by[owner] -= mine
                    if not self._held_by[owner]:
                        del self._held_by[owner]
                self._changed.notify_all()

    def _left(self, *, is_urgent: bool) -> int:
        """The permits that a request finds."""
        kept = self._beyond if is_urgent else min(self._held_urgently, self._beyond)
        return self._most + kept - self._held

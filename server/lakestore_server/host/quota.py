"""Quotas for limited resources: memory for decoding requests, open streams.

- A request that finds nothing left waits a little, then is refused with `Exhausted`.
- A request that is larger than the quota takes the whole quota.
- An owner may take no more than its share, and is refused at once beyond it.
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
"""The size of the smallest slab, and of the shortest message that gets one."""


class BufferPool:
    """A pool of slabs, whose sizes are powers of two. Thread-safe: slabs return in any thread at any time."""

    def __init__(self, idle_bytes: int) -> None:
        """`idle_bytes` is the most that unused slabs may take."""
        self._idle_bytes = idle_bytes
        self._idle: dict[int, deque[mmap.mmap]] = {}

    @property
    def idle_bytes(self) -> int:
        """Bytes of unused slabs."""
        return sum(size * len(slabs) for size, slabs in list(self._idle.items()))

    def held(self, data: bytes) -> pa.Buffer:
        """A copy of a message in a slab, which returns to the pool when nothing refers to the copy. The message
        itself if there is no slab.
        """
        try:
            slab = self._taken(len(data))
        except (OSError, MemoryError):
            return pa.py_buffer(data)
        place = np.frombuffer(slab, np.uint8)
        place[: len(data)] = np.frombuffer(data, np.uint8)  # other threads run meanwhile
        return pa.foreign_buffer(place.ctypes.data, len(data), base=_Loan(self, slab))

    def _taken(self, nbytes: int) -> mmap.mmap:
        size = max(SLAB_BYTES_MIN, 1 << (nbytes - 1).bit_length())
        try:
            return self._idle.setdefault(size, deque()).pop()
        except IndexError:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give_back(self, slab: mmap.mmap) -> None:
        """Return a slab. Takes no lock, because the garbage collector may call it at any point."""
        if self.idle_bytes + len(slab) <= self._idle_bytes:
            self._idle[len(slab)].append(slab)


class _Loan:
    """A slab that is in use."""

    __slots__ = ("_slab", "_slabs")

    def __init__(self, slabs: BufferPool, slab: mmap.mmap) -> None:
        self._slabs, self._slab = slabs, slab

    def __del__(self) -> None:
        self._slabs.give_back(self._slab)


RETRY_AFTER_SECONDS = 0.5
NESTED = 1
"""Query processes beyond `limits.query_processes`, for sessions that ask while they hold an unfinished answer."""
Claim = Callable[[int], None]
"""Takes further permits. Raises `Exhausted` if there are none."""


def share_of(limit: int, limits: Limits) -> int:
    """The part of a limit that one principal may take."""
    return max(1, limit * limits.principal_percent // 100)


class NoPermit(Exhausted):
    """All permits of a quota, or of its owner's share, are in use."""


class Quota:
    """A number of permits. Thread-safe."""

    def __init__(
        self, most: int, wait_seconds: float, refusal: str, share: int | None = None, *, beyond: int = 0
    ) -> None:
        """`beyond` permits are reserved for urgent requests, which are served first."""
        self._beyond, self._held_urgently = beyond, 0
        self._most, self._wait_seconds, self._refusal = most, wait_seconds, refusal
        self._share = most if share is None else share
        self._held = 0
        self._held_by: Counter[str] = Counter()
        """Owner to its permits. Permits without an owner are not counted."""
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """The permits in use."""
        return self._held

    @contextmanager
    def taken(self, amount: int, owner: str = "", *, waits: bool = True, is_urgent: bool = False) -> Iterator[Claim]:
        """Hold permits while the block runs. The block gets a `Claim` for further ones. Raises `Exhausted`.

        Without an owner no share applies. A holder of permits must not wait for further ones.
        """
        mine, seconds = 0, self._wait_seconds if waits else 0.0

        def claim(more: int) -> None:
            nonlocal mine
            more = min(more, self._most - mine)
            with self._changed:
                if owner and self._held_by[owner] + more > self._share:
                    raise NoPermit(
                        f"{owner} has {self._held_by[owner]} of them: {self._refusal}", retry_after=RETRY_AFTER_SECONDS
                    )
                if not self._changed.wait_for(lambda: more <= self._left(is_urgent=is_urgent), seconds):
                    raise NoPermit(self._refusal, retry_after=RETRY_AFTER_SECONDS)
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
        """The permits that are left for a request."""
        kept = self._beyond if is_urgent else min(self._held_urgently, self._beyond)
        return self._most + kept - self._held

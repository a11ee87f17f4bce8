"""Memory for large messages that is used again: memory that is new to a process costs more than a copy into it.

The kernel clears each page that is touched first, and a virtual machine may have to get it from its host. A message
that is kept for long, beside others that are not, would leave holes in the allocator's memory besides.
"""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np
import pyarrow as pa

SLAB_BYTES_MIN = 128 << 10
"""The smallest slab, and the shortest message that is worth one."""


class Slabs:
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

    def __init__(self, slabs: Slabs, slab: mmap.mmap) -> None:
        self._slabs, self._slab = slabs, slab

    def __del__(self) -> None:
        self._slabs.give_back(self._slab)

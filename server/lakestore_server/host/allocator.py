"""Settings of the C library's allocator, so that it keeps freed memory: new memory costs a page fault for each page.

gRPC allocates and frees some megabytes for each large message. By default glibc returns such memory to the kernel at
once and gets new memory for the next message. Each arena keeps memory of its own, so there are no more arenas than
processors; the default is eight times as many.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
"""Parameters of glibc's `mallopt`."""
KEPT_BYTES = 64 << 20
"""Free memory at the end of the heap that is kept."""
PAD_BYTES = 16 << 20
"""Free memory that is kept for each arena."""
MAPPED_BYTES = 32 << 20
"""Allocations from this size on are returned to the kernel when freed; glibc accepts no larger number."""


def keep_memory() -> None:
    """Keep freed memory from now on, in all threads. Does nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (
            (_MMAP_THRESHOLD, MAPPED_BYTES),
            (_TRIM_THRESHOLD, KEPT_BYTES),
            (_TOP_PAD, PAD_BYTES),
            (_ARENA_MAX, max(2, os.cpu_count() or 2)),
        ):
            mallopt(parameter, value)

"""The C library's allocator, told to keep memory that it was given back: new memory costs a fault for each page.

gRPC takes and frees some megabytes for each large message. By its own rules the allocator gives such memory back to the
kernel at once, and gets it anew for the next one. Each of its arenas keeps its own, so there are no more than
processors; by its own rules there are eight times as many.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
"""Parameters of glibc's `mallopt`."""
KEPT_BYTES = 64 << 20
"""Free memory at the end of the heap that is kept."""
PAD_BYTES = 16 << 20
"""Free memory that is kept for each of its arenas."""
MAPPED_BYTES = 32 << 20
"""Pieces from that size on go back to the kernel when they are freed; glibc takes no larger number."""


def keep_memory() -> None:
    """Have freed memory kept, in all threads, from now on; nothing where the C library is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (
            (_MMAP_THRESHOLD, MAPPED_BYTES),
            (_TRIM_THRESHOLD, KEPT_BYTES),
            (_TOP_PAD, PAD_BYTES),
            (_ARENA_MAX, max(2, os.cpu_count() or 2)),
        ):
            mallopt(parameter, value)

"""What the kernel holds of files in memory, and how it is made to hold nothing of them."""

from __future__ import annotations

import ctypes
import mmap
import os
from os import fsync  # the real one, which conftest hides
from pathlib import Path

import pyarrow as pa


def forget(*files: Path) -> None:
    """Have the kernel let go of what it holds of files that nobody has mapped."""
    for path in files:
        with path.open("rb") as file:
            fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pages_in_memory(data: pa.Buffer) -> int:
    """The pages of a part of a mapped file that the kernel holds."""
    before = data.address % mmap.PAGESIZE
    found = (ctypes.c_ubyte * -(-(data.size + before) // mmap.PAGESIZE))()
    start, size = ctypes.c_void_p(data.address - before), ctypes.c_size_t(data.size + before)
    assert ctypes.CDLL(None, use_errno=True).mincore(start, size, found) == 0
    return sum(each & 1 for each in found)

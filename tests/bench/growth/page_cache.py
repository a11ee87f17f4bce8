"""The page cache as a measure finds it: how much of a folder's files is in memory, and filling it.

A machine that takes out of memory what nobody has touched for seconds (proactive reclaim) makes of a warm measure one
of the disk; a figure tells therefore which part of the files was in memory when it began.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ENOUGH = 0.999
"""The share of a folder in memory from which on it counts as filled."""
TRIES = 4
CHUNK_BYTES = 8 << 20

_LIBC = ctypes.CDLL(None, use_errno=True)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)


def _pages(path: Path) -> tuple[int, int]:
    """(pages in memory, pages) of a file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        address, nbytes = view.ctypes.data, len(view)
        del view
        found = np.zeros(-(-nbytes // mmap.PAGESIZE), dtype=np.uint8)
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_void_p(found.ctypes.data)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        return int(np.count_nonzero(found & 1)), len(found)


def share(folder: Path) -> float:
    """The part of the bytes of all files in a folder that is in memory; 1 of a folder without any."""
    counts = [_pages(path) for path in _files(folder)]
    return sum(here for here, _ in counts) / max(sum(pages for _, pages in counts), 1) if counts else 1.0


def fill(folder: Path) -> float:
    """The share that is in memory after all files were read, again where the machine took some out meanwhile."""
    buffer = bytearray(CHUNK_BYTES)
    for _ in range(TRIES):
        for path in _files(folder):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        if (found := share(folder)) >= ENOUGH:
            break
    return found

"""Writing bytes of a file back: they come to the disk and stay in the page cache, and nothing is durable by that.

A sync writes the file system's journal as well and has the disk empty its own memory, and whoever syncs another file
meanwhile waits for both: beside 100 MB/s that are synced each 2 MB, one sync in a hundred of another file takes 6 ms,
beside as many that are written back 2.5, measured.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any

_ALL = 0, 0, 1 | 2 | 4
"""Linux's `sync_file_range` for a whole file: wait for what is being written, write, and wait again."""


def write_back(fd: int) -> None:
    """Wait until all bytes of an open file have come to the disk; by a sync where the system knows no less."""
    call = _call()
    if call is None:
        os.fdatasync(fd)
        return
    while call(fd, *_ALL):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _call() -> Any:
    """The system's call; None where it has none, or lets this process have none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is None:
        return None
    call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
    is_there = call(-1, *_ALL) and ctypes.get_errno() == errno.EBADF
    return call if is_there else None

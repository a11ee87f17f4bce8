"""Writing bytes of a file back: they leave the page cache for the disk, and nothing is durable by that.

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
_UNKNOWN = (errno.ENOSYS, errno.EPERM)
"""Errors of a system without that call, or that does not let this process have it."""


def write_back(fd: int) -> None:
    """Wait until all bytes of an open file are on the disk; by a sync where the system knows no less."""
    call = _call()
    if call is None:
        os.fdatasync(fd)
    elif call(fd, *_ALL):
        number = ctypes.get_errno()
        if number not in _UNKNOWN:
            raise OSError(number, os.strerror(number))
        os.fdatasync(fd)


@cache
def _call() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
    return call

"""Mapped files as Arrow buffers, without Arrow's read-ahead and without the open descriptor that Python's `mmap`
keeps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pyarrow as pa

_LIBC = ctypes.CDLL(None, use_errno=True)
_MMAP, _MUNMAP = _LIBC.mmap, _LIBC.munmap
_MMAP.restype, _MUNMAP.restype = ctypes.c_void_p, ctypes.c_int
_MMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_MUNMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MADVISE = _LIBC.madvise
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_WILL_NEED, _POPULATE_READ = 3, 22
_ASKED_BYTES = 1 << 20
"""The most bytes of one request: of a longer one, Linux reads only about the first megabyte."""
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """The mapping of a file. It lives as long as a buffer refers to it."""

    __slots__ = ("_size", "address")

    def __init__(self, fd: int, size: int) -> None:
        self.address = 0
        address = _MMAP(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address, self._size = int(address), size

    def __del__(self) -> None:
        if self.address:
            _MUNMAP(self.address, self._size)


def mapped(path: Path) -> pa.Buffer:
    """A whole file with its present size. Pages are read when they are touched."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if not size:
            return pa.py_buffer(b"")
        mapping = _Mapping(fd, size)
    finally:
        os.close(fd)
    return pa.foreign_buffer(mapping.address, size, base=mapping)


def will_need(data: pa.Buffer) -> None:
    """Prefetch a part of a mapped file. Other threads can run meanwhile."""
    end = data.address + data.size
    for at in range(data.address - data.address % mmap.PAGESIZE, end, _ASKED_BYTES):
        _MADVISE(at, min(_ASKED_BYTES, end - at), _WILL_NEED)


def read_in(data: pa.Buffer) -> None:
    """Wait until a part of a mapped file is in memory. Other threads can run meanwhile, unlike in a page fault.

    On Linux before 5.14 this only prefetches.
    """
    begin = data.address - data.address % mmap.PAGESIZE
    if _MADVISE(begin, data.address + data.size - begin, _POPULATE_READ):
        will_need(data)

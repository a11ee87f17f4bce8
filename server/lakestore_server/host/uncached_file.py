"""A file that is written past the page cache, for bytes that are hardly read again: filling the cache costs more
than the disk.

- The kernel requires whole blocks, at multiples of a block, from aligned memory. So writes go through such memory, and
  the last block is filled up with zeros.
- The next write writes that block again, with the same beginning. The zeros stay at the file's end unless they are cut.
- On a file system without such writes, the same writes go through the page cache.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lakestore_server.host.write_back import write_back

BLOCK = 4 << 10
PIECE_BYTES = 2 << 20
"""The size of the buffer, and of the largest single write."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class UncachedFile:
    """`AppendFile` past the page cache. After a failed write it can only be cut or closed."""

    def __init__(self, path: Path, mode: int) -> None:
        self._fd = _made(path, mode)
        os.fchmod(self._fd, mode)
        self._size = 0
        self._memory = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        """The buffer as an array. It begins with the bytes of an incomplete last block."""

    def write(self, parts: Sequence[Any]) -> int:
        """Append all parts, or raise."""
        filled = self._size % BLOCK
        at, total = self._size - filled, 0
        for part in parts:
            rest = np.frombuffer(part, np.uint8) if len(part) else self._bytes[:0]
            total += len(rest)
            while len(rest):
                taken = min(len(rest), PIECE_BYTES - filled)
                self._bytes[filled : filled + taken] = rest[:taken]
                filled, rest = filled + taken, rest[taken:]
                if filled == PIECE_BYTES:
                    self._put(at, PIECE_BYTES)
                    at, filled = at + PIECE_BYTES, 0
        self._put_filled_up(at, filled)
        self._size += total
        return total

    def _put_filled_up(self, at: int, filled: int) -> None:
        """Write the last blocks filled up with zeros. Keep the bytes with which the next write begins."""
        last = filled - filled % BLOCK
        if last < filled:
            self._bytes[filled : last + BLOCK] = 0
            self._put(at, last + BLOCK)
            self._bytes[: filled - last] = self._bytes[last:filled]
        elif filled:
            self._put(at, filled)

    def _put(self, at: int, size: int) -> None:
        """Write the buffer's first bytes at a position."""
        done = 0
        with memoryview(self._memory) as view:
            while done < size:
                try:
                    done += os.pwrite(self._fd, view[done:size], at + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not _cached(self._fd):
                        raise

    def sync(self) -> None:
        """fdatasync."""
        os.fdatasync(self._fd)

    def write_back(self) -> None:
        """Does nothing, unless the file system uses the page cache."""
        write_back(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, and load its last block into the buffer."""
        filled = size % BLOCK
        os.ftruncate(self._fd, size + -size % BLOCK)
        if filled:
            with memoryview(self._memory) as view:
                os.preadv(self._fd, [view[:BLOCK]], size - filled)
            self._put_filled_up(size - filled, filled)
        self._size = size

    def end(self) -> None:
        """Cut off the zeros."""
        os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close; only once. The zeros stay: a power cut would undo a cut that is not synced."""
        fd, self._fd = self._fd, -1  # before the call, in which another thread may close it too
        if fd >= 0:
            os.close(fd)


def _made(path: Path, mode: int) -> int:
    """Create a file, open past the cache if its file system supports that."""
    if _DIRECT:
        try:
            return os.open(path, _FLAGS | _DIRECT, mode)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # some systems create the file before they refuse
    return os.open(path, _FLAGS, mode)


def _cached(fd: int) -> bool:
    """Switch an open file to the page cache. False if it used the cache already."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~_DIRECT)
    return True

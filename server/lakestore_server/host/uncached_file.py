"""A file written past the page cache, for bytes that are hardly read again: filling the cache costs more than the disk.

The kernel takes whole blocks to places of whole blocks, out of memory that begins at one. So what is written goes by
way of such memory, its last block filled up with zeros; the next write puts that block anew, its beginning as it was.
The file ends with these zeros unless they are cut. A file system that knows no such writes gets the same ones through
its cache.
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
"""The memory of a file, and the most that one call of the kernel writes."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class UncachedFile:
    """`AppendFile` past the page cache. Behind a write that failed it can only be cut, or closed."""

    def __init__(self, path: Path, mode: int) -> None:
        self._fd = _made(path, mode)
        os.fchmod(self._fd, mode)
        self._size = 0
        self._memory = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        """The memory as numbers; it begins with the bytes of the last block, if that is not full."""

    def write(self, parts: Sequence[Any]) -> int:
        """Append all parts, or fail."""
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
        """Put the last blocks, and keep of them what the next write begins with."""
        last = filled - filled % BLOCK
        if last < filled:
            self._bytes[filled : last + BLOCK] = 0
            self._put(at, last + BLOCK)
            self._bytes[: filled - last] = self._bytes[last:filled]
        elif filled:
            self._put(at, filled)

    def _put(self, at: int, size: int) -> None:
        """Write the memory's first bytes to a place."""
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
        """Nothing waits, unless the file system writes through its cache without a word."""
        write_back(self._fd)

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes, and take the last block's into memory again."""
        filled = size % BLOCK
        os.ftruncate(self._fd, size + -size % BLOCK)
        if filled:
            with memoryview(self._memory) as view:
                os.preadv(self._fd, [view[:BLOCK]], size - filled)
            self._put_filled_up(size - filled, filled)
        self._size = size

    def end(self) -> None:
        """Cut the zeros off."""
        os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close; once only. The zeros stay: a cut that is not synced would be undone by a power cut."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _made(path: Path, mode: int) -> int:
    """A new file, open past the cache if its file system can do that."""
    if _DIRECT:
        try:
            return os.open(path, _FLAGS | _DIRECT, mode)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # some systems make the file before they refuse
    return os.open(path, _FLAGS, mode)


def _cached(fd: int) -> bool:
    """Let an open file be written through the cache from now on; False if it was before."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~_DIRECT)
    return True

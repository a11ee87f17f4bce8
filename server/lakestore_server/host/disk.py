"""The disk: the server touches files only through this interface.

A file is durable after `sync`, its name after `sync_folder`. A failed sync is never retried: the `OSError` ends the
server.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.uncached_file import UncachedFile
from lakestore_server.host.write_back import write_back

if TYPE_CHECKING:
    import pyarrow as pa

FILE_MODE, FOLDER_MODE = 0o640, 0o750
"""Modes of new files and folders, whatever the umask: the group may read, others may not."""
PIECE_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a file system without hard links, or without another one for this file."""


class AppendFile(Protocol):
    """A file that is written from its end."""

    def write(self, parts: Sequence[Any]) -> int:
        """Append all parts. Returns the number of bytes, or raises OSError."""

    def sync(self) -> None:
        """Make everything written durable."""

    def write_back(self) -> None:
        """Wait until everything written is on the disk, so that a later `sync` is short. It makes nothing durable.
        An error counts like an error of `sync`.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. Durable after `sync`."""

    def end(self) -> None:
        """Declare the file complete: it ends at its last byte, durably after the next `sync`."""

    def close(self) -> None:
        """Close without syncing."""


class Disk(Protocol):
    """The file system as the server needs it. Paths are real: other processes may open them."""

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        """Create an empty file. Raises `FileExistsError` if it exists. An uncached file may end with zeros, less
        than a block, until `end`.
        """

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source`, a file or a folder. Durable after `sync_folder`."""

    def link(self, source: Path, target: Path) -> bool:
        """Create a hard link, durable after `sync_folder`. False if the file system has none."""

    def remove(self, path: Path) -> None:
        """Unlink a file. Durable after `sync_folder`."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, durably."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with everything in it."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def list(self, path: Path) -> list[str]:
        """Sorted names in a folder; empty if it does not exist."""

    def read(self, path: Path) -> bytes: ...

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        """The first `size` bytes of a file, or all, in pieces of at most `PIECE_BYTES`."""

    def map(self, path: Path) -> pa.Buffer:
        """A whole file, mapped: pages are read when they are touched."""

    def size(self, path: Path) -> int | None:
        """The file's size; None if it does not exist."""

    def free_bytes(self, path: Path) -> int: ...

    def reach(self, point: CrashPoint) -> None:
        """Pass a crash point: from here on a crash leaves a different state."""


class RealFile:
    """`AppendFile` on the operating system."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        os.fchmod(self._fd, FILE_MODE)

    def write(self, parts: Sequence[Any]) -> int:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        total = 0
        while views:
            written = os.writev(self._fd, views[:512])
            total += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        return total

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def write_back(self) -> None:
        write_back(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def end(self) -> None:
        """The file already ends there."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # before the call, in which another thread may close it too
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """`Disk` on the operating system."""

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        return RealFile(path) if is_cached else UncachedFile(path, FILE_MODE)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        return True

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        path.chmod(FOLDER_MODE)
        self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path)) if path.is_dir() else []

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            left = sys.maxsize if size is None else size
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece

    def map(self, path: Path) -> pa.Buffer:
        from lakestore_server.host.mapping import mapped  # imports Arrow, which the process of a merge does not need

        return mapped(path)

    def size(self, path: Path) -> int | None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def reach(self, point: CrashPoint) -> None: ...

"""The disk seam: all that the server does to files goes through here.

A file is durable after `sync`, its name after `sync_folder`. A failed sync is never retried: it leaves as
`OSError` and ends the server.
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
"""Modes of what the server makes, whatever the umask: its group may read, others may not."""
PIECE_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a file system that does not link, or not this file once more."""


class AppendFile(Protocol):
    """A file being written from its end."""

    def write(self, parts: Sequence[Any]) -> int:
        """Append all parts; the number of bytes written is their sum, or OSError."""

    def sync(self) -> None:
        """Make everything written durable."""

    def write_back(self) -> None:
        """Wait until everything written has come to the disk, so that a later `sync` is short. Nothing is durable by
        that; what fails is as a failed `sync`."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; not durable before `sync`."""

    def end(self) -> None:
        """Nothing is appended any more: the file ends where its bytes do, durably with the next `sync`."""

    def close(self) -> None:
        """Close without syncing."""


class Disk(Protocol):
    """A file system as the server needs one. Paths are real: other processes may open them."""

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        """A new empty file; `FileExistsError` if there is one. One that is not cached may end with zeros, less
        than a block of them, until its `end`."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source`, a file or a folder; not durable before `sync_folder`."""

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name, not durable before `sync_folder`; False where the file system has none."""

    def remove(self, path: Path) -> None:
        """Unlink; not durable before `sync_folder`."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, durably."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with everything in it."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def list(self, path: Path) -> list[str]:
        """Sorted names in a folder; empty when there is none."""

    def read(self, path: Path) -> bytes:
        """A whole file."""

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        """The first bytes of a file, so many or all, in pieces of at most `PIECE_BYTES`."""

    def map(self, path: Path) -> pa.Buffer:
        """A whole file, mapped: its pages are read when they are touched."""

    def size(self, path: Path) -> int | None:
        """Bytes of a file; None when there is no such file."""

    def free_bytes(self, path: Path) -> int:
        """Free bytes for this user."""

    def reach(self, point: CrashPoint) -> None:
        """A crash point is passed: a crash leaves something else from here on."""


class RealFile:
    """`AppendFile` on the operating system."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        os.fchmod(self._fd, FILE_MODE)

    def write(self, parts: Sequence[Any]) -> int:
        """Append all parts, or fail."""
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
        """fdatasync."""
        os.fdatasync(self._fd)

    def write_back(self) -> None:
        """sync_file_range."""
        write_back(self._fd)

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes."""
        os.ftruncate(self._fd, size)

    def end(self) -> None:
        """It ends there already."""

    def close(self) -> None:
        """Close; once only."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """`Disk` on the operating system."""

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        """A new file, written through the page cache or past it."""
        return RealFile(path) if is_cached else UncachedFile(path, FILE_MODE)

    def rename(self, source: Path, target: Path) -> None:
        """os.replace."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        """os.link."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        return True

    def remove(self, path: Path) -> None:
        """os.unlink."""
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        """Create each missing folder and sync its parent."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        path.chmod(FOLDER_MODE)
        self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove a tree."""
        shutil.rmtree(path)

    def sync_folder(self, path: Path) -> None:
        """fsync of the folder."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def list(self, path: Path) -> list[str]:
        """Sorted names."""
        return sorted(os.listdir(path)) if path.is_dir() else []

    def read(self, path: Path) -> bytes:
        """The whole file."""
        return path.read_bytes()

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        """One read for each piece."""
        with path.open("rb", buffering=0) as file:
            left = sys.maxsize if size is None else size
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece

    def map(self, path: Path) -> pa.Buffer:
        """mmap."""
        from lakestore_server.host.mapping import mapped  # has Arrow, which the process of a merge does without

        return mapped(path)

    def size(self, path: Path) -> int | None:
        """stat; a folder is no file."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def free_bytes(self, path: Path) -> int:
        """Free bytes for this user."""
        return shutil.disk_usage(path).free

    def reach(self, point: CrashPoint) -> None:
        """Nothing: only tests crash here."""

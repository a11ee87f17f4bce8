"""A file of a known size that is read by position, as Arrow reads a Python file."""

from __future__ import annotations

import io
from abc import abstractmethod


class SizedFile(io.RawIOBase):
    """A file behind `pa.PythonFile`. Arrow holds the file's lock while it reads."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    @abstractmethod
    def part(self, at: int, size: int) -> bytes:
        """So many bytes from a position on; they lie within the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        size = left if size is None or size < 0 else min(size, left)
        found = self.part(self._at, size) if size else b""
        self._at += len(found)
        return found

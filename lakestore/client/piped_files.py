"""Lake files as a query's process reads them: through the pipe to its server, which opens those of its plans."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa

from lakestore.wire import piped
from lakestore.wire.piped import Frame, Kind

Exchange = Callable[[Frame], Frame]


class PipedFiles:
    """The files that the server opens for the query. Thread-safe, as the exchange is."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def open_input_file(self, path: str, /) -> pa.NativeFile:
        """A lake file by its location; `FileNotFoundError` where there is none."""
        return pa.PythonFile(_PipedFile(self._exchange, path), mode="r")


class _PipedFile(io.RawIOBase):
    """One file. Arrow reads a part with its own lock held."""

    def __init__(self, exchange: Exchange, location: str) -> None:
        self._exchange, self._location, self._at = exchange, location, 0
        (self._size,) = piped.FILE_SIZE.unpack(self._answer(Frame(Kind.SIZE, location.encode())))

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
        left = left if size is None or size < 0 else min(size, left)
        parts = []
        while left:
            part = self._part(min(left, piped.FILE_PART_BYTES_MAX))
            parts.append(part)
            self._at += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, size: int) -> bytes:
        found = self._answer(Frame(Kind.READ, piped.FILE_PART.pack(self._at, size) + self._location.encode()))
        if len(found) != size:
            raise OSError(f"file {self._location} ends before byte {self._at + size}")
        return found

    def _answer(self, frame: Frame) -> bytes:
        answer = self._exchange(frame)
        if answer.kind is Kind.END:
            raise FileNotFoundError(self._location)
        return answer.payload

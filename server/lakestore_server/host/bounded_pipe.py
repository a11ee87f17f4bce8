"""A pipe to another process and a pipe back. Every wait has an end, because the process may be stopped or stuck."""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import IO, Protocol

READ_BYTES = 1 << 20


class Silent(OSError):
    """The other process has neither taken nor given a byte in time."""


class BoundedPipe:
    """Bytes to and from a process. For one thread at a time."""

    def __init__(self, to: IO[bytes], back: IO[bytes], seconds: float) -> None:
        """`seconds` without a byte moved are the end."""
        self._to, self._back, self._seconds = to.fileno(), back.fileno(), seconds
        for number in (self._to, self._back):
            os.set_blocking(number, False)
        self._can_write, self._can_read = select.poll(), select.poll()
        self._can_write.register(self._to, select.POLLOUT)
        self._can_read.register(self._back, select.POLLIN)
        self._held = b""

    def write(self, data: bytes) -> None:
        """Send all of it, or `Silent`."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                self._wait(self._can_write)

    def read(self, size: int) -> bytes:
        """Some bytes that came back, so many at most; none at the pipe's end. `Silent` if none come."""
        while not self._held:
            try:
                self._held = os.read(self._back, READ_BYTES)
            except BlockingIOError:
                self._wait(self._can_read)
            else:
                if not self._held:
                    return b""
        part, self._held = self._held[:size], self._held[size:]
        return part

    def _wait(self, poll: select.poll) -> None:
        end = time.monotonic() + self._seconds
        while not poll.poll(max(end - time.monotonic(), 0.0) * 1000):
            if time.monotonic() >= end:
                raise Silent(f"the other process was silent for {self._seconds:g} s")


class Readable(Protocol):
    """Bytes that come from the other end."""

    def read(self, size: int, /) -> bytes | None:
        """Some of them, so many at most; none at the end."""


def exactly(pipe: Readable, size: int) -> bytes:
    """`size` bytes, or EOFError."""
    parts = []
    while size:
        part = pipe.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code of a process, which ends with its pipes or else is killed."""
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe:
                pipe.close()
        except OSError:
            continue  # bytes that were still to be written to a process that has ended
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()

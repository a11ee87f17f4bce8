"""The memory of a query process: a bound that interrupts the question, and a wall of the operating system behind it.

1. DuckDB counts most of its memory (`query_bytes`), but no long texts and no rows on their way to the client. The bound
   counts everything: all memory that the process may write to.
2. A question beyond the bound is interrupted. If that frees nothing within `GRACE_SECONDS`, the process ends without a
   signal. Either way the caller gets an error that names memory, and the session lives. The process is not used again,
   because libraries keep freed memory mapped.
3. The wall (RLIMIT_DATA) stands `ROOM_BYTES` behind the bound. Little memory before the wall is fatal in any thread:
   glibc ends the process if it cannot allocate `thread_local` data, and DuckDB's jemalloc reads the null pointer of a
   thread's cache that it could not make.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lakestore.errors import LakestoreError, LimitReached

BESIDE_BYTES = 512 << 20
"""Memory on top of twice DuckDB's limit: threads, and lake files that are being read."""
ROOM_BYTES = 1 << 30
"""A text of 1 GB takes 0.3 s to be written, so a look every `LOOK_SECONDS` sees it long before it is there."""
LOOK_SECONDS = 0.02
GRACE_SECONDS = 0.25
TOO_MUCH = "the query needs more memory than it may take: ask for fewer rows or columns"
EXIT_STATUS = 1


class MemoryWatch:
    """Compares the memory of this process with its bound while a question is answered."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt` ends the question soon. It is called again until the memory is free."""
        self._interrupt = interrupt
        self._most = 0
        self._lock = threading.Lock()
        self._is_asked = threading.Event()
        self._is_over = False
        self._end = 0.0
        """The end of the grace of a question beyond the bound."""
        self._file: int | None = None
        """The kernel's numbers, opened before the sandbox closes the file system."""
        with suppress(FileNotFoundError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY)

    def bound(self, memory_bytes: int) -> None:
        """Set the bound and the wall for the rest of the process. `memory_bytes` is DuckDB's limit."""
        self._most = (self._taken() or 1 << 30) + BESIDE_BYTES + 2 * memory_bytes
        wall = self._most + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
        if self._file is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        """A question begins."""
        self._is_asked.set()

    def end(self) -> bool:
        """A question ends: whether it was interrupted for its memory."""
        with self._lock:
            self._is_asked.clear()
            was_over, self._is_over = self._is_over, False
        return was_over

    def _taken(self) -> int:
        """Bytes that the process may write to, whether it has or not; 0 if the kernel does not tell.

        Libraries reserve much more address space than they use.
        """
        if self._file is None:
            return 0
        return int(os.pread(self._file, 256, 0).split()[5]) * resource.getpagesize()

    def _watch(self) -> None:
        while self._is_asked.wait():
            time.sleep(LOOK_SECONDS)
            with suppress(MemoryError, OSError):  # the next look may have the memory that this one lacked
                self._look()

    def _look(self) -> None:
        """Compare the memory with the bound. Under the lock, so that the memory is that of the present question."""
        with self._lock:
            if not self._is_asked.is_set() or self._taken() <= self._most:
                return
            now = time.monotonic()
            self._end = self._end if self._is_over else now + GRACE_SECONDS
            self._is_over = True
            if now > self._end:
                os._exit(EXIT_STATUS)
            self._interrupt()


def too_much() -> LimitReached:
    """The error of a question beyond its memory."""
    return LimitReached(TOO_MUCH)


def is_too_much(error: LakestoreError) -> bool:
    """Whether this error says that a question needed too much memory."""
    return isinstance(error, LimitReached) and error.message == TOO_MUCH

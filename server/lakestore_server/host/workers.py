"""A pool of threads, started as needed up to a limit, and kept. Further work waits in a queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("lakestore.server")
Work = Callable[[], None]
"""A piece of work. It should catch its own errors; others are logged."""


class Workers:
    """A pool of threads. Thread-safe."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0
        """Pieces that run or wait."""
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether the pool is at its limit and every thread has work."""
        return self._unfinished >= self._most

    @property
    def threads(self) -> int:
        """The number of started threads."""
        return self._threads

    def run(self, work: Work) -> None:
        """Run a piece of work in some thread, soon. After `close` it is dropped."""
        with self._lock:
            if self._is_closed:
                return
            self._unfinished += 1
            begins = self._threads < min(self._unfinished, self._most)
            self._threads += begins
        if begins:
            self._begin()
        self._queue.put(work)

    def _begin(self) -> None:
        """Start one more thread, if the system allows it; otherwise the existing ones do the work later."""
        try:
            threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._unfinished -= 1
                    raise
            log.error("%s has %d threads and gets no more: %s", self._name, self._threads, error)

    def close(self) -> None:
        """Take no more work. Threads end after their running work."""
        with self._lock:
            self._is_closed = True
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:  # the boundary of the thread, which continues with further work
                log.exception("work of %s failed by a defect", self._name)
            finally:
                with self._lock:
                    self._unfinished -= 1
            del work  # it may hold much memory, and the next piece may come much later

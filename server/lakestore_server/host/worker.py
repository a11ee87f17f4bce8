"""A thread for work that is asked for, or due now and then, and tried again after a pause when it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from lakestore.errors import LakestoreError

RETRY_SECONDS = 5.0


class Worker:
    """A thread that runs `work` once for all requests so far; a failure is told, and the work tried again."""

    def __init__(
        self, name: str, work: Callable[[], None], failed: Callable[[Exception], None], every: float | None = None
    ) -> None:
        """With `every`, the work is done after so many seconds even if nobody asks."""
        self._work, self._failed, self._every = work, failed, every
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to wait for requests."""
        self._thread.start()

    def wake(self) -> None:
        """Ask for the work soon."""
        self._wanted.set()

    def taken(self) -> None:
        """Count the requests so far as served by the work that runs; a later one asks for the work once more."""
        self._wanted.clear()
        if self._closing.is_set():
            self._wanted.set()

    @property
    def is_closing(self) -> bool:
        """Whether the work should end."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop after the work that runs."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._every)
            self._wanted.clear()
            if self._closing.is_set():
                return
            try:
                self._work()
            except (LakestoreError, OSError, pa.ArrowException, ValueError, MemoryError) as error:
                self._failed(error)
                self._closing.wait(RETRY_SECONDS)
                self._wanted.set()

"""A thread that repeats a piece of work: on request, at intervals, and again after a pause when it failed.

Its work gives way to callers. The supervisor gets every error. After an unexpected error the thread continues too, with
a traceback in the log and with growing pauses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pyarrow as pa

from lakestore.errors import LakestoreError
from lakestore_server.host import priority
from lakestore_server.host.supervisor import Supervisor

log = logging.getLogger("lakestore.duties")
RETRY_SECONDS = 5.0
UNEXPECTED_RETRY_SECONDS_MAX = 300.0
EXPECTED = (LakestoreError, OSError, pa.ArrowException, ValueError, MemoryError)
"""Errors of disks, files and memory. The work itself reports what they mean."""


class Worker:
    """A thread that runs `work` once for all requests so far. After a failure it runs again."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        name: str,
        work: Callable[[], None],
        failed: Callable[[Exception], None],
        every: float | None = None,
        first: float | None = None,
    ) -> None:
        """With `every`, work also runs after so many seconds without a request, the first time after `first`."""
        self._supervisor, self._name = supervisor, name
        self._work, self._failed, self._every = work, failed, every
        self._pause = every if first is None else first
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start to wait for requests."""
        self._supervisor.begins(self._name)
        self._thread.start()

    def wake(self) -> None:
        """Request the work."""
        self._wanted.set()

    def taken(self) -> None:
        """Called by the work: requests so far are served by it; a later request runs it once more."""
        self._wanted.clear()
        if self._closing.is_set():
            self._wanted.set()

    @property
    def is_closing(self) -> bool:
        """Whether the work should end."""
        return self._closing.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Pause the work. Returns whether it should end."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Stop after the running work."""
        self._closing.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        priority.give_way()
        while True:
            self._wanted.wait(self._pause)
            self._wanted.clear()
            self._pause = self._every
            if self._closing.is_set():
                return
            try:
                self._work()
            except BaseException as error:  # the boundary of the thread: it continues, and reports the error
                self._tell(error)
                self._wanted.set()
            else:
                self._supervisor.succeeded(self._name)

    def _tell(self, error: BaseException) -> None:
        in_a_row = self._supervisor.failed(self._name, error)
        pause = RETRY_SECONDS
        if isinstance(error, EXPECTED):
            try:
                self._failed(error)
            except BaseException:  # likewise
                log.exception("%s cannot say how it failed", self._name)
        else:
            pause = min(RETRY_SECONDS * 2.0 ** min(in_a_row - 1, 20), UNEXPECTED_RETRY_SECONDS_MAX)
            log.error("%s met an unexpected error, tried again in %g s", self._name, pause, exc_info=error)
        self._closing.wait(pause)

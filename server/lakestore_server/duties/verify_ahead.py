"""The look ahead of a start: bytes that look-ups will want are compared with their checksums before a port opens.

A look-up of a key that nobody has read since the start compares a block of a run and one of a segment for each column.
To compare all bytes in a row is 30 times as fast for each, and the journal's replay is one thread's work: the other
processors compare meanwhile, and for up to a second behind it; runs first, then the newest segments. Whatever is left
is compared when it is first read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lakestore_server.files.segment import Segment
from lakestore_server.host import priority
from lakestore_server.host.clock import Clock
from lakestore_server.index.run import Run
from lakestore_server.state.view import View

SECONDS = 1.0
THREADS = min(os.cpu_count() or 1, 4)
"""More would wait for the disk, or for one another."""


class VerifyAhead:
    """The threads that compare; they end with the work, or when their time is over."""

    def __init__(self, clock: Clock, seconds: float = SECONDS) -> None:
        self._clock, self._seconds = clock, seconds
        self._ends = float("inf")
        self._pool = ThreadPoolExecutor(THREADS, "verify-ahead", initializer=priority.give_way)
        self._files: Iterator[Run | Segment] = iter(())
        self._threads: list[Future[None]] = []

    def begin(self, view: View, runs: Sequence[Run]) -> None:
        """Begin with the blocks of runs, then of segments with rows of primary-key tables."""
        chunks = (chunk for state in view.tables.values() for log in state.logs for chunk in log.chunks)
        segments = [chunk for chunk in chunks if isinstance(chunk, Segment)]
        self._files = iter([*runs, *sorted(segments, key=lambda each: each.end, reverse=True)])
        self._threads = [self._pool.submit(self._verify) for _ in range(THREADS)]

    def end(self) -> None:
        """Wait until all is compared, for so many seconds at most."""
        self._ends = self._clock.monotonic() + self._seconds
        for thread in self._threads:
            thread.result()
        self._pool.shutdown()

    def cancel(self) -> None:
        """Compare no further: there will be no server."""
        self._ends = float("-inf")
        self._pool.shutdown()

    def _verify(self) -> None:
        while self._goes_on() and (file := next(self._files, None)) is not None:
            file.verify_ahead(self._goes_on)

    def _goes_on(self) -> bool:
        return self._clock.monotonic() < self._ends

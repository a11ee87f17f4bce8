"""The look ahead of a start: bytes that look-ups will want are compared with their checksums before a port opens.

A look-up of a key that nobody has read since the start compares a block of a run and one of a segment for each column.
To compare all bytes in a row is 30 times as fast for each, and the journal's replay is one thread's work: the other
processors compare meanwhile, runs first, then the newest segments; and for up to a second behind it, as long as that
gets somewhere: what comes from a slow disk is not waited for. Whatever is left is compared when it is first read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from lakestore_server.files.segment import Segment
from lakestore_server.host import priority
from lakestore_server.index.run import Run
from lakestore_server.state.view import View

SECONDS = 1.0
TRIAL = 0.2
"""The part of the time after which it ends unless at least half of what is left can be compared in the rest."""
THREADS = min(os.cpu_count() or 1, 4)
"""More would wait for the disk, or for one another."""


class VerifyAhead:
    """The threads that compare; they end with the work, or with the piece that they have begun."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds, self._is_over = seconds, False
        self._pool = ThreadPoolExecutor(THREADS, "verify-ahead", initializer=priority.give_way)
        self._files: Iterator[Run | Segment] = iter(())
        self._wanted = 0
        """Bytes of all files."""
        self._begun: list[int] = []
        """Bytes of each piece that a thread has begun to compare."""
        self._threads: list[Future[None]] = []

    def begin(self, view: View, runs: Sequence[Run]) -> None:
        """Begin with the blocks of runs, then of segments with rows of primary-key tables."""
        chunks = (chunk for state in view.tables.values() for log in state.logs if log.keyed for chunk in log.chunks)
        segments = [chunk for chunk in chunks if isinstance(chunk, Segment)]
        files: list[Run | Segment] = [*runs, *sorted(segments, key=lambda each: each.end, reverse=True)]
        self._files, self._wanted = iter(files), sum(file.size for file in files)
        self._threads = [self._pool.submit(self._verify) for _ in range(THREADS)]

    def end(self) -> None:
        """Wait until all is compared: for so many seconds at most, and not where most would be left by then."""
        before = sum(self._begun)
        wait(self._threads, self._seconds * TRIAL)
        begun = sum(self._begun)
        if self._wanted - begun <= 2 * (begun - before) * (1 / TRIAL - 1):
            wait(self._threads, self._seconds * (1 - TRIAL))
        self._is_over = True
        self._pool.shutdown(wait=False)  # a piece that comes from the disk may take as long as all the rest
        for thread in self._threads:
            if thread.done():
                thread.result()
            else:
                thread.add_done_callback(Future.result)

    def cancel(self) -> None:
        """Compare no further: there will be no server."""
        self._is_over = True
        self._pool.shutdown()

    def _verify(self) -> None:
        while not self._is_over and (file := next(self._files, None)) is not None:
            file.verify_ahead(self._goes_on)

    def _goes_on(self, nbytes: int) -> bool:
        self._begun.append(nbytes)
        return not self._is_over

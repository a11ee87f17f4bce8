"""The scrub: reads every stored byte in the background at a bounded rate and compares checksums.

Damage is logged, counted and shown in the status; damaged rows are never served. A damaged index is rebuilt.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from lakestore_server.files import data_folder
from lakestore_server.files.segment import Segment
from lakestore_server.host import priority
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from lakestore_server.index.key_index import Index
from lakestore_server.index.run import Run
from lakestore_server.segments.integrity import Findings, Integrity
from lakestore_server.state.view import View

SECONDS = 1.0
TRIAL = 0.2
"""The part of the time after which the check ends, unless at least half of the rest can be compared in the remaining
time."""
THREADS = min(os.cpu_count() or 1, 4)
"""More threads would wait for the disk."""


class VerifyAhead:
    """The threads that compare checksums at a start. A thread ends when no work is left or after its piece."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds, self._is_over = seconds, False
        self._pool = ThreadPoolExecutor(THREADS, "verify-ahead", initializer=priority.give_way)
        self._files: Iterator[Run | Segment] = iter(())
        self._wanted = 0
        """Bytes of all files."""
        self._begun: list[int] = []
        """Bytes of each piece that a thread has begun."""
        self._threads: list[Future[None]] = []

    def begin(self, view: View, runs: Sequence[Run]) -> None:
        """Compare the blocks of index runs, then of segments with rows of keyed tables."""
        chunks = (chunk for state in view.tables.values() for log in state.logs if log.keyed for chunk in log.chunks)
        segments = [chunk for chunk in chunks if isinstance(chunk, Segment)]
        files: list[Run | Segment] = [*runs, *sorted(segments, key=lambda each: each.end, reverse=True)]
        self._files, self._wanted = iter(files), sum(file.size for file in files)
        self._threads = [self._pool.submit(self._verify) for _ in range(THREADS)]

    def end(self) -> None:
        """Wait until everything is compared, at most for the time that the setting allows. Ends early if most would be
        left."""
        before = sum(self._begun)
        wait(self._threads, self._seconds * TRIAL)
        begun = sum(self._begun)
        if self._wanted - begun <= 2 * (begun - before) * (1 / TRIAL - 1):
            wait(self._threads, self._seconds * (1 - TRIAL))
        self._is_over = True
        self._pool.shutdown(wait=False)  # a piece on a slow disk may take as long as everything else
        for thread in self._threads:
            if thread.done():
                thread.result()
            else:
                thread.add_done_callback(Future.result)

    def cancel(self) -> None:
        """Stop: the server does not start."""
        self._is_over = True
        self._pool.shutdown()

    def _verify(self) -> None:
        while not self._is_over and (file := next(self._files, None)) is not None:
            file.verify_ahead(self._goes_on)

    def _goes_on(self, nbytes: int) -> bool:
        self._begun.append(nbytes)
        return not self._is_over


log = logging.getLogger("lakestore.scrub")
FIRST_SECONDS = 60.0
PAUSE_SECONDS = 3600.0


class _Stopped(Exception):
    """The scrub was closed in the middle of a round."""


class Scrubber:
    """One round after the other, in its own thread or by `run_once`."""

    def __init__(
        self,
        supervisor: Supervisor,
        integrity: Integrity,
        index: Index,
        view: Callable[[], View],
        bytes_per_second: int,
    ) -> None:
        """A rate of 0 switches the thread off."""
        self._integrity, self._index, self._view = integrity, index, view
        self._rate = bytes_per_second
        self._rebuilt: set[str] = set()
        self.damage: list[str] = []
        """Damage found by the last finished round and by this round so far."""
        self.bytes = 0
        self.rounds = 0
        self._duty = Worker(
            supervisor=supervisor,
            name="scrub",
            work=self._round,
            failed=_failed,
            every=PAUSE_SECONDS,
            first=FIRST_SECONDS,
        )
        if bytes_per_second:
            self._duty.start()

    @property
    def is_on(self) -> bool:
        return self._duty.is_alive

    def close(self) -> None:
        self._duty.close()

    def _round(self) -> None:
        try:
            self.run_once(self._pause)
        except _Stopped:
            return

    def _pause(self, size: int) -> None:
        self.bytes += size
        if self._duty.wait(size / self._rate):
            raise _Stopped

    def run_once(self, pause: Callable[[int], None] = lambda _: None) -> list[str]:
        """One round over all bytes; returns the damage."""
        found: list[str] = []
        shared = self._integrity.shared(pause)
        self._note(found, shared)
        if shared.index_damage:
            self._rebuild(data_folder.INDEX, shared)
        for state in list(self._view().kept.values()):
            part = self._integrity.table(state, pause)
            self._note(found, part)
            if part.index_damage:
                self._rebuild(state.table.uuid, part)
        self.damage = found
        self.rounds += 1
        return found

    def _note(self, found: list[str], part: Findings) -> None:
        for sentence in part.damage:
            found.append(sentence)
            log.error("%s", sentence)
            if sentence not in self.damage:
                self.damage = [*self.damage, sentence]

    def _rebuild(self, part: str, found: Findings) -> None:
        """Rebuild each part of the index once: damage that returns after a rebuild is not damage of the index.

        Damage of an index that was rebuilt meanwhile is gone.
        """
        if part not in self._rebuilt and found.index_generation == self._index.generation:
            self._rebuilt.add(part)
            self._index.found_problem(found.index_damage, damaged=True)


def _failed(error: Exception) -> None:
    log.error("the scrub stopped and will start again: %s", error)

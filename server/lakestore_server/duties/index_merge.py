"""The merges of the index's runs, beside serving: slice by slice, with pauses unless the runs have become many."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakestore.rows.keys import number_width
from lakestore_server.commit.loop import CommitLoop
from lakestore_server.host.worker import Worker
from lakestore_server.index.entry import table_prefix

log = logging.getLogger("lakestore.index")
SHARE = 0.5
"""The part of a processor that a merge takes."""
PAUSE_SECONDS_MAX = 1.0
"""The longest pause: a slice takes less, unless its process was stopped in the midst of it, for an hour maybe."""
SWEEP_SECONDS = 1_800.0
"""Time between two sweeps, which take the keys of dropped tables out of every run. So they are gone an hour after the
checkpoint behind the drop, and before if they are many."""
RUNS_MANY = 28
"""With more runs there are no pauses. A dozen come while the base is merged with pauses, each of which costs a batch of
10,000 keys 0.07 ms; a merge without any takes what callers wait for.
"""


class IndexMerger:
    """One merge at a time, in its own thread."""

    def __init__(self, loop: CommitLoop, wake_checkpoint: Callable[[], None]) -> None:
        """`wake_checkpoint` is called when runs hold less of dropped tables: their files go with a checkpoint."""
        self._loop, self._index, self._wake_checkpoint = loop, loop.index, wake_checkpoint
        self._began, self._swept = 0.0, time.monotonic()
        self._running = threading.Lock()
        self._duty = Worker(loop.supervisor, "index-merge", self.run_once, _failed, SWEEP_SECONDS)
        self._duty.start()
        self.wake()

    def wake(self) -> None:
        """Look soon whether runs are due."""
        self._duty.wake()

    def close(self) -> None:
        """Stop after the slice that is being merged."""
        self._duty.close()

    def run_once(self) -> None:
        """Merge and lift until nothing is due."""
        with self._running:
            self._began = time.monotonic()
            sweeps = self._began - self._swept >= SWEEP_SECONDS
            self._swept = self._began if sweeps else self._swept
            dropped = self._index.dropped_entries
            while self._index.work(self._widths(), self._pause, sweeps=sweeps):
                pass
            if self._index.dropped_entries < dropped:
                self._wake_checkpoint()

    def _widths(self) -> dict[bytes, int | None]:
        """The bytes of a key, by prefix, of the tables that have one; None where keys are no numbers."""
        tables = (state.table for state in self._loop.view.kept.values() if state.table.keyed)
        return {table_prefix(table.number): number_width(table.key_schema.types) for table in tables}

    def _pause(self, _entries: int) -> bool:
        """Wait as long as the slices since the last pause took; whether the merge goes on."""
        took = time.monotonic() - self._began
        pause = 0.0 if len(self._index.runs) > RUNS_MANY else min(took * (1 - SHARE) / SHARE, PAUSE_SECONDS_MAX)
        is_closing = self._duty.wait(pause)
        self._began = time.monotonic()
        return not is_closing


def _failed(error: Exception) -> None:
    log.error("runs of the key index were not merged, which is tried again: %s", error)

"""The rebuild of the key index from the logs, and the merge of its runs, both beside serving.

The rebuild reads immutable logs of one view. No keyed table is written until the commit loop has installed the new
index. A table with damaged rows stays without an index, and the log names the damaged file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ranges import OffsetSet
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.host.worker import Worker
from lakestore_server.index.collisions import Entries, KeyQuery, hashed, resolved
from lakestore_server.index.entry import DamagedIndex, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import encoded
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.view import TableState

SHARE = 0.5
"""The part of a processor that a merge may use."""
PAUSE_SECONDS_MAX = 1.0
"""The longest pause. A slice takes less, unless its process was suspended in the middle of it."""
SWEEP_SECONDS = 1_800.0
"""Time between two sweeps, which remove the keys of dropped tables from every run. Keys are gone an hour after the
checkpoint that follows the drop, or earlier if there are many."""
RUNS_MANY = 28
"""With more runs a merge does not pause. A paced merge of the base lets a dozen runs accumulate, and each run costs a
batch of 10,000 keys 0.07 ms. A merge without pauses takes processor time from callers."""


ROOM_SECONDS = 5.0
"""Time between two looks whether the disk has room for a merge or a rebuild."""


class IndexMerger:
    """One merge at a time, in its own thread."""

    def __init__(self, loop: CommitLoop, wake_checkpoint: Callable[[], None]) -> None:
        """`wake_checkpoint` is called when runs have lost keys of dropped tables: a checkpoint removes the old
        files."""
        self._index, self._wake_checkpoint = loop.index, wake_checkpoint
        self._began, self._swept = 0.0, time.monotonic()
        self._running = threading.Lock()
        self._duty = Worker(
            supervisor=loop.supervisor, name="index-merge", work=self._work, failed=_failed, every=SWEEP_SECONDS
        )
        self._duty.start()
        self.wake()

    def wake(self) -> None:
        self._duty.wake()

    def close(self) -> None:
        self._duty.close()

    def _work(self) -> None:
        """Merge what is due, also if the disk has room for it only later."""
        self.run_once()
        while self._index.is_lacking_room and self._index.ready and not self._duty.wait(ROOM_SECONDS):
            self.run_once()

    def run_once(self) -> None:
        """Merge until nothing is due."""
        with self._running:
            self._began = time.monotonic()
            sweeps = self._began - self._swept >= SWEEP_SECONDS
            self._swept = self._began if sweeps else self._swept
            if self._index.is_losing_merges and not sweeps:
                return
            dropped = self._index.dropped_entries
            while self._index.work(self._pause, sweeps=sweeps):
                pass
            if self._index.dropped_entries < dropped:
                self._wake_checkpoint()

    def merge_whole(self) -> bool:
        """Merge all runs as one, which has no keys of deleted rows; False if that did not end."""
        with self._running:
            self._began = time.monotonic()
            return not self._index.runs or self._index.work(self._pause, whole=True)

    def _pause(self, _entries: int) -> bool:
        """Sleep for as long as the slices since the last pause took; False ends the merge."""
        took = time.monotonic() - self._began
        pause = 0.0 if len(self._index.runs) > RUNS_MANY else min(took * (1 - SHARE) / SHARE, PAUSE_SECONDS_MAX)
        is_closing = self._duty.wait(pause)
        self._began = time.monotonic()
        return not is_closing


def _failed(error: Exception) -> None:
    log.error("runs of the key index were not merged and will be: %s", error)


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
log = logging.getLogger("lakestore.index")
PART_ROWS = 262_144


class Rebuilder:
    """One rebuild at a time, in its own thread, whenever the index has a problem."""

    def __init__(self, loop: CommitLoop, done: Callable[[], None]) -> None:
        """`done` is called after each rebuild, because a checkpoint must name the new runs."""
        self._loop, self._index, self._done = loop, loop.index, done
        self._duty = Worker(supervisor=loop.supervisor, name="index-rebuild", work=self._rebuild, failed=self._failed)
        self._index.call_on_problem(self._duty.wake)
        if not self._index.ready:
            self._duty.wake()
        self._duty.start()

    def close(self) -> None:
        """Stop; an unfinished rebuild begins again at the next start."""
        self._duty.close()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, DamagedIndex):
            self._index.found_problem(f"it is damaged: {error}", damaged=True)
        log.error("the rebuild of the key index failed and will be tried again: %s", error)

    def _rebuild(self) -> None:
        view = self._loop.run(lambda: self._loop.view)
        tables = [state for state in view.kept.values() if state.table.keyed]
        total = sum(chunk.rows for state in tables for held in state.logs for chunk in held.chunks)
        progress = _Progress(self._index, total)
        broken: dict[bytes, str] = {}
        self._index.begin_rebuild(view.lsn)
        for state in tables:
            try:
                for bucket in range(len(state.logs)):
                    self._bucket(state, bucket, progress)
            except Corrupt as error:
                log.error("table %s has no key index: %s", state.table.name, error)
                broken[table_prefix(state.table.number)] = error.message
            if self._duty.is_closing:
                return
        self._index.flush()
        self._loop.run(lambda: self._index.finish_rebuild(self._loop.view.lsn, broken))
        log.warning("the key index was rebuilt from %d rows", progress.total)
        self._done()

    def _bucket(self, state: TableState, bucket: int, progress: _Progress) -> None:
        held = state.logs[bucket]
        dead = OffsetSet.of(held.dead_below(held.head))
        remembers = state.table.merge.engine == "versioned"
        for offsets, batch, schema_id in held.stored(0, held.head, PART_ROWS):
            if self._duty.is_closing:
                return
            deleted = batch.column(CHANGE).to_numpy() == DELETE
            live = ~dead.contains(offsets) & ~deleted
            chosen = live | deleted if remembers else live
            rows = batch.filter(pa.array(chosen))
            columns = [rows.column(name) for name in state.versions.numbered(schema_id).primary_key]
            if not self._room_for(sum(column.nbytes for column in columns) + offsets.nbytes):
                return
            if remembers and deleted.any():
                self._stage_remembered(state, bucket, columns, offsets[chosen], deleted[chosen])
            else:
                self._stage(state, bucket, columns, offsets[chosen])
            progress.add(batch.num_rows)

    def _room_for(self, nbytes: int) -> bool:
        """Wait until the disk has room for a part of the rebuild; False if the server closes."""
        while self._index.lacks_room_for(nbytes):
            if self._duty.wait(ROOM_SECONDS):
                return False
        return True

    def _stage(self, state: TableState, bucket: int, columns: list[pa.Array], offsets: Ints) -> None:
        """Add the entries of rows. A hashed key gets a slot next to equal hashes."""
        entries = self._entries(state, bucket, columns, offsets, np.zeros(len(offsets), dtype=np.bool_))
        self._index.stage(entries.keys, entries.values)

    def _stage_remembered(
        self, state: TableState, bucket: int, columns: list[pa.Array], offsets: Ints, deleted: Flags
    ) -> None:
        """Add the entries of rows and of deletes: the last row of a key replaces earlier ones."""
        entries = self._entries(state, bucket, columns, offsets, deleted)
        before, is_last = entries.keys.previous(), np.ones(len(entries.keys), dtype=np.bool_)
        if before is not None:
            is_last[before[before >= 0]] = False
        last = np.flatnonzero(is_last)
        self._index.flush()
        self._index.stage(entries.keys.take(last), entries.values[last])
        self._index.flush()

    def _entries(
        self, state: TableState, bucket: int, columns: list[pa.Array], offsets: Ints, deleted: Flags
    ) -> Entries:
        asked = KeyQuery(encoded(columns, table_prefix(state.table.number)), lambda: columns)
        slotted = asked.keys
        if hashed(asked.keys):
            slotted = resolved(state, asked, self._index.staged, np.zeros(len(offsets), dtype=np.bool_)).keys
        return Entries.of(slotted, offsets, deleted, bucket, remembers=True)


class _Progress:
    """Rows read and rows added; each is half of the progress in `Index.state`."""

    def __init__(self, index: Index, total: int) -> None:
        self._index, self.total = index, total
        self._read = self._put = 0

    def add(self, rows: int) -> None:
        self._read += rows
        if self._index.is_flushed:
            self._put = self._read
        self._index.progress = (self._read + self._put) / max(2 * self.total, 1)

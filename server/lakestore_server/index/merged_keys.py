"""The entries of the key index that checkpoints have merged: runs, and where the index stands.

1. Runs are written before the checkpoint file that names them. The checkpoint says at which commit the index stands.
2. An index that is not whole is named by no checkpoint: `EMPTY_LSN`, and the next start rebuilds it.
3. From the begin of a rebuild until a durable checkpoint names its runs, the folder holds the file `MARK`. The runs of
   an earlier checkpoint are not the index any more: keys may have other slots in the rebuilt one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from lakestore.errors import Corrupt, Unavailable
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.entry import ABSENT, PREFIX_BYTES, DamagedIndex, Ints, ServedTables
from lakestore_server.index.hints import Hints
from lakestore_server.index.hints import find as hinted
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.levels import Levels, WalkSums, walk
from lakestore_server.index.overlay import Entries, Overlay
from lakestore_server.index.run_file import EMPTY_LSN, NO_RUNS, NamedRuns, RunFile
from lakestore_server.index.run_store import LOST_MAX, RunStore, Size

log = logging.getLogger("lakestore.index")
STAGED_BYTES = 128 << 20
"""A rebuild collects this many bytes of entries before it writes a run."""
STAGED_TIMES = 3
"""The bytes of a run for each byte that is held before: 1.1 for numbers, at most three for short keys of bytes."""
MARK = "rebuilding"
EARLIER = ("data.mdb", "lock.mdb")
"""Files of the index of releases up to 0.3. Such an index is rebuilt; the files are removed with the rebuild's mark."""
DAMAGED_NAME = "damaged"


class Health:
    """The problem of an index, if it has one, and the progress of its rebuild."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the problem changes."""
        self.generation = 0
        """The generation of the index's files. Answers from an earlier generation do not count."""
        self.progress = 0.0
        """The finished part of the rebuild, 0 to 1."""
        self.damaged = False
        """Whether the files must not be used any more."""
        self.broken: Mapping[bytes, str] = {}
        """Prefix of each table without an index to the reason."""
        self.on_problem: Callable[[], None] = lambda: None
        self._problem = ""

    @property
    def has_problem(self) -> bool:
        """Whether the whole index has to be rebuilt."""
        return bool(self._problem)

    @property
    def ready(self) -> bool:
        """Whether the index answers for every table."""
        return not self._problem and not self.broken

    @property
    def state(self) -> str:
        """`ready`, or the progress of the rebuild and its reason."""
        if self._problem:
            return f"rebuilding, {self.progress:.0%} done, for {self._problem}"
        return "; ".join(self.broken.values()) or "ready"

    def check(self, prefix: bytes) -> None:
        """Raises `Unavailable` while the index is being rebuilt, `Corrupt` for a table whose rows are damaged."""
        if self._problem:
            raise Unavailable(
                f"the key index is being rebuilt, {self.progress:.0%} done: upserts, deletes and look-ups wait for it; "
                "log tables and scans are served"
            )
        if prefix in self.broken:
            raise Corrupt(self.broken[prefix])

    def found_problem(self, problem: str, *, damaged: bool) -> None:
        """Stop answering from the present index. With `damaged`, its files are set aside and never used again."""
        with self.lock:
            first = not self._problem
            self._problem = self._problem or problem
            self.damaged = self.damaged or damaged
            self.generation += first
            self.progress = 0.0 if first else self.progress
        if first:
            log.error("the key index is rebuilt: %s", problem)
            self.on_problem()

    def found_damage(self, error: Exception) -> None:
        """Set the files aside, because their content cannot be trusted."""
        self.found_problem(f"it is damaged: {error}", damaged=True)

    def rebuilt(self, broken: Mapping[bytes, str]) -> None:
        """Answer again, except for tables with damaged rows. The caller holds `lock`."""
        self.broken = broken
        self.generation += 1
        self._problem = ""


class MergedKeys:
    """The runs of one folder. `find` and `ranges` serve any thread. Writers take turns."""

    def __init__(
        self, folder: Path, disk: Disk, lock: threading.Lock, health: Health, disk_free_bytes: int = 0
    ) -> None:
        """`lock` is held while the levels change. Merges and rebuilds keep `disk_free_bytes` free."""
        self._folder, self._disk, self._health = folder, disk, health
        self._writing = threading.Lock()
        self._runs = RunStore(folder, disk, lock, disk_free_bytes)
        self._staged: list[tuple[IndexKeys, Ints]] = []
        self.lsn = EMPTY_LSN
        """The commit at which the index stands."""
        self._is_marked = False
        """Whether the folder holds a file of `MARK` and `EARLIER`."""

    def open(self, runs: Sequence[RunFile], checkpoint_lsn: int, index_lsn: int) -> str:
        """Take over the index of a checkpoint. Returns why it has to be rebuilt, or "". Raises `DamagedIndex` if a
        run is damaged.

        `index_lsn` is the commit at which the checkpoint says that the index stands.
        """
        held = set(self._disk.list(self._folder))
        self._is_marked = not held.isdisjoint((MARK, *EARLIER))
        lack = ""
        if not held.isdisjoint(EARLIER):
            lack = "an earlier release wrote it"
        elif MARK in held:
            lack = "no checkpoint names the rebuilt one"
        elif index_lsn == EMPTY_LSN:
            lack = "the checkpoint names none, as after a restore or a damaged block"
        self._runs.open(() if lack else runs, checkpoint_lsn if lack else index_lsn)
        self.lsn = EMPTY_LSN if lack else index_lsn
        return lack

    def lacking(self, live: Mapping[bytes, int]) -> int:
        """A lower bound for the number of live rows without an entry. `live` has the number of live rows of each
        table by prefix.
        """
        runs = self.levels.runs
        held = {prefix: sum(run.sections[prefix].count for run in runs if prefix in run.sections) for prefix in live}
        return sum(max(rows - held[prefix], 0) for prefix, rows in live.items())

    @property
    def held_lsn(self) -> int:
        """The newest commit up to which all entries with byte keys were there at the start."""
        return max([EMPTY_LSN, *(run.lsn for run in self.levels.runs)])

    @property
    def levels(self) -> Levels:
        """The present runs."""
        return self._runs.levels

    @property
    def size(self) -> Size:
        """The size as of the last checkpoint or rebuild. A key is counted in each run that has it."""
        return self._runs.size

    @property
    def blocked_by(self) -> str:
        """Why runs are not merged, or why the rebuild waits; empty if nothing is in the way."""
        if self._runs.lacks:
            megabytes = -(-self._runs.lacks // 1_000_000)
            return f"it waits for {megabytes:,} MB more of free disk, because limits.disk_free_bytes stay free"
        if self.is_losing_merges:
            return f"its runs are not merged, {self._runs.lost} tries in a row failed: {self._runs.lost_why}"
        return ""

    @property
    def is_lacking_room(self) -> bool:
        """Whether a merge was due for which the disk had no room, or the rebuild waits for room."""
        return self._runs.lacks > 0

    @property
    def is_losing_merges(self) -> bool:
        """Whether so many merges were lost in a row that another one is worth a try only now and then."""
        return self._runs.lost >= LOST_MAX

    # Look-ups.

    def find(self, keys: IndexKeys, rows: Ints, levels: Levels, generation: int, hints: Hints = ()) -> Ints:
        """The values of some of the keys of one table."""
        if hints:
            values = hinted(levels, generation, keys, rows, hints)
        else:
            values = levels.find(keys.take(rows) if len(rows) < len(keys) else keys)
        values[values == MISS] = ABSENT
        return values

    def ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int, levels: Levels) -> list[Entries]:
        """The first entries, at most `most`, of each range [low, high) of a table, for each run, newest first."""
        return list(levels.ranges(bounds, most, bounds[0][0][:PREFIX_BYTES]))

    # A checkpoint, in this order.

    def merge(self, frozen: Callable[[], Overlay], lsn: int, tables: ServedTables) -> None:
        """Write entries of served tables to a run. The index then stands at `lsn`.

        During a rebuild this is not needed. A rebuild that ends meanwhile has emptied what `frozen` returns.
        """
        with self._writing:
            entries = frozen()
            # After a rebuild the index may stand at a later commit: it then has these entries or newer ones. At the
            # same LSN there may be keys that were removed since.
            is_newer = lsn > self.lsn or (lsn == self.lsn and len(entries))
            if not self._health.has_problem and (is_newer or self._health.broken):
                parts = [(keys, values) for keys, values in entries.parts() if len(keys) and tables.serves(keys.prefix)]
                self._runs.add(parts, lsn)
                self._disk.reach(CrashPoint.INDEX_MERGED)
                self.lsn = EMPTY_LSN if self._health.broken else lsn

    def to_name(self) -> NamedRuns:
        """The runs that the checkpoint must name, and where the index stands; nothing while it is not complete."""
        with self._health.lock:
            if self._health.has_problem:
                return NO_RUNS
            return self._runs.to_name(self._health.generation, EMPTY_LSN if self._health.broken else self.lsn)

    def unmerge(self) -> None:
        """Remove the run of a failed checkpoint that no checkpoint file names."""
        with self._writing:
            self._runs.undo()

    def adopt(self) -> None:
        """Make the run of the checkpoint, which is durable, visible to look-ups. Under the lock of the levels."""
        self._runs.adopt()

    def named(self, runs: NamedRuns, tables: ServedTables) -> None:
        """A durable checkpoint names these runs: remove files that nobody needs, and the mark of a rebuild."""
        with self._writing:
            if self._is_marked and runs.generation == self._health.generation and self._health.ready:
                self._unmark()
            self._runs.keep(tables)
            self._runs.remove_unnamed(runs.files)

    def remove_unnamed(self, runs: Sequence[RunFile]) -> None:
        """Remove run files that nobody needs. The newest checkpoint names `runs`."""
        with self._writing:
            self._runs.remove_unnamed(runs)

    def file_names(self) -> set[str]:
        """The run files that are being written, or that a look-up or a rebuild needs."""
        return self._runs.file_names()

    # A rebuild.

    def begin_rebuild(self, lsn: int) -> None:
        """Empty the index until `finish`. Damaged files are kept under another name.

        The entries of all commits up to `lsn` follow, and none of later ones.
        """
        with self._writing:
            self._runs.begin_anew(lsn)
            if self._health.damaged:
                self._set_aside()
            self._mark()
            self._staged = []
            self._health.damaged, self._health.broken = False, {}

    def _set_aside(self) -> None:
        above = self._folder.parent
        if not self._disk.list(self._folder):
            self._disk.make_folder(self._folder)  # an earlier attempt may have ended between the rename and this
            return
        taken = set(self._disk.list(above))
        name = next(name for n in count(1) if (name := f"{self._folder.name}-{DAMAGED_NAME}-{n}") not in taken)
        self._disk.rename(self._folder, above / name)
        self._disk.make_folder(self._folder)
        self._disk.sync_folder(above)
        self._disk.reach(CrashPoint.REBUILD_QUARANTINED)
        log.error("the damaged index is kept in %s: look at its disk, then remove it", above / name)

    def _mark(self) -> None:
        """Record durably that no checkpoint so far names the index."""
        self._is_marked = True
        if MARK not in self._disk.list(self._folder):
            file = self._disk.create(self._folder / MARK)
            try:
                file.sync()
            finally:
                file.close()
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.REBUILD_MARKED)

    def _unmark(self) -> None:
        """Remove the mark, and files of earlier releases."""
        held = self._disk.list(self._folder)
        for name in (*EARLIER, MARK):
            if name in held:
                self._disk.remove(self._folder / name)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.REBUILD_NAMED)
        self._is_marked = False

    def stage(self, keys: IndexKeys, offsets: Ints) -> None:
        """Take a part of a rebuild. Parts are written together, so no key may be in two of them."""
        if not len(keys):
            return
        with self._writing:
            self._staged.append((keys, offsets))
            is_much = sum(part.nbytes + values.nbytes for part, values in self._staged) >= STAGED_BYTES
        if is_much:
            self.flush()

    def lacks_room_for(self, nbytes: int) -> bool:
        """Whether the disk has no room for the staged parts and a further one of so many bytes."""
        staged = sum(part.nbytes + values.nbytes for part, values in self._staged)
        self._runs.lacks = self._runs.lacking_room(STAGED_TIMES * (staged + nbytes))
        return self._runs.lacks > 0

    def flush(self) -> None:
        """Write the staged parts to runs. Checkpoints do not wait for resulting merges."""
        with self._writing:
            staged, self._staged = self._staged, []
        self._runs.stage(staged)
        self._disk.reach(CrashPoint.REBUILD_STAGED)

    @property
    def is_flushed(self) -> bool:
        """Whether all staged parts are in runs. Called by the rebuild's thread, which also writes them."""
        return not self._staged

    def staged(self, keys: IndexKeys) -> Ints:
        """The values that the rebuild has written so far for some keys of one table."""
        if not self.is_flushed:
            self.flush()
        values = self._runs.staged(keys)
        values[values == MISS] = ABSENT
        return values

    def finish(self, lsn: int, broken: Mapping[bytes, str], install: Callable[[], None]) -> None:
        """Stand at `lsn` with the staged entries. `install` makes them visible together with the new levels."""
        with self._writing:
            self.lsn = EMPTY_LSN if broken else lsn
            self._disk.reach(CrashPoint.REBUILD_FINISHED)
            install()

    def take_rebuilt(self, lsn: int) -> None:
        """Make the runs of a rebuild visible to look-ups. Under the lock of the levels."""
        self._runs.finish(lsn)

    # Beside serving.

    @property
    def dropped_entries(self) -> int:
        """Entries of dropped tables in runs."""
        return self._runs.dropped_entries

    def keep(self, tables: ServedTables) -> None:
        """Leave unserved tables out of the size, and of the next merges. Called at a start."""
        with self._writing:
            self._runs.keep(tables)

    def work(self, pause: Callable[[int], bool], *, sweeps: bool, whole: bool = False) -> bool:
        """Merge runs that are due. Returns whether there may be more to do. The parameters are as in
        `RunStore.merge_due`.
        """
        if self._health.has_problem:
            return False
        generation = self._health.generation

        def goes_on(entries: int) -> bool:
            return pause(entries) and generation == self._health.generation  # otherwise nobody would use the result

        try:
            return self._runs.merge_due(goes_on, sweeps=sweeps, whole=whole)
        except DamagedIndex as error:
            if generation == self._health.generation:
                self._health.found_damage(error)
            return False

    def walk(self, prefix: bytes, entries: int) -> tuple[int, Iterator[WalkSums]]:
        """(LSN, sums): the sums of a table's entries as of that LSN, in key order, `entries` at a time."""
        levels = self.levels
        return levels.lsn, walk(levels, prefix, entries)

"""The entries of the key index that checkpoints have merged: in runs, and in LMDB those of earlier releases.

Runs are written before the checkpoint file that names them; LMDB says up to which commit both stand. The index above
answers only while both are whole: a problem of one means a rebuild of both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lakestore.errors import Corrupt, Unavailable
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.entry import ABSENT, PREFIX_BYTES, Ints, ServedTables
from lakestore_server.index.hints import Hints
from lakestore_server.index.hints import find as hinted
from lakestore_server.index.keys import NUMBER_BYTES, ByteKeys, IndexKeys, NumberKeys
from lakestore_server.index.levels import Levels, walk
from lakestore_server.index.lmdb_keys import MERGE_TIMES, LmdbKeys
from lakestore_server.index.overlay import Entries, Overlay
from lakestore_server.index.pipe import Size, Walked
from lakestore_server.index.run_file import EMPTY_LSN, NO_RUNS, NamedRuns, RunFile
from lakestore_server.index.run_filter import Numbers
from lakestore_server.index.run_store import RunStore
from lakestore_server.index.worker_client import DamagedIndex, IndexOf


class Health:
    """The problem of an index, if there is one, and the progress of the rebuild."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the problem changes."""
        self.generation = 0
        """The generation of LMDB's files: an answer of an earlier one does not count."""
        self.progress = 0.0
        """The part of the rebuild that is done, 0 to 1."""
        self.damaged = False
        """Whether LMDB's files must not be used any more."""
        self.broken: Mapping[bytes, str] = {}
        """Prefix of each table that has no index to the reason."""
        self.on_problem: Callable[[], None] = lambda: None
        self._problem = ""

    @property
    def has_problem(self) -> bool:
        """Whether all of the index has to be rebuilt."""
        return bool(self._problem)

    @property
    def ready(self) -> bool:
        """Whether the index answers, for every table."""
        return not self._problem and not self.broken

    @property
    def state(self) -> str:
        """`ready`, or how far the rebuild is and why."""
        if self._problem:
            return f"rebuilding, {self.progress:.0%} done, for {self._problem}"
        return "; ".join(self.broken.values()) or "ready"

    def check(self, prefix: bytes) -> None:
        """`Unavailable` while the index is being rebuilt, `Corrupt` for a table whose rows are damaged."""
        if self._problem:
            raise Unavailable(
                f"the key index is being rebuilt, {self.progress:.0%} done: upserts, deletes and look-ups wait for it; "
                "log tables and scans are served"
            )
        if prefix in self.broken:
            raise Corrupt(self.broken[prefix])

    def found_problem(self, problem: str, *, damaged: bool) -> None:
        """Answer nothing any more from the index as it is; damaged files are set aside, not used again."""
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
        """Set the files aside, whose content cannot be trusted."""
        self.found_problem(f"it is damaged: {error}", damaged=True)

    def rebuilt(self, broken: Mapping[bytes, str]) -> None:
        """Answer again, but for tables whose rows are damaged; the caller holds `lock`."""
        self.broken = broken
        self.generation += 1
        self._problem = ""


log = logging.getLogger("lakestore.index")
SLICE_KEYS = 20_000
"""Entries that LMDB is asked for at once; about 50 ms."""
PART_BYTES = 128 << 20
"""Entries of a run that is made so."""


class Lift:
    """One step at a time, by the thread that merges runs; LMDB is taken turns at, by the lock `writing`."""

    def __init__(self, runs: RunStore, lmdb: LmdbKeys, writing: threading.Lock, health: Health) -> None:
        self._runs, self._lmdb, self._writing, self._health = runs, lmdb, writing, health
        self._clean: frozenset[bytes] = frozenset()
        """Tables of which LMDB has none: it never will again."""
        self.freed: frozenset[bytes] = frozenset()
        """Tables whose entries leave LMDB: those of which it had some in this process."""
        self._generation = -1

    def begin_anew(self) -> None:
        """Know nothing of LMDB, which a rebuild leaves empty."""
        self._clean = self.freed = frozenset()

    def is_clean(self, prefix: bytes) -> bool:
        """Whether LMDB has no entries of a table."""
        return prefix in self._clean or not self._lmdb.has(prefix)

    def step(self, widths: Mapping[bytes, int | None], pause: Callable[[int], bool]) -> bool:
        """Lift or remove a part of some tables, given by the widths of their keys; whether there may be more to do."""
        with self._writing:
            if self._health.has_problem:
                return False
            self._generation = self._health.generation
            self._clean |= {prefix for prefix in widths if prefix not in self._clean and not self._lmdb.has(prefix)}
            there = {prefix: width for prefix, width in widths.items() if prefix not in self._clean}
        waiting = {prefix: width for prefix, width in there.items() if prefix not in self._runs.levels.lifted}
        if waiting:
            return self._lift(waiting, pause)
        durable = next((prefix for prefix in there if prefix in self._runs.durably_lifted), None)
        return durable is not None and self._remove(durable, pause)

    def _lift(self, widths: Mapping[bytes, int | None], pause: Callable[[int], bool]) -> bool:
        """Put the entries of these tables into the oldest runs."""
        parts: list[tuple[IndexKeys, Ints]] = []
        whole: set[bytes] = set()
        for prefix, width in widths.items():
            for part in self._slices(prefix, width):
                if not pause(len(part[0])):
                    return False
                parts.append(part)
                if sum(keys.nbytes + values.nbytes for keys, values in parts) >= PART_BYTES:
                    self._put(parts, frozenset())
                    parts = []
            whole.add(prefix)
        self._put(parts, frozenset(whole))
        log.info("keys of %d tables of an earlier release are in runs of the index", len(whole))
        return True

    def _put(self, parts: list[tuple[IndexKeys, Ints]], whole: frozenset[bytes]) -> None:
        with self._writing:
            if self._generation == self._health.generation:
                self._runs.add_oldest(parts, whole)

    def _slices(self, prefix: bytes, width: int | None) -> Iterator[tuple[IndexKeys, Ints]]:
        """LMDB's entries of a table in order; none of them changes, but all may go in a rebuild."""
        low, high = prefix, (int.from_bytes(prefix, "big") + 1).to_bytes(PREFIX_BYTES, "big")
        while True:
            with self._writing:
                if self._generation != self._health.generation:
                    return
                keys, values = self._lmdb.part(low, high, SLICE_KEYS)
            if keys:
                yield _as_keys(keys, prefix, width), values
            if len(keys) < SLICE_KEYS:
                return
            low = keys[-1] + b"\0"

    def _remove(self, prefix: bytes, pause: Callable[[int], bool]) -> bool:
        """Remove a table's entries from LMDB; look-ups that began before they were lifted begin again."""
        self.freed |= {prefix}
        is_gone = False
        while not is_gone:
            with self._writing:
                if self._generation != self._health.generation:
                    return False
                is_gone = self._lmdb.remove(prefix)
            if not pause(SLICE_KEYS):
                return False
        return True


def _as_keys(keys: list[bytes], prefix: bytes, width: int | None) -> IndexKeys:
    """Keys of one table in the form that it has."""
    if width is not None:
        return NumberKeys(prefix, width, _numbers(keys, width))
    return ByteKeys(None, PaddedBytes.of(keys))


def _numbers(keys: list[bytes], width: int) -> Numbers:
    """The numbers of keys of one table."""
    blob = b"".join(keys)
    if len(blob) != len(keys) * (PREFIX_BYTES + width):
        raise DamagedIndex("keys of one table differ in their lengths")
    padded = np.zeros((len(keys), NUMBER_BYTES), dtype=np.uint8)
    padded[:, NUMBER_BYTES - width :] = np.frombuffer(blob, dtype=np.uint8).reshape(len(keys), -1)[:, PREFIX_BYTES:]
    return padded.view(">u8").ravel().astype(np.uint64)


STAGED_BYTES = 128 << 20
"""Entries of a rebuild that are held before they become a run."""


class MergedKeys:
    """Runs and LMDB of one folder. `find` and `ranges` serve any thread; what writes takes turns."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        lock: threading.Lock,
        health: Health,
        silence_seconds: float,
        index_of: IndexOf,
    ) -> None:
        """`lock` is held while the levels change."""
        self._disk, self._health = disk, health
        self._writing = threading.Lock()
        self._runs = RunStore(folder, disk, lock, index_of(folder, MERGE_TIMES * silence_seconds))
        self._lmdb = LmdbKeys(folder, disk, silence_seconds, index_of)
        self._lift = Lift(self._runs, self._lmdb, self._writing, health)
        self._staged: list[tuple[IndexKeys, Ints]] = []
        self.lsn = EMPTY_LSN
        """The LSN at which LMDB stands, or will when a checkpoint names the runs of a rebuild."""
        self._awaits_checkpoint = False
        """Whether LMDB stands at nothing until then: a start before would find runs that no checkpoint names."""

    def open(self, runs: Sequence[RunFile], checkpoint_lsn: int, index_lsn: int | None) -> None:
        """Take the index of the checkpoint at an LSN; `DamagedIndex` if it is not whole. All is lost if LMDB is.

        `index_lsn` is the commit at which the checkpoint says that the index stands: None if it does not say.
        """
        self.lsn = EMPTY_LSN
        lsn = self._lmdb.open()
        is_there = EMPTY_LSN not in (lsn, index_lsn)
        self._runs.open(runs if is_there else (), checkpoint_lsn if index_lsn is None else index_lsn)
        self.lsn = lsn if is_there else EMPTY_LSN

    def lacking(self, live: Mapping[bytes, int]) -> int:
        """The least number of live rows without an entry; `live` says how many each table has, by its prefix."""
        runs = self.levels.runs
        held = {prefix: sum(run.sections[prefix].count for run in runs if prefix in run.sections) for prefix in live}
        return sum(max(rows - held[prefix], 0) for prefix, rows in live.items()) - self._lmdb.size.entries

    def close(self) -> None:
        """End the processes of LMDB and of merges."""
        self._runs.close()
        self._lmdb.close()

    @property
    def held_lsn(self) -> int:
        """The newest commit all of whose entries of keys of bytes were there at the start."""
        return max([self._lmdb.held_lsn, *(run.lsn for run in self.levels.runs)])

    @property
    def levels(self) -> Levels:
        """The runs as of now."""
        return self._runs.levels

    @property
    def size(self) -> Size:
        """The size as of the last checkpoint or rebuild; a key counts in each of several runs."""
        return self._lmdb.size + self._runs.size

    @property
    def runs_size(self) -> Size:
        """The part of the size that is in runs."""
        return self._runs.size

    # Look-ups.

    def find(
        self, keys: IndexKeys, rows: Ints, levels: Levels, generation: int, lsn_max: int, hints: Hints = ()
    ) -> Ints:
        """The values of some of the keys of one table; `Unavailable` if they may be of a later moment than levels and
        LSN."""
        if hints:
            values = hinted(levels, generation, keys, rows, hints)
        else:
            values = levels.find(keys.take(rows) if len(rows) < len(keys) else keys)
        missing = np.flatnonzero(values == MISS)
        if not len(missing):
            return values
        if keys.prefix in levels.lifted:
            values[missing] = ABSENT
            return values
        asked = keys.take(rows[missing]) if len(missing) < len(keys) else keys
        values[missing] = self._lmdb.find(asked, lsn_max)
        self._check_lifted(keys.prefix)
        return values

    def ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int, levels: Levels, lsn_max: int) -> list[Entries]:
        """The first entries, so many at most, of each [low, high) of a table in each source, newest first."""
        prefix = bounds[0][0][:PREFIX_BYTES]
        sources = list(levels.ranges(bounds, most, prefix))
        if prefix not in levels.lifted:
            sources.append(self._lmdb.ranges(bounds, most, lsn_max))
            self._check_lifted(prefix)
        return sources

    def _check_lifted(self, prefix: bytes) -> None:
        """Refuse an answer of LMDB that may lack entries, which had been lifted after the look-up began."""
        if prefix in self._lift.freed:
            raise Unavailable("the index moved on during the look-up: look up again")

    # A checkpoint, in this order.

    def merge(self, entries: Overlay, lsn: int, tables: ServedTables) -> None:
        """Put entries of served tables into a run; the index then stands at `lsn`.

        A rebuild under way makes that needless.
        """
        with self._writing:
            # LMDB may stand further on, after a rebuild: it then holds these entries, or newer ones.
            # At the same LSN there may be keys that were forgotten since.
            is_newer = lsn > self.lsn or (lsn == self.lsn and len(entries))
            if not self._health.has_problem and (is_newer or self._health.broken):
                self._write(entries, lsn, tables)

    def _write(self, entries: Overlay, lsn: int, tables: ServedTables) -> None:
        parts = [(keys, values) for keys, values in entries.parts() if len(keys) and tables.serves(keys.prefix)]
        self._runs.add(parts, lsn)
        stands_at = EMPTY_LSN if self._health.broken or self._awaits_checkpoint else lsn
        try:
            self._lmdb.stand_at(stands_at)
            self._disk.reach(CrashPoint.INDEX_MERGED)
            self.lsn = EMPTY_LSN if self._health.broken else lsn
        except DamagedIndex as error:
            self._health.found_damage(error)
        self._lmdb.forget_highest()

    def to_name(self) -> NamedRuns:
        """The runs that the checkpoint is to name, and where the index stands; none while it is not whole."""
        with self._health.lock:
            if self._health.has_problem:
                return NO_RUNS
            return self._runs.to_name(self._health.generation, EMPTY_LSN if self._health.broken else self.lsn)

    def unmerge(self) -> None:
        """Remove the run of a checkpoint that failed and that no checkpoint file names."""
        with self._writing:
            self._runs.undo()

    def adopt(self) -> None:
        """Have look-ups see the run of the checkpoint, which is durable. Under the lock of the levels."""
        self._runs.adopt()

    def named(self, runs: NamedRuns, tables: ServedTables) -> None:
        """A durable checkpoint names these runs: files go that nobody needs, and LMDB stands where the runs do."""
        with self._writing:
            if runs.generation == self._health.generation and self._health.ready:
                if self._awaits_checkpoint:
                    self._lmdb.stand_at(self.lsn)
                    self._awaits_checkpoint = False
                self._runs.durably_lifted = runs.lifted
            self._runs.keep(tables)
            self._runs.remove_unnamed(runs.files)

    def remove_unnamed(self, runs: Sequence[RunFile]) -> None:
        """Remove the files of runs that nobody needs; the newest checkpoint names `runs`."""
        with self._writing:
            self._runs.remove_unnamed(runs)

    def remove_tables(self, tables: ServedTables) -> bool:
        """Remove entries of tables that are not served from LMDB; whether all are gone. Beside the commit loop.

        There may be so many that only some go at once. A rebuild under way leaves those of tables dropped meanwhile.
        """
        with self._writing:
            if self._health.has_problem:
                return False
            try:
                return self._lmdb.remove_tables(tables)
            except DamagedIndex as error:
                self._health.found_damage(error)
                return False

    # A rebuild.

    def begin_rebuild(self, lsn: int) -> None:
        """Hold nothing and stand at nothing until `finish`; damaged files are kept beside, under another name.

        The entries of all commits up to `lsn` come, and none of later ones.
        """
        with self._writing:
            self._runs.begin_anew(lsn)
            self._lift.begin_anew()
            self._lmdb.begin_anew(damaged=self._health.damaged)
            self._staged = []
            self._health.damaged, self._health.broken = False, {}

    def stage(self, keys: IndexKeys, offsets: Ints) -> None:
        """Take a part of a rebuild; parts are put in together, so no key is in two of them."""
        if not len(keys):
            return
        with self._writing:
            self._staged.append((keys, offsets))
            is_much = sum(part.nbytes + values.nbytes for part, values in self._staged) >= STAGED_BYTES
        if is_much:
            self.flush()

    def flush(self) -> None:
        """Put the staged parts into runs; checkpoints do not wait for what that merges."""
        with self._writing:
            staged, self._staged = self._staged, []
        self._runs.stage(staged)
        self._disk.reach(CrashPoint.REBUILD_STAGED)

    @property
    def is_flushed(self) -> bool:
        """Whether all staged parts are in runs; asked by the thread of the rebuild, as those are put in by it."""
        return not self._staged

    def staged(self, keys: IndexKeys) -> Ints:
        """The values that a rebuild has put in under some keys of one table so far."""
        if not self.is_flushed:
            self.flush()
        values = self._runs.staged(keys)
        values[values == MISS] = ABSENT
        return values

    def finish(self, lsn: int, broken: Mapping[bytes, str], install: Callable[[], None]) -> None:
        """Stand at `lsn` with what was staged; `install` has look-ups see it, together with the new levels."""
        with self._writing:
            self._awaits_checkpoint = self._runs.has_rebuilt
            self.lsn = EMPTY_LSN if broken else lsn
            self._lmdb.stand_at(EMPTY_LSN if self._awaits_checkpoint else self.lsn)
            self._disk.reach(CrashPoint.REBUILD_FINISHED)
            self._lmdb.forget_highest()
            install()

    def take_rebuilt(self, lsn: int) -> None:
        """Have look-ups see the runs of a rebuild. Under the lock of the levels."""
        self._runs.finish(lsn)

    # Beside serving.

    @property
    def dropped_entries(self) -> int:
        """Entries of dropped tables in runs."""
        return self._runs.dropped_entries

    def keep(self, tables: ServedTables) -> None:
        """Leave tables that are not served out of the size, and of the next merges. At a start."""
        with self._writing:
            self._runs.keep(tables)

    def work(self, widths: Mapping[bytes, int | None], pause: Callable[[int], bool], *, sweeps: bool) -> bool:
        """Merge runs that are due, or lift entries from LMDB; whether there may be more to do.

        `widths` are those of the keys of served tables, None where keys are bytes; `pause` and `sweeps` as in
        `RunStore.merge_due`.
        """
        if self._health.has_problem:
            return False
        generation = self._health.generation

        def goes_on(entries: int) -> bool:
            return pause(entries) and generation == self._health.generation  # else nobody takes what becomes of it

        try:
            is_merged = self._runs.merge_due(self._lift.is_clean, goes_on, sweeps=sweeps)
            return is_merged or self._lift.step(widths, goes_on)
        except DamagedIndex as error:
            if generation == self._health.generation:
                self._health.found_damage(error)
            return False

    def walk(self, prefix: bytes, entries: int) -> Iterator[tuple[int, Walked]]:
        """(LSN, sums) of a table's entries in keys' order, so many at once.

        An LSN is `EMPTY_LSN` as long as LMDB has some of them.
        """
        levels = self.levels
        yield levels.lsn if self._lift.is_clean(prefix) else EMPTY_LSN, Walked(0, 0, 0, b"")
        yield from ((levels.lsn, part) for part in walk(levels, prefix, entries))

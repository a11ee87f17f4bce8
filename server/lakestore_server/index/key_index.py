"""The key index: key bytes to live offset, or to the flagged offset of a tombstone.

- Runs hold the entries up to the last checkpoint. Later entries are in memory, newest first: the overlay for new
  commits, the frozen overlay that a checkpoint is merging, and merged overlays that are kept as a cache.
- Derived data: it can be rebuilt from the logs.
- The overlay lock is held for look-ups in memory only, never during I/O.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lakestore.errors import Corrupt, Unavailable
from lakestore.limits import DEFAULT
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host.disk import Disk
from lakestore_server.index.entry import ABSENT, ALL_TABLES, PREFIX_BYTES, DamagedIndex, Ints, ServedTables
from lakestore_server.index.hints import Hint, Hints
from lakestore_server.index.keys import NO_KEYS, IndexKeys
from lakestore_server.index.levels import Levels, WalkSums, runs_due
from lakestore_server.index.merged_keys import Health, MergedKeys
from lakestore_server.index.overlay import Entries, NumberTables, Overlay, Range, combined, merged
from lakestore_server.index.run import Run
from lakestore_server.index.run_file import NamedRuns, RunFile
from lakestore_server.index.run_store import Size


@dataclass(frozen=True, slots=True)
class Reading:
    """Look-ups begun under the overlay lock and finished outside of it. If the index's generation has changed, they
    do not count.
    """

    keys: IndexKeys
    values: Ints
    older: tuple[Overlay, ...]
    generation: int
    levels: Levels


@dataclass(frozen=True, slots=True)
class RangeReading:
    """A `Reading` of key ranges."""

    bounds: Sequence[tuple[bytes, bytes]]
    most: int
    """The most keys of each range."""
    newest: Entries
    older: tuple[Overlay, ...]
    generation: int
    levels: Levels


def listed(keys: IndexKeys, values: Ints) -> tuple[Sequence[bytes], list[int]]:
    """Keys and values as lists."""
    return keys.listed(), values.tolist()


class Layer(Overlay):
    """The keys of one commit that is not durable yet."""


class ExpectedEntries:
    """The entries of one commit, arranged for look-ups of the tables that need them."""

    __slots__ = ("_layers", "entries")

    def __init__(self, entries: Sequence[tuple[IndexKeys, Ints]]) -> None:
        self.entries = entries
        self._layers: dict[bytes, Overlay] = {}

    def arranged(self, prefix: bytes) -> Overlay | None:
        """The entries of one table; None if there are none. Called on the commit loop."""
        mine = [(keys, values) for keys, values in self.entries if len(keys) and keys.prefix == prefix]
        if mine and prefix not in self._layers:
            layer = Layer()
            for keys, values in mine:
                layer.put(keys, values)
            # stored only when complete: an error above concerns one caller, and the loop continues
            self._layers[prefix] = layer
        return self._layers.get(prefix)


_NONE: Ints = np.empty(0, dtype=np.int64)


class Index:
    """Owned by the commit loop; `begin` and `finish` serve readers.

    While the index is not whole (lost, behind, damaged), `begin` refuses, and a rebuild makes a new index while the
    server serves reads. Tables with a primary key take no commits meanwhile, so the rows under the rebuild stay true.
    """

    def __init__(
        self,
        *,
        folder: Path,
        disk: Disk,
        cache_keys_max: int = DEFAULT.index_cache_keys,
        runs: Sequence[RunFile] = (),
        checkpoint_lsn: int = 0,
        index_lsn: int = 0,
        disk_free_bytes: int = 0,
    ) -> None:
        """The checkpoint at `checkpoint_lsn` names `runs`, and says that the index stands at `index_lsn`.

        Merges and rebuilds keep `disk_free_bytes` free. Checkpoints do not: they make room.
        """
        self._cache_keys_max = cache_keys_max
        self.lock = threading.Lock()
        self._overlay = Overlay()
        self._older: tuple[Overlay, ...] = ()
        self._frozen: Overlay | None = None
        self._made: Mapping[bytes, NumberTables] = {}
        self._expected: tuple[ExpectedEntries, ...] = ()
        """Commits that are not durable yet, newest first."""
        self._health = Health()
        self._merged = MergedKeys(folder, disk, self.lock, self._health, disk_free_bytes)
        try:
            lack = self._merged.open(runs, checkpoint_lsn, index_lsn)
        except DamagedIndex as error:
            self._health.found_damage(error)
        else:
            if lack:
                self._health.found_problem(lack, damaged=False)
        self.size_at_start = self.size
        """The size when the index was opened."""

    @property
    def size(self) -> Size:
        """The size as of the last checkpoint or rebuild. A key may be counted in several runs."""
        return self._merged.size

    @property
    def state(self) -> str:
        """`ready`, or how far the rebuild is and why. `; ` and what keeps it or a merge from going on may follow."""
        blocked = self._merged.blocked_by
        return f"{self._health.state}; {blocked}" if blocked else self._health.state

    @property
    def is_lacking_room(self) -> bool:
        """Whether a merge was due for which the disk had no room, or the rebuild waits for room."""
        return self._merged.is_lacking_room

    def lacks_room_for(self, nbytes: int) -> bool:
        """Whether the disk has no room for the staged parts of a rebuild and a further one of so many bytes."""
        return self._merged.lacks_room_for(nbytes)

    @property
    def is_losing_merges(self) -> bool:
        """Whether so many merges were lost in a row that another one is worth a try only now and then."""
        return self._merged.is_losing_merges

    @property
    def ready(self) -> bool:
        """Whether the index answers for every table."""
        return self._health.ready

    @property
    def generation(self) -> int:
        """The generation of the files: another one after a problem was found, and after the rebuild."""
        return self._health.generation

    @property
    def progress(self) -> float:
        """The finished part of the rebuild, 0 to 1."""
        return self._health.progress

    @progress.setter
    def progress(self, progress: float) -> None:
        """Report the rebuild's progress."""
        self._health.progress = progress

    def check(self, prefix: bytes) -> None:
        """Raises `Unavailable` while the index is being rebuilt, `Corrupt` for a table whose rows are damaged."""
        self._health.check(prefix)

    def call_on_problem(self, called: Callable[[], None]) -> None:
        """Register a function that is called when the index must be rebuilt."""
        self._health.on_problem = called

    def found_problem(self, problem: str, *, damaged: bool) -> None:
        """Stop answering from the present index. With `damaged`, its files are set aside and never used again."""
        self._health.found_problem(problem, damaged=damaged)

    @property
    def lsn(self) -> int:
        """The commit at which the index stands; -1 while it is not complete."""
        return self._merged.lsn

    def file_names(self) -> set[str]:
        """The run files that are being written, or that a look-up or a rebuild needs."""
        return self._merged.file_names()

    @property
    def entries_lsn(self) -> int:
        """The newest commit whose entries are in runs."""
        return self._merged.levels.lsn

    def compare(self, live: Mapping[bytes, int]) -> None:
        """Request a rebuild if some live rows cannot have an entry.

        `live` has the number of live rows of each table as of `entries_lsn`, by prefix. A key may have entries in
        several runs, and absent keys may have some too, so this detects large losses, not a single missing key.
        """
        if self.ready and (missing := self._merged.lacking(live)) > 0:
            self.found_problem(f"it has no entry for at least {missing} of {sum(live.values())} rows", damaged=False)

    def replayed(self, runs: Sequence[RunFile], tables: ServedTables) -> None:
        """Called at a start after the journal was replayed: only these tables are served, and the checkpoint names
        only these runs.
        """
        self._merged.keep(tables)
        self._merged.remove_unnamed(runs)

    @property
    def held_lsn(self) -> int:
        """The newest commit up to which all entries with byte keys were there at the start."""
        return self._merged.held_lsn

    @property
    def overlay_keys(self) -> int:
        """Keys that no checkpoint has taken yet."""
        return len(self._overlay)

    def foreseen(self, several: Sequence[IndexKeys]) -> list[Hint | None]:
        """Look up many keys in the runs, each set of one table, as hints for a later `find`. No hints while the
        index does not answer.

        Callable from any thread.
        """
        moment = self._health.generation, self._merged.levels
        return Hint.of(several, *moment) if self.ready else [None] * len(several)

    def find(self, keys: IndexKeys, hints: Hints = ()) -> Ints:
        """Values for the commit loop, including expected commits: live offsets, flagged ones, or ABSENT."""
        layers = [layer for commit in self._expected if (layer := commit.arranged(keys.prefix)) is not None]
        if not layers:  # no lock: nobody else puts keys of this table, and tables share nothing in an overlay
            return self.finish(self.begin(keys), hints)
        newest = [layer.get(keys) for layer in layers]
        with self.lock:  # entries put meanwhile are the same ones
            reading = self.begin(keys)
        values = reading.values
        for found in reversed(newest):
            np.copyto(values, found, where=found != MISS)
        return self.finish(reading, hints)

    def expect(self, entries: Sequence[tuple[IndexKeys, Ints]]) -> None:
        """Let `find` see the entries of a commit that is not durable yet. Readers do not see them. On the commit
        loop.
        """
        with self.lock:
            self._expected = (ExpectedEntries(entries), *self._expected)

    def expected_keys(self, prefix: bytes) -> int:
        """The number of a table's expected entries: `find` arranges them before it looks."""
        entries = (keys for commit in self._expected for keys, _ in commit.entries)
        return sum(len(keys) for keys in entries if len(keys) and keys.prefix == prefix)

    def put_expected(self) -> None:
        """Put the entries of the oldest expected commit, which is durable now. Under `lock`."""
        *newer, commit = self._expected
        for keys, offsets in commit.entries:
            self.put(keys, offsets)
        self._expected = tuple(newer)

    def forget_expected(self) -> None:
        """Forget all expected commits: they will never be durable. On the commit loop."""
        with self.lock:
            self._expected = ()

    def begin(self, keys: IndexKeys) -> Reading:
        """The atomic part of a look-up of keys of one table. Readers call it under `lock`."""
        if len(keys) and not self.ready:
            self.check(keys.prefix)
        found, older = self._overlay.get(keys), self._older
        return Reading(keys, found, older, self._health.generation, self._merged.levels)

    def finish(self, reading: Reading, hints: Hints = ()) -> Ints:
        """The rest of a look-up: frozen overlays, then runs. Flagged values are returned as they are."""
        values = reading.values
        for overlay in reading.older:
            missing = np.flatnonzero(values == MISS)
            if not len(missing):
                return values
            keys = reading.keys.take(missing) if len(missing) < len(values) else reading.keys
            values[missing] = overlay.get(keys)
        if len(values) == 1 and values[0] != MISS:
            return values
        try:
            missing = np.flatnonzero(values == MISS)
            if not len(missing):
                return values
            values[missing] = self._merged.find(reading.keys, missing, reading.levels, reading.generation, hints)
        except DamagedIndex as error:
            self._damaged_at(reading.generation, error)
        self._check_generation(reading.generation)
        return values

    def _damaged_at(self, generation: int, error: DamagedIndex) -> None:
        if generation == self._health.generation:
            self._health.found_damage(error)

    def _check_generation(self, generation: int) -> None:
        if generation != self._health.generation:
            raise Unavailable("the key index changed during the look-up: look up again")

    def arrange(self, prefix: bytes) -> None:
        """Sort a table's keys for `begin_ranges`. Not under `lock`."""
        self.check(prefix)
        self._overlay.arrange(prefix, self.lock)

    def begin_ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int) -> RangeReading:
        """The atomic part of a look-up of ranges [low, high) of one table. Under `lock`."""
        if bounds:
            self.check(bounds[0][0][:PREFIX_BYTES])
        newest: Entries = []
        for low, high in bounds:
            found = self._overlay.between(low, high, most)
            if found is None:
                raise Unavailable("the key index was rearranged during the look-up: look up again")
            newest.append(listed(*found))
        generation, levels = self._health.generation, self._merged.levels
        return RangeReading(bounds, most, newest, self._older, generation, levels)

    def finish_ranges(self, reading: RangeReading) -> list[Range]:
        """The rest of a look-up of ranges: the first live keys of each range, with their offsets."""
        bounds, most = reading.bounds, reading.most
        if not bounds:
            return []
        prefix = bounds[0][0][:PREFIX_BYTES]
        sources: list[Entries] = [reading.newest]
        for overlay in reading.older:
            overlay.arrange(prefix, self.lock)
            found = [overlay.between(low, high, most) or (NO_KEYS, _NONE) for low, high in bounds]
            sources.append([listed(keys, values) for keys, values in found])
        try:
            sources += self._merged.ranges(bounds, most, reading.levels)
        except DamagedIndex as error:
            self._damaged_at(reading.generation, error)
        self._check_generation(reading.generation)
        return [merged([source[i] for source in sources], most) for i in range(len(bounds))]

    def make_room(self, entries: Sequence[tuple[IndexKeys, Ints]]) -> None:
        """Enlarge tables before entries are put, because that takes long. By the thread that puts them."""
        more = Counter[bytes]()
        for keys, _ in entries:
            more[keys.prefix] += len(keys)
        for prefix, rows in more.items():
            self._overlay.make_room(prefix, rows, self.lock)

    def put(self, keys: IndexKeys, offsets: Ints) -> None:
        """Set the live offsets of keys of one table; ABSENT or a flagged offset for a deleted key. Under `lock`."""
        self._overlay.put(keys, offsets)

    def forget(self, keys: IndexKeys, values: Ints) -> None:
        """Remove the entries of keys that still have these values. On the commit loop. A rebuild does not need it."""
        try:
            found = self.find(keys)
        except (Unavailable, Corrupt):
            return
        gone = keys.take(np.flatnonzero(values == found))
        with self.lock:
            self.put(gone, np.full(len(gone), ABSENT, dtype=np.int64))

    def prepare(self) -> None:
        """Allocate memory for `freeze`, beside the commit loop."""
        self._made = self._overlay.made_ahead()

    def freeze(self, lsn: int) -> None:
        """Begin a checkpoint at `lsn`: all entries so far are to be merged."""
        made, self._made = self._made, {}
        frozen, older = self._overlay, self._older
        if self._frozen is not None:  # the last checkpoint failed: its entries are still to be merged
            frozen, older = combined(self._frozen, self._overlay), self._older[1:]
        with self.lock:
            self._frozen, self._overlay = frozen, self._overlay.following(made)
            self._older = (frozen, *older)

    def merge(self, lsn: int, tables: ServedTables = ALL_TABLES) -> None:
        """Write the frozen overlay's entries of served tables to a run. Beside the commit loop."""
        self._merged.merge(lambda: self._frozen if self._frozen is not None else Overlay(), lsn, tables)
        for overlay in self._older:  # a look-up that began before the drop is told to begin again
            overlay.keep(tables)

    def to_name(self) -> NamedRuns:
        """The runs that a checkpoint must name after `merge`."""
        return self._merged.to_name()

    def unmerge(self) -> None:
        """Remove the run of a failed checkpoint that no checkpoint file names."""
        self._merged.unmerge()

    def named(self, runs: NamedRuns, tables: ServedTables = ALL_TABLES) -> None:
        """A durable checkpoint names these runs: remove the files that nobody needs."""
        self._merged.named(runs, tables)

    def merged(self) -> None:
        """End a checkpoint. Merged overlays with byte keys stay as a cache while they are small."""
        with self.lock:
            self._frozen = None
            self._merged.adopt()
            kept, total = [], 0
            for overlay in (overlay.of_bytes() for overlay in self._older):  # runs of numbers are searched as fast
                total += len(overlay)
                if len(overlay) and total <= self._cache_keys_max:
                    kept.append(overlay)
            self._older = tuple(kept)

    def begin_rebuild(self, lsn: int) -> None:
        """Empty the index until `finish_rebuild`. Entries of commits up to `lsn` follow. Damaged files are set
        aside.
        """
        self._merged.begin_rebuild(lsn)

    def stage(self, keys: IndexKeys, offsets: Ints) -> None:
        """Take a part of a rebuild. Parts are written together, so no key may be in two of them."""
        self._merged.stage(keys, offsets)

    def flush(self) -> None:
        """Write the staged parts of a rebuild."""
        self._merged.flush()

    @property
    def is_flushed(self) -> bool:
        """Whether all staged parts of a rebuild are written."""
        return self._merged.is_flushed

    def staged(self, keys: IndexKeys) -> Ints:
        """The values that the rebuild has written so far for some byte keys."""
        return self._merged.staged(keys)

    def finish_rebuild(self, lsn: int, broken: dict[bytes, str]) -> None:
        """Let the rebuilt index stand at `lsn`, except for tables with damaged rows. On the commit loop.

        It then has all entries so far, some in other slots than the commits said, so the overlays are emptied.
        """

        def install() -> None:
            with self.lock, self._health.lock:
                self._merged.take_rebuilt(lsn)
                self._overlay, self._older = self._overlay.following(), ()
                self._frozen = Overlay() if self._frozen is not None else None
                self._health.rebuilt(broken)

        self._merged.finish(lsn, broken, install)

    def walk(self, prefix: bytes, entries: int) -> tuple[int, Iterator[WalkSums]]:
        """(LSN, sums): the sums of a table's merged entries as of that LSN, in key order, `entries` at a time."""
        return self._merged.walk(prefix, entries)

    @property
    def runs(self) -> Sequence[Run]:
        """The runs that a look-up may search, newest first."""
        return self._merged.levels.runs

    @property
    def merge_backlog(self) -> int:
        """The number of entries in runs that are due to be merged."""
        return sum(run.entries for run in runs_due(self.runs))

    def work(self, pause: Callable[[int], bool], *, sweeps: bool = False, whole: bool = False) -> bool:
        """Merge runs that are due, or all runs as one. Returns whether there may be more to do."""
        return self._merged.work(pause, sweeps=sweeps, whole=whole)

    @property
    def dropped_entries(self) -> int:
        """Entries of dropped tables in the runs."""
        return self._merged.dropped_entries

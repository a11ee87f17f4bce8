"""The runs of one index folder: written by checkpoints and rebuilds, merged beside serving, named by checkpoints.

- A look-up takes `levels`, which change only under the index's lock.
- A file is removed when neither a durable checkpoint nor the levels refer to it.
- There is at most one merge process. A rebuild's merge waits for the one beside serving, which ends as soon as the
  index has a problem. A checkpoint needs none and waits for none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from lakestore_server.arrays.grouping import ordered
from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.mapping import will_need
from lakestore_server.index.byte_section import hashed
from lakestore_server.index.entry import ALL_TABLES, DamagedIndex, Ints, KeyHash, ServedTables, key_hash, new_seed
from lakestore_server.index.keys import IndexKeys, NumberKeys, joined
from lakestore_server.index.levels import Levels, due, runs_due
from lakestore_server.index.merge_apart import APART_MIN, Merge, MergeLost, merge_apart
from lakestore_server.index.number_section import packed
from lakestore_server.index.run import SUFFIX, Run
from lakestore_server.index.run_file import NamedRuns, RunFile
from lakestore_server.index.run_filter import Numbers
from lakestore_server.index.run_merge import merge, writer_of
from lakestore_server.index.run_writer import ByteSectionWriter, RunWriter, SectionWriter

DROPPED_SHARE = 1 / 8
"""A run in which a larger share of the entries belongs to dropped tables is rewritten at once. That writes at most
seven entries for each one removed, so dropped tables take at most an eighth of the index until the next sweep.
"""
PART_ENTRIES = 65_536
"""Entries that are written at once."""
REBUILT_MAX = 8
"""The most runs of a rebuild. Further ones are merged at once."""
LOST_MAX = 3
"""Merges that are lost in a row, after which a rebuild merges no more, and the duty only with each sweep."""
log = logging.getLogger("lakestore.index")

Parts = Sequence[tuple[IndexKeys, Ints]]
"""Keys of tables and their values. No key occurs twice."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an index."""

    entries: int = 0
    """An upper bound for the number of keys: a key may have several entries."""
    nbytes: int = 0

    @property
    def entry_bytes(self) -> float:
        return self.nbytes / self.entries if self.entries else 0.0


class RunStore:
    """The levels, and the run of a running checkpoint. Any thread may read `levels`.

    One thread at a time makes checkpoints, one merges beside serving, one rebuilds.
    """

    def __init__(self, folder: Path, disk: Disk, lock: threading.Lock, disk_free_bytes: int = 0) -> None:
        """`lock` is held while the levels change. Merges keep `disk_free_bytes` free."""
        self._folder, self._disk, self._lock = folder, disk, lock
        self._disk_free_bytes = disk_free_bytes
        self.lacks = 0
        """The bytes that the disk lacks for the merge that is due, or for the rebuild."""
        self.levels = Levels(-1)
        self._new: Run | None = None
        self._new_lsn = -1
        self._numbers = count(1)
        self._merging = threading.Lock()
        """Held while a merge process runs: at most one does."""
        self.lost, self.lost_why = 0, ""
        """The merges that were lost in a row, and the error of the last one."""
        self._unfinished: set[str] = set()
        """Names of files that are being written or are not in the levels yet."""
        self._rebuilt: tuple[Run, ...] = ()
        """The runs of a rebuild, newest first."""
        self._rebuilt_lsn = -1
        self._key_hash = key_hash(new_seed())
        self._served = ALL_TABLES

    def open(self, files: Sequence[RunFile], lsn: int) -> None:
        """Take over the runs of an index that stands at an LSN. Raises `DamagedIndex` if one is missing or damaged.

        Other run files stay, because only the journal tells who needs them.
        """
        there = [name for name in self._disk.list(self._folder) if name.endswith(SUFFIX)]
        named = [file.name for file in files]
        taken = [int(stem) for name in (*there, *named) if (stem := name.removesuffix(SUFFIX)).isdecimal()]
        self._numbers = count(max(taken, default=0) + 1)
        runs = tuple(self._opened(file) for file in files)
        hashes = {run.key_hash for run in runs}
        if len(hashes) > 1:
            raise DamagedIndex("runs of the index have several secrets: some are of another folder")
        self._key_hash = next(iter(hashes), self._key_hash)
        self.levels = Levels(max([lsn, *(run.lsn for run in runs)]), runs)

    def _opened(self, file: RunFile) -> Run:
        path = self._folder / file.name
        self._check_size(path, file.size)
        data = self._disk.map(path)
        will_need(data)  # every look-up needs it, and page by page the disk would take ten times as long
        run = Run(path, data)
        if run.file != file:
            raise DamagedIndex(f"run {file.name} of the index is another one than the checkpoint names")
        return run

    def _check_size(self, path: Path, size: int) -> None:
        if self._disk.size(path) != size:
            raise DamagedIndex(f"run {path.name} of the index is missing or cut short")

    @contextlib.contextmanager
    def _written(self, parts: Parts, lsn: int) -> Iterator[Run | None]:
        """Write a run of entries as of a commit, durable with its name; None if there are no entries.

        The file is protected from removal until the end of the block, when something refers to it.
        """
        parts = _by_table(parts)
        if not parts:
            yield None
            return
        with self._new_file() as path:
            with contextlib.closing(self._writer(path, lsn)) as writer:
                for keys, values in sorted(parts, key=lambda part: part[0].prefix):
                    write(writer, keys, values)
                writer.finish()
            yield self._named(path)

    def _writer(self, path: Path, lsn: int) -> RunWriter:
        return RunWriter(self._disk, path, self._key_hash, lsn)

    @contextlib.contextmanager
    def _new_file(self) -> Iterator[Path]:
        """The path for a new run, protected from removal. The file is removed if writing fails."""
        path = self._folder / f"{next(self._numbers):012d}{SUFFIX}"
        self._unfinished.add(path.name)
        try:
            yield path
        except BaseException:
            self._remove(path)
            raise
        finally:
            self._unfinished.discard(path.name)

    def _named(self, path: Path) -> Run:
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.RUN_DURABLE)
        return Run(path, self._disk.map(path), is_checked=True)

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the next checkpoint or start removes it
            self._disk.remove(path)

    # A checkpoint, in this order.

    def add(self, parts: Parts, lsn: int) -> None:
        """Write the run of a checkpoint durably. Look-ups do not see it yet."""
        self._new, self._new_lsn = None, -1
        with self._written(parts, lsn) as made:
            self._new, self._new_lsn = made, lsn

    def undo(self) -> None:
        """Forget the run of a failed checkpoint that no checkpoint file names."""
        if self._new is not None:
            self._remove(self._new.path)
        self._new, self._new_lsn = None, -1

    def to_name(self, generation: int, lsn: int) -> NamedRuns:
        """The runs that the checkpoint must name, for an index that stands at an LSN."""
        levels = self.levels
        new = () if self._new is None else (self._new,)
        return NamedRuns(tuple(run.file for run in (*new, *levels.runs)), generation, lsn)

    def adopt(self) -> None:
        """Make the run of the checkpoint, which is durable, visible to look-ups. Under the lock."""
        if self._new_lsn >= 0:
            new, adopted = () if self._new is None else (self._new,), self.levels.adopted + 1
            for run in new:
                run.adopted = adopted
            self.levels = replace(self.levels, lsn=self._new_lsn, runs=(*new, *self.levels.runs), adopted=adopted)
            self._new, self._new_lsn = None, -1

    def remove_unnamed(self, named: Collection[RunFile]) -> None:
        """Remove runs that neither a durable checkpoint nor a look-up needs."""
        there = self._disk.list(self._folder)  # before `file_names`: a file that begins later is not in the list
        kept = {file.name for file in named} | self.file_names()
        for name in there:
            if name.endswith(SUFFIX) and name not in kept:
                with contextlib.suppress(FileNotFoundError):  # `_remove` was here since the folder was listed
                    self._disk.remove(self._folder / name)
                self._disk.reach(CrashPoint.RUN_REMOVED)

    def file_names(self) -> set[str]:
        """The files that are being written, or that a look-up or a rebuild needs."""
        unfinished = frozenset(self._unfinished)  # first: a file that is finished meanwhile is in the levels
        new, needed = self._new, (*self.levels.runs, *self._rebuilt)
        return {run.path.name for run in (*needed, *((new,) if new else ()))} | unfinished

    # A rebuild.

    def begin_anew(self, lsn: int) -> None:
        """Empty the index until `finish`. All entries of commits up to `lsn` follow, and none of later ones."""
        self._rebuilt_lsn = lsn
        self.lost = self.lacks = 0  # the next merges are of other files
        with self._lock:
            self.levels = Levels(-1)
        rebuilt, self._new, self._new_lsn, self._rebuilt = self._rebuilt, None, -1, ()
        for run in rebuilt:  # of a failed rebuild: no checkpoint names them
            self._remove(run.path)

    def stage(self, parts: Parts) -> None:
        """Take entries of a rebuild, which hold over those before. Checkpoints go on meanwhile.

        A merge that is lost or has no room leaves its runs as they are: the next call tries again, then the duty does.
        """
        with self._written(parts, self._rebuilt_lsn) as made:
            if made is not None:
                self._rebuilt = (made, *self._rebuilt)
        if len(self._rebuilt) > REBUILT_MAX and self.lost < LOST_MAX:
            try:
                self._merge_rebuilt()
            except MergeLost as error:
                log.warning("the rebuild of the key index goes on with %d runs: %s", len(self._rebuilt), error)

    def _merge_rebuilt(self) -> None:
        before = self._rebuilt[: due([run.entries for run in self._rebuilt]) or None]
        if self._lacking(before):
            return
        with self._new_file() as path:
            served = {prefix for run in before for prefix in run.sections if self._served.serves(prefix)}
            drops = dict.fromkeys(served, False)
            if not self._merge(path, before, drops, lambda entries: not self.lacking_room(0)):
                self._remove(path)
                return
            self._rebuilt = (self._named(path), *self._rebuilt[len(before) :])
        for run in before:
            self._remove(run.path)

    def staged(self, keys: IndexKeys) -> Ints:
        """The values that the rebuild has taken so far for some keys of one table."""
        return Levels(-1, self._rebuilt).find(keys)

    @property
    def has_rebuilt(self) -> bool:
        """Whether a rebuild has written runs."""
        return bool(self._rebuilt)

    def finish(self, lsn: int) -> None:
        """Make the runs of the rebuild visible to look-ups. Under the lock."""
        self.levels, self._rebuilt = Levels(lsn, self._rebuilt), ()

    # Beside serving.

    def merge_due(self, pause: Callable[[int], bool], *, sweeps: bool = False, whole: bool = False) -> bool:
        """Merge the runs that are due, if any; whether there may be more to do.

        `pause` is `run_merge.merge`'s. With `sweeps`, every run that has an entry of a dropped table is due; with
        `whole` all runs, so that no key of a deleted row stays. If the
        disk has no room for the merge, fewer of the newest runs are merged. `lacks` says how much room is missing.
        """
        runs = self.levels.runs
        inputs = runs if whole else runs_due(runs) or self._with_dropped(runs, 0.0 if sweeps else DROPPED_SHARE)
        self.lacks = self._lacking(inputs)
        if whole and self.lacks:
            return False
        while self._lacking(inputs):
            inputs = runs_due(inputs[:-1])
        if not inputs:
            return False
        below = {prefix for run in runs[runs.index(inputs[0]) + len(inputs) :] for prefix in run.sections}
        served = {prefix for run in inputs for prefix in run.sections if self._served.serves(prefix)}
        drops = {prefix: prefix not in below for prefix in served}

        def goes_on(entries: int) -> bool:
            if not pause(entries):
                return False
            lack = self.lacking_room(0)  # commits and segments have taken what was free
            self.lacks = self.lacks or lack
            return not lack

        with self._new_file() as path:
            if not self._merge(path, inputs, drops, goes_on):
                self._remove(path)
                return False
            output = self._named(path)
            output.adopted = max(run.adopted for run in inputs)
            gone = output.adopted if any(drops.values()) else 0
            with self._lock:
                before, merged = self.levels, self.levels.merged_with(inputs, output if output.entries else None)
                self.levels = before if merged is before else replace(merged, gone=max(merged.gone, gone))
            if output not in self.levels.runs:
                self._remove(path)
        self._disk.reach(CrashPoint.RUN_MERGED)
        return self.levels is not before

    def _merge(
        self, path: Path, runs: Sequence[Run], drops: Mapping[bytes, bool], pause: Callable[[int], bool]
    ) -> bool:
        """Write runs as one. `drops` has the served tables, and whether their entries with ABSENT can be dropped."""
        if sum(run.entries for run in runs) >= APART_MIN:
            wanted = Merge(path, [run.path for run in runs], drops, self._key_hash.seed)
            try:
                with self._merging:
                    is_whole = merge_apart(wanted, pause)
            except MergeLost as error:
                self.lost, self.lost_why = self.lost + 1, error.message
                for run in runs:
                    self._check_size(run.path, run.size)
                raise
            self.lost = 0 if is_whole else self.lost
            return is_whole
        with contextlib.closing(writer_of(self._disk, path, runs, self._key_hash)) as writer:
            return merge(writer, runs, drops.__contains__, drops.__getitem__, pause)

    def lacking_room(self, nbytes: int) -> int:
        """The bytes that the disk lacks to take so many more and to keep `disk_free_bytes` free; 0 if it has them."""
        return max(self._disk_free_bytes + nbytes - self._disk.free_bytes(self._folder), 0)

    def _lacking(self, runs: Sequence[Run]) -> int:
        """`lacking_room` of the output of a merge; no merge needs none."""
        return self.lacking_room(sum(run.size for run in runs)) if runs else 0

    def _dropped_in(self, run: Run) -> int:
        return sum(part.count for prefix, part in run.sections.items() if not self._served.serves(prefix))

    def _with_dropped(self, runs: Sequence[Run], share: float) -> Sequence[Run]:
        """The newest run in which dropped tables have more than `share` of the entries: it is rewritten."""
        return [run for run in runs if self._dropped_in(run) > share * run.entries][:1]

    @property
    def dropped_entries(self) -> int:
        """Entries of unserved tables."""
        return sum(map(self._dropped_in, self.levels.runs))

    def keep(self, tables: ServedTables) -> None:
        """Leave unserved tables out of the size, and of the next merges."""
        self._served = tables
        empty = [run for run in self.levels.runs if not any(map(tables.serves, run.sections))]
        for run in empty:
            with self._lock:
                self.levels = self.levels.merged_with([run], None)

    @property
    def size(self) -> Size:
        """Entries of served tables, several for some keys, and their bytes."""
        held = [
            section
            for run in self.levels.runs
            for prefix, section in run.sections.items()
            if self._served.serves(prefix)
        ]
        return Size(sum(section.count for section in held), sum(section.nbytes for section in held))


def _by_table(parts: Parts) -> list[tuple[IndexKeys, Ints]]:
    """The parts of each table joined. Parts without keys are left out."""
    tables: dict[bytes, list[tuple[IndexKeys, Ints]]] = {}
    for keys, values in parts:
        if len(keys):
            tables.setdefault(keys.prefix, []).append((keys, values))
    return [
        (joined([keys for keys, _ in held]), np.concatenate([values for _, values in held])) for held in tables.values()
    ]


def write(writer: RunWriter, keys: IndexKeys, values: Ints) -> None:
    """Write the entries of a table, no key twice, as its section."""
    number = int.from_bytes(keys.prefix, "big")
    if isinstance(keys, NumberKeys):
        _write_numbers(writer.begin(number, keys.width, len(keys)), keys.numbers, values)
    else:
        _write_bytes(writer.begin_bytes(number, len(keys)), keys.padded, values, writer.key_hash)


def _write_numbers(writer: SectionWriter, numbers: Numbers, values: Ints) -> None:
    order, _ = ordered(numbers)
    for first in range(0, len(order), PART_ENTRIES):
        rows = order[first : first + PART_ENTRIES]
        some = numbers.take(rows)
        writer.add(some, packed(some, values.take(rows)))
    writer.end()


def _write_bytes(writer: ByteSectionWriter, keys: PaddedBytes, values: Ints, key_hash: KeyHash) -> None:
    order, hashes = keys.order(), np.empty(len(keys), dtype=np.uint64)
    for first in range(0, len(order), PART_ENTRIES):
        rows = order[first : first + PART_ENTRIES]
        some = keys.take(rows)
        hashes[first : first + PART_ENTRIES] = key_hash.many(some)
        writer.add(some, values.take(rows))
    writer.find_by(hashed(hashes, np.arange(len(order), dtype=np.uint64), writer.rank_bits))
    writer.end()

"""LMDB behind two processes, one finds and one changes: where the index stands, and what earlier releases left in it.

Nothing is put in any more. `DamagedIndex` leaves as it is: the index above decides on a rebuild.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from lakestore.errors import Unavailable
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.entry import ABSENT, DAMAGED, PREFIX_BYTES, Ints, ServedTables
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.overlay import Entries
from lakestore_server.index.pipe import Op, Size, unpack_ranges
from lakestore_server.index.run_file import EMPTY_LSN
from lakestore_server.index.worker_client import DamagedIndex, IndexOf, IndexWorker, in_process

log = logging.getLogger("lakestore.index")
DAMAGED_NAME = "damaged"
MERGE_TIMES = 10
"""The longest a merge may take, in times of a look-up's limit."""
_REMOVE_KEYS, _REMOVE_TIMES = 20_000, 50
"""Entries of dropped tables that go in one transaction, and transactions of one checkpoint."""
_FIRST = bytes(PREFIX_BYTES)


class LmdbKeys:
    """LMDB of one folder. `find` and `ranges` serve any thread; all else is for one thread at a time."""

    def __init__(self, folder: Path, disk: Disk, silence_seconds: float, index_of: IndexOf = in_process) -> None:
        self._index_of = index_of
        self._folder, self._disk, self._silence_seconds = folder, disk, silence_seconds
        self._highest: dict[bytes, tuple[int, bytes]] = {}
        self._highest_lock = threading.Lock()
        self.held_lsn = EMPTY_LSN
        """The newest commit whose entries of keys of bytes an earlier release put in."""
        self.size = self.size_at_start = Size()
        """The size at the last checkpoint or rebuild."""
        self.finder, self.merger = self._processes()

    def _processes(self) -> tuple[IndexWorker, IndexWorker]:
        finder = self._index_of(self._folder, self._silence_seconds)
        return finder, self._index_of(self._folder, MERGE_TIMES * self._silence_seconds)

    def open(self) -> int:
        """The LSN at which LMDB stands."""
        lsn = self._sized(self.finder.ask(Op.LSN, again=True))
        self.held_lsn = self.finder.ask(Op.HELD_LSN, again=True)[0]
        self._disk.sync_folder(self._folder)  # LMDB syncs its files, but not their names
        self.size_at_start = self.size
        return lsn

    def close(self) -> None:
        """End the processes."""
        self.finder.close()
        self.merger.close()

    def _sized(self, answer: tuple[int, bytes]) -> int:
        lsn, data = answer
        self.size = Size.decode(data)
        return lsn

    def find(self, keys: IndexKeys, lsn_max: int) -> Ints:
        """The values of keys of one table; `Unavailable` if LMDB has moved on behind `lsn_max`."""
        highest_lsn, highest = self._highest_of(keys.prefix)
        if not highest or (highest_lsn <= lsn_max and keys.least > highest):
            return np.full(len(keys), ABSENT, dtype=np.int64)
        lsn, data = self.finder.ask(Op.FIND, keys.packed(), again=True)
        values = np.frombuffer(data, dtype=np.int64)
        if lsn > lsn_max:
            raise Unavailable("the index moved on during the look-up: look up again")
        if (values == DAMAGED).any():
            raise DamagedIndex(f"{int((values == DAMAGED).sum())} entries do not match their checks")
        return values

    def ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int, lsn_max: int) -> Entries:
        """The first entries, so many at most, of each [low, high) of one table; as `find`."""
        highest_lsn, highest = self._highest_of(bounds[0][0][:PREFIX_BYTES])
        if not highest or (highest_lsn <= lsn_max and min(low for low, _ in bounds) > highest):
            return [((), ())] * len(bounds)
        lsn, data = self.finder.ask(Op.RANGES, [key for pair in bounds for key in pair], number=most, again=True)
        if lsn > lsn_max:
            raise Unavailable("the index moved on during the look-up: look up again")
        found = unpack_ranges(data, len(bounds))
        if any((values == DAMAGED).any() for _, values in found):
            raise DamagedIndex("entries do not match their checks")
        return [(keys, values.tolist()) for keys, values in found]

    def _highest_of(self, prefix: bytes) -> tuple[int, bytes]:
        """(LSN, an upper bound of a table's keys in LMDB then): new keys above that bound need not be asked for."""
        with self._highest_lock:
            generation = self._highest
            if prefix not in generation:
                generation[prefix] = self.finder.ask(Op.HIGHEST, [prefix], again=True)
            return generation[prefix]

    def has(self, prefix: bytes) -> bool:
        """Whether LMDB has entries of a table."""
        return bool(self._highest_of(prefix)[1])

    def part(self, low: bytes, high: bytes, most: int) -> tuple[list[bytes], Ints]:
        """The first entries of [low, high), so many at most; not by the process that look-ups ask."""
        _, data = self.merger.ask(Op.RANGES, [low, high], number=most, again=True)
        ((keys, values),) = unpack_ranges(data, 1)
        if (values == DAMAGED).any():
            raise DamagedIndex("entries do not match their checks")
        return keys, values

    def forget_highest(self) -> None:
        """Ask again for the highest keys: LMDB has changed."""
        self._highest = {}

    def stand_at(self, lsn: int) -> int:
        """Have the index stand at `lsn`, in a synced transaction."""
        return self._sized(self.merger.ask(Op.STAND_AT, number=lsn))

    def remove_tables(self, tables: ServedTables) -> bool:
        """Remove entries of tables that are not served, so many at most; whether no more of them are there."""
        at = _FIRST
        for _ in range(_REMOVE_TIMES):
            while (prefix := self.merger.ask(Op.NEXT, [at])[1]) and tables.serves(prefix):
                at = (int.from_bytes(prefix, "big") + 1).to_bytes(PREFIX_BYTES, "big")
            if not prefix:
                break
            at = prefix
            self._remove_some(prefix)
        self.forget_highest()
        return not prefix

    def _remove_some(self, prefix: bytes) -> None:
        self._sized(self.merger.ask(Op.REMOVE, [prefix], number=_REMOVE_KEYS))
        self._disk.reach(CrashPoint.INDEX_FREED)

    def remove(self, prefix: bytes) -> bool:
        """Remove entries of a table, so many at most; whether all are gone."""
        self._remove_some(prefix)
        self.forget_highest()
        return not self.has(prefix)

    def begin_anew(self, *, damaged: bool) -> None:
        """Hold nothing and stand at nothing; damaged files are kept beside, under another name."""
        if damaged:
            self.close()
            self._set_aside()
            self.finder, self.merger = self._processes()
        self.merger.ask(Op.CLEAR)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.REBUILD_CLEARED)

    def _set_aside(self) -> None:
        above = self._folder.parent
        if not self._disk.list(self._folder):
            return
        taken = set(self._disk.list(above))
        name = next(name for n in count(1) if (name := f"{self._folder.name}-{DAMAGED_NAME}-{n}") not in taken)
        self._disk.rename(self._folder, above / name)
        self._disk.make_folder(self._folder)
        self._disk.sync_folder(above)
        self._disk.reach(CrashPoint.REBUILD_QUARANTINED)
        log.error("the damaged index is kept in %s: look at its disk, then remove it", above / name)

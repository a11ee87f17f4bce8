"""The key index: key bytes -> live offset, or, flagged, the offset of a record that is remembered for an absent key.

LMDB stands at the last checkpoint; what came after is in memory, newest first: the overlay that commits
write to, the frozen overlay that a checkpoint is merging, and merged ones kept as a cache. Derived data: it can be
rebuilt from the logs. The overlay lock is held for look-ups in memory only, never over I/O.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lakestore.errors import Corrupt, Unavailable
from lakestore.limits import DEFAULT
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index import worker
from lakestore_server.index.keys import NO_KEYS, PREFIX_BYTES, IndexKeys, Packed
from lakestore_server.index.overlay import Entries, Overlay, Range, combined, merged
from lakestore_server.index.worker_client import DamagedIndex, IndexProcess

log = logging.getLogger("lakestore.index")
Ints = npt.NDArray[np.int64]
ABSENT, FLAG = worker.ABSENT, worker.FLAG
OFFSET_BITS, OFFSET_MASK = worker.OFFSET_BITS, worker.OFFSET_MASK
_STAGE_KEYS = 20_000
_NONE: Ints = np.empty(0, dtype=np.int64)
_STAGED_BYTES_MAX = 160 << 20
"""Of a rebuild, before the worker sorts it and puts it into LMDB: it takes some three times as much for that."""
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Reading:
    """Look-ups begun under the overlay lock, to be finished outside it."""

    keys: IndexKeys
    values: Ints
    older: tuple[Overlay, ...]
    lsn_max: int
    """LMDB may have moved on to here and still answer as of the moment of the reading."""
    generation: int
    """Of LMDB's files: what was asked of others is no answer."""


@dataclass(frozen=True, slots=True)
class RangeReading:
    """As `Reading`, for ranges of keys."""

    bounds: Sequence[tuple[bytes, bytes]]
    most: int
    """Keys of each range."""
    newest: Entries
    older: tuple[Overlay, ...]
    lsn_max: int
    generation: int


@dataclass(frozen=True, slots=True)
class Size:
    """What LMDB holds."""

    keys: int = 0
    bytes: int = 0
    """Of the pages in use; the file also has free ones, and does not shrink."""

    @property
    def key_bytes(self) -> float:
        """Bytes per key; 0 without keys."""
        return self.bytes / self.keys if self.keys else 0.0


class Index:
    """Owned by the commit loop; `begin` and `finish` serve readers.

    While it is not whole (lost, behind, damaged), `begin` refuses, and a rebuild makes it anew beside serving:
    nothing with a primary key is committed meanwhile, so that what it is made from stays true.
    """

    def __init__(self, folder: Path, disk: Disk, cache_keys_max: int = DEFAULT.index_cache_keys) -> None:
        self._folder, self._disk = folder, disk
        self._cache_keys_max = cache_keys_max
        self.lock = threading.Lock()
        self._overlay = Overlay()
        self._older: tuple[Overlay, ...] = ()
        self._frozen: Overlay | None = None
        self._highest: dict[bytes, tuple[int, bytes]] = {}
        self._highest_lock = threading.Lock()
        self._writing = threading.Lock()
        self._generation = 0
        self._broken: dict[bytes, str] = {}
        self._problem = ""
        self.progress = 0.0
        self.on_problem: Callable[[], None] = lambda: None
        self._damaged = False
        self._staged_bytes = 0
        self.size = self.size_at_start = Size()
        """Of LMDB, as of the last checkpoint or rebuild."""
        self._finder, self._merger = IndexProcess(folder), IndexProcess(folder)
        try:
            self._frozen_lsn = self._merged_lsn = self._sized(self._finder.ask(worker.LSN, again=True))
            self.size_at_start = self.size
        except DamagedIndex as error:
            self._frozen_lsn = self._merged_lsn = -1
            self.found_problem(f"it is damaged: {error}", damaged=True)
        except BaseException:
            self.close()
            raise

    def _sized(self, answer: tuple[int, bytes]) -> int:
        lsn, data = answer
        self.size = Size(*worker.SIZE.unpack(data))
        return lsn

    @property
    def state(self) -> str:
        """`ready`, or how far its rebuild is and why."""
        if self._problem:
            return f"rebuilding, {self.progress:.0%} done, for {self._problem}"
        return "; ".join(self._broken.values()) or "ready"

    @property
    def ready(self) -> bool:
        """Whether it answers, for every table."""
        return not self._problem and not self._broken

    def check(self, prefix: bytes) -> None:
        """`Unavailable` while the index is being rebuilt, `Corrupt` for a table whose rows are damaged."""
        if self._problem:
            raise Unavailable(
                f"the key index is being rebuilt, {self.progress:.0%} done: upserts, deletes and look-ups wait for it; "
                "log tables and scans are served"
            )
        if prefix in self._broken:
            raise Corrupt(self._broken[prefix])

    def found_problem(self, problem: str, *, damaged: bool) -> None:
        """Answer nothing any more from what is there; damaged files are set aside, not used again."""
        with self._highest_lock:
            first = not self._problem
            self._problem = self._problem or problem
            self._damaged = self._damaged or damaged
            self._generation += first
            self.progress = 0.0 if first else self.progress
        if first:
            log.error("the key index is rebuilt: %s", problem)
            self.on_problem()

    @property
    def lsn(self) -> int:
        """What LMDB stands at; -1 when it is empty."""
        return self._merged_lsn

    @property
    def overlay_keys(self) -> int:
        """Keys not yet handed to a checkpoint."""
        return len(self._overlay)

    def find(self, keys: IndexKeys) -> Ints:
        """Values for the commit loop: live offsets, flagged ones, or ABSENT."""
        return self.finish(self.begin(keys))

    def begin(self, keys: IndexKeys) -> Reading:
        """The part of a look-up that must be atomic, for keys of one table; readers call it under `lock`."""
        if len(keys) and (self._problem or self._broken):
            self.check(keys.prefix)
        return Reading(keys, self._overlay.get(keys), self._older, self._frozen_lsn, self._generation)

    def finish(self, reading: Reading) -> Ints:
        """The rest of a look-up: frozen overlays, then LMDB. Flagged values come as they are."""
        values = reading.values
        for overlay in reading.older:
            missing = np.flatnonzero(values == MISS)
            if not len(missing):
                return values
            keys = reading.keys.take(missing) if len(missing) < len(values) else reading.keys
            values[missing] = overlay.get(keys)
        missing = np.flatnonzero(values == MISS)
        if len(missing):
            keys = reading.keys.take(missing) if len(missing) < len(values) else reading.keys
            try:
                values[missing] = self._from_lmdb(keys, reading.lsn_max)
            except DamagedIndex as error:
                if reading.generation == self._generation:
                    self.found_problem(f"it is damaged: {error}", damaged=True)
            if reading.generation != self._generation:
                raise Unavailable("the key index changed during the look-up: look up again")
        return values

    def arrange(self, prefix: bytes) -> None:
        """Have a table's keys in order, for `begin_ranges`; not under `lock`."""
        self.check(prefix)
        self._overlay.arrange(prefix, self.lock)

    def begin_ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int) -> RangeReading:
        """The part of a look-up of [low, high)s of one table that must be atomic; under `lock`."""
        if bounds:
            self.check(bounds[0][0][:PREFIX_BYTES])
        newest: Entries = []
        for low, high in bounds:
            found = self._overlay.between(low, high, most)
            if found is None:
                raise Unavailable("the key index was rearranged during the look-up: look up again")
            newest.append(_listed(*found))
        return RangeReading(bounds, most, newest, self._older, self._frozen_lsn, self._generation)

    def finish_ranges(self, reading: RangeReading) -> list[Range]:
        """The rest of it: the first live keys of each range with their offsets."""
        bounds, most = reading.bounds, reading.most
        if not bounds:
            return []
        prefix = bounds[0][0][:PREFIX_BYTES]
        sources: list[Entries] = [reading.newest]
        for overlay in reading.older:
            overlay.arrange(prefix, self.lock)
            found = [overlay.between(low, high, most) or (NO_KEYS, _NONE) for low, high in bounds]
            sources.append([_listed(keys, values) for keys, values in found])
        try:
            sources.append(self._ranges_from_lmdb(prefix, bounds, most, reading.lsn_max))
        except DamagedIndex as error:
            if reading.generation == self._generation:
                self.found_problem(f"it is damaged: {error}", damaged=True)
        if reading.generation != self._generation:
            raise Unavailable("the key index changed during the look-up: look up again")
        return [merged([source[i] for source in sources], most) for i in range(len(bounds))]

    def _ranges_from_lmdb(
        self, prefix: bytes, bounds: Sequence[tuple[bytes, bytes]], most: int, lsn_max: int
    ) -> Entries:
        highest_lsn, highest = self._highest_of(prefix)
        if highest_lsn <= lsn_max and min(low for low, _ in bounds) > highest:
            return [((), ())] * len(bounds)
        lsn, data = self._finder.ask(worker.RANGES, [key for pair in bounds for key in pair], lsn=most, again=True)
        if lsn > lsn_max:
            raise Unavailable("the index moved on during the look-up: look up again")
        found = worker.unpack_ranges(data, len(bounds))
        if any((offsets == worker.DAMAGED).any() for _, offsets in found):
            raise DamagedIndex("entries do not match their checks")
        return [(keys, offsets.tolist()) for keys, offsets in found]

    def _from_lmdb(self, keys: IndexKeys, lsn_max: int) -> Ints:
        highest_lsn, highest = self._highest_of(keys.prefix)
        if highest_lsn <= lsn_max and keys.least > highest:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        lsn, data = self._finder.ask(worker.FIND, keys.packed(), again=True)
        offsets = np.frombuffer(data, dtype=np.int64)
        if lsn > lsn_max:
            raise Unavailable("the index moved on during the look-up: look up again")
        if (offsets == worker.DAMAGED).any():
            raise DamagedIndex(f"{int((offsets == worker.DAMAGED).sum())} entries do not match their checks")
        return offsets

    def _highest_of(self, prefix: bytes) -> tuple[int, bytes]:
        """(LMDB's LSN, key): an upper bound of a table's keys in LMDB: new keys above it need not be asked for."""
        with self._highest_lock:
            generation = self._highest
            if prefix not in generation:
                generation[prefix] = self._finder.ask(worker.HIGHEST, [prefix], again=True)
            return generation[prefix]

    def make_room(self, entries: Sequence[tuple[IndexKeys, Ints]]) -> None:
        """Larger tables for what is about to be put are made before it: that takes long. On the commit loop."""
        more = Counter[bytes]()
        for keys, _ in entries:
            more[keys.prefix] += len(keys)
        for prefix, rows in more.items():
            self._overlay.make_room(prefix, rows, self.lock)

    def put(self, keys: IndexKeys, offsets: Ints) -> None:
        """Name new live offsets of keys of one table; ABSENT, or a flagged offset, for a deleted key. Under `lock`."""
        self._overlay.put(keys, offsets)

    def forget(self, keys: IndexKeys, values: Ints) -> None:
        """Name nothing any more for keys that still have these values. On the commit loop; a rebuild does without."""
        try:
            found = self.find(keys)
        except (Unavailable, Corrupt):
            return
        gone = keys.take(np.flatnonzero(values == found))
        with self.lock:
            self.put(gone, np.full(len(gone), ABSENT, dtype=np.int64))

    def freeze(self, lsn: int) -> None:
        """Begin a checkpoint at `lsn`: what was written so far is to be merged."""
        frozen, older = self._overlay, self._older
        if self._frozen is not None:  # the last checkpoint failed: its entries are still to be merged
            frozen, older = combined(self._frozen, self._overlay), self._older[1:]
        with self.lock:
            self._frozen, self._overlay = frozen, self._overlay.following()
            self._older = (frozen, *older)
            self._frozen_lsn = lsn

    def merge(self, lsn: int) -> None:
        """Put the frozen overlay into LMDB; runs beside the commit loop. A rebuild under way makes it needless."""
        frozen = self._frozen if self._frozen is not None else Overlay()
        with self._writing:
            # LMDB may stand further on, after a rebuild: it then holds what was frozen, or newer.
            # At the same LSN there may be keys that were forgotten since.
            is_newer = lsn > self._merged_lsn or (lsn == self._merged_lsn and len(frozen))
            if not self._problem and (is_newer or self._broken):
                self._write(frozen, lsn)

    def _write(self, entries: Overlay, lsn: int) -> None:
        """Put entries into LMDB in one synced transaction that stands at `lsn`."""
        try:
            self._merger.ask(worker.UNSTAGE)  # a merge that failed may have left some
            for keys, values in entries.parts():
                for first in range(0, len(keys), _STAGE_KEYS):
                    part = slice(first, first + _STAGE_KEYS)
                    self._merger.ask(worker.STAGE, keys.part(part).packed(), values[part])
            self._disk.reach(CrashPoint.INDEX_STAGED)
            self._merged_lsn = self._sized(self._merger.ask(worker.MERGE, lsn=-1 if self._broken else lsn))
            self._disk.reach(CrashPoint.INDEX_MERGED)
        except DamagedIndex as error:
            self.found_problem(f"it is damaged: {error}", damaged=True)
        self._highest = {}

    def merged(self) -> None:
        """End a checkpoint: merged overlays stay as a cache while they are small enough."""
        with self.lock:
            self._frozen = None
            kept, total = [], 0
            for overlay in self._older:
                total += len(overlay)
                if total <= self._cache_keys_max:
                    kept.append(overlay)
            self._older = tuple(kept)

    def begin_rebuild(self) -> None:
        """LMDB stands at nothing until `finish_rebuild`; damaged files are kept beside, under another name."""
        with self._writing:
            if self._damaged:
                self._finder.close()
                self._merger.close()
                self._set_aside()
                self._finder, self._merger = IndexProcess(self._folder), IndexProcess(self._folder)
                self._damaged = False
            self._merger.ask(worker.CLEAR)
            self._staged_bytes = 0
            self._disk.reach(CrashPoint.REBUILD_CLEARED)
            self._broken = {}

    def _set_aside(self) -> None:
        above = self._folder.parent
        if not self._disk.list(self._folder):
            return
        taken = set(self._disk.list(above))
        name = next(name for n in count(1) if (name := f"{self._folder.name}-{DAMAGED}-{n}") not in taken)
        self._disk.rename(self._folder, above / name)
        self._disk.make_folder(self._folder)
        self._disk.sync_folder(above)
        self._disk.reach(CrashPoint.REBUILD_QUARANTINED)
        log.error("the damaged index is kept in %s: look at its disk, then remove it", above / name)

    def stage(self, keys: IndexKeys | Packed, offsets: Ints) -> None:
        """A part of a rebuild; parts are put in together, so no key is in two of them."""
        if len(keys):
            with self._writing:
                packed = keys if isinstance(keys, Packed) else keys.packed()
                self._merger.ask(worker.STAGE, packed, offsets)
            width = packed.width if isinstance(packed, Packed) else len(packed[0])
            self._staged_bytes += len(keys) * (8 + width)
            if self._staged_bytes >= _STAGED_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        """Put what a rebuild has staged into LMDB."""
        with self._writing:
            self._merger.ask(worker.MERGE, lsn=-1)
        self._staged_bytes = 0
        self._disk.reach(CrashPoint.REBUILD_STAGED)

    @property
    def is_flushed(self) -> bool:
        """Whether all that a rebuild has staged is in LMDB."""
        return not self._staged_bytes

    def staged(self, keys: IndexKeys) -> Ints:
        """What a rebuild has put in under these keys so far."""
        if self._staged_bytes:
            self.flush()
        with self._writing:
            return np.frombuffer(self._merger.ask(worker.FIND, keys.packed())[1], dtype=np.int64)

    def finish_rebuild(self, lsn: int, broken: dict[bytes, str]) -> None:
        """The rebuilt index stands at `lsn`, but for tables whose rows are damaged. On the commit loop.

        It holds all that commits made so far, some of it in other slots than they said: their entries are forgotten.
        """
        with self._writing:
            merged_lsn = self._sized(self._merger.ask(worker.MERGE, lsn=-1 if broken else lsn))
            self._disk.reach(CrashPoint.REBUILD_FINISHED)
            with self.lock, self._highest_lock:
                self._overlay, self._older = self._overlay.following(), ()
                self._frozen = Overlay() if self._frozen is not None else None
                self._broken = broken
                self._merged_lsn = self._frozen_lsn = merged_lsn
                self._highest = {}
                self._generation += 1
                self._problem = ""

    def walk(self, prefix: bytes, start: bytes, entries_max: int) -> tuple[int, bytes]:
        """(LSN, `worker.WALKED` and the key to go on from) of some entries of a table, at one snapshot of LMDB."""
        return self._merger.ask(worker.WALK, [prefix, start] if start else [prefix], lsn=entries_max)

    def close(self) -> None:
        """End the worker processes."""
        self._finder.close()
        self._merger.close()


def _listed(keys: IndexKeys, values: Ints) -> tuple[Sequence[bytes], list[int]]:
    return keys.listed(), values.tolist()


def is_live(values: Ints) -> npt.NDArray[np.bool_]:
    """Which values of the index name a live row."""
    return (values >= 0) & (values < FLAG)


def live(values: Ints) -> Ints:
    """Values of the index as readers take them: what is flagged is ABSENT."""
    return np.where(values >= FLAG, ABSENT, values)


def table_prefix(number: int) -> bytes:
    """What every key of a table begins with."""
    return number.to_bytes(PREFIX_BYTES, "big")

"""The entries that lie in LMDB, as earlier releases left them, lifted into runs beside serving.

Their entries become the oldest runs, some millions at once. Once a durable checkpoint names those, LMDB's go, by parts.
No state is kept on disk: after a crash, what LMDB still has is lifted again, below all runs, which changes nothing, for
entries that say ABSENT stay in the runs as long as LMDB has any of their table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.index.entry import PREFIX_BYTES, Ints
from lakestore_server.index.health import Health
from lakestore_server.index.keys import NUMBER_BYTES, ByteKeys, IndexKeys, NumberKeys
from lakestore_server.index.lmdb_keys import LmdbKeys
from lakestore_server.index.run_filter import Numbers
from lakestore_server.index.run_store import RunStore
from lakestore_server.index.worker_client import DamagedIndex

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

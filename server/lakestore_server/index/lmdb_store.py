"""LMDB of the key index: the one module that knows LMDB, in the index's own process. One thread.

Entries are those that earlier releases put in: `table number u32 BE · key bytes` -> `value i64 · check u32`. Under a
mark of one byte, which no key is, stand the LSN of the index and that up to which those releases put entries in, each
i64; theirs alone where the mark has the one.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import struct
import time
from typing import Any

import lmdb
import numpy as np

from lakestore.rows.live_sum import live_sum
from lakestore_server.index.entry import (
    ABSENT,
    DAMAGED,
    FLAG,
    OFFSET_MASK,
    STORED,
    STORED_ABSENT,
    STORED_STRUCT,
    Ints,
    check_of,
    check_of_one,
)
from lakestore_server.index.packed import PackedKeys
from lakestore_server.index.pipe import Size, Walked, pack_ranges

FILE_MODE = 0o640
MARK = b"\x00"
"""The key of the LSN; below all keys of tables."""
_MARKS = struct.Struct("<qq")
_NO_MARKS = _MARKS.pack(-1, -1)
_MARK_BYTES = 8
MAP_BYTES = 1 << 30
"""To begin with; doubled whenever it is full."""
MAP_BYTES_MAX = 1 << 46
WALK_SECONDS_MAX = 900.0
TEMPORARY_ERRORS = (lmdb.MapFullError, lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError, lmdb.LockError)
"""After these the same request may succeed."""
LMDB_ERRORS = (lmdb.Error,)
MapResized = lmdb.MapResizedError
"""The other process has made the map larger: `adopt_map`, then again."""


class LmdbStore:
    """The LMDB environment of one folder."""

    def __init__(self, path: str, map_bytes: int = 0, *, read_only: bool = False) -> None:
        data = os.path.join(path, "data.mdb")
        size = max(map_bytes or MAP_BYTES, os.path.getsize(data) if os.path.exists(data) else 0)
        self._env = lmdb.open(
            path,
            map_size=size + -size % mmap.PAGESIZE,
            subdir=True,
            mode=FILE_MODE,
            sync=True,
            metasync=True,
            writemap=False,
            readahead=False,
            readonly=read_only,
            lock=not read_only,
            create=not read_only,
        )
        if not read_only:
            self._env.reader_check()
        self._walk: lmdb.Transaction | None = None
        self._walk_began = 0.0

    def adopt_map(self) -> None:
        """Take over the size of the map that the other process has chosen."""
        self._end_walk()
        self._env.set_mapsize(0)

    def _grow(self) -> None:
        size = 2 * int(self._env.info()["map_size"])
        if size > MAP_BYTES_MAX:
            raise lmdb.MapFullError(f"the key index has reached {MAP_BYTES_MAX >> 40} TB")
        self._end_walk()
        self._env.set_mapsize(size)

    def lsn(self) -> int:
        """The LSN that the index stands at; -1 when it is empty."""
        with self._env.begin() as txn:
            return _mark(txn)

    def held_lsn(self) -> int:
        """The newest commit of which an earlier release put entries in; -1 for none."""
        with self._env.begin() as txn:
            return _marks(txn)[1]

    def stand_at(self, lsn: int) -> None:
        """Stand at an LSN, in a synced transaction."""
        self.end_old_walk()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    txn.put(MARK, _MARKS.pack(lsn, _marks(txn)[1]))
                return
            except lmdb.MapFullError:
                self._grow()

    def size(self) -> Size:
        """Entries, and bytes of the pages that hold them."""
        stat = self._env.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return Size(max(stat["entries"] - 1, 0), pages * stat["psize"])

    def find(self, wanted: PackedKeys) -> tuple[int, Ints]:
        """The index's LSN and each key's value, ABSENT or DAMAGED, in one snapshot."""
        if len(wanted) == 1:
            return self._found_one(wanted.listed()[0])
        keys, order = wanted.ascending()
        with self._env.begin() as txn:
            lsn = _mark(txn)
            # Two thirds of the time that a cursor's getmulti takes.
            found = b"".join(map(txn.get, keys, itertools.repeat(STORED_ABSENT)))
        offsets = np.full(len(keys), DAMAGED, dtype=np.int64)
        if len(found) != len(keys) * STORED.itemsize:
            return lsn, offsets
        values = np.frombuffer(found, dtype=STORED)
        stored = values["offset"].astype(np.int64)
        there = stored != ABSENT
        if there.any():
            wrong = there & (check_of(keys, stored) != values["check"])
            offsets[order] = np.where(wrong, DAMAGED, stored)
        else:
            offsets[:] = ABSENT
        return lsn, offsets

    def _found_one(self, key: bytes) -> tuple[int, Ints]:
        """`find` of one key: arrays cost more than they save."""
        with self._env.begin() as txn:
            lsn, found = _mark(txn), txn.get(key, STORED_ABSENT)
        value = DAMAGED
        if len(found) == STORED.itemsize:
            stored, check = STORED_STRUCT.unpack(found)
            value = stored if stored == ABSENT or check == check_of_one(key, stored) else DAMAGED
        return lsn, np.array((value,), dtype=np.int64)

    def ranges(self, bounds: list[bytes], most: int) -> tuple[int, bytes]:
        """(LSN, the first entries of each [low, high) by `pack_ranges`), all in one snapshot."""
        counts, keys, values = [], [], []
        with self._env.begin() as txn:
            cursor = txn.cursor()
            for low, high in zip(bounds[::2], bounds[1::2], strict=True):
                found = _entries(cursor, low, high, most)
                counts.append(len(found))
                keys += [key for key, _ in found]
                values += [_sized(value) for _, value in found]
            lsn = _mark(txn)
        stored = np.frombuffer(b"".join(values), dtype=STORED)
        offsets = stored["offset"].astype(np.int64)
        wrong = check_of(keys, offsets) != stored["check"]
        return lsn, pack_ranges(counts, keys, np.where(wrong, DAMAGED, offsets))

    def end_old_walk(self) -> None:
        """End a walk whose snapshot is so old that it keeps pages from being used again; the walk begins anew."""
        if self._walk is not None and time.monotonic() - self._walk_began > WALK_SECONDS_MAX:
            self._end_walk()

    def walk(self, prefix: bytes, start: bytes, entries_max: int) -> tuple[int, Walked]:
        """(LSN, sums) of the next entries of a table, all slices of one walk in one snapshot."""
        if self._walk is None or not start:
            self._end_walk()
            self._walk, self._walk_began = self._env.begin(), time.monotonic()
        count = total = damaged = 0
        keys: list[bytes] = []
        values: list[bytes] = []
        cursor = self._walk.cursor()
        found = cursor.set_range(start or prefix)
        while found and len(keys) < entries_max and bytes(cursor.key()).startswith(prefix):
            keys.append(bytes(cursor.key()))
            values.append(_sized(bytes(cursor.value())))
            found = cursor.next()
        following = bytes(cursor.key()) if found else b""
        following = following if following.startswith(prefix) else b""
        if keys:
            stored = np.frombuffer(b"".join(values), dtype=STORED)
            offsets = stored["offset"].astype(np.int64)
            out_of_order = sum(a >= b for a, b in itertools.pairwise(keys))
            damaged = int((check_of(keys, offsets) != stored["check"]).sum()) + out_of_order
            live = offsets[(offsets & FLAG) == 0] & OFFSET_MASK
            count, total = len(live), live_sum(live)
        lsn = _mark(self._walk)
        if not following:
            self._end_walk()
        return lsn, Walked(count, total, damaged, following)

    def _end_walk(self) -> None:
        if self._walk is not None:
            self._walk.abort()
            self._walk = None

    def highest(self, prefix: bytes) -> bytes:
        """The highest key with a prefix; empty when there is none."""
        after = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
        with self._env.begin() as txn:
            cursor = txn.cursor()
            found = cursor.prev() if cursor.set_range(after) else cursor.last()
            key = cursor.key() if found else b""
        return key if key.startswith(prefix) else b""

    def next_prefix(self, prefix: bytes) -> bytes:
        """The prefix of the first entry at or after the given one; empty when there is none."""
        with self._env.begin() as txn:
            cursor = txn.cursor()
            found = cursor.set_range(max(prefix, MARK + b"\0"))
            return bytes(cursor.key())[: len(prefix)] if found else b""

    def remove(self, prefix: bytes, most: int) -> None:
        """Remove entries with a prefix, so many at most, in one synced transaction; the LSN stays."""
        self.end_old_walk()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    cursor = txn.cursor()
                    if cursor.set_range(prefix):
                        _delete(cursor, prefix, most)
                return
            except lmdb.MapFullError:
                self._grow()

    def clear(self) -> None:
        """Remove everything, the LSN included."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(), delete=False)

    def close(self) -> None:
        """Close the environment."""
        self._end_walk()
        self._env.close()


def _delete(cursor: lmdb.Cursor, prefix: bytes, most: int) -> None:
    """Delete from where the cursor stands; after a deletion it stands at the next entry."""
    for _ in range(most):
        if not bytes(cursor.key()).startswith(prefix) or not cursor.delete():
            return


def _entries(cursor: lmdb.Cursor, low: bytes, high: bytes, most: int) -> list[tuple[bytes, bytes]]:
    """The first entries of [low, high)."""
    found: list[tuple[bytes, bytes]] = []
    if not cursor.set_range(low):
        return found
    following, step = cursor.iternext(), 16
    while len(found) < most:
        part: list[Any] = list(itertools.islice(following, min(step, most - len(found))))
        found += part
        if not part or part[-1][0] >= high:
            break
        step *= 4
    return found[: bisect.bisect_left(found, (high,))]


def _mark(txn: lmdb.Transaction) -> int:
    return _marks(txn)[0]


def _marks(txn: lmdb.Transaction) -> tuple[int, int]:
    """(LSN of the index, newest commit of which an earlier release put entries in)."""
    mark = bytes(txn.get(MARK) or _NO_MARKS)
    lsn, held = _MARKS.unpack(2 * mark if len(mark) == _MARK_BYTES else mark)
    return int(lsn), int(held)


def _sized(value: bytes) -> bytes:
    """A stored value in its width, whatever damage made of its length."""
    return value.ljust(STORED.itemsize, b"\0")[: STORED.itemsize]

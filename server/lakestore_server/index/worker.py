"""The key index's own process: LMDB behind a pipe.

py-lmdb gives up the interpreter lock at every key, so a busy server would wait a switch interval
per key; a process with one thread does not. Run as a file; imports nothing of the package; ends with its pipe.
Request: op u8 · count u32 · key bytes u32 (0: lengths follow) · blob bytes u64 · lsn i64, then
lengths u32[], keys, and with STAGE values i64[].
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import lmdb
import numpy as np
import numpy.typing as npt

REQUEST = struct.Struct("<BIIQq")
REPLY = struct.Struct("<qQ")
FIND, STAGE, MERGE, LSN, CLEAR, HIGHEST, WALK, NEXT, RANGES = 1, 2, 3, 4, 5, 6, 7, 8, 9
UNSTAGE = 16
MARK = b"\x00"
ABSENT, DAMAGED = -1, -2
FLAG = 1 << 62
"""Set in a value that names no live row: the offset, without it, is of a record that is remembered for its key."""
OFFSET_BITS = 45
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""The offset in a value; that of a hashed key has its bucket, plus one, above it."""
FAILED, DAMAGED_FILES = -9, -10
"""In place of an LSN: the answer is LMDB's error. After FAILED the same request may succeed; after DAMAGED_FILES,
which is also a sync that failed, the files must not be used any more."""
MAP_BYTES = 1 << 30
"""To begin with; doubled whenever it is full."""
MAP_BYTES_MAX = 1 << 46
WALKED = struct.Struct("<QQQ")
"""Answer to WALK: live entries, sum of their mixed offsets, damaged ones; then the key to go on from, none: the end."""
SIZE = struct.Struct("<QQ")
WALK_SECONDS_MAX = 900.0
FILL_KEYS = 1_000_000
"""In one transaction that fills an index which stands at nothing."""
_TABLE_BYTES = 4
_SORTED_MIN = 256
"""Of fewer keys the order does not pay."""
_TEMPORARY = (lmdb.MapFullError, lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError, lmdb.LockError)
_VALUE = np.dtype([("offset", "<i8"), ("check", "<u4")])
_NONE = struct.pack("<qI", ABSENT, 0)
Ints = npt.NDArray[np.int64]


def check_of(keys: Iterable[bytes], offsets: Ints) -> npt.NDArray[np.uint32]:
    """A short check over key and offset: LMDB has no page checksums."""
    crcs = np.fromiter(map(zlib.crc32, keys), dtype=np.uint32, count=len(offsets))
    mixed = offsets.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return crcs ^ (mixed >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a request, and the values that come with them."""

    blob: bytes
    count: int
    width: int
    """Bytes of each key; 0: they differ."""
    lengths: bytes
    values: Ints

    def listed(self) -> list[bytes]:
        """The keys one by one."""
        return split(self.blob, self.count, self.width, self.lengths)

    def ascending(self) -> tuple[list[bytes], Ints]:
        """(keys in order, as far as that costs little: neighbours lie on one page; the place of each)."""
        if not self.width or self.count < _SORTED_MIN:
            return self.listed(), np.arange(self.count)
        matrix = _matrix(self.blob, self.width)
        order = _order(matrix)
        return _rows(matrix[order]), order


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Distinct keys in order: as a matrix, which takes a fifth of the memory, where they are of one width."""

    rows: list[bytes] | npt.NDArray[np.uint8]
    values: Ints

    def slice(self, first: int, last: int) -> _Sorted:
        """Some of them."""
        return _Sorted(self.rows[first:last], self.values[first:last])

    def stored(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """(keys, their values as they are stored, keys to be removed)."""
        keys = self.rows if isinstance(self.rows, list) else _rows(self.rows)
        kept = self.values != ABSENT
        gone = [] if kept.all() else list(itertools.compress(keys, (~kept).tolist()))
        keys = list(itertools.compress(keys, kept.tolist())) if gone else keys
        values = np.empty(len(keys), dtype=_VALUE)
        values["offset"] = self.values[kept]
        values["check"] = check_of(keys, self.values[kept])
        return keys, values.view("V12").tolist(), gone


def _merged(parts: list[Keys]) -> Iterator[_Sorted]:
    """Staged parts in order; of a key's values in the parts of one kind, the last."""
    fixed: dict[int, list[Keys]] = {}
    for part in parts:
        fixed.setdefault(part.width, []).append(part)
    varying: dict[bytes, int] = {}
    for part in fixed.pop(0, []):
        varying.update(zip(part.listed(), part.values.tolist(), strict=True))
    if varying:
        keys = sorted(varying)
        yield _Sorted(keys, np.fromiter(map(varying.__getitem__, keys), dtype=np.int64, count=len(keys)))
    for width, same in sorted(fixed.items()):
        matrix = _matrix(b"".join([part.blob for part in same]), width)
        order = _order(matrix)
        matrix, values = matrix[order], np.concatenate([part.values for part in same])[order]
        last = np.append((matrix[1:] != matrix[:-1]).any(axis=1), True)
        yield _Sorted(matrix, values) if last.all() else _Sorted(matrix[last], values[last])


def _matrix(blob: bytes, width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(blob, dtype=np.uint8).reshape(-1, width)


def _rows(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").ravel().tolist()
    return rows


def _order(matrix: npt.NDArray[np.uint8]) -> Ints:
    """The order of keys of one width, as numbers of eight bytes; equal ones stay as they came."""
    rows, width = matrix.shape
    first = (
        _TABLE_BYTES if width > _TABLE_BYTES and (matrix[:, :_TABLE_BYTES] == matrix[:1, :_TABLE_BYTES]).all() else 0
    )
    words = []
    for at in range(first, width, 8):
        word = np.zeros((rows, 8), dtype=np.uint8)
        word[:, : min(8, width - at)] = matrix[:, at : at + 8]
        words.append(word.view(">u8").ravel().astype(np.uint64))
    return np.lexsort(words[::-1])


def split(blob: bytes, count: int, width: int, lengths: bytes) -> list[bytes]:
    """The keys of a request."""
    if not count:
        return []
    if width:
        keys: list[bytes] = np.frombuffer(blob, dtype=f"V{width}").tolist()
        return keys
    ends = np.cumsum(np.frombuffer(lengths, dtype=np.uint32)).tolist()
    return [blob[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


class Store:
    """The LMDB environment."""

    def __init__(self, path: str, map_bytes: int = 0, *, read_only: bool = False) -> None:
        data = os.path.join(path, "data.mdb")
        size = max(map_bytes or MAP_BYTES, os.path.getsize(data) if os.path.exists(data) else 0)
        self._env = lmdb.open(
            path,
            map_size=size + -size % mmap.PAGESIZE,
            subdir=True,
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
        self._staged: list[Keys] = []
        self._walk: lmdb.Transaction | None = None
        self._walk_began = 0.0

    def adopt_map(self) -> None:
        """Take over the size that the other process gave the map."""
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

    def size(self) -> bytes:
        """Entries, and bytes of the pages that hold them, as `SIZE` packs them."""
        stat = self._env.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return SIZE.pack(max(stat["entries"] - 1, 0), pages * stat["psize"])

    def find(self, asked: Keys) -> tuple[int, Ints]:
        """The index's LSN and each key's offset, ABSENT or DAMAGED, in one snapshot."""
        keys, order = asked.ascending()
        with self._env.begin() as txn:
            lsn = _mark(txn)
            found = b"".join(
                map(txn.get, keys, itertools.repeat(_NONE))
            )  # two thirds of what a cursor's getmulti takes
        offsets = np.full(len(keys), DAMAGED, dtype=np.int64)
        if len(found) != len(keys) * _VALUE.itemsize:
            return lsn, offsets
        values = np.frombuffer(found, dtype=_VALUE)
        stored = values["offset"].astype(np.int64)
        there = stored != ABSENT
        if there.any():
            wrong = there & (check_of(keys, stored) != values["check"])
            offsets[order] = np.where(wrong, DAMAGED, stored)
        else:
            offsets[:] = ABSENT
        return lsn, offsets

    def ranges(self, bounds: list[bytes], most: int) -> tuple[int, bytes]:
        """(LSN, the first entries of each [low, high) as `pack_ranges` has them), all in one snapshot."""
        counts, keys, values = [], [], []
        with self._env.begin() as txn:
            cursor = txn.cursor()
            for low, high in zip(bounds[::2], bounds[1::2], strict=True):
                found = _entries(cursor, low, high, most)
                counts.append(len(found))
                keys += [key for key, _ in found]
                values += [value.ljust(12, b"\0")[:12] for _, value in found]
            lsn = _mark(txn)
        stored = np.frombuffer(b"".join(values), dtype=_VALUE)
        offsets = stored["offset"].astype(np.int64)
        wrong = check_of(keys, offsets) != stored["check"]
        return lsn, pack_ranges(counts, keys, np.where(wrong, DAMAGED, offsets))

    def stage(self, part: Keys) -> None:
        """Keep a part of the next merge; ABSENT removes the key."""
        self._staged.append(part)

    def unstage(self) -> None:
        """Forget what is staged."""
        self._staged = []

    def merge(self, lsn: int) -> None:
        """Put all staged keys in, sorted, in one synced transaction with the LSN inside.

        An index that stands at nothing is filled by several transactions: the pages of one are held in memory.
        """
        self.end_old_walk()
        staged, self._staged = self._staged, []
        parts = list(_merged(staged))
        if lsn < 0:
            parts = [part.slice(at, at + FILL_KEYS) for part in parts for at in range(0, len(part.values), FILL_KEYS)]
            for part in parts[:-1]:
                self._put_growing([part], lsn)
            parts = parts[-1:]
        self._put_growing(parts, lsn)

    def _put_growing(self, parts: list[_Sorted], lsn: int) -> None:
        while True:
            try:
                self._put(parts, lsn)
                return
            except lmdb.MapFullError:
                self._grow()

    def _put(self, parts: list[_Sorted], lsn: int) -> None:
        with self._env.begin(write=True) as txn:
            cursor = txn.cursor()
            for part in parts:
                keys, packed, gone = part.stored()
                # What lies above every key fills its pages and is put without a search.
                highest = cursor.key() if cursor.last() else b""
                above = bisect.bisect_right(keys, highest)
                cursor.putmulti(zip(keys[:above], packed[:above], strict=True))
                cursor.putmulti(zip(keys[above:], packed[above:], strict=True), append=True)
                for key in gone:
                    txn.delete(key)
            txn.put(MARK, struct.pack("<q", lsn))

    def end_old_walk(self) -> None:
        """A snapshot that is read for too long keeps pages from being used again: its walk begins anew."""
        if self._walk is not None and time.monotonic() - self._walk_began > WALK_SECONDS_MAX:
            self._end_walk()

    def walk(self, prefix: bytes, start: bytes, entries_max: int) -> tuple[int, bytes]:
        """(LSN, figures) of the next entries of a table, all slices of one walk in one snapshot."""
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
            values.append(bytes(cursor.value()).ljust(12, b"\0")[:12])
            found = cursor.next()
        following = bytes(cursor.key()) if found else b""
        following = following if following.startswith(prefix) else b""
        if keys:
            stored = np.frombuffer(b"".join(values), dtype=_VALUE)
            offsets = stored["offset"].astype(np.int64)
            out_of_order = sum(a >= b for a, b in itertools.pairwise(keys))
            damaged = int((check_of(keys, offsets) != stored["check"]).sum()) + out_of_order
            live = offsets[(offsets & FLAG) == 0] & OFFSET_MASK
            count, total = len(live), int(_mixed(live).sum(dtype=np.uint64))
        lsn = _mark(self._walk)
        if not following:
            self._end_walk()
        return lsn, WALKED.pack(count, total, damaged) + following

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
        """The prefix of the first entry at or after this one; empty when there is none."""
        with self._env.begin() as txn:
            cursor = txn.cursor()
            found = cursor.set_range(max(prefix, MARK + b"\0"))
            return bytes(cursor.key())[: len(prefix)] if found else b""

    def clear(self) -> None:
        """Remove everything, the mark and what is staged included."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(), delete=False)
        self.unstage()

    def close(self) -> None:
        """Close the environment."""
        self._end_walk()
        self._env.close()


def _mixed(offsets: Ints) -> npt.NDArray[np.uint64]:
    """As `lakestore.livesum.mixed`, which a file that imports nothing of the package cannot import."""
    x = offsets.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


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


def pack_ranges(counts: list[int], keys: list[bytes], offsets: Ints) -> bytes:
    """The answer to RANGES: entries of each range u32[], key lengths u32[], offsets i64[], keys."""
    lengths = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys))
    return np.array(counts, dtype=np.uint32).tobytes() + lengths.tobytes() + offsets.tobytes() + b"".join(keys)


def unpack_ranges(data: bytes, ranges: int) -> list[tuple[list[bytes], Ints]]:
    """(keys, offsets) of each range that `pack_ranges` packed."""
    counts = np.frombuffer(data, dtype=np.uint32, count=ranges).tolist()
    total = sum(counts)
    at = 4 * ranges
    lengths, values = data[at : at + 4 * total], data[at + 4 * total : at + 12 * total]
    offsets = np.frombuffer(values, dtype=np.int64)
    keys = split(data[at + 12 * total :], total, 0, lengths)
    ends = list(itertools.accumulate(counts))
    return [(keys[a:b], offsets[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _mark(txn: lmdb.Transaction) -> int:
    mark = txn.get(MARK)
    return int(struct.unpack("<q", mark)[0]) if mark else -1


def read_exactly(pipe: IO[bytes], size: int) -> bytes:
    """`size` bytes, or EOFError."""
    parts = []
    while size:
        part = pipe.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(slots=True)
class _Request:
    op: int
    lsn: int
    asked: Keys

    @property
    def keys(self) -> list[bytes]:
        """The keys one by one."""
        return self.asked.listed()


def _read(pipe: IO[bytes]) -> _Request:
    op, count, width, size, lsn = REQUEST.unpack(read_exactly(pipe, REQUEST.size))
    lengths = b"" if width or not count else read_exactly(pipe, 4 * count)
    blob = read_exactly(pipe, size)
    values = np.frombuffer(read_exactly(pipe, 8 * count) if op == STAGE else b"", dtype=np.int64)
    return _Request(op, lsn, Keys(blob, count, width, lengths, values))


def _answer(store: Store, request: _Request) -> tuple[int, bytes]:
    op = request.op
    if op == FIND:
        found_lsn, offsets = store.find(request.asked)
        return found_lsn, offsets.tobytes()
    if op == RANGES:
        return store.ranges(request.keys, request.lsn)
    if op == WALK:
        return store.walk(request.keys[0], request.keys[1] if len(request.keys) > 1 else b"", request.lsn)
    if op == NEXT:
        return store.lsn(), store.next_prefix(request.keys[0])
    if op == STAGE:
        store.stage(request.asked)
    elif op == MERGE:
        store.merge(request.lsn)
    elif op == CLEAR:
        store.clear()
    elif op == UNSTAGE:
        store.unstage()
    return store.lsn(), store.highest(request.asked.blob) if op == HIGHEST else store.size()


def _answered(store: Store, request: _Request) -> tuple[int, bytes]:
    """The answer; errors of LMDB are answers, too."""
    try:
        try:
            return _answer(store, request)
        except lmdb.MapResizedError:
            store.adopt_map()
            return _answer(store, request)
    except _TEMPORARY as error:
        return FAILED, str(error).encode()
    except (lmdb.Error, struct.error, ValueError) as error:
        return DAMAGED_FILES, f"{type(error).__name__}: {error}".encode()


def main() -> None:
    """Serve requests from standard input until it closes."""
    requests, replies = os.fdopen(0, "rb", buffering=1 << 20), os.fdopen(1, "wb", buffering=0)
    store: Store | None = None
    while True:
        try:
            request = _read(requests)
            try:
                store = store or Store(sys.argv[1], int(sys.argv[2]), read_only=sys.argv[3] == "1")
                lsn, data = _answered(store, request)
            except _TEMPORARY as error:
                lsn, data = FAILED, str(error).encode()
            except lmdb.Error as error:
                lsn, data = DAMAGED_FILES, f"it cannot be opened: {error}".encode()
            replies.write(REPLY.pack(lsn, len(data)) + data)
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            if store:
                store.close()
            return


if __name__ == "__main__":
    main()

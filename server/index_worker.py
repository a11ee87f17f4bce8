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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

import lmdb
import numpy as np
import numpy.typing as npt

REQUEST = struct.Struct("<BIIQq")
REPLY = struct.Struct("<qQ")
FIND, STAGE, MERGE, LSN, CLEAR, HIGHEST, WALK, NEXT, RANGES = 1, 2, 3, 4, 5, 6, 7, 8, 9
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
WALK_SECONDS_MAX = 900.0
_TEMPORARY = (lmdb.MapFullError, lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError, lmdb.LockError)
_VALUE = np.dtype([("offset", "<i8"), ("check", "<u4")])
Ints = npt.NDArray[np.int64]


def check_of(keys: Iterable[bytes], offsets: Ints) -> npt.NDArray[np.uint32]:
    """A short check over key and offset: LMDB has no page checksums."""
    crcs = np.fromiter(map(zlib.crc32, keys), dtype=np.uint32, count=len(offsets))
    mixed = offsets.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return crcs ^ (mixed >> np.uint64(32)).astype(np.uint32)


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
        self._staged: dict[bytes, int] = {}
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

    def find(self, keys: list[bytes]) -> tuple[int, Ints]:
        """The index's LSN and each key's offset, ABSENT or DAMAGED, in one snapshot."""
        with self._env.begin() as txn:
            lsn = _mark(txn)
            found = dict(txn.cursor().getmulti(keys))
        if not found:
            return lsn, np.full(len(keys), ABSENT, dtype=np.int64)
        none = struct.pack("<qI", ABSENT, 0)
        values = np.frombuffer(b"".join([found.get(key, none) for key in keys]), dtype=_VALUE)
        offsets = values["offset"].astype(np.int64)
        wrong = (check_of(keys, offsets) != values["check"]) & (offsets != ABSENT)
        return lsn, np.where(wrong, DAMAGED, offsets)

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

    def stage(self, keys: list[bytes], offsets: Ints) -> None:
        """Keep a part of the next merge; ABSENT removes the key."""
        self._staged.update(zip(keys, offsets.tolist(), strict=True))

    def merge(self, lsn: int) -> None:
        """Put all staged keys in, sorted, in one synced transaction with the LSN inside."""
        self.end_old_walk()
        staged, self._staged = self._staged, {}
        keys = sorted(key for key, offset in staged.items() if offset != ABSENT)
        offsets = np.fromiter(map(staged.__getitem__, keys), dtype=np.int64, count=len(keys))
        values = np.empty(len(keys), dtype=_VALUE)
        values["offset"], values["check"] = offsets, check_of(keys, offsets)
        packed = values.view("V12").tolist()
        gone = [key for key, offset in staged.items() if offset == ABSENT]
        while True:
            try:
                self._put(keys, packed, gone, lsn)
                return
            except lmdb.MapFullError:
                self._grow()

    def _put(self, keys: list[bytes], packed: list[bytes], gone: list[bytes], lsn: int) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(keys, packed, strict=True))
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
        """Remove everything, the mark included."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(), delete=False)

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


def split(blob: bytes, count: int, width: int, lengths: bytes) -> list[bytes]:
    """The keys of a request."""
    if not count:
        return []
    if width:
        keys: list[bytes] = np.frombuffer(blob, dtype=f"V{width}").tolist()
        return keys
    ends = np.cumsum(np.frombuffer(lengths, dtype=np.uint32)).tolist()
    return [blob[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


@dataclass(slots=True)
class _Request:
    op: int
    lsn: int
    keys: list[bytes]
    blob: bytes
    values: Ints


def _read(pipe: IO[bytes]) -> _Request:
    op, count, width, size, lsn = REQUEST.unpack(read_exactly(pipe, REQUEST.size))
    lengths = b"" if width or not count else read_exactly(pipe, 4 * count)
    blob = read_exactly(pipe, size)
    values = np.frombuffer(read_exactly(pipe, 8 * count) if op == STAGE else b"", dtype=np.int64)
    return _Request(op, lsn, split(blob, count, width, lengths), blob, values)


def _answer(store: Store, request: _Request) -> tuple[int, bytes]:
    op = request.op
    if op == FIND:
        found_lsn, offsets = store.find(request.keys)
        return found_lsn, offsets.tobytes()
    if op == RANGES:
        return store.ranges(request.keys, request.lsn)
    if op == WALK:
        return store.walk(request.keys[0], request.keys[1] if len(request.keys) > 1 else b"", request.lsn)
    if op == NEXT:
        return store.lsn(), store.next_prefix(request.keys[0])
    if op == STAGE:
        store.stage(request.keys, request.values)
    elif op == MERGE:
        store.merge(request.lsn)
    elif op == CLEAR:
        store.clear()
    return store.lsn(), store.highest(request.blob) if op == HIGHEST else b""


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

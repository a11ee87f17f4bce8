"""The key index's own process: LMDB behind a pipe.

py-lmdb gives up the interpreter lock at every key, so a busy server would wait a switch interval
per key; a process with one thread does not. Run as a file; imports nothing of the package; ends with its pipe.
Request: op u8 · count u32 · key bytes u32 (0: lengths follow) · blob bytes u64 · lsn i64, then
lengths u32[], keys, and with STAGE values i64[].
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Iterable
from typing import IO

import lmdb
import numpy as np
import numpy.typing as npt

REQUEST = struct.Struct("<BIIQq")
REPLY = struct.Struct("<qQ")
FIND, STAGE, MERGE, LSN, CLEAR, HIGHEST = 1, 2, 3, 4, 5, 6
MARK = b"\x00"
ABSENT, DAMAGED = -1, -2
FAILED = -9
"""In place of an LSN: the answer is LMDB's error."""
MAP_BYTES = 1 << 38
_VALUE = np.dtype([("offset", "<i8"), ("check", "<u4")])
Ints = npt.NDArray[np.int64]


def check_of(keys: Iterable[bytes], offsets: Ints) -> npt.NDArray[np.uint32]:
    """A short check over key and offset: LMDB has no page checksums."""
    crcs = np.fromiter(map(zlib.crc32, keys), dtype=np.uint32, count=len(offsets))
    mixed = offsets.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return crcs ^ (mixed >> np.uint64(32)).astype(np.uint32)


class Store:
    """The LMDB environment."""

    def __init__(self, path: str) -> None:
        self._env = lmdb.open(
            path, map_size=MAP_BYTES, subdir=True, sync=True, metasync=True, writemap=False, readahead=False
        )
        self._staged: dict[bytes, int] = {}

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

    def stage(self, keys: list[bytes], offsets: Ints) -> None:
        """Keep a part of the next merge; ABSENT removes the key."""
        self._staged.update(zip(keys, offsets.tolist(), strict=True))

    def merge(self, lsn: int) -> None:
        """Put all staged keys in, sorted, in one synced transaction with the LSN inside."""
        staged, self._staged = self._staged, {}
        keys = sorted(key for key, offset in staged.items() if offset != ABSENT)
        offsets = np.fromiter(map(staged.__getitem__, keys), dtype=np.int64, count=len(keys))
        values = np.empty(len(keys), dtype=_VALUE)
        values["offset"], values["check"] = offsets, check_of(keys, offsets)
        packed = values.view("V12").tolist()
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(keys, packed, strict=True))
            for key, offset in staged.items():
                if offset == ABSENT:
                    txn.delete(key)
            txn.put(MARK, struct.pack("<q", lsn))

    def highest(self, prefix: bytes) -> bytes:
        """The highest key with a prefix; empty when there is none."""
        after = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
        with self._env.begin() as txn:
            cursor = txn.cursor()
            found = cursor.prev() if cursor.set_range(after) else cursor.last()
            key = cursor.key() if found else b""
        return key if key.startswith(prefix) else b""

    def clear(self) -> None:
        """Remove everything, the mark included."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(), delete=False)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


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


def _answer(store: Store, pipe: IO[bytes]) -> tuple[int, bytes]:
    op, count, width, size, lsn = REQUEST.unpack(read_exactly(pipe, REQUEST.size))
    lengths = b"" if width or not count else read_exactly(pipe, 4 * count)
    blob = read_exactly(pipe, size)
    if op == FIND:
        found_lsn, offsets = store.find(split(blob, count, width, lengths))
        return found_lsn, offsets.tobytes()
    if op == STAGE:
        store.stage(split(blob, count, width, lengths), np.frombuffer(read_exactly(pipe, 8 * count), dtype=np.int64))
    elif op == MERGE:
        store.merge(lsn)
    elif op == CLEAR:
        store.clear()
    return store.lsn(), store.highest(blob) if op == HIGHEST else b""


def main() -> None:
    """Serve requests from standard input until it closes."""
    store = Store(sys.argv[1])
    requests, replies = os.fdopen(0, "rb", buffering=1 << 20), os.fdopen(1, "wb", buffering=0)
    while True:
        try:
            lsn, data = _answer(store, requests)
        except lmdb.Error as error:
            lsn, data = FAILED, str(error).encode()
        except (EOFError, KeyboardInterrupt):
            store.close()
            return
        try:
            replies.write(REPLY.pack(lsn, len(data)) + data)
        except (BrokenPipeError, KeyboardInterrupt):
            store.close()
            return


if __name__ == "__main__":
    main()

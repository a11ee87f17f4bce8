"""The pipe to the key index's own process: requests and answers as bytes, encoded and decoded here.

Request: op u8 · count u32 · key bytes u32 (0: lengths follow) · blob bytes u64 · number i64, then lengths u32[] and
keys (padded to 8 bytes each, if they have lengths). Answer: LSN i64 · bytes u64, then the data.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import IO

import numpy as np

from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.host.bounded_pipe import Readable, exactly
from lakestore_server.index.entry import Ints
from lakestore_server.index.packed import PackedKeys

FAILED, DAMAGED_FILES = -9, -10
"""In place of an LSN: the answer is LMDB's error. After FAILED the same request may succeed; after DAMAGED_FILES,
which is also a sync that failed, the files must not be used any more."""
_REQUEST = struct.Struct("<BIIQq")
_ANSWER = struct.Struct("<qQ")
_WALKED = struct.Struct("<QQQ")
_SIZE = struct.Struct("<QQ")
NO_KEYS = PackedKeys(b"", 0, 0)


class Op(IntEnum):
    """The kinds of requests; FIND, RANGES, WALK, NEXT and HIGHEST have data of their own, all others the `Size`.

    The last three are of a process that merges runs, and has no LMDB: `merge_apart`.
    """

    FIND = 1
    STAND_AT = 3
    LSN = 4
    CLEAR = 5
    HIGHEST = 6
    WALK = 7
    NEXT = 8
    RANGES = 9
    REMOVE = 10
    HELD_LSN = 11
    MERGE_RUNS = 32
    GO_ON = 33
    STOP = 34


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    op: Op
    keys: PackedKeys = NO_KEYS
    number: int = 0
    """The LSN of STAND_AT; of RANGES, WALK and REMOVE the most entries."""

    @staticmethod
    def of(op: Op, keys: Sequence[bytes] | PackedKeys, number: int) -> Request:
        """A request for keys, which are packed unless they are so already."""
        return Request(op, keys if isinstance(keys, PackedKeys) else PackedKeys.of(keys), number)

    def encode(self) -> bytes:
        """The request's bytes."""
        keys = self.keys
        head = _REQUEST.pack(self.op, len(keys), keys.width, len(keys.blob), self.number)
        return b"".join((head, keys.lengths, keys.blob))

    @staticmethod
    def read(pipe: IO[bytes]) -> Request:
        """The next request; EOFError at the pipe's end."""
        op, count, width, size, number = _REQUEST.unpack(exactly(pipe, _REQUEST.size))
        lengths = b"" if width or not count else exactly(pipe, 4 * count)
        blob = exactly(pipe, size)
        return Request(Op(op), PackedKeys(blob, count, width, lengths), number)


@dataclass(frozen=True, slots=True)
class Answer:
    """The index's LSN, FAILED or DAMAGED_FILES; and data, or the error."""

    lsn: int
    data: bytes

    def encode(self) -> bytes:
        """The answer's bytes."""
        return _ANSWER.pack(self.lsn, len(self.data)) + self.data

    @staticmethod
    def read(pipe: Readable) -> Answer:
        """The next answer; EOFError at the pipe's end."""
        lsn, size = _ANSWER.unpack(exactly(pipe, _ANSWER.size))
        return Answer(lsn, exactly(pipe, size))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of what an index holds."""

    entries: int = 0
    """Keys at least: of one there may be several."""
    nbytes: int = 0
    """The pages in use; the file also has free ones, and does not shrink."""

    @property
    def entry_bytes(self) -> float:
        """Bytes per entry; 0 without entries."""
        return self.nbytes / self.entries if self.entries else 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.entries + other.entries, self.nbytes + other.nbytes)

    def encode(self) -> bytes:
        """The bytes of an answer."""
        return _SIZE.pack(self.entries, self.nbytes)

    @staticmethod
    def decode(data: bytes) -> Size:
        """From an answer's data."""
        return Size(*_SIZE.unpack(data))


@dataclass(frozen=True, slots=True)
class Walked:
    """The sums of some entries of a table, and where the walk goes on."""

    live: int
    """Live entries."""
    total: int
    """Their live sum."""
    damaged: int
    following: bytes
    """The key to go on from; empty at the end."""

    def encode(self) -> bytes:
        """The bytes of an answer."""
        return _WALKED.pack(self.live, self.total, self.damaged) + self.following

    @staticmethod
    def decode(data: bytes) -> Walked:
        """From an answer's data."""
        live, total, damaged = _WALKED.unpack_from(data)
        return Walked(live, total, damaged, data[_WALKED.size :])


def pack_ranges(counts: list[int], keys: Sequence[bytes], values: Ints) -> bytes:
    """The data of RANGES: entries of each range u32[], key lengths u32[], values i64[], padded keys."""
    packed = PackedKeys.of_padded(PaddedBytes.of(keys))
    return np.array(counts, dtype=np.uint32).tobytes() + packed.lengths + values.tobytes() + packed.blob


def unpack_ranges(data: bytes, ranges: int) -> list[tuple[list[bytes], Ints]]:
    """(keys, values) of each range that `pack_ranges` packed."""
    counts = np.frombuffer(data, dtype=np.uint32, count=ranges).tolist()
    total = sum(counts)
    at = 4 * ranges
    lengths, values = data[at : at + 4 * total], np.frombuffer(data, np.int64, total, at + 4 * total)
    keys = PackedKeys(data[at + 12 * total :], total, 0, lengths).listed()
    ends = list(itertools.accumulate(counts))
    return [(keys[a:b], values[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

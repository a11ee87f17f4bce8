"""The format of a run: an immutable file of the index's entries of keys that are numbers, in order, table by table.

Header: magic u32 · version u16 · flags u16. Then of each table its entries (number u64 · packed value u64), every 32nd
number, and the words of a filter, each at a multiple of 512, so that the 32 entries of a sample lie in one block. Then
the CRC32C of each block of 64 KB before (u32 each), the directory (JSON: the place of each table's parts) and the
footer: directory bytes u32 · checksums u32 · crc32c u32 of header, checksums and directory · magic u32. A packed value
is offset (45 bits), flag (1 bit) and the entry's own check (18 bits).

A key is found by the samples, then in five steps within its 32 entries: 0.2 µs a key of 50 M in one table, measured,
where one search over all takes 0.8 and LMDB 2. The filter spares nearly all searches for keys that are not here.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host import versions
from lakestore_server.index.entry import ABSENT, DAMAGED, FLAG, OFFSET_BITS, OFFSET_MASK, PREFIX_BYTES, Ints
from lakestore_server.index.run_file import RunFile
from lakestore_server.index.worker_client import DamagedIndex

Numbers = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
MAGIC, VERSION = 0x4C53524E, 1
SUFFIX = ".run"
HEADER = struct.Struct("<IHH")
FOOTER = struct.Struct("<IIII")
HEADER_BYTES = 512
BLOCK_BYTES = 64 << 10
_BLOCK_WORDS = BLOCK_BYTES // 8
ENTRY_BYTES = 16
SAMPLED = 32
"""Entries for each sample."""
ALIGNED = SAMPLED * ENTRY_BYTES
"""Each part begins at a multiple of it."""
FILTER_BITS = 10
"""Bits of the filter for each key: one search in fifty is in vain."""
_FEW = 8
_WORD = 64
_STEPS = tuple(2 << n for n in reversed(range(SAMPLED.bit_length() - 1)))
"""Words to go within the entries of a sample: 32, 16, 8, 4, 2."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INT, _WORD_MASK = int(_FACTOR), (1 << 64) - 1
_HALF, _MIX = np.uint64(32), np.uint64(29)
_BITS = tuple(np.uint64(shift) for shift in (6, 12, 18))
_SIX, _ONE = np.uint64(63), np.uint64(1)
_LOW_BITS = OFFSET_BITS + 1
"""Bits of a packed value below its check."""
_CHECK_BITS = 64 - _LOW_BITS
_LOW_INT = (1 << _LOW_BITS) - 1
_LOW = np.uint64(_LOW_INT)
_PACKED_FLAG = np.uint64(1 << OFFSET_BITS)
_GONE = np.uint64(OFFSET_MASK)
"""The offset that stands for ABSENT; no log is that long."""


class SectionPlace(NamedTuple):
    """The place of a table's entries in a run."""

    number: int
    """The table's."""
    width: int
    """Bytes of its keys behind the prefix."""
    at: int
    """First byte of the entries, then those of the samples and of the filter."""
    entries: int
    samples_at: int
    filter_at: int
    filter_words: int


def packed(numbers: Numbers, values: Ints) -> Numbers:
    """Values as a run holds them beside their numbers."""
    offsets = values.view(np.uint64) & np.uint64(OFFSET_MASK)  # of ABSENT, all bits are set
    offsets |= np.where((values & FLAG != 0) & (values != ABSENT), _PACKED_FLAG, np.uint64(0))
    return offsets | (_check_of(numbers, offsets) << np.uint64(_LOW_BITS))


def unpacked(numbers: Numbers, stored: Numbers) -> Ints:
    """The values of entries; DAMAGED for one that does not match its check."""
    low = stored & _LOW
    values = (low & _GONE).view(np.int64)
    values[values == OFFSET_MASK] = ABSENT
    values[low & _PACKED_FLAG != 0] |= FLAG
    values[_check_of(numbers, low) != stored >> np.uint64(_LOW_BITS)] = DAMAGED
    return values


def _unpacked_one(number: int, stored: int) -> int:
    """`unpacked` of one entry."""
    low = stored & _LOW_INT
    mixed = number * _FACTOR_INT & _WORD_MASK
    mixed = ((mixed ^ mixed >> 32) + low) * _FACTOR_INT & _WORD_MASK
    if mixed >> 64 - _CHECK_BITS != stored >> _LOW_BITS:
        return DAMAGED
    offset = low & OFFSET_MASK
    if offset == OFFSET_MASK:
        return ABSENT
    return offset | FLAG if low >> OFFSET_BITS else offset


def is_gone(stored: Numbers) -> Flags:
    """Which packed values say that there is no entry."""
    gone: Flags = stored & _LOW == _GONE
    return gone


def _check_of(numbers: Numbers, low: Numbers) -> Numbers:
    mixed = numbers * _FACTOR
    mixed ^= mixed >> _HALF
    mixed += low
    mixed *= _FACTOR
    mixed >>= np.uint64(64 - _CHECK_BITS)
    return mixed


@dataclass(frozen=True, slots=True)
class Wanted:
    """Ascending numbers that are looked for, with what they are to every filter."""

    numbers: Numbers
    mixed: Numbers
    """32 bits of each, from which a filter's size gives the word."""
    bits: Numbers
    """The bits of each that are set in its word."""

    @staticmethod
    def of(numbers: Numbers) -> Wanted:
        """Numbers as a filter sees them."""
        mixed = numbers * _FACTOR
        mixed ^= mixed >> _MIX
        mixed *= _FACTOR
        bits = _ONE << (mixed & _SIX)
        for shift in _BITS:
            bits |= _ONE << ((mixed >> shift) & _SIX)
        mixed >>= _HALF
        return Wanted(numbers, mixed, bits)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Ints) -> Wanted:
        """Some of the numbers."""
        return Wanted(self.numbers.take(rows), self.mixed.take(rows), self.bits.take(rows))

    def words(self, count: int) -> Ints:
        """The word of each in a filter of so many words."""
        words = self.mixed * np.uint64(count)
        words >>= _HALF
        return words.view(np.int64)


def filter_place(number: int, words: int) -> tuple[int, int]:
    """(the filter's word, the bits set there) of one number."""
    mixed = number * _FACTOR_INT & _WORD_MASK
    mixed ^= mixed >> 29
    mixed = mixed * _FACTOR_INT & _WORD_MASK
    bits = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63) | 1 << (mixed >> 18 & 63)
    return (mixed >> 32) * words >> 32, bits


class Section:
    """The entries of one table in a run."""

    __slots__ = ("_at", "_entries", "_filter", "_samples", "_views", "count", "highest", "run", "width")

    def __init__(self, run: Run, place: SectionPlace) -> None:
        self.run, self.count, self.width = run, place.entries, place.width
        self._entries = run.words(place.at, 2 * place.entries)
        self._at = place.at // 8
        self._samples = run.words(place.samples_at, -(-place.entries // SAMPLED))
        self._filter = run.words(place.filter_at, place.filter_words)
        self._views = self._entries.data, self._samples.data, self._filter.data
        run.check(np.array([self._at + len(self._entries) - 2], dtype=np.int64))
        self.highest = int(self._entries[-2])
        """The greatest number."""

    def find(self, wanted: Wanted) -> Ints:
        """The values of ascending numbers: ABSENT where an entry says so, `MISS` where there is none."""
        numbers = wanted.numbers
        if not len(numbers) or int(numbers[0]) > self.highest:
            return np.full(len(numbers), MISS, dtype=np.int64)
        if len(numbers) <= _FEW:
            return np.array(list(map(self.one, numbers.tolist())), dtype=np.int64)
        found = np.full(len(numbers), MISS, dtype=np.int64)
        held = self._filter.take(wanted.words(len(self._filter)))
        held &= wanted.bits
        rows = np.flatnonzero(held == wanted.bits)
        if not len(rows):
            return found
        numbers = numbers if len(rows) == len(numbers) else numbers.take(rows)
        at = self._places(numbers)
        self.run.check(at + self._at)
        there = np.flatnonzero(self._entries.take(at) == numbers)
        stored = self._entries.take(at[there] + 1)
        found[rows[there]] = unpacked(numbers[there], stored)
        return found

    def _places(self, numbers: Numbers) -> Ints:
        """The word of the last entry that is not above each of these ascending numbers, or of the first entry."""
        at = self._samples.searchsorted(numbers, "right")
        at -= 1
        np.maximum(at, 0, out=at)
        at *= 2 * SAMPLED
        last = len(self._entries) - 2
        for step in _STEPS:
            probe = at + step
            np.minimum(probe, last, out=probe)
            np.copyto(at, probe, where=self._entries.take(probe) <= numbers)
        return at

    def one(self, number: int) -> int:
        """`find` of one number: arrays cost more than they save."""
        entries, _, words = self._views
        place, bits = filter_place(number, len(words))
        if words[place] & bits != bits:
            return MISS
        first, near = self._near(number)
        at = bisect.bisect_left(near, number)
        if at == len(near) or near[at] != number:
            return MISS
        return _unpacked_one(number, entries[first + 2 * at + 1])

    def _near(self, number: int) -> tuple[int, Sequence[int]]:
        """(the first word of the entries of one sample, their numbers): this number is there or nowhere."""
        entries, samples, _ = self._views
        first = 2 * SAMPLED * max(bisect.bisect_right(samples, number) - 1, 0)
        if not self.run.is_checked:
            self.run.check(np.array([self._at + first], dtype=np.int64))
        return first, entries[first : first + 2 * SAMPLED : 2]

    def below(self, number: int) -> int:
        """The number of entries whose number is lower."""
        if number >> _WORD:
            return self.count
        first, near = self._near(number)
        return first // 2 + bisect.bisect_left(near, number)

    def part(self, first: int, last: int) -> tuple[Numbers, Numbers]:
        """(numbers, packed values) of entries by their places."""
        if first < last:
            self.run.check(np.append(np.arange(2 * first, 2 * last, _BLOCK_WORDS), 2 * last - 2) + self._at)
        entries = self._entries[2 * first : 2 * last]
        return entries[::2], entries[1::2]


class Run:
    """A mapped run. Each block is compared with its checksum before anything in it is used."""

    def __init__(self, path: Path, data: pa.Buffer, *, is_checked: bool = False) -> None:
        """`DamagedIndex` if the directory, a sample or a filter is damaged; `is_checked`: this process wrote it."""
        self.path, self.size = path, int(data.size)
        self._data = data
        self._crcs, places, self._crc = _directory(path, data)
        self._end = 0 if not places else max(place.filter_at + 8 * place.filter_words for place in places)
        self._words: Numbers = np.frombuffer(data, dtype=np.uint64, count=self.size // 8)
        self._checked = np.full(len(self._crcs), is_checked, dtype=np.bool_)
        self.is_checked = is_checked
        """Whether every block has been compared."""
        for place in places:
            self._check_bytes(place.samples_at, place.filter_at + 8 * place.filter_words)
        self.sections: Mapping[bytes, Section] = {
            place.number.to_bytes(PREFIX_BYTES, "big"): Section(self, place) for place in places
        }
        """By the prefix of their tables."""
        self.entries = sum(place.entries for place in places)

    @property
    def file(self) -> RunFile:
        """The words of a checkpoint for this run."""
        return RunFile(self.path.name, self.size, self.entries, self._crc)

    def words(self, at: int, count: int) -> Numbers:
        """Words from a byte on."""
        return self._words[at // 8 : at // 8 + count]

    def check(self, words: Ints) -> None:
        """Compare the blocks of these words with their checksums, or `DamagedIndex`."""
        if self.is_checked:
            return
        blocks = words // _BLOCK_WORDS
        waiting = blocks[~self._checked[blocks]]
        if len(waiting):
            self._check_blocks(np.unique(waiting).tolist())

    def _check_bytes(self, first: int, last: int) -> None:
        if not self.is_checked:
            self._check_blocks(range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES)))

    def _check_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not self._checked[block]:
                if not self.is_whole(block):
                    raise DamagedIndex(f"run {self.path.name} of the index is damaged in block {block}")
                self._checked[block] = True
        self.is_checked = bool(self._checked.all())

    def is_whole(self, block: int) -> bool:
        """Whether a block has its checksum now."""
        at = block * BLOCK_BYTES
        return crc32c(self._data.slice(at, min(BLOCK_BYTES, self._end - at))) == int(self._crcs[block])

    def scrub(self) -> Iterator[tuple[int, str]]:
        """(bytes, damage or nothing) of each block, read again."""
        for block in range(len(self._crcs)):
            damage = "" if self.is_whole(block) else f"run {self.path.name} of the index is damaged in block {block}"
            yield min(BLOCK_BYTES, self._end - block * BLOCK_BYTES), damage


def _directory(path: Path, data: pa.Buffer) -> tuple[npt.NDArray[np.uint32], list[SectionPlace], int]:
    """(checksum of each block, places of the sections, checksum of both); `DamagedIndex` if they are not whole."""
    damaged = DamagedIndex(f"run {path.name} of the index is damaged in its directory")
    if data.size < HEADER_BYTES + FOOTER.size:
        raise damaged
    magic, version, _ = HEADER.unpack_from(data)
    size, blocks, crc, end_magic = FOOTER.unpack_from(data, data.size - FOOTER.size)
    at = data.size - FOOTER.size - size - 4 * blocks
    if (magic, end_magic) != (MAGIC, MAGIC) or at < HEADER_BYTES:
        raise damaged
    versions.check(version, VERSION, f"run {path.name} of the index")
    known = data.slice(at, 4 * blocks + size)
    if crc32c(known, crc32c(data.slice(0, HEADER_BYTES))) != crc:
        raise damaged
    crcs = np.frombuffer(known, dtype=np.uint32, count=blocks)
    return crcs, [SectionPlace(*entry) for entry in orjson.loads(memoryview(known.slice(4 * blocks)))], crc

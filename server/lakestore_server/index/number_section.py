"""The entries of one table in a run whose keys are numbers.

A packed value has the offset (45 bits), the flag (1 bit) and the entry's check (18 bits). A key is found in three
steps: the guide, which has every 32nd sample and stays in the processor's cache; five steps within these samples; five
within 32 entries. That takes 0.2 µs a key among 50 M, 10,000 at a time (measured); the samples alone take 0.3, one
binary search over all entries 0.8. The filter avoids nearly all searches for keys that are not in the run.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.hash_table import MISS
from lakestore_server.index.entry import ABSENT, DAMAGED, FLAG, OFFSET_BITS, OFFSET_MASK, Ints
from lakestore_server.index.run_blocks import BLOCK_WORDS, Blocks, SectionPlace
from lakestore_server.index.run_filter import LookupNumbers, Numbers, filter_place

Flags = npt.NDArray[np.bool_]
ENTRY_BYTES = 16
SAMPLED = 32
"""Entries for each sample."""
_FEW = 8
_WORD = 64
_STEPS = tuple(2 << n for n in reversed(range(SAMPLED.bit_length() - 1)))
"""Step sizes within the entries of a sample: 32, 16, 8, 4, 2 words."""
GUIDED = 32
"""Samples for each word of the guide."""
GUIDED_MIN = 1 << 15
"""With at least so many samples, a guide is faster."""
_GUIDE_STEPS = tuple(1 << n for n in reversed(range(GUIDED.bit_length() - 1)))
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INT, _WORD_MASK = int(_FACTOR), (1 << 64) - 1
_HALF = np.uint64(32)
_LOW_BITS = OFFSET_BITS + 1
"""Bits of a packed value below its check."""
_CHECK_BITS = 64 - _LOW_BITS
_LOW_INT = (1 << _LOW_BITS) - 1
_LOW = np.uint64(_LOW_INT)
_PACKED_FLAG = np.uint64(1 << OFFSET_BITS)
_GONE = np.uint64(OFFSET_MASK)
"""The offset that stands for ABSENT; no log is that long."""


def packed(numbers: Numbers, values: Ints) -> Numbers:
    """Values in the form in which a run stores them with their numbers."""
    offsets = values.view(np.uint64) & np.uint64(OFFSET_MASK)  # ABSENT has all bits set
    offsets |= np.where((values & FLAG != 0) & (values != ABSENT), _PACKED_FLAG, np.uint64(0))
    return offsets | (_check_of(numbers, offsets) << np.uint64(_LOW_BITS))


def unpacked(numbers: Numbers, stored: Numbers) -> Ints:
    """The values of entries; DAMAGED for an entry that does not match its check."""
    low = stored & _LOW
    values = (low & _GONE).view(np.int64)
    values[values == OFFSET_MASK] = ABSENT
    values[low & _PACKED_FLAG != 0] |= FLAG
    values[_check_of(numbers, low) != stored >> np.uint64(_LOW_BITS)] = DAMAGED
    return values


def _unpacked_one(number: int, stored: int) -> int:
    """`unpacked` for one entry."""
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
    """Whether each packed value is ABSENT."""
    gone: Flags = stored & _LOW == _GONE
    return gone


def _last_up_to(words: Numbers, numbers: Numbers) -> Ints:
    """The index of the last word not above each number, or 0."""
    at = words.searchsorted(numbers, "right")
    at -= 1
    return np.maximum(at, 0, out=at)


def _go_on(at: Ints, words: Numbers, numbers: Numbers, steps: Sequence[int], last: int) -> None:
    """Advance ascending indexes to the last word not above each number, which is within reach of the steps."""
    beyond = int(at.searchsorted(last + 1 - sum(steps)))  # rows from here on could step beyond the last word
    probe = np.empty_like(at)
    for step in steps:
        np.add(at, step, out=probe)
        np.minimum(probe[beyond:], last, out=probe[beyond:])
        np.copyto(at, probe, where=words.take(probe, mode="clip") <= numbers)


def _check_of(numbers: Numbers, low: Numbers) -> Numbers:
    mixed = numbers * _FACTOR
    mixed ^= mixed >> _HALF
    mixed += low
    mixed *= _FACTOR
    mixed >>= np.uint64(64 - _CHECK_BITS)
    return mixed


class NumberSection:
    """The entries of one table in a run."""

    __slots__ = (
        "_at",
        "_blocks",
        "_entries",
        "_filter",
        "_guide",
        "_samples",
        "_views",
        "count",
        "highest",
        "nbytes",
        "width",
    )

    def __init__(self, blocks: Blocks, place: SectionPlace) -> None:
        self._blocks, self.count, self.width, self.nbytes = blocks, place.entries, place.width, place.nbytes
        self._entries = blocks.words(place.at, 2 * place.entries)
        self._at = place.at // 8
        self._samples = blocks.words(place.samples_at, -(-place.entries // SAMPLED))
        self._guide = self._samples[::GUIDED].copy() if len(self._samples) >= GUIDED_MIN else None
        self._filter = blocks.words(place.filter_at, place.filter_words)
        self._views = self._entries.data, self._samples.data, self._filter.data
        blocks.check(np.array([self._at + len(self._entries) - 2], dtype=np.int64))
        self.highest = int(self._entries[-2])
        """The greatest number."""

    def find(self, wanted: LookupNumbers) -> Ints:
        """The values of ascending numbers: ABSENT if an entry says so, `MISS` if there is none."""
        found = np.full(len(wanted), MISS, dtype=np.int64)
        self.fill(found, wanted)
        return found

    def fill(self, found: Ints, wanted: LookupNumbers) -> None:
        """Fill in the values of ascending numbers for which newer runs have left `MISS`."""
        numbers = wanted.numbers
        if not len(numbers) or int(numbers[0]) > self.highest:
            return
        if len(numbers) <= _FEW:
            self._fill_few(found, numbers, np.arange(len(numbers)))
            return
        held = self._filter.take(wanted.words(len(self._filter)), mode="clip")
        held &= wanted.bits
        rows = np.flatnonzero(held == wanted.bits)
        rows = rows[found.take(rows) == MISS]
        if len(rows) <= _FEW:
            self._fill_few(found, numbers, rows)
            return
        numbers = numbers if len(rows) == len(numbers) else numbers.take(rows)
        at = self._places(numbers)
        self._blocks.check(at + self._at)
        there = np.flatnonzero(self._entries.take(at) == numbers)
        if not len(there):
            return
        stored = self._entries.take(at[there] + 1)
        found[rows[there]] = unpacked(numbers[there], stored)

    def _fill_few(self, found: Ints, numbers: Numbers, rows: Ints) -> None:
        for row in rows.tolist():
            if found[row] == MISS:
                found[row] = self.one(int(numbers[row]))

    def _places(self, numbers: Numbers) -> Ints:
        """The word of the last entry not above each of these ascending numbers, or of the first entry."""
        if self._guide is None:
            at = _last_up_to(self._samples, numbers)
        else:
            at = _last_up_to(self._guide, numbers)
            at *= GUIDED
            _go_on(at, self._samples, numbers, _GUIDE_STEPS, len(self._samples) - 1)
        at *= 2 * SAMPLED
        _go_on(at, self._entries, numbers, _STEPS, len(self._entries) - 2)
        return at

    def one(self, number: int) -> int:
        """`find` for one number, for which arrays would be slower."""
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
        """(first word of one sample's entries, their numbers): the number is there or nowhere."""
        entries, samples, _ = self._views
        first = 2 * SAMPLED * max(bisect.bisect_right(samples, number) - 1, 0)
        if not self._blocks.is_checked:
            self._blocks.check(np.array([self._at + first], dtype=np.int64))
        return first, entries[first : first + 2 * SAMPLED : 2]

    def below(self, number: int) -> int:
        """The number of entries with a lower number."""
        if number >> _WORD:
            return self.count
        first, near = self._near(number)
        return first // 2 + bisect.bisect_left(near, number)

    def part(self, first: int, last: int) -> tuple[Numbers, Numbers]:
        """(numbers, packed values) of entries by position."""
        if first < last:
            self._blocks.check(np.append(np.arange(2 * first, 2 * last, BLOCK_WORDS), 2 * last - 2) + self._at)
        entries = self._entries[2 * first : 2 * last]
        return entries[::2], entries[1::2]

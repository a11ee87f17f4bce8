"""The filter of a table's entries in a run: words in which four bits are set for each number that is there.

A look-up mixes its numbers once for the filters of all runs. One search in fifty is in vain. One filter for all runs,
which tells by two reads which of them may hold a key, was measured and not taken: with 10,000 of 20 M keys in seven
runs the six newer filters cost 37 ns a key, the shared one 42 (of 1,000 keys 73 and 60), where a whole look-up in the
runs costs 363 ns (858) and an upsert some 2 µs, and every checkpoint and merge would rebuild the filter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore_server.index.entry import Ints

Numbers = npt.NDArray[np.uint64]
FILTER_BITS = 10
"""Bits of the filter for each key."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INT, _WORD_MASK = int(_FACTOR), (1 << 64) - 1
_HALF, _MIX = np.uint64(32), np.uint64(29)
_BITS = tuple(np.uint64(shift) for shift in (6, 12, 18))
_SIX, _ONE = np.uint64(63), np.uint64(1)


@dataclass(frozen=True, slots=True)
class LookupNumbers:
    """Ascending numbers to look up, prepared for filters."""

    numbers: Numbers
    mixed: Numbers
    """32 bits of each number, from which the filter's size determines the word."""
    bits: Numbers
    """The bits of each number that are set in its word."""

    @staticmethod
    def of(numbers: Numbers) -> LookupNumbers:
        """Numbers as a filter sees them."""
        mixed = numbers * _FACTOR
        mixed ^= mixed >> _MIX
        mixed *= _FACTOR
        bits = _ONE << (mixed & _SIX)
        for shift in _BITS:
            bits |= _ONE << ((mixed >> shift) & _SIX)
        mixed >>= _HALF
        return LookupNumbers(numbers, mixed, bits)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Ints) -> LookupNumbers:
        return LookupNumbers(self.numbers.take(rows), self.mixed.take(rows), self.bits.take(rows))

    def words(self, count: int) -> Ints:
        """The word of each number in a filter of `count` words."""
        words = self.mixed * np.uint64(count)
        words >>= _HALF
        return words.view(np.int64)


def mark(words: Numbers, wanted: LookupNumbers) -> None:
    """Set the bits of numbers in a filter. Unlike `bitwise_or.at`, other threads can run meanwhile."""
    at, bits = wanted.words(len(words)), wanted.bits
    while len(at):
        held = words.take(at)
        held |= bits
        words[at] = held  # if several share a word, the last one is stored
        missing = np.flatnonzero((words.take(at) & bits) != bits)
        at, bits = at.take(missing), bits.take(missing)


def filter_place(number: int, words: int) -> tuple[int, int]:
    """(word in the filter, bits) of one number."""
    mixed = number * _FACTOR_INT & _WORD_MASK
    mixed ^= mixed >> 29
    mixed = mixed * _FACTOR_INT & _WORD_MASK
    bits = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63) | 1 << (mixed >> 18 & 63)
    return (mixed >> 32) * words >> 32, bits

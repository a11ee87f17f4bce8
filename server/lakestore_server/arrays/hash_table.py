"""A hash table of numbers in one numpy array: the in-memory key index for number keys and for hashes.

- Open addressing with linear probing, at most five eighths full. An entry is 16 bytes: number and value take one memory
  access.
- Look-ups and changes run in rounds over the unsettled rows, the last few row by row.
- One thread changes a table. Entries are never removed.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Pairs = npt.NDArray[np.complex128]
MISS = -3
"""The value of an unknown number. The index has no such value."""
_FEW = 8
_CAPACITY_MIN = 64
_LARGE = 1 << 20
"""Entries up to which a table grows fourfold, because moving an entry costs as much as putting it."""
_PART = 1 << 16
"""Places whose entries move into a larger table in one step."""
_SECRET = secrets.randbits(64) | 1
"""Random, so that nobody can choose keys that collide."""
_FACTOR = 0x9E3779B97F4A7C15
_FREE: Pairs = np.array([0, MISS], dtype=np.int64).view(np.complex128)
"""An entry without a value."""


class HashTable:
    """Numbers to values."""

    __slots__ = ("_count", "_entries", "_highest", "_mask", "_numbers", "_shift", "_values")

    def __init__(self, room: int = 0) -> None:
        capacity = max(_CAPACITY_MIN, 1 << (-(-8 * room // 5) - 1).bit_length())
        self._entries: Pairs = np.empty(capacity, dtype=np.complex128)
        """Number and value of each entry as one type of 16 bytes, which numpy moves in one step."""
        self._entries[:] = _FREE
        words = self._entries.view(np.int64)
        self._numbers, self._values = self._entries.view(np.uint64).data, words.data
        self._mask, self._shift = capacity - 1, 65 - capacity.bit_length()
        self._count, self._highest = 0, -1

    def __len__(self) -> int:
        return self._count

    def is_below(self, numbers: Numbers) -> bool:
        """Whether these numbers are above all numbers of the table, and so absent."""
        highest = self._highest
        return highest < 0 or (int(numbers[0]) > highest and int(numbers.min()) > highest)

    def get(self, numbers: Numbers) -> Ints:
        """The values; `MISS` for none."""
        if len(numbers) <= _FEW:
            return np.array(list(map(self.one, numbers.tolist())), dtype=np.int64)
        at = self._places(numbers)
        wanted = numbers.view(np.int64)
        held = self._at(at)
        found = np.where(held[:, 0] == wanted, held[:, 1], MISS)
        rows = np.flatnonzero(found != held[:, 1])  # other numbers are there
        at = at[rows]
        while len(rows) > _FEW:
            at += 1
            at &= self._mask
            held = self._at(at)
            values = np.where(held[:, 0] == wanted[rows], held[:, 1], MISS)
            found[rows] = values
            further = np.flatnonzero(values != held[:, 1])
            rows, at = rows[further], at[further]
        for row in rows.tolist():
            found[row] = self.one(int(numbers[row]))
        return found

    def put(self, numbers: Numbers, values: Ints) -> None:
        """Set values; the last one of a repeated number counts."""
        if not len(numbers):
            return
        if self.needs_more(len(numbers)):
            self._take_over(self.grown(len(numbers)))
        if len(numbers) <= _FEW:
            few = numbers.tolist()
            self._highest = max(self._highest, *few)
            for number, value in zip(few, values.tolist(), strict=True):
                self._put_one(number, value)
            return
        self._highest = max(self._highest, int(numbers.max()))
        at = self._places(numbers)
        entries: Pairs = np.empty(len(numbers), dtype=np.complex128)
        words = entries.view(np.int64)
        words[::2], words[1::2] = numbers.view(np.int64), values
        # All rows of one number stay together, in order, and are settled in the same round.
        while len(entries) > _FEW:
            further = self._put_round(at, entries)
            entries, at = entries.take(further), at.take(further)
            at += 1
            at &= self._mask
        words = entries.view(np.int64)
        for number, value in zip(words[::2].view(np.uint64).tolist(), words[1::2].tolist(), strict=True):
            self._put_one(number, value)

    def _put_round(self, at: Ints, entries: Pairs) -> Ints:
        """Write the entries whose places are free or their own; returns the unsettled rows."""
        numbers, held = entries.view(np.int64)[::2], self._entries.take(at).view(np.int64)
        is_free = held[1::2] == MISS
        is_settled = held[::2] == numbers
        is_settled |= is_free
        rows = np.flatnonzero(is_settled)
        self._entries[at.take(rows)] = entries.take(rows)  # of several entries on one place the last one stays
        free = np.flatnonzero(is_free)
        if len(free):
            places = at.take(free)
            is_settled[free] = self._entries.take(places).view(np.int64)[::2] == numbers[free]
            places.sort()
            self._count += 1 + int(np.count_nonzero(places[1:] != places[:-1]))
        return np.flatnonzero(~is_settled)

    def entries(self) -> tuple[Numbers, Ints]:
        return self._within(0, self._mask + 1)

    def _within(self, first: int, last: int) -> tuple[Numbers, Ints]:
        entries = self._entries[first:last]
        words = entries.take(np.flatnonzero(entries.view(np.int64)[1::2] != MISS)).view(np.int64)
        return words[::2].view(np.uint64), words[1::2]

    def needs_more(self, more: int) -> bool:
        """Whether the table must grow before `more` new numbers are put."""
        return 8 * (self._count + more) > 5 * (self._mask + 1)

    def grown(self, more: int) -> HashTable:
        """A larger table of the same entries; this table does not change."""
        capacity = self._mask + 1
        other = HashTable(max(self._count + more, 2 * capacity if capacity < _LARGE else 0))
        for first in range(0, capacity, _PART):
            other.put(*self._within(first, first + _PART))
        return other

    def _take_over(self, other: HashTable) -> None:
        self._entries, self._numbers, self._values = other._entries, other._numbers, other._values
        self._mask, self._shift = other._mask, other._shift

    def _at(self, at: Ints) -> Ints:
        """The entries of some places, as rows of (number, value)."""
        return self._entries.take(at).view(np.int64).reshape(-1, 2)

    def _places(self, numbers: Numbers) -> Ints:
        mixed = scattered(numbers)
        mixed >>= np.uint64(self._shift)
        return mixed.view(np.int64)

    def _place_of(self, number: int) -> int:
        """The slot of a number, or the free slot for it."""
        numbers, values, mask = self._numbers, self._values, self._mask
        at = scattered_number(number) >> self._shift
        while numbers[2 * at] != number and values[2 * at + 1] != MISS:
            at = (at + 1) & mask
        return at

    def one(self, number: int) -> int:
        """The value of one number; `MISS` for none."""
        at = self._place_of(number)
        return int(self._values[2 * at + 1]) if self._numbers[2 * at] == number else MISS

    def _put_one(self, number: int, value: int) -> None:
        at = self._place_of(number)
        self._count += self._values[2 * at + 1] == MISS
        self._numbers[2 * at], self._values[2 * at + 1] = number, value


def scattered(numbers: Numbers) -> Numbers:
    """Mixed numbers whose upper bits give the place in the table."""
    mixed: Numbers = numbers * np.uint64(_SECRET)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_FACTOR)
    return mixed


def scattered_number(number: int) -> int:
    """`scattered` of one number."""
    mixed = number * _SECRET & _MASK
    return (mixed ^ mixed >> 32) * _FACTOR & _MASK

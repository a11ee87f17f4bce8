"""A hash table of byte strings in numpy arrays: the in-memory key index for keys that are not numbers.

- A `HashTable` maps a string's hash to its slot. A slot holds value and place of the string in one memory access.
- Strings are compared whole. A string whose hash belongs to another string is in a dictionary.
- One thread changes a table. Strings are never removed.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.grouping import Flags, last_of_group
from lakestore_server.arrays.hash_table import MISS, HashTable
from lakestore_server.arrays.padded_bytes import PaddedBytes, Words, equal_words, hash_of, joined, padded

Ints = npt.NDArray[np.int64]
_FEW = 8
_SLOTS_MIN, _WORDS_MIN = 64, 256
_LENGTH_BITS = 16
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


class BytesTable:
    """Byte strings to values."""

    __slots__ = ("_others", "_slots", "_table", "_used", "_used_words", "_words", "highest")

    def __init__(self) -> None:
        self._table = HashTable()
        self._slots = np.empty((_SLOTS_MIN, 2), dtype=np.int64)
        """Per string its value and its place: first word and length."""
        self._words: Words = np.empty(_WORDS_MIN, dtype=np.uint64)
        self._used = self._used_words = 0
        self._others: dict[bytes, int] = {}
        """Strings whose hash belongs to another string."""
        self.highest = b""
        """The last string in order."""

    def __len__(self) -> int:
        return self._used + len(self._others)

    @property
    def words(self) -> int:
        return self._used_words

    def one(self, string: bytes) -> int:
        """The value of one string; `MISS` for none."""
        slot = self._table.one(hash_of(string))
        if slot == MISS:
            return MISS
        return int(self._slots[slot, 0]) if self._string(slot) == string else self._others.get(string, MISS)

    def put_one(self, string: bytes, value: int) -> None:
        """Set the value of one string; for a few strings faster than `put`."""
        self.highest = max(self.highest, string)
        number = hash_of(string)
        slot = self._table.one(number)
        if slot == MISS:
            words = np.frombuffer(padded(string), dtype=np.uint64)
            self.reserve(1, len(words))
            end = self._used_words + len(words)
            self._words[self._used_words : end] = words
            self._slots[self._used] = value, self._used_words << _LENGTH_BITS | len(string)
            self._table.put(np.array([number], dtype=np.uint64), np.array([self._used]))
            self._used, self._used_words = self._used + 1, end
        elif self._string(slot) == string:
            self._slots[slot, 0] = value
        else:
            self._others[string] = value

    def _string(self, slot: int) -> bytes:
        place = int(self._slots[slot, 1])
        start, length = place >> _LENGTH_BITS, place & _LENGTH_MASK
        words: bytes = self._words[start : start + max(1, -(-length // 8))].tobytes()
        return words[:length]

    def get(self, strings: PaddedBytes, hashes: Words) -> Ints:
        """The values; `MISS` for none."""
        slots = self._table.get(hashes)
        rows = np.flatnonzero(slots != MISS)
        found = np.full(len(slots), MISS, dtype=np.int64)
        if len(rows):
            held = self._held(slots[rows])
            same = self._are(strings, rows, held)
            found[rows] = held[:, 0]
            for row in rows[~same].tolist():
                found[row] = self._others.get(strings.one(row), MISS)
        return found

    def _held(self, slots: Ints) -> Ints:
        """(value, place) of some slots."""
        return self._slots.view(np.complex128).ravel().take(slots).view(np.int64).reshape(-1, 2)

    def _are(self, strings: PaddedBytes, rows: Ints, held: Ints) -> npt.NDArray[np.bool_]:
        """Whether the strings of some rows equal the strings of their slots."""
        places, lengths = held[:, 1], strings.lengths[rows]
        same: npt.NDArray[np.bool_] = (places & _LENGTH_MASK) == lengths
        starts = places >> _LENGTH_BITS
        return same & equal_words(strings.words, strings.starts[rows], self._words, starts, lengths, same)

    def put(self, strings: PaddedBytes, hashes: Words, values: Ints) -> None:
        """Set values; the last one of a repeated string counts."""
        if not len(values):
            return
        self.highest = max(self.highest, strings.greatest())
        slots = self._table.get(hashes)
        is_doubtful = slots != MISS
        new = np.flatnonzero(~is_doubtful)
        if len(new):
            slots[new], chosen = self._added(strings, hashes[new], new)
            is_doubtful[new] = ~chosen
        doubtful = np.flatnonzero(is_doubtful)
        elsewhere = doubtful[~self._are(strings, doubtful, self._held(slots[doubtful]))]
        if len(elsewhere):
            mine = np.ones(len(slots), dtype=np.bool_)
            mine[elsewhere] = False
            for row in elsewhere.tolist():
                self._others[strings.one(row)] = int(values[row])
            slots, values = slots[mine], values[mine]
        self._slots[slots, 0] = values

    def _added(self, strings: PaddedBytes, hashes: Words, rows: Ints) -> tuple[Ints, Flags]:
        """(slots of rows with new hashes, whether the slot has the row's string: the last row of each hash)."""
        self.reserve(len(rows), int(strings.starts[-1] - strings.starts[0]))
        chosen, number = last_of_group(hashes)
        if chosen.all():
            self._append(strings if len(rows) == len(strings) else strings.take(rows))
        else:
            self._append(strings.take(rows[chosen]))
            hashes = hashes[chosen]
        self._table.put(hashes, np.arange(self._used - len(hashes), self._used))
        return number + (self._used - len(hashes)), chosen

    def _append(self, strings: PaddedBytes) -> None:
        first, last = int(strings.starts[0]), int(strings.starts[-1])
        end = self._used + len(strings)
        self._words[self._used_words : self._used_words + last - first] = strings.words[first:last]
        starts = strings.starts[:-1] + (self._used_words - first)
        self._slots[self._used : end, 1] = starts << _LENGTH_BITS | strings.lengths
        self._used, self._used_words = end, self._used_words + last - first

    def entries(self) -> tuple[PaddedBytes, Ints]:
        slots = self._slots[: self._used]
        starts = np.append(slots[:, 1] >> _LENGTH_BITS, self._used_words)
        strings = PaddedBytes(self._words, starts, (slots[:, 1] & _LENGTH_MASK).astype(np.uint32))
        if not self._others:
            return strings, slots[:, 0]
        others = np.fromiter(self._others.values(), dtype=np.int64, count=len(self._others))
        return joined([strings, PaddedBytes.of(list(self._others))]), np.concatenate([slots[:, 0], others])

    def needs_more(self, more: int, words: int) -> bool:
        """Whether the table must grow before `more` new strings of `words` words are put."""
        return (
            self._used + more > len(self._slots)
            or self._used_words + words > len(self._words)
            or self._table.needs_more(more)
        )

    def grown(self, more: int, words: int) -> BytesTable:
        """A larger table of the same entries. It replaces this table, which must not change any more."""
        other = copy(self)
        other.reserve(more, words)
        return other

    def reserve(self, more: int, words: int) -> None:
        """Make room for `more` new strings of `words` words."""
        if self._table.needs_more(more):
            self._table = self._table.grown(more)
        self._slots = _larger(self._slots, self._used, more)
        self._words = _larger(self._words, self._used_words, words)


def _larger(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    if used + more <= len(array):
        return array
    larger = np.empty((max(used + more, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[:used] = array[:used]
    return larger

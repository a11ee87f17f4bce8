"""Rows by key: the rows of a change, and the older rows of their keys. Pure arithmetic on positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows by key; keys are numbered by their first row."""

    of: Ints
    """The key number of each row."""
    first: Ints
    """The first row of each key, ascending."""

    @staticmethod
    def by(slots: Ints) -> Groups:
        """Groups of rows; rows with equal slots have equal keys."""
        slot, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
        if len(slot) == len(slots):
            rows = np.arange(len(slots), dtype=np.int64)
            return Groups(rows, rows)
        order = np.argsort(first)
        number = np.empty(len(slot), dtype=np.int64)
        number[order] = np.arange(len(slot))
        return Groups(number[inverse], first[order])

    @property
    def distinct(self) -> bool:
        return len(self.first) == len(self.of)

    @property
    def last(self) -> Ints:
        if self.distinct:
            return self.first
        last = np.empty(len(self.first), dtype=np.int64)
        last[self.of] = np.arange(len(self.of))
        return last

    @property
    def before(self) -> Ints:
        """For each row, the previous row with the same key, or -1."""
        return np.full(len(self.of), -1, dtype=np.int64) if self.distinct else before(self.of)


@dataclass(frozen=True, slots=True)
class Stack:
    """Old rows and the rows of a change together, key by key, the oldest first."""

    order: Ints
    """Positions in the sequence of old rows followed by the change's rows."""
    of: Ints
    """The key number at each place in `order`, ascending."""
    starts: Ints
    """The first place of each key in `order`."""

    @staticmethod
    def of_rows(old: Ints, groups: Groups) -> Stack:
        """`old` are the numbers, ascending, of keys with an old row."""
        of = np.concatenate([old, groups.of])
        order = np.argsort(of, kind="stable")
        return Stack(order, of[order], np.searchsorted(of[order], np.arange(len(groups.first))))

    @property
    def ends(self) -> Ints:
        """The last place of each key in `order`."""
        return np.append(self.starts, len(self.order))[1:] - 1


def before(of: Ints) -> Ints:
    """For each row, the previous row with the same number, or -1."""
    order = np.argsort(of, kind="stable")
    return linked(order, of[order][1:] == of[order][:-1])


def linked(order: Ints, same: Flags) -> Ints:
    """`before` for rows in a stable order; `same` says whether a row equals its neighbour."""
    found = np.full(len(order), -1, dtype=np.int64)
    found[order[1:][same]] = order[:-1][same]
    return found


def ordered(numbers: Numbers) -> tuple[Ints, Flags]:
    """(stable order of rows by number, whether each row but the first equals its neighbour). Number and row are sorted
    as one word, which is far faster than sorting positions. If different numbers become
    one word, because too wide numbers lose their last bits, the positions are sorted after all."""
    if not len(numbers):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    bits = len(numbers).bit_length()
    shift, low = np.uint64(bits), numbers.min()
    is_cut = bool(int(numbers.max() - low) >> (_WORD_BITS - bits))
    words = numbers >> shift if is_cut else numbers - low
    words <<= shift
    words |= np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << bits) - 1)).view(np.int64)
    words >>= shift
    same = words[1:] == words[:-1]
    if is_cut and len(pairs := np.flatnonzero(same)) and (numbers[order[pairs]] != numbers[order[pairs + 1]]).any():
        order = np.argsort(numbers, kind="stable")
        found = numbers[order]
        same = found[1:] == found[:-1]
    return order, same


def first_places(order: Ints, same: Flags) -> Ints:
    """For each row, the first row that equals it; `order` is stable."""
    rows = np.arange(len(order), dtype=np.int64)
    if same.any():
        starts = np.flatnonzero(np.append(True, ~same))
        rows[order] = np.repeat(order[starts], np.diff(starts, append=len(order)))
    return rows


def last_of_group(numbers: Numbers) -> tuple[Flags, Ints]:
    """(whether each row is the last with its number; for each row, which of these last rows has its number)."""
    order, same = ordered(numbers >> np.uint64(len(numbers).bit_length()))
    pairs = np.flatnonzero(same)
    if not (numbers[order[pairs]] == numbers[order[pairs + 1]]).all():  # numbers that differ in their last bits
        order = np.argsort(numbers, kind="stable")
        same = numbers[order][1:] == numbers[order][:-1]
    is_last = np.ones(len(numbers), dtype=np.bool_)
    if not same.any():
        return is_last, np.arange(len(numbers))
    is_last[order[:-1][same]] = False
    ends = np.flatnonzero(np.append(~same, True))
    of = np.empty(len(numbers), dtype=np.int64)
    of[order] = (np.cumsum(is_last) - 1)[np.repeat(order[ends], np.diff(ends, prepend=-1))]
    return is_last, of

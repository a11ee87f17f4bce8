"""Byte strings in one array of words: each string begins at a word and zeros fill its last word; lengths are
separate.

- Eight bytes are compared, hashed or sorted at once, for all strings together. An empty string has one word.
- The hash is strongly universal with secret numbers, by default this process's: two different strings have equal hashes
  with a probability of 2**-64, and nobody can choose such strings.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import mul

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.grouping import ordered

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
WORD_BYTES = 8
BYTES_MAX = 1 << 12
"""The longest string for which the hash has secrets."""
_ZEROS = [bytes(-length % WORD_BYTES) for length in range(WORD_BYTES)]
_EMPTY = bytes(WORD_BYTES)
_HALF, _LOW = np.uint64(32), np.uint64((1 << 32) - 1)
_MASK = (1 << 64) - 1
_HIGH = _MASK ^ ((1 << 32) - 1)
SECRET_BYTES = 16 * (2 + BYTES_MAX // 4)


class HashSecrets:
    """The numbers of one hash: for each half an addend, a factor of the length, and a factor for each four bytes."""

    __slots__ = ("arrays", "numbers")

    def __init__(self, data: bytes) -> None:
        """`data` has `SECRET_BYTES` bytes, unknown to everybody who chooses strings."""
        self.arrays = np.frombuffer(data, dtype=np.uint64).reshape(2, -1)
        self.numbers: list[list[int]] = self.arrays.tolist()


OWN = HashSecrets(secrets.token_bytes(SECRET_BYTES))


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBytes:
    """Byte strings."""

    words: Words
    """All strings in sequence; other strings may precede and follow."""
    starts: Ints
    """The first word of each string; then the end of the last."""
    lengths: Lengths

    @staticmethod
    def of(strings: Sequence[bytes]) -> PaddedBytes:
        lengths = np.fromiter(map(len, strings), dtype=np.uint32, count=len(strings))
        return PaddedBytes.of_buffer(b"".join(map(padded, strings)), lengths)

    @staticmethod
    def of_buffer(buffer: bytes | memoryview, lengths: Lengths) -> PaddedBytes:
        """Strings that are padded in a buffer, as `packed` returns them."""
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(_counts(lengths), out=starts[1:])
        return PaddedBytes(np.frombuffer(buffer, dtype=np.uint64, count=int(starts[-1])), starts, lengths)

    @staticmethod
    def of_matrix(matrix: npt.NDArray[np.uint8]) -> PaddedBytes:
        """Strings of one length, the rows of a matrix."""
        rows, width = matrix.shape
        filled = np.zeros((rows, width + -width % WORD_BYTES), dtype=np.uint8)
        filled[:, :width] = matrix
        return PaddedBytes.of_buffer(filled.data.cast("B"), np.full(rows, width, dtype=np.uint32))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return WORD_BYTES * int(self.starts[-1] - self.starts[0]) + self.starts.nbytes + self.lengths.nbytes

    def packed(self) -> bytes:
        return self.words[self.starts[0] : self.starts[-1]].tobytes()

    def listed(self) -> list[bytes]:
        blob = self.packed()
        starts = ((self.starts[:-1] - self.starts[0]) * WORD_BYTES).tolist()
        return [blob[at : at + length] for at, length in zip(starts, self.lengths.tolist(), strict=True)]

    def one(self, row: int) -> bytes:
        words: bytes = self.words[self.starts[row] : self.starts[row + 1]].tobytes()
        return words[: self.lengths[row]]

    def part(self, rows: slice) -> PaddedBytes:
        """The strings of consecutive rows; they share the memory."""
        first, last, _ = rows.indices(len(self))
        last = max(first, last)
        return PaddedBytes(self.words, self.starts[first : last + 1], self.lengths[first:last])

    def take(self, rows: Ints) -> PaddedBytes:
        lengths, origin = self.lengths[rows], self.starts[rows]
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        counts = _counts(lengths)
        np.cumsum(counts, out=starts[1:])
        at = np.repeat(origin - starts[:-1], counts)
        at += np.arange(len(at))
        return PaddedBytes(self.words.take(at), starts, lengths)

    def hashes(self, of: HashSecrets = OWN) -> Words:
        starts, counts = self.starts[:-1], _counts(self.lengths)
        lengths = self.lengths.astype(np.uint64)
        halves = [secret[0] + lengths * secret[1] for secret in of.arrays]
        for number, rows in _rows_by_word(counts):
            word = self.words.take(starts[rows] + number)
            low, high = word & _LOW, word >> _HALF
            for half, secret in zip(halves, of.arrays, strict=True):
                half[rows] += low * secret[2 + 2 * number] + high * secret[3 + 2 * number]
        first, second = halves
        found: Words = (first >> _HALF) | (second & ~_LOW)
        return found

    def _word(self, number: int, starts: Ints, counts: Ints) -> Words:
        if len(counts) and number < counts.min():
            found: Words = self.words.take(starts + number)
            return found
        word: Words = np.zeros(len(starts), dtype=np.uint64)
        longer = np.flatnonzero(counts > number)
        word[longer] = self.words.take(starts[longer] + number)
        return word

    def _eight(self, at: int, rows: Ints) -> Words:
        starts, counts, shift = self.starts[rows], _counts(self.lengths[rows]), np.uint64(at % WORD_BYTES * 8)
        number = at // WORD_BYTES
        word: Words = self._word(number, starts, counts).byteswap()
        if shift:
            word <<= shift
            word |= self._word(number + 1, starts, counts).byteswap() >> (np.uint64(64) - shift)
        return word

    def _alike(self) -> int:
        starts, counts = self.starts[:-1], _counts(self.lengths)
        for number in range(int(counts.max(initial=0))):
            word = self._word(number, starts, counts)
            bits = int(np.bitwise_or.reduce(word ^ word[0]))
            if bits:
                return WORD_BYTES * number + ((bits & -bits).bit_length() - 1) // 8
        return WORD_BYTES * int(counts.max(initial=0))

    def order(self) -> Ints:
        """The stable order of the rows by string. Eight bytes after the common prefix distinguish most strings; the
        others are compared further."""
        at, longest = self._alike(), WORD_BYTES * int(_counts(self.lengths).max(initial=0))
        word = self._eight(at, np.arange(len(self)))
        order, _ = ordered(word)
        places, groups = self._tied(order, _groups(word.take(order)))
        while len(places):
            at += WORD_BYTES
            rows = order[places]
            word = self._eight(at, rows) if at < longest else self.lengths[rows].astype(np.uint64)
            again = np.lexsort((word, groups))
            order[places] = rows[again]
            if at >= longest:
                break
            groups = _groups(word[again], groups)
            several = np.flatnonzero(np.bincount(groups)[groups] > 1)
            places, groups = places[several], groups[several]
        return order

    def _tied(self, order: Ints, groups: Ints) -> tuple[Ints, Ints]:
        pairs = np.flatnonzero(groups[1:] == groups[:-1])
        differ = pairs[~self.equal(order[pairs], self, order[pairs + 1])]
        is_open = np.zeros(int(groups[-1]) + 1 if len(groups) else 0, dtype=np.bool_)
        is_open[groups[differ]] = True
        places = np.flatnonzero(is_open[groups])
        return places, groups[places]

    def below(self, bound: bytes) -> Flags:
        starts, counts = self.starts[:-1], _counts(self.lengths)
        limit = PaddedBytes.of([bound])
        found = np.zeros(len(self), dtype=np.bool_)
        open_rows = np.arange(len(self))
        for number, edge in enumerate(limit.words.byteswap()):
            word = self._word(number, starts[open_rows], counts[open_rows]).byteswap()
            found[open_rows[word < edge]] = True
            open_rows = open_rows[word == edge]
        found[open_rows] = self.lengths[open_rows] < len(bound)
        return found

    def least(self) -> bytes:
        return self._first(highest=False)

    def greatest(self) -> bytes:
        return self._first(highest=True)

    def _first(self, *, highest: bool) -> bytes:
        rows, number = np.arange(len(self)), 0
        while len(rows) > 1:
            counts = _counts(self.lengths[rows])
            if number >= counts.max():
                lengths = self.lengths[rows]
                return self.one(int(rows[lengths.argmax() if highest else lengths.argmin()]))
            word = self._word(number, self.starts[rows], counts).byteswap()
            rows = rows[word == (word.max() if highest else word.min())]
            number += 1
        return self.one(int(rows[0]))

    def equal(self, rows: Ints, other: PaddedBytes, others: Ints) -> Flags:
        lengths = self.lengths[rows]
        same: Flags = lengths == other.lengths[others]
        return same & equal_words(self.words, self.starts[rows], other.words, other.starts[others], lengths, same)


def _groups(word: Words, within: Ints | None = None) -> Ints:
    is_first = np.ones(len(word), dtype=np.bool_)
    np.not_equal(word[1:], word[:-1], out=is_first[1:])
    if within is not None:
        is_first[1:] |= within[1:] != within[:-1]
    return np.cumsum(is_first) - 1


def padded(string: bytes) -> bytes:
    """One string in its padded form."""
    return string + _ZEROS[len(string) % WORD_BYTES] if string else _EMPTY


def joined(parts: Sequence[PaddedBytes]) -> PaddedBytes:
    """The strings of all parts in sequence."""
    words = np.concatenate([part.words[part.starts[0] : part.starts[-1]] for part in parts])
    ends = np.cumsum([0, *(part.starts[-1] - part.starts[0] for part in parts)])
    starts = [part.starts[:-1] + (end - part.starts[0]) for part, end in zip(parts, ends[:-1], strict=True)]
    return PaddedBytes(words, np.concatenate([*starts, ends[-1:]]), np.concatenate([part.lengths for part in parts]))


def equal_words(words: Words, starts: Ints, others: Words, at: Ints, lengths: Lengths, chosen: Flags) -> Flags:
    """Whether the chosen pairs of strings, of equal length, are equal; results of other pairs are meaningless."""
    same = np.ones(len(starts), dtype=np.bool_)
    for number, rows in _rows_by_word(_counts(np.where(chosen, lengths, 0))):
        same[rows] &= words.take(starts[rows] + number) == others.take(at[rows] + number)
    return same


def hash_of(string: bytes, of: HashSecrets = OWN) -> int:
    """The hash that `PaddedBytes.hashes` gives one string."""
    size = len(string)
    parts = struct.unpack(f"<{(size + 3) // 4}I", string + bytes(-size % 4))
    first, second = (
        secret[0] + size * secret[1] + sum(map(mul, parts, islice(secret, 2, None))) for secret in of.numbers
    )
    found: int = (first & _MASK) >> 32 | second & _HIGH
    return found


def _rows_by_word(counts: Ints) -> Iterator[tuple[int, Ints | slice]]:
    """Each word's number and the rows that have this word: one long string among short ones costs only its own
    words."""
    if not len(counts):
        return
    fewest, most = int(counts.min()), int(counts.max())
    for number in range(fewest):
        yield number, slice(None)
    rows = np.flatnonzero(counts > fewest)
    for number in range(fewest, most):
        yield number, rows
        rows = rows[counts[rows] > number + 1]


def _counts(lengths: Lengths) -> Ints:
    return (np.maximum(lengths, 1).astype(np.int64) + (WORD_BYTES - 1)) >> 3

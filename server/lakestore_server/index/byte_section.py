"""The entries of one table in a run whose keys are bytes: stored in key order, and found by their hashes.

- A run stores the keys. Comparing rows instead would do for look-ups, but inserts, prefixes and merges need keys alone.
- Chunks, in key order: for each entry its value (i64) and place (u64: first word of the key relative to the chunk in 32
  bits, key length and check in 16 each), then the keys, padded to words. An entry's number is its rank.
- After the chunks: for each entry a word of its hash's upper bits and its rank, in hash order, with samples and filter
  as for numbers. 10 M UUIDs as text take 66 bytes each.
- A look-up finds the rank by the hash and compares the key. Prefixes, walks and merges read whole chunks; a merge
  rewrites ranks without hashing. As with numbers, the oldest run is the base.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from lakestore_server.arrays.hash_table import MISS
from lakestore_server.arrays.padded_bytes import Flags, PaddedBytes, equal_words, joined
from lakestore_server.index.entry import DAMAGED, Ints, KeyHash
from lakestore_server.index.number_section import SAMPLED
from lakestore_server.index.run_blocks import BLOCK_WORDS, Blocks, SectionPlace
from lakestore_server.index.run_filter import LookupNumbers, Numbers, filter_place

RANK_BITS_MAX = 32
"""The filter uses the other bits of a hash."""
ENTRY_WORDS = 2
_START, _LENGTH, _CHECK = np.uint64(32), np.uint64(16), np.uint64(0xFFFF)
_CHECK_INT = int(_CHECK)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INT, _WORD_MASK = int(_FACTOR), (1 << 64) - 1
_TOP = np.uint64(48)
_STEPS = tuple(1 << n for n in reversed(range(SAMPLED.bit_length() - 1)))
_HALF = np.uint64(32)
_FEW = 8
_GUIDES = 2048
"""The number of keys of a section, up to twice this, that are cached for binary search once it has read them."""


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Keys to look up, in the order of their hashes."""

    keys: PaddedBytes
    rows: Ints
    """The row of each in `keys`."""
    marks: LookupNumbers
    """Their hashes, as filters see them."""

    @staticmethod
    def of(keys: PaddedBytes, hashes: Numbers, order: Ints) -> WantedKeys:
        """Keys with their hashes, and the sort order of the hashes."""
        return WantedKeys(keys, order, marked(hashes.take(order)))

    def __len__(self) -> int:
        return len(self.rows)


def marked(hashes: Numbers) -> LookupNumbers:
    """Hashes as a filter sees them: without the bits that ranks replace."""
    marks = LookupNumbers.of(hashes >> _HALF)
    return LookupNumbers(hashes, marks.mixed, marks.bits)


def low_of(rank_bits: int) -> np.uint64:
    """The mask of a word's rank."""
    return np.uint64((1 << rank_bits) - 1)


def hashed(hashes: Numbers, ranks: Numbers, rank_bits: int) -> Numbers:
    """The words by which a section finds its entries, in order."""
    found: Numbers = (hashes & ~low_of(rank_bits)) | ranks
    found.sort()
    return found


def checks(keys: PaddedBytes, values: Ints) -> Numbers:
    """16 bits for each entry, which detect a wrong value or misplaced entry in a block with a right checksum."""
    mixed = keys.words.take(keys.starts[:-1]) * _FACTOR
    mixed ^= keys.words.take(keys.starts[:-1] + np.maximum(keys.lengths.astype(np.int64) - 1, 0) // 8)
    mixed += values.view(np.uint64)
    mixed *= _FACTOR
    mixed ^= keys.lengths.astype(np.uint64) * _FACTOR
    np.right_shift(mixed, _TOP, out=mixed)
    return mixed


def places(keys: PaddedBytes, values: Ints) -> Numbers:
    """The place words of a chunk's entries. The words of the keys follow them."""
    starts = (keys.starts[:-1] - keys.starts[0] + ENTRY_WORDS * len(keys)).astype(np.uint64)
    found: Numbers = starts << _START | keys.lengths.astype(np.uint64) << _LENGTH | checks(keys, values)
    return found


class ByteSection:
    """The entries of one table in a run."""

    __slots__ = (
        "_ats",
        "_blocks",
        "_filter",
        "_firsts",
        "_guides",
        "_hashed",
        "_hashed_at",
        "_low",
        "_samples",
        "_views",
        "_words",
        "count",
        "key_hash",
        "nbytes",
        "rank_bits",
    )

    def __init__(self, blocks: Blocks, place: SectionPlace, key_hash: KeyHash) -> None:
        self._blocks, self.count, self.key_hash, self.nbytes = blocks, place.entries, key_hash, place.nbytes
        self.rank_bits, self._low = place.rank_bits, low_of(place.rank_bits)
        self._words = blocks.all_words
        self._hashed, self._hashed_at = blocks.words(place.at, place.entries), place.at // 8
        self._samples = blocks.words(place.samples_at, -(-place.entries // SAMPLED))
        self._filter = blocks.words(place.filter_at, place.filter_words)
        chunks = blocks.words(place.chunks_at, 2 * place.chunks).astype(np.int64)
        self._firsts, self._ats = chunks[::2].copy(), chunks[1::2].copy()
        self._guides: dict[int, bytes] = {}
        self._views = self._hashed.data, self._samples.data, self._filter.data, self._words.data

    def fill(self, found: Ints, wanted: WantedKeys) -> None:
        """Fill in the values of keys for which newer runs have left `MISS`: ABSENT if an entry says so."""
        marks = wanted.marks
        held = self._filter.take(marks.words(len(self._filter)), mode="clip")
        held &= marks.bits
        rows = np.flatnonzero(held == marks.bits)
        rows = rows[found.take(rows) == MISS]
        if len(rows) <= _FEW:
            for row in rows.tolist():
                found[row] = self.one(wanted.keys.one(int(wanted.rows[row])), int(marks.numbers[row]))
            return
        hashes = marks.numbers.take(rows)
        at = self._places(hashes | self._low)
        while len(rows):
            self._blocks.check(at + self._hashed_at)
            entries = self._hashed.take(at)
            alike = np.flatnonzero((entries | self._low) == (hashes | self._low))
            if not len(alike):
                break
            rows, hashes, at = rows[alike], hashes[alike], at[alike]
            keys, values = self._entries((entries[alike] & self._low).view(np.int64))
            same = _equal(wanted.keys, wanted.rows[rows], keys)
            found[rows[same]] = values[same]
            others = np.flatnonzero(~same & (at > 0))  # keys of the same hash are adjacent
            rows, hashes, at = rows[others], hashes[others], at[others] - 1

    def _places(self, bounds: Numbers) -> Ints:
        """The index of the last word not above each of these ascending bounds, or 0."""
        at = self._samples.searchsorted(bounds, "right")
        at -= 1
        np.maximum(at, 0, out=at)
        at *= SAMPLED
        last = len(self._hashed) - 1
        for step in _STEPS:
            probe = at + step
            np.minimum(probe, last, out=probe)
            np.copyto(at, probe, where=self._hashed.take(probe) <= bounds)
        return at

    def _entries(self, ranks: Ints) -> tuple[PaddedBytes, Ints]:
        """(keys, values) of entries at any ranks; DAMAGED for an entry that does not match its check.

        The keys need not be contiguous.
        """
        chunks = self._firsts.searchsorted(ranks, "right")
        chunks -= 1
        ats = self._ats.take(chunks)
        words = ats + ENTRY_WORDS * (ranks - self._firsts.take(chunks))
        self._blocks.check(words)
        values, stored = self._words.take(words).view(np.int64), self._words.take(words + 1)
        lengths = (stored >> _LENGTH & _CHECK).astype(np.uint32)
        starts = ats + (stored >> _START).view(np.int64)
        self._blocks.check(starts)
        self._blocks.check(starts + np.maximum(lengths.astype(np.int64) - 1, 0) // 8)
        keys = PaddedBytes(self._words, np.append(starts, 0), lengths)
        values[checks(keys, values) != stored & _CHECK] = DAMAGED
        return keys, values

    def one(self, key: bytes, hashed: int) -> int:
        """The value of one key; `MISS` if there is none. For a single key, arrays would be slower."""
        entries, samples, words, _ = self._views
        place, bits = filter_place(hashed >> RANK_BITS_MAX, len(words))
        if words[place] & bits != bits:
            return MISS
        bound = hashed | int(self._low)
        first = SAMPLED * max(bisect.bisect_right(samples, bound) - 1, 0)
        self._check_one(self._hashed_at + first)
        at = bisect.bisect_right(entries, bound, first, min(first + SAMPLED, len(entries))) - 1
        while at >= 0 and entries[at] | int(self._low) == bound:
            found, value = self._one(entries[at] & int(self._low))
            if found == key:
                return value
            at -= 1
            self._check_one(self._hashed_at + max(at, 0))
        return MISS

    def _check_one(self, word: int) -> None:
        if not self._blocks.is_checked:
            self._blocks.check(np.array([word], dtype=np.int64))

    def _one(self, rank: int) -> tuple[bytes, int]:
        """(key, value) of a rank; DAMAGED for an entry that does not match its check."""
        word, start, length = self._place(rank)
        words = self._views[3]
        value, check = words[word], words[word + 1] & _CHECK_INT
        mixed = words[start] * _FACTOR_INT & _WORD_MASK ^ words[start + max(length - 1, 0) // 8]
        mixed = (mixed + value) * _FACTOR_INT & _WORD_MASK ^ length * _FACTOR_INT & _WORD_MASK
        if mixed >> int(_TOP) != check:
            return self._key(start, length), DAMAGED
        return self._key(start, length), value - (value >> 63 << 64)

    def _place(self, rank: int) -> tuple[int, int, int]:
        """(word of the value, first word of the key, bytes of the key) of a rank, with their checksums verified."""
        chunk = bisect.bisect_right(self._firsts, rank) - 1
        at = int(self._ats[chunk])
        word = at + ENTRY_WORDS * (rank - int(self._firsts[chunk]))
        self._check_one(word)
        stored = self._views[3][word + 1]
        start, length = at + (stored >> 32), stored >> 16 & _CHECK_INT
        self._check_one(start)
        self._check_one(start + max(length - 1, 0) // 8)
        return word, start, length

    def _key(self, start: int, length: int) -> bytes:
        key: bytes = self._views[3][start : start + max(-(-length // 8), 1)].tobytes()
        return key[:length]

    def key(self, rank: int) -> bytes:
        return self._key(*self._place(rank)[1:])

    def below(self, bound: bytes, first: int = 0, most: int | None = None) -> int:
        """The number of entries with a lower key, at most `most`. Entries before `first` are known to be lower."""
        end = self.count if most is None else min(most, self.count)
        step = max(self.count // _GUIDES, 1)
        guides = range(0, self.count, step)
        after = bisect.bisect_left(guides, bound, key=self._guide)
        low, high = max((after - 1) * step + 1, first), min(after * step, end)
        return bisect.bisect_left(range(self.count), bound, low, high, key=self.key) if low < high else min(low, end)

    def _guide(self, rank: int) -> bytes:
        """The key of a rank from which searches start, cached."""
        key = self._guides.get(rank)
        if key is None:
            key = self._guides[rank] = self.key(rank)
        return key

    def part(self, first: int, last: int) -> tuple[PaddedBytes, Ints]:
        """(keys, values) of entries by rank; DAMAGED for an entry that does not match its check."""
        parts: list[tuple[PaddedBytes, Ints]] = []
        while first < last:
            chunk = bisect.bisect_right(self._firsts, first) - 1
            end = int(self._firsts[chunk + 1]) if chunk + 1 < len(self._firsts) else self.count
            parts.append(self._part(chunk, first, min(last, end)))
            first = end
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return PaddedBytes.of([]), np.empty(0, dtype=np.int64)
        return joined([keys for keys, _ in parts]), np.concatenate([values for _, values in parts])

    def _part(self, chunk: int, first: int, last: int) -> tuple[PaddedBytes, Ints]:
        at = int(self._ats[chunk])
        word = at + ENTRY_WORDS * (first - int(self._firsts[chunk]))
        end = word + ENTRY_WORDS * (last - first)
        self._check_all(word, end)
        stored = self._words[word + 1 : end : ENTRY_WORDS]
        lengths = (stored >> _LENGTH & _CHECK).astype(np.uint32)
        starts = np.empty(last - first + 1, dtype=np.int64)
        starts[:-1] = at + (stored >> _START).view(np.int64)
        starts[-1] = int(starts[-2]) + max(-(-int(lengths[-1]) // 8), 1)
        self._check_all(int(starts[0]), int(starts[-1]))
        keys, values = (
            PaddedBytes(self._words, starts, lengths),
            self._words[word:end:ENTRY_WORDS].view(np.int64).copy(),
        )
        values[checks(keys, values) != stored & _CHECK] = DAMAGED
        return keys, values

    def _check_all(self, first: int, last: int) -> None:
        """Verify the blocks of the words [first, last)."""
        self._blocks.check(np.append(np.arange(first, last, BLOCK_WORDS), last - 1))

    def hashed_between(self, low: int, high: int) -> Numbers:
        """The words of hashes and ranks in [low, high), in order, with their checksums verified."""
        self._check_all(self._hashed_at, self._hashed_at + self.count)
        first, last = (
            self.count if bound >> 64 else int(self._hashed.searchsorted(np.uint64(bound))) for bound in (low, high)
        )
        return self._hashed[first:last]


def _equal(wanted: PaddedBytes, rows: Ints, keys: PaddedBytes) -> Flags:
    """Whether the keys at these rows are equal to `wanted`."""
    lengths = wanted.lengths[rows]
    same: Flags = lengths == keys.lengths
    return same & equal_words(wanted.words, wanted.starts[rows], keys.words, keys.starts[:-1], lengths, same)

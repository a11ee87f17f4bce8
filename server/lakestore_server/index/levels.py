"""The levels of the index: its runs, newest first, as one immutable value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from lakestore.rows.live_sum import live_sum
from lakestore_server.arrays.grouping import ordered
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.byte_merge import key_slices
from lakestore_server.index.byte_section import ByteSection, WantedKeys
from lakestore_server.index.entry import DAMAGED, FLAG, OFFSET_MASK, DamagedIndex, Ints
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys
from lakestore_server.index.number_section import NumberSection, unpacked
from lakestore_server.index.overlay import Entries
from lakestore_server.index.run import Run, Section
from lakestore_server.index.run_filter import LookupNumbers, Numbers
from lakestore_server.index.run_merge import of_bytes, of_numbers, slices

Bounds = tuple[bytes, bytes]
Range = tuple[Sequence[bytes], Sequence[int]]
SIMILAR = 8
"""This many runs of one size are merged into one. Each size is this many times larger than the one before.

Simulated for 50 M keys and checkpoints of a million: an entry is written 2.7 times, with up to 13 runs of up to twice
the bytes of the keys. With four runs, and a base rewritten at half, it would be 4.1 times, up to 7 runs and 1.5 times
the bytes. A run costs a look-up one word of its filter, 7 ns a key. Writing an entry again costs 55 ns, and new memory
in the page cache.
"""
RUNS_TIMES = 3
"""The most runs, in units of `SIMILAR`. Checkpoints of very different sizes would lead to up to 122 runs
(simulated); with this limit there are 24, and an entry is written at most 4.1 times.
"""


@dataclass(frozen=True, slots=True)
class Levels:
    """The runs as of one checkpoint."""

    lsn: int
    """The newest commit in them."""
    runs: tuple[Run, ...] = ()
    """Newest first."""
    adopted: int = 0
    """The number of checkpoint runs that became visible to look-ups since the start."""
    gone: int = 0
    """The adoption up to which merges may have dropped entries with ABSENT, perhaps whole runs."""

    def sections(self, prefix: bytes) -> list[Section]:
        """The sections of a table, newest first."""
        return [run.sections[prefix] for run in self.runs if prefix in run.sections]

    def find(self, keys: IndexKeys) -> Ints:
        """The values of keys: ABSENT where a run says so, `MISS` for a key that no run has."""
        held = self.sections(keys.prefix) if len(keys) else []
        if isinstance(keys, NumberKeys) and (sections := of_numbers(held)):
            return checked(_numbers(sections, keys.numbers))
        if isinstance(keys, ByteKeys) and (others := of_bytes(held)):
            return checked(_bytes(others, keys))
        return np.full(len(keys), MISS, dtype=np.int64)

    def behind(self, earlier: Levels) -> Levels | None:
        """The runs with entries of checkpoints that came after `earlier`, levels of the same files.

        None if a merge may have dropped such entries with ABSENT.
        """
        if self.gone > earlier.adopted:
            return None
        return replace(self, runs=tuple(run for run in self.runs if run.adopted > earlier.adopted))

    def ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int, prefix: bytes) -> Iterator[Entries]:
        """The first entries, at most `most`, of each range [low, high) of one table, for each run, newest first."""
        for section in self.sections(prefix):
            if isinstance(section, NumberSection):
                yield [_range_of_numbers(section, each, most, prefix) for each in bounds]
            else:
                yield [_range_of_bytes(section, each, most) for each in bounds]

    def merged_with(self, inputs: Sequence[Run], output: Run | None) -> Levels:
        """These levels with neighbouring runs replaced by one run or none. Unchanged if one of them is gone."""
        places = [at for at, run in enumerate(self.runs) if run in inputs]
        if len(places) != len(inputs):
            return self
        made = () if output is None else (output,)
        return replace(self, runs=(*self.runs[: places[0]], *made, *self.runs[places[-1] + 1 :]))


def _numbers(sections: Sequence[NumberSection], numbers: Numbers) -> Ints:
    """The values of numbers in sections, newest first."""
    if len(numbers) == 1:
        number = int(numbers[0])
        return _first(section.one(number) for section in sections)
    order, _ = ordered(numbers)
    wanted = LookupNumbers.of(numbers.take(order))
    found = np.full(len(numbers), MISS, dtype=np.int64)
    for section in sections:
        yield_point()
        section.fill(found, wanted)
        if not (found == MISS).any():
            break
    return _as_asked(found, order)


def _bytes(sections: Sequence[ByteSection], keys: ByteKeys) -> Ints:
    """The values of keys in sections, newest first. All runs of an index use the same hash."""
    if len(keys) == 1:
        key = keys.listed()[0]
        hashed = sections[0].key_hash.one(key)
        return _first(section.one(key, hashed) for section in sections)
    hashes = sections[0].key_hash.many(keys.padded)
    order, _ = ordered(hashes)
    wanted = WantedKeys.of(keys.padded, hashes, order)
    found = np.full(len(keys), MISS, dtype=np.int64)
    for section in sections:
        yield_point()
        section.fill(found, wanted)
        if not (found == MISS).any():
            break
    return _as_asked(found, order)


def _first(values: Iterator[int]) -> Ints:
    """The first value that is not None."""
    return np.array([next((value for value in values if value != MISS), MISS)], dtype=np.int64)


def _as_asked(found: Ints, order: Ints) -> Ints:
    values = np.empty_like(found)
    values[order] = found
    return values


def _range_of_numbers(section: NumberSection, bounds: Bounds, most: int, prefix: bytes) -> Range:
    known = NumberKeys(prefix, section.width, np.empty(0, dtype=np.uint64))
    first, end = (section.below(known.bound(bound)) for bound in bounds)
    numbers, stored = section.part(first, min(end, first + most))
    values = checked(unpacked(numbers, stored))
    return NumberKeys(prefix, section.width, numbers).listed(), values.tolist()


def _range_of_bytes(section: ByteSection, bounds: Bounds, most: int) -> Range:
    low, high = bounds
    first = section.below(low)
    keys, values = section.part(first, section.below(high, first, first + most))
    return keys.listed(), checked(values).tolist()


def checked(values: Ints) -> Ints:
    """The values. Raises `DamagedIndex` if an entry does not match its check."""
    wrong = int(np.count_nonzero(values == DAMAGED))
    if wrong:
        raise damaged(wrong)
    return values


def damaged(entries: int) -> DamagedIndex:
    """The error for entries that do not match their checks."""
    return DamagedIndex(f"{entries} entries do not match their checks")


def due(sizes: Sequence[int]) -> int:
    """The number of the newest runs to merge; 0 for none. `sizes` are the entries of all runs, newest first.

    Eight runs of one size make one of the next size, so an entry is rewritten once for each power of eight. All runs
    are merged when several newer ones have as many entries as the oldest. If there are too many runs, those are merged
    that cost the fewest entries for each run less.
    """
    if len(sizes) >= SIMILAR // 2 and sum(sizes[:-1]) >= sizes[-1]:
        return len(sizes)
    for count in range(len(sizes) - 1, SIMILAR - 1, -1):
        if (SIMILAR - 1) * max(sizes[:count]) <= sum(sizes[:count]):
            return count
    if len(sizes) > RUNS_TIMES * SIMILAR:
        sums = list(accumulate(sizes))
        return min(range(2, len(sizes) + 1), key=lambda count: sums[count - 1] / (count - 1))
    return 0


def runs_due(runs: Sequence[Run]) -> Sequence[Run]:
    """The newest runs that should be merged, of all runs of an index."""
    return runs[: due([run.entries for run in runs])]


def values_of(section: Section, first: int, last: int) -> Ints:
    """The values of entries by position; DAMAGED for an entry that does not match its check."""
    if isinstance(section, NumberSection):
        return unpacked(*section.part(first, last))
    return section.part(first, last)[1]


@dataclass(frozen=True, slots=True)
class WalkSums:
    """Sums over some entries of a table."""

    live: int
    """Live entries."""
    total: int
    """Their live sum."""
    damaged: int


def walk(levels: Levels, prefix: bytes, entries: int) -> Iterator[WalkSums]:
    """Sums over all live entries of a table, slice by slice."""
    held = levels.sections(prefix)
    for values in _walked(of_numbers(held), of_bytes(held), entries):
        offsets = values[(values >= 0) & (values < FLAG)] & OFFSET_MASK
        yield WalkSums(len(offsets), live_sum(offsets), int(np.count_nonzero(values == DAMAGED)))


def _walked(numbers: Sequence[NumberSection], keys: Sequence[ByteSection], entries: int) -> Iterator[Ints]:
    """The values of a table's sections, slice by slice."""
    yield from (unpacked(*part) for part in slices(numbers, entries))
    yield from (part.values for part in key_slices(keys, entries))

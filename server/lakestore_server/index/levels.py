"""The levels of the index: runs, newest first, as one value that a look-up takes at its moment."""

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
from lakestore_server.index.run_filter import Numbers, Wanted
from lakestore_server.index.run_merge import of_bytes, of_numbers, slices

Bounds = tuple[bytes, bytes]
Range = tuple[Sequence[bytes], Sequence[int]]
SIMILAR = 8
"""Runs of about one size that are merged into one, and how many times larger the next size is.

With 50 M keys and checkpoints of a million an entry is written 2.7 times, simulated, for up to 13 runs that take up to
twice the bytes of the keys. Four of a size, and a base rewritten when the others hold half of it, would write it 4.1
times for up to 7 runs and 1.5 times the bytes: a run costs a look-up a word of its filter, 7 ns a key, an entry that is
written again 55 ns, and whatever memory new to the page cache costs.
"""
RUNS_TIMES = 3
"""Times `SIMILAR` so many runs there are at most. Checkpoints of very different sizes would leave up to 122, simulated;
so there are 24, and an entry is written 4.1 times at most.
"""


@dataclass(frozen=True, slots=True)
class Levels:
    """Runs as of one checkpoint."""

    lsn: int
    """The newest commit in them."""
    runs: tuple[Run, ...] = ()
    """Newest first."""
    adopted: int = 0
    """The runs of checkpoints that look-ups have come to see since the start."""
    gone: int = 0
    """The adoption up to which merges may have left out entries that said ABSENT, maybe with the whole run."""

    def sections(self, prefix: bytes) -> list[Section]:
        """The entries of a table, newest first."""
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
        """The runs with entries of checkpoints that `earlier`, of the same files, lacks.

        None if a merge may have left out some of these, such as say ABSENT.
        """
        if self.gone > earlier.adopted:
            return None
        return replace(self, runs=tuple(run for run in self.runs if run.adopted > earlier.adopted))

    def ranges(self, bounds: Sequence[tuple[bytes, bytes]], most: int, prefix: bytes) -> Iterator[Entries]:
        """The first entries, so many at most, of each [low, high) of one table, by run, newest first."""
        for section in self.sections(prefix):
            if isinstance(section, NumberSection):
                yield [_range_of_numbers(section, each, most, prefix) for each in bounds]
            else:
                yield [_range_of_bytes(section, each, most) for each in bounds]

    def merged_with(self, inputs: Sequence[Run], output: Run | None) -> Levels:
        """These levels with one run, or none, in the place of neighbouring ones; as they are if one of them is gone."""
        places = [at for at, run in enumerate(self.runs) if run in inputs]
        if len(places) != len(inputs):
            return self
        made = () if output is None else (output,)
        return replace(self, runs=(*self.runs[: places[0]], *made, *self.runs[places[-1] + 1 :]))


def _numbers(sections: Sequence[NumberSection], numbers: Numbers) -> Ints:
    """The values of numbers, by sections, newest first."""
    if len(numbers) == 1:
        number = int(numbers[0])
        return _first(section.one(number) for section in sections)
    order, _ = ordered(numbers)
    wanted = Wanted.of(numbers.take(order))
    found = np.full(len(numbers), MISS, dtype=np.int64)
    for section in sections:
        yield_point()
        section.fill(found, wanted)
        if not (found == MISS).any():
            break
    return _as_asked(found, order)


def _bytes(sections: Sequence[ByteSection], keys: ByteKeys) -> Ints:
    """The values of keys, by sections, newest first; all runs of an index have one hash."""
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
    """The first value that is there."""
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
    """The values, or `DamagedIndex` if an entry does not match its check."""
    wrong = int(np.count_nonzero(values == DAMAGED))
    if wrong:
        raise damaged(wrong)
    return values


def damaged(entries: int) -> DamagedIndex:
    """The error of entries that do not match their checks."""
    return DamagedIndex(f"{entries} entries do not match their checks")


def due(sizes: Sequence[int]) -> int:
    """The number of the newest runs that are to be merged, by the entries of all, newest first; 0 for none.

    Eight of about one size make one of the next size, so that an entry is rewritten once for each power of eight; all
    are merged when the others are some and hold as much as the oldest one. Of too many, as many become one as cost the
    fewest entries for each run less.
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
    """The newest runs that are to be merged, of all of an index."""
    return runs[: due([run.entries for run in runs])]


def values_of(section: Section, first: int, last: int) -> Ints:
    """The values of entries by their places; DAMAGED for one that does not match its check."""
    if isinstance(section, NumberSection):
        return unpacked(*section.part(first, last))
    return section.part(first, last)[1]


@dataclass(frozen=True, slots=True)
class Walked:
    """The sums of some entries of a table."""

    live: int
    """Live entries."""
    total: int
    """Their live sum."""
    damaged: int


def walk(levels: Levels, prefix: bytes, entries: int) -> Iterator[Walked]:
    """All live entries of a table, slice by slice."""
    held = levels.sections(prefix)
    for values in _walked(of_numbers(held), of_bytes(held), entries):
        offsets = values[(values >= 0) & (values < FLAG)] & OFFSET_MASK
        yield Walked(len(offsets), live_sum(offsets), int(np.count_nonzero(values == DAMAGED)))


def _walked(numbers: Sequence[NumberSection], keys: Sequence[ByteSection], entries: int) -> Iterator[Ints]:
    """The values of sections of one table, slice by slice."""
    yield from (unpacked(*part) for part in slices(numbers, entries))
    yield from (part.values for part in key_slices(keys, entries))

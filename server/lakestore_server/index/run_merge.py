"""Runs merged into one: table by table in slices of numbers, of each number the newest entry.

Slices lie in order in each run, so that one stable sort of a slice's numbers is a merge: 4 ns an entry, measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lakestore_server.index.number_section import NumberSection, is_gone
from lakestore_server.index.run import Run
from lakestore_server.index.run_filter import Numbers
from lakestore_server.index.run_writer import RunWriter

SLICE_ENTRIES = 262_144
"""Entries of each section; about 10 ms."""


def newest_entries(parts: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """(numbers, packed values) of parts, newest first, each ascending: every number once."""
    parts = [part for part in parts if len(part[0])]
    if len(parts) < 2:
        return parts[0] if parts else (np.empty(0, np.uint64), np.empty(0, np.uint64))
    numbers, stored = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    order = numbers.argsort(kind="stable")
    numbers = numbers.take(order)
    first = np.empty(len(numbers), dtype=np.bool_)
    first[0] = True
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first], stored.take(order[first])


def slices(sections: Sequence[NumberSection], entries: int) -> Iterator[tuple[Numbers, Numbers]]:
    """(numbers, packed values) of sections of one table, newest first, in order and slice by slice."""
    at = [0] * len(sections)
    while any(first < section.count for section, first in zip(sections, at, strict=True)):
        bounds = [
            int(section.part(first + entries, first + entries + 1)[0][0])
            for section, first in zip(sections, at, strict=True)
            if first + entries < section.count
        ]
        ends = [section.below(min(bounds)) if bounds else section.count for section in sections]
        yield newest_entries([section.part(a, b) for section, a, b in zip(sections, at, ends, strict=True)])
        at = ends


def merge(
    writer: RunWriter,
    runs: Sequence[Run],
    serves: Callable[[bytes], bool],
    drops_gone: Callable[[bytes], bool],
    pause: Callable[[int], bool],
) -> bool:
    """Write runs, newest first, as one, without the tables that are not served; whether it came to its end.

    `drops_gone` says of a table whether nothing lies below these runs, so that entries that say ABSENT can go. `pause`
    is told the number of entries after each slice; the merge ends early when that gives False.
    """
    for prefix in sorted({prefix for run in runs for prefix in run.sections if serves(prefix)}):
        sections = [run.sections[prefix] for run in runs if prefix in run.sections]
        section = writer.begin(int.from_bytes(prefix, "big"), sections[0].width, sum(s.count for s in sections))
        drops = drops_gone(prefix)
        for numbers, stored in slices(sections, SLICE_ENTRIES):
            gone = is_gone(stored) if drops else None
            if gone is not None and gone.any():
                numbers, stored = numbers[~gone], stored[~gone]
            if len(numbers):
                section.add(numbers, stored)
            if not pause(len(numbers)):
                return False
        section.end()
    writer.finish()
    return True

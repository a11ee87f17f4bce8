"""Merges runs into one: table by table in slices of keys, each key with its newest entry.

A slice is sorted within each run, so one stable sort of the slice's numbers is a merge: 4 ns an entry (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lakestore_server.host.disk import Disk
from lakestore_server.index import byte_merge
from lakestore_server.index.byte_section import ByteSection
from lakestore_server.index.entry import KeyHash
from lakestore_server.index.number_section import NumberSection, is_gone
from lakestore_server.index.run import Run, Section
from lakestore_server.index.run_filter import Numbers
from lakestore_server.index.run_writer import RunWriter, SectionWriter

SLICE_ENTRIES = 65_536
"""Entries of each section in a slice: few enough for the processor's cache."""
PAUSE_ENTRIES = 262_144
"""Entries between pauses; about 15 ms."""


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
    """(numbers, packed values) of a table's sections, newest first, in order, slice by slice."""
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


def writer_of(disk: Disk, path: Path, runs: Sequence[Run], key_hash: KeyHash) -> RunWriter:
    """The writer of a run that replaces others. `key_hash` is the index's."""
    return RunWriter(disk, path, key_hash, max(run.lsn for run in runs))


def merge(
    writer: RunWriter,
    runs: Sequence[Run],
    serves: Callable[[bytes], bool],
    drops_gone: Callable[[bytes], bool],
    pause: Callable[[int], bool],
) -> bool:
    """Write runs, newest first, as one, without unserved tables. Returns whether it is complete.

    `drops_gone` tells for a table whether there are no entries below these runs, so that entries with ABSENT can be
    dropped. `pause` is called with the number of entries from time to time; if it returns False, the merge ends.
    """
    for prefix in sorted({prefix for run in runs for prefix in run.sections if serves(prefix)}):
        held = [run.sections[prefix] for run in runs if prefix in run.sections]
        number, count = int.from_bytes(prefix, "big"), sum(section.count for section in held)
        if numbers := of_numbers(held):
            section = writer.begin(number, numbers[0].width, count)
            is_whole = _merge_numbers(section, numbers, drops_gone=drops_gone(prefix), pause=pause)
            section.end()
        elif keys := of_bytes(held):
            others = writer.begin_bytes(number, count, max(section.rank_bits for section in keys))
            is_whole = byte_merge.merge(others, keys, drops_gone=drops_gone(prefix), pause=pause)
            others.end()
        if not is_whole:
            return False
    writer.finish()
    return True


def _merge_numbers(
    writer: SectionWriter, sections: Sequence[NumberSection], *, drops_gone: bool, pause: Callable[[int], bool]
) -> bool:
    waiting = written = 0
    for numbers, stored in slices(sections, SLICE_ENTRIES):
        waiting += len(numbers)  # dropped entries take time too
        gone = is_gone(stored) if drops_gone else None
        if gone is not None and gone.any():
            numbers, stored = numbers[~gone], stored[~gone]
        if len(numbers):
            writer.add(numbers, stored)
        written += len(numbers)
        if waiting >= PAUSE_ENTRIES:
            if not pause(written):
                return False
            waiting = written = 0
    return pause(written)


def of_numbers(sections: Sequence[Section]) -> list[NumberSection]:
    """The sections of a table, if its keys are numbers."""
    return [section for section in sections if isinstance(section, NumberSection)]


def of_bytes(sections: Sequence[Section]) -> list[ByteSection]:
    """The sections of a table, if its keys are bytes."""
    return [section for section in sections if isinstance(section, ByteSection)]

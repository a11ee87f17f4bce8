"""Merges sections with byte keys: first the keys in order, each with its newest entry, then the hashes.

While keys are merged, the new rank of each old entry is recorded, in 4 bytes an entry. The hashes are then merged in
their own order without the keys. Merging keys of 40 bytes takes 0.2 µs an entry (measured).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.padded_bytes import PaddedBytes, joined
from lakestore_server.index.byte_section import ByteSection, hashed, low_of
from lakestore_server.index.entry import ABSENT, DAMAGED, DamagedIndex, Ints
from lakestore_server.index.run_writer import ByteSectionWriter

SLICE_KEYS = 65_536
"""Entries of each section in a slice; about 20 ms."""
SLICE_HASHES = 1_000_000
"""Hashes of all sections together in a slice."""
_GONE = np.uint32(0xFFFFFFFF)
"""The rank of an entry that is not in the output."""
_ALL = 1 << 64


class KeySlice(NamedTuple):
    """The entries of a range of keys in several sections."""

    keys: PaddedBytes
    """Each key once, in order."""
    values: Ints
    """The newest value of each key."""
    rows: Ints
    """The position of each among all entries that were read."""
    ranges: Sequence[tuple[int, int]]
    """For each section, the range of ranks that was read."""


def newest_keys(parts: Sequence[tuple[PaddedBytes, Ints]]) -> tuple[PaddedBytes, Ints, Ints]:
    """(keys, values, rows) of parts, newest part first, each ascending: every key once."""
    if len(parts) == 1:
        keys, values = parts[0]
        return keys, values, np.arange(len(keys))
    keys = joined([keys for keys, _ in parts])
    order = keys.order()
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = ~keys.equal(order[1:], keys, order[:-1])
    rows = order[first]
    return keys.take(rows), np.concatenate([values for _, values in parts]).take(rows), rows


def key_slices(sections: Sequence[ByteSection], entries: int) -> Iterator[KeySlice]:
    """The entries of a table's sections, newest first, in key order, slice by slice."""
    at = [0] * len(sections)
    while any(first < section.count for section, first in zip(sections, at, strict=True)):
        bounds = [
            section.key(first + entries)
            for section, first in zip(sections, at, strict=True)
            if first + entries < section.count
        ]
        bound = min(bounds, default=None)
        ends = [
            section.count if bound is None else section.below(bound, first)
            for section, first in zip(sections, at, strict=True)
        ]
        ranges = list(zip(at, ends, strict=True))
        parts = [section.part(first, end) for section, (first, end) in zip(sections, ranges, strict=True)]
        yield KeySlice(*newest_keys(parts), ranges)
        at = ends


def merge(
    writer: ByteSectionWriter, sections: Sequence[ByteSection], *, drops_gone: bool, pause: Callable[[int], bool]
) -> bool:
    """Write a table's sections, newest first, as one. False if `pause`, called with the entries of each slice, ended
    it.
    """
    ranks = [np.full(section.count, _GONE, dtype=np.uint32) for section in sections]
    for part in key_slices(sections, SLICE_KEYS):
        keys, values, rows = part.keys, part.values, part.rows
        if (values == DAMAGED).any():
            raise DamagedIndex(f"{int((values == DAMAGED).sum())} entries do not match their checks")
        if drops_gone and (values == ABSENT).any():
            kept = np.flatnonzero(values != ABSENT)
            keys, values, rows = keys.take(kept), values.take(kept), rows.take(kept)
        _note(ranks, part.ranges, rows, writer.count)
        writer.add(keys, values)
        if not pause(len(keys)):
            return False
    return _merge_hashes(writer, sections, ranks, pause)


def _note(
    ranks: Sequence[npt.NDArray[np.uint32]], ranges: Sequence[tuple[int, int]], rows: Ints, first_rank: int
) -> None:
    """Record the new ranks of a slice's rows. Other rows have none."""
    new = np.full(sum(end - first for first, end in ranges), _GONE, dtype=np.uint32)
    new[rows] = np.arange(first_rank, first_rank + len(rows), dtype=np.uint32)
    at = 0
    for of_section, (first, end) in zip(ranks, ranges, strict=True):
        of_section[first:end] = new[at : at + end - first]
        at += end - first


def _merge_hashes(
    writer: ByteSectionWriter,
    sections: Sequence[ByteSection],
    ranks: Sequence[npt.NDArray[np.uint32]],
    pause: Callable[[int], bool],
) -> bool:
    slices = -(-sum(section.count for section in sections) // SLICE_HASHES)
    step = 1 << writer.rank_bits
    bounds = [_ALL * at // slices // step * step for at in range(slices)] + [_ALL]
    for low, high in itertools.pairwise(bounds):
        found = []
        for section, of_section in zip(sections, ranks, strict=True):
            words = section.hashed_between(low, high)
            new = of_section.take((words & low_of(section.rank_bits)).view(np.int64))
            kept = np.flatnonzero(new != _GONE)
            found.append(hashed(words[kept], new[kept].astype(np.uint64), writer.rank_bits))
        merged = np.concatenate(found)
        merged.sort(kind="stable")
        if len(merged):
            writer.find_by(merged)
        if not pause(len(merged)):
            return False
    return True

"""Search for rows in the lake by bucket and offset: the data files that may hold them, and the places in a file.

1. A key is bucket and offset in one number, so one sorted array holds the keys of many buckets.
2. Bounds in manifests exclude files. The cost of a search depends on the rows to find, not on the size of the lake.

Example: rows 5 and 9 of bucket 1 are sought. A file with bucket 1 and offsets 6 to 8 is not opened. A file with offsets
0 to 9 is, and `places` returns the indexes of the keys 1<<48|5 and 1<<48|9 in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lakestore.rows.ranges import Offsets, OffsetSet

BUCKET_SHIFT = 48
OFFSET_MASK = (1 << BUCKET_SHIFT) - 1
Keys = npt.NDArray[np.int64]
"""bucket << 48 | offset of each row, sorted and distinct."""
SCANNED_PER_SOUGHT = 24
"""A scan reads this many rows of a file in the time of one binary search."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and greatest bucket and offset in a data file."""

    bucket: tuple[int, int]
    offset: tuple[int, int]


class BoundedFile(Protocol):
    """A file with bounds of bucket and offset."""

    @property
    def bounds(self) -> Bounds | None:
        """None if the writer stored no bounds. The file may then hold any offset."""


def packed(dead: Mapping[int, OffsetSet]) -> Keys:
    """The keys of these offsets of each bucket."""
    parts = [dead[bucket].values | (bucket << BUCKET_SHIFT) for bucket in sorted(dead)]
    return np.concatenate(parts) if parts else _NONE


def by_bucket(parts: Sequence[Keys]) -> dict[int, Offsets]:
    """The offsets of each bucket in these arrays of keys. A key may occur twice."""
    return _runs(np.sort(np.concatenate(parts))) if parts else {}


def _any_between(values: Keys, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> Flags:
    """For each pair, True if one of the sorted values is in the closed range."""
    return np.searchsorted(values, low) < np.searchsorted(values, high, side="right")


def _runs(keys: Keys) -> dict[int, Offsets]:
    edges = np.flatnonzero(np.diff(keys >> BUCKET_SHIFT)) + 1
    return {int(run[0] >> BUCKET_SHIFT): run & OFFSET_MASK for run in np.split(keys, edges) if len(run)}


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BoundsTable:
    """The bounds of many files as arrays."""

    ends: npt.NDArray[np.int64]
    """For each file, least and greatest bucket, least and greatest offset."""
    bounded: Flags
    """True for each file with bounds."""

    @staticmethod
    def of(files: Iterable[BoundedFile]) -> BoundsTable:
        """The bounds of files."""
        known = [file.bounds for file in files]
        ends = [(*bounds.bucket, *bounds.offset) if bounds else (0, 0, 0, 0) for bounds in known]
        bounded = np.array([bounds is not None for bounds in known], dtype=np.bool_)
        return BoundsTable(np.array(ends, np.int64).reshape(-1, 4), bounded)

    @staticmethod
    def joined(parts: Sequence[tuple[npt.NDArray[np.int64], Flags]]) -> BoundsTable:
        """Join the bounds of the files of several manifests."""
        ends = [np.empty((0, 4), np.int64), *(each for each, _ in parts)]
        return BoundsTable(np.concatenate(ends), np.concatenate([np.empty(0, np.bool_), *(each for _, each in parts)]))


class RowSearch:
    """A search for some rows in many files."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._offsets = np.sort(keys & OFFSET_MASK)
        self._buckets = {bucket: OffsetSet(offsets) for bucket, offsets in _runs(keys).items()}

    def files(self, table: BoundsTable) -> list[int]:
        """The indexes of the files that may hold one of the rows."""
        if not self._buckets:
            return []
        wanted, (least, most, start, end) = ~table.bounded, table.ends.T
        one = np.flatnonzero(table.bounded & (least == most))
        bucket = least[one] << BUCKET_SHIFT
        wanted[one] = _any_between(self._keys, bucket | start[one], bucket | end[one])
        # For files with several buckets the offsets alone exclude most files, so each bucket is compared with few.
        several = np.flatnonzero(table.bounded & (least != most))
        several = several[_any_between(self._offsets, start[several], end[several])]
        for number, sought in self._buckets.items() if len(several) else ():
            near = several[(least[several] <= number) & (number <= most[several])]
            wanted[near] |= _any_between(sought.values, start[near], end[near])
        found: list[int] = np.flatnonzero(wanted).tolist()
        return found

    def places(self, keys: Keys) -> npt.NDArray[np.int64]:
        """The sorted places of the sought keys in the keys of a file."""
        if not len(keys):
            return _NONE
        first, last = np.searchsorted(self._keys, [keys[0], keys[-1] + 1])
        sought = self._keys[first:last]
        if len(sought) * SCANNED_PER_SOUGHT < len(keys):
            at = np.minimum(np.searchsorted(keys, sought), len(keys) - 1)
            return np.asarray(at[keys[at] == sought], dtype=np.int64)
        parts = []
        for bucket, offsets in self._buckets.items():
            begin, end = np.searchsorted(keys, [bucket << BUCKET_SHIFT, (bucket + 1) << BUCKET_SHIFT])
            if begin < end:
                parts.append(np.flatnonzero(offsets.contains(keys[begin:end] & OFFSET_MASK)) + begin)
        return np.concatenate(parts) if parts else _NONE

"""The data files of a snapshot that a read opens, chosen by partitions and bounds.

First a manifest's summaries of partitions: one in which no file can be meant is not read. Then the figures of its files
side by side: bounds of numbers, dates and times, and partition values. The files that are left are decoded, and the
condition is held against each. The array steps keep a file wherever they are not certain, so they decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.lake.manifest_entries import ABSENT, LOWER, NULLS, UPPER, VALUES, Entries
from lakestore.lake.manifest_lists import Manifest, Summary
from lakestore.lake.values import partition_types
from lakestore.rows.condition import AllOf, AnyOf, Comparison, RowFilter, Skip
from lakestore.rows.ranges import Range, may_meet
from lakestore.union import lake_snapshot
from lakestore.union.lake_partitions import Partitions
from lakestore.union.lake_ranges import Fields
from lakestore.union.lake_snapshot import PlannedFile, Snapshot
from lakestore.union.plan import TableScan

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)
_WHOLE = frozenset(("int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"))
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Places of data files in their manifests."""

    snapshot: Snapshot | None
    manifests: tuple[tuple[Entries, Longs], ...]
    count: int
    """Data files of the snapshot, or of the part of it that is read."""
    may: Callable[[PlannedFile], bool]
    """Whether a file has to be opened."""

    @staticmethod
    def of(scan: TableScan, condition: RowFilter | None) -> Chosen:
        """The files that a read of a plan may open."""
        if not scan.in_lake:
            return Chosen(None, (), 0, _any)
        found = lake_snapshot.snapshot(scan)
        pruning = None if condition is None else _Pruning.of(scan, condition.skip)
        part = None if scan.part is None else np.array([hash(path.encode()) for path in scan.part.files], np.int64)
        chosen, count = [], 0
        for manifest in found.data:
            whole = _count(manifest)
            if part is None and whole is not None and pruning and not pruning.may_hold(manifest):
                count += whole
                continue
            entries = lake_snapshot.entries_of(manifest)
            mask = np.ones(len(entries), np.bool_) if part is None else np.isin(entries.path_hashes, part)
            count += int(np.count_nonzero(mask))
            if pruning:
                mask &= pruning.mask(entries)
            if mask.any():
                chosen.append((entries, np.flatnonzero(mask)))
        paths = scan.part.files if scan.part else None
        return Chosen(found, tuple(chosen), count, _test(paths, pruning))

    def files(self) -> Iterator[PlannedFile]:
        """The files, with their deletes."""
        for entries, places in self.manifests:
            assert self.snapshot is not None
            for each in self.snapshot.planned(entries, places.tolist()):
                if self.may(each):
                    yield each

    def sizes(self) -> list[tuple[str, int]]:
        """Path and bytes of each file."""
        if self.may is not _any:
            return [(each.file.path, each.file.bytes) for each in self.files()]
        found: list[tuple[str, int]] = []
        for entries, places in self.manifests:
            found += zip(entries.paths(places), entries.sizes[places].tolist(), strict=True)
        return found


def _count(manifest: Manifest) -> int | None:
    """The living files of a manifest by its list."""
    added, existing = manifest.added_files, manifest.existing_files
    return None if added is None or existing is None else added + existing


def _any(_: PlannedFile) -> bool:
    return True


def _test(paths: frozenset[str] | None, pruning: _Pruning | None) -> Callable[[PlannedFile], bool]:
    if paths is None and pruning is None:
        return _any
    return lambda each: (paths is None or each.file.path in paths) and (pruning is None or pruning.may(each))


@dataclass(frozen=True, slots=True)
class _Pruning:
    """A condition against the figures of files."""

    skip: Skip
    fields: Fields
    partitions: Partitions
    specs: Mapping[int, Mapping[str, Any]]
    schema: Mapping[str, Any]

    @staticmethod
    def of(scan: TableScan, skip: Skip) -> _Pruning:
        table = lake_snapshot.metadata(scan.metadata_location)
        partitions = Partitions.of(table.specs, scan.table, skip)
        fields = Fields.of(scan.table, [test.column for test in tests_of(skip)])
        return _Pruning(skip, fields, partitions, table.specs, table.schema)

    def may(self, each: PlannedFile) -> bool:
        """Whether a file has to be opened."""
        file = each.file
        return may_meet(self.skip, partial(self.fields.of_file, file), partial(self.partitions.may_hold, file))

    def may_hold(self, manifest: Manifest) -> bool:
        """Whether a manifest may name a file that has to be opened."""
        if manifest.partitions is None or manifest.spec_id not in self.specs:
            return True
        kinds = partition_types(self.specs[manifest.spec_id], self.schema)
        parts = {
            name: (kind, part)
            for (name, (_, kind)), part in zip(kinds.items(), manifest.partitions, strict=False)
            if kind in _WHOLE or kind == "string"
        }
        return may_meet(self.skip, _no_range, partial(self._summaries_hold, manifest.spec_id, parts))

    def _summaries_hold(self, spec_id: int, parts: Mapping[str, tuple[str, Summary]], test: Comparison) -> bool:
        wanted = self.partitions.wanted(spec_id, test)
        return all(name not in parts or _summary_holds(*parts[name], values) for name, values in wanted)

    def mask(self, entries: Entries) -> Mask:
        """Whether each file of a manifest may have to be opened."""
        return self._mask(self.skip, entries)

    def _mask(self, skip: Skip, entries: Entries) -> Mask:
        if isinstance(skip, AllOf):
            return _all([self._mask(part, entries) for part in skip.parts], len(entries))
        if isinstance(skip, AnyOf):
            return ~_all([~self._mask(part, entries) for part in skip.parts], len(entries))
        if not isinstance(skip, Comparison):
            return np.ones(len(entries), np.bool_)
        return self._bounded(skip, entries) & self._parted(skip, entries)

    def _parted(self, test: Comparison, entries: Entries) -> Mask:
        """By the values of partitions."""
        mask = np.ones(len(entries), np.bool_)
        spec = self.specs.get(entries.manifest.spec_id, {"fields": ()})
        ids = {field["name"]: field["field-id"] for field in spec["fields"]}
        for name, values in self.partitions.wanted(entries.manifest.spec_id, test):
            if name in ids:
                held = entries.partition(ids[name])
                mask &= np.fromiter((value in values for value in held), np.bool_, len(held))
        return mask

    def _bounded(self, test: Comparison, entries: Entries) -> Mask:
        """By bounds and numbers of nulls."""
        number, every = self.fields.ids[test.column], np.ones(len(entries), np.bool_)
        wanted = _whole(test.values, self.fields.kinds[test.column])
        if wanted is None:
            return every
        nulls, rows = entries.counts(number, NULLS), entries.counts(number, VALUES)
        if test.sign == "is null":
            found: Mask = nulls != 0
            return found
        mask: Mask = ~((nulls != ABSENT) & (nulls == rows))
        may = _MAY.get(test.sign)
        if may is None:
            return mask
        (low, known), (high, also) = (entries.numbers(*entries.bounds(number, side)) for side in (LOWER, UPPER))
        mask &= ~(known & also) | may(low, high, np.array(sorted(wanted), np.int64))
        return mask


def tests_of(skip: Skip) -> Iterator[Comparison]:
    """The comparisons in a condition."""
    if isinstance(skip, AllOf | AnyOf):
        for part in skip.parts:
            yield from tests_of(part)
    elif isinstance(skip, Comparison):
        yield skip


def _no_range(_: str) -> Range:
    return Range()


def _all(masks: Sequence[Mask], count: int) -> Mask:
    found = np.ones(count, np.bool_)
    for mask in masks:
        found &= mask
    return found


def _whole(values: Sequence[Any], kind: pa.DataType) -> list[int] | None:
    """Values of a column of numbers, dates or times as the numbers of their bounds; None of any other column."""
    t = pa.types
    if t.is_integer(kind):
        found = [int(value) for value in values]
    elif t.is_date32(kind):
        found = [(value - date(1970, 1, 1)).days for value in values]
    elif t.is_timestamp(kind) and kind.unit == "us":
        begin = datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None)
        found = [(value - begin) // _MICROSECOND for value in values]
    else:
        return None
    return found if all(_INT64.min <= value <= _INT64.max for value in found) else None


_Test = Callable[[Longs, Longs, Longs], Mask]
_MAY: Mapping[str, _Test] = {
    "=": lambda low, high, values: (low <= values[0]) & (values[0] <= high),
    "!=": lambda low, high, values: (low != values[0]) | (high != values[0]),
    "<": lambda low, high, values: low < values[0],
    "<=": lambda low, high, values: low <= values[0],
    ">": lambda low, high, values: high > values[0],
    ">=": lambda low, high, values: high >= values[0],
    "in": lambda low, high, values: np.searchsorted(values, low) < np.searchsorted(values, high, side="right"),
}


def _summary_holds(kind: str, part: Summary, values: frozenset[object]) -> bool:
    """Whether a file of a manifest may be of a partition with one of these values."""
    if None in values and part.contains_null:
        return True
    if part.lower is None or part.upper is None:
        return True
    low, high = (_summary_value(kind, bound) for bound in (part.lower, part.upper))
    # Of other types are the values of a column that has another type by now.
    return any(type(value) is not type(low) or low <= value <= high for value in values - {None})  # type: ignore[operator]


def _summary_value(kind: str, bound: bytes) -> int | str:
    return bound.decode() if kind == "string" else int.from_bytes(bound, "little", signed=True)

"""Chooses the data files of a snapshot that a read has to open, by partitions and bounds.

First a manifest's partition summaries: a manifest without a matching partition is not read. Then the statistics of its
files, compared as arrays by `lake_tests`, so no file entry is decoded to choose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.iceberg.manifest_entries import Entries, Longs, path_hash
from lakestore.iceberg.manifest_lists import Manifest, Summary
from lakestore.iceberg.manifests import File
from lakestore.iceberg.transforms import transformed
from lakestore.iceberg.values import partition_key, partition_types, source_of
from lakestore.model.table import Table
from lakestore.model.types import iceberg_type
from lakestore.rows.condition import Comparison, RowFilter, Skip, comparisons
from lakestore.rows.ranges import Range, may_meet
from lakestore.union import lake_snapshot
from lakestore.union.lake_ranges import Fields
from lakestore.union.lake_snapshot import FileList
from lakestore.union.lake_tests import FileTests, Mask
from lakestore.union.plan import TableScan

_EQUAL = ("=", "in")
_VOID = "void"


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition values that rows can have, for each comparison that fixes the values of a column (`=`, `in`)."""

    _wanted: Mapping[tuple[int, Comparison], tuple[tuple[str, frozenset[object]], ...]]
    """(spec id, comparison) to the partition fields of the comparison's column, each with its possible
    `partition_key`s.
    """

    @staticmethod
    def of(specs: Mapping[int, Mapping[str, Any]], table: Table, skip: Skip) -> Partitions:
        """The possible partition values under each partition spec of a lake table."""
        tests = [test for test in comparisons(skip) if test.sign in _EQUAL and test.column in table.selected(None)]
        found = {(number, test): tuple(_fields(spec, table, test)) for number, spec in specs.items() for test in tests}
        return Partitions({key: fields for key, fields in found.items() if fields})

    def wanted(self, spec_id: int, test: Comparison) -> tuple[tuple[str, frozenset[object]], ...]:
        """The partition fields of the comparison's column, each with its possible keys."""
        return self._wanted.get((spec_id, test), ())

    def may_hold(self, file: File, test: Comparison) -> bool:
        """Whether a file's partition can hold rows that meet the comparison."""
        if not self._wanted:
            return True
        fields = self.wanted(file.spec_id, test)
        return all(partition_key(file.partition.get(name)) in values for name, values in fields)


def _fields(spec: Mapping[str, Any], table: Table, test: Comparison) -> Iterator[tuple[str, frozenset[object]]]:
    column = table.column(test.column)
    for field in spec["fields"]:
        if source_of(field) != column.id or field["transform"] == _VOID:
            continue
        try:
            kind = iceberg_type(column.type)
            made = transformed(pa.array(list(test.values), column.arrow.type), field["transform"], kind)
        except (Invalid, pa.ArrowException):
            continue  # an unknown transform excludes nothing
        yield field["name"], frozenset(map(partition_key, made.to_pylist()))


_WHOLE = frozenset(("int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"))


def choose_files(scan: TableScan, condition: RowFilter | None) -> tuple[FileList, int]:
    """(the files that a read opens, the number of data files that it chose from)."""
    if not scan.in_lake:
        return FileList(None, ()), 0
    found = lake_snapshot.snapshot(scan)
    pruning = None if condition is None else _Pruning.of(scan, condition.skip)
    part = None if scan.part is None else _Part(scan.part.files)
    held, count = [], 0
    for manifest in found.data:
        whole = _count(manifest)
        if part is None and whole is not None and pruning and not pruning.may_hold(manifest):
            count += whole
            continue
        entries = lake_snapshot.entries_of(manifest, scan.table.uuid)
        mask = np.ones(len(entries), np.bool_) if part is None else part.mask(entries)
        count += int(np.count_nonzero(mask))
        if pruning:
            mask = pruning.mask(entries, mask)
        if mask.any():
            held.append((entries, np.flatnonzero(mask)))
    return FileList(found, tuple(held)), count


def _count(manifest: Manifest) -> int | None:
    """The number of live files in a manifest, from the manifest list; None if the list does not tell."""
    added, existing = manifest.added_files, manifest.existing_files
    return None if added is None or existing is None else added + existing


class _Part:
    """The files of one reader of a divided plan."""

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self._hashes = np.array([path_hash(path.encode()) for path in files], np.int64)

    def mask(self, entries: Entries) -> Mask:
        """Marks the manifest's files that belong to this reader."""
        mask: Mask = np.isin(entries.path_hashes, self._hashes)
        near: Longs = np.flatnonzero(mask)
        mask[near] = [path in self._files for path in entries.paths(near)]
        return mask


@dataclass(frozen=True, slots=True)
class _Pruning:
    """Compares a condition with the statistics of files."""

    skip: Skip
    tests: FileTests
    partitions: Partitions
    specs: Mapping[int, Mapping[str, Any]]
    schema: Mapping[str, Any]

    @staticmethod
    def of(scan: TableScan, skip: Skip) -> _Pruning:
        table = lake_snapshot.metadata(scan.metadata_location)
        partitions = Partitions.of(table.specs, scan.table, skip)
        fields = Fields.of(scan.table, [test.column for test in comparisons(skip)])
        tests = FileTests(fields, partial(_parted, partitions, table.specs))
        return _Pruning(skip, tests, partitions, table.specs, table.schema)

    def mask(self, entries: Entries, among: Mask) -> Mask:
        """Marks the files among `among` that a read has to open."""
        return self.tests.may(self.skip, entries, among)

    def may_hold(self, manifest: Manifest) -> bool:
        """Whether a manifest may list a file that a read has to open."""
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


def _parted(
    partitions: Partitions, specs: Mapping[int, Mapping[str, Any]], test: Comparison, entries: Entries
) -> Mask | None:
    """Marks a manifest's files whose partition can hold rows that meet the comparison; None if every partition can."""
    wanted = partitions.wanted(entries.manifest.spec_id, test)
    if not wanted:
        return None
    mask = np.ones(len(entries), np.bool_)
    ids = {field["name"]: field["field-id"] for field in specs[entries.manifest.spec_id]["fields"]}
    for name, values in wanted:
        held = entries.partition(ids[name])
        mask &= np.fromiter((partition_key(value) in values for value in held), np.bool_, len(held))
    return mask


def _no_range(_: str) -> Range:
    return Range()


def _summary_holds(kind: str, part: Summary, values: frozenset[object]) -> bool:
    """Whether a manifest's partition summary allows one of these values."""
    if None in values and part.contains_null:
        return True
    if part.lower is None or part.upper is None:
        return True
    low, high = (_summary_value(kind, bound) for bound in (part.lower, part.upper))
    # A value of another type belongs to a column whose type has changed since: it excludes nothing.
    return any(type(value) is not type(low) or low <= value <= high for value in values - {None})  # type: ignore[operator]


def _summary_value(kind: str, bound: bytes) -> int | str:
    return bound.decode() if kind == "string" else int.from_bytes(bound, "little", signed=True)

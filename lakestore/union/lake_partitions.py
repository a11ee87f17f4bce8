"""Partitions that rows with one of some values can be in: a bucket, a day, a beginning, as the lake's specs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.lake.manifests import File
from lakestore.lake.transforms import transformed
from lakestore.lake.values import partition_key, source_of
from lakestore.model.table import Table
from lakestore.model.types import iceberg_type
from lakestore.rows.condition import Comparison, Skip, comparisons

_EQUAL = ("=", "in")
_VOID = "void"


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of the comparisons of a condition that say what a column equals."""

    _wanted: Mapping[tuple[int, Comparison], tuple[tuple[str, frozenset[object]], ...]]
    """Spec and comparison to the partition fields of its column, each with the `partition_key`s that rows can have."""

    @staticmethod
    def of(specs: Mapping[int, Mapping[str, Any]], table: Table, skip: Skip) -> Partitions:
        """The partitions under each of a lake table's specs."""
        tests = [test for test in comparisons(skip) if test.sign in _EQUAL and test.column in table.selected(None)]
        found = {(number, test): tuple(_fields(spec, table, test)) for number, spec in specs.items() for test in tests}
        return Partitions({key: fields for key, fields in found.items() if fields})

    def wanted(self, spec_id: int, test: Comparison) -> tuple[tuple[str, frozenset[object]], ...]:
        """The partition fields of a spec that a comparison is about, each with the keys that its rows can have."""
        return self._wanted.get((spec_id, test), ())

    def may_hold(self, file: File, test: Comparison) -> bool:
        """Whether the partition of a file leaves room for the comparison."""
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
            continue  # A transform that is not known says nothing.
        yield field["name"], frozenset(map(partition_key, made.to_pylist()))

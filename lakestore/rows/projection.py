"""Converts rows between versions of a table.

Columns, and fields inside them, are found by id. They are cast if they were widened, and filled if they are younger.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model import defaults
from lakestore.model.columns import Column
from lakestore.model.names import no_column
from lakestore.model.nested_fields import dropped_fields, is_same_inside, tree
from lakestore.model.table import Table
from lakestore.rows.casting import Rules, TargetType, refuse

Fill = Literal["initial", "default", "null"]


def fill_column(column: Column, rows: int, fill: Fill) -> pa.Array:
    """A column that rows lack: the default for new rows, the initial value for older rows, or null."""
    value = {"initial": column.initial, "default": column.default, "null": None}[fill]
    if value is None:
        return pa.nulls(rows, column.arrow.type)
    return pa.repeat(defaults.scalar(value, column.type, column.name), rows)


def rename_columns(batch: pa.RecordBatch, source: Table, target: Table) -> pa.RecordBatch:
    """Rename columns from one version to another. Unknown columns keep their names; dropped ones are refused."""
    if source.schema_id == target.schema_id:
        return batch
    ids = {column.name: column.id for column in source.columns}
    names = {column.id: column.name for column in target.columns}
    for name in batch.schema.names:
        if name not in ids:
            raise Invalid(no_column(f"version {source.schema_id} of table {target.name}", name, ids))
    check_present(set(map(ids.__getitem__, batch.schema.names)), source, target)
    return batch.rename_columns([names[ids[name]] for name in batch.schema.names])


def check_present(ids: AbstractSet[int], source: Table, target: Table) -> None:
    """Refuse rows with columns, by id, that the newer version lacks, or that had fields inside which it lacks."""
    kept = {column.id: column for column in target.columns}
    gone = [column.name for column in source.columns if column.id in ids - set(kept)]
    for column in source.columns:
        if column.nested and column.id in ids and column.id in kept:
            gone += dropped_fields(column, kept[column.id].nested)
    if gone:
        raise Invalid(
            f"table {target.name}: column {gone[0]!r} of schema version {source.schema_id} was dropped,"
            f" the table is at version {target.schema_id}: load the table again and leave the column out"
        )


def convert_column(array: pa.Array, old: Column, new: Column) -> pa.Array:
    """The values of an older version of a column in a newer one, or the other way round."""
    if is_same_inside(old, new):
        return array
    if not new.nested:
        return array.cast(new.arrow.type)
    parents = (parent for _, parent in tree(old).with_paths())
    places = {part.id: place for parent in parents for place, part in enumerate(parent.parts)}

    def find(source: pa.StructType, want: TargetType) -> list[int | None]:
        return [places.get(part.id) for part in want.parts]

    by_id = Rules(lambda values, kind, misfits: pc.cast(values, kind), checked=False, places=find)
    return refuse(array, new.arrow, by_id, ids=iter(new.nested))


@dataclass(frozen=True, slots=True)
class Projection:
    """Converts from one version of a table to another."""

    source: Table
    target: Table
    fill: Fill = "initial"

    @property
    def same(self) -> bool:
        return self.source.schema_id == self.target.schema_id

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All columns in the target's storage schema; leading system columns stay."""
        if self.same:
            return batch
        system = batch.num_columns - len(self.source.columns)
        arrays = self.columns(batch, self.target.columns)
        fields = [batch.schema.field(i) for i in range(system)]
        schema = pa.schema([*fields, *self.target.storage_schema])
        return pa.RecordBatch.from_arrays([*batch.columns[:system], *arrays], schema=schema)

    def columns(self, batch: pa.RecordBatch, wanted: Sequence[Column]) -> list[pa.Array]:
        known = {column.id: column for column in self.source.columns}
        return [self._column(batch, known.get(column.id), column) for column in wanted]

    def named(self, batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
        if self.same:
            return {name: batch.column(batch.schema.get_field_index(name)) for name in names}
        by_name = {column.name: column for column in self.target.columns}
        return dict(zip(names, self.columns(batch, [by_name[name] for name in names]), strict=True))

    def _column(self, batch: pa.RecordBatch, old: Column | None, column: Column) -> pa.Array:
        if old is None:
            return fill_column(column, batch.num_rows, self.fill)
        return convert_column(batch.column(batch.schema.get_field_index(old.name)), old, column)

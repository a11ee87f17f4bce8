"""Converts rows between versions of a table: columns by id, cast if widened, filled if younger."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model import defaults
from lakestore.model.columns import Column
from lakestore.model.names import no_column
from lakestore.model.table import Table

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
    """Refuse rows with columns, by id, that the newer version lacks."""
    kept = {column.id for column in target.columns}
    gone = [column.name for column in source.columns if column.id in ids - kept]
    if gone:
        raise Invalid(
            f"table {target.name}: column {gone[0]!r} of schema version {source.schema_id} was dropped,"
            f" the table is at version {target.schema_id}: load the table again and leave the column out"
        )


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
        names = {column.id: column.name for column in self.source.columns}
        return [self._column(batch, names.get(column.id), column) for column in wanted]

    def named(self, batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
        if self.same:
            return {name: batch.column(batch.schema.get_field_index(name)) for name in names}
        by_name = {column.name: column for column in self.target.columns}
        return dict(zip(names, self.columns(batch, [by_name[name] for name in names]), strict=True))

    def _column(self, batch: pa.RecordBatch, name: str | None, column: Column) -> pa.Array:
        if name is None:
            return fill_column(column, batch.num_rows, self.fill)
        array = batch.column(batch.schema.get_field_index(name))
        return array if array.type == column.arrow.type else array.cast(column.arrow.type)

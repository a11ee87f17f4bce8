"""Rows of one version of a table as rows of another: columns by id, cast when widened, filled when younger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from lakestore import defaults
from lakestore.schema import Column, Table

Fill = Literal["initial", "default"]


def filled(column: Column, rows: int, fill: Fill) -> pa.Array:
    """A column that rows do not have: its default for new rows, its initial value for rows older than it."""
    value = column.initial if fill == "initial" else column.default
    if value is None:
        return pa.nulls(rows, column.arrow.type)
    return pa.repeat(defaults.scalar(value, column.type, column.name), rows)


@dataclass(frozen=True, slots=True)
class Projection:
    """From one version of a table to another."""

    source: Table
    target: Table
    fill: Fill = "initial"

    @property
    def same(self) -> bool:
        """Whether rows stay as they are."""
        return self.source.schema_id == self.target.schema_id

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All columns in the target's storage schema; system columns in front stay."""
        if self.same:
            return batch
        system = batch.num_columns - len(self.source.columns)
        arrays = self.columns(batch, self.target.columns)
        fields = [batch.schema.field(i) for i in range(system)]
        schema = pa.schema([*fields, *self.target.storage_schema])
        return pa.RecordBatch.from_arrays([*batch.columns[:system], *arrays], schema=schema)

    def columns(self, batch: pa.RecordBatch, wanted: Sequence[Column]) -> list[pa.Array]:
        """Some of the target's columns."""
        names = {column.id: column.name for column in self.source.columns}
        return [self._column(batch, names.get(column.id), column) for column in wanted]

    def _column(self, batch: pa.RecordBatch, name: str | None, column: Column) -> pa.Array:
        if name is None:
            return filled(column, batch.num_rows, self.fill)
        array = batch.column(batch.schema.get_field_index(name))
        return array if array.type == column.arrow.type else array.cast(column.arrow.type)

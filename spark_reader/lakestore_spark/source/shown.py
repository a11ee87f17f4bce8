"""The columns that a read or a stream shows, bound by their ids to the version of the table that it was loaded in.

Rows of other versions are shown in that one: older rows get initial values and wider types. What a newer version has
dropped or widened is an error, for Spark's schema stands as long as the DataFrame does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lakestore.errors import Invalid, NotFound, Unavailable
from lakestore.model.columns import SYSTEM_TYPES, Column
from lakestore.model.projection import Projection
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore_spark.types import for_spark, schema_for_spark, spark_schema, spark_type


def changes_schema(table: Table, columns: Sequence[str]) -> StructType:
    """Spark's schema of a table's changes: a delete may have nothing but its key."""
    named = [name for name in columns if name not in SYSTEM_TYPES]
    rows = spark_schema(table, table.selected(named) if named or not columns else [])
    keys = set(table.primary_key)
    shown = [StructField(part.name, part.dataType, part.nullable or part.name not in keys) for part in rows]
    return StructType([*spark_schema(table, list(SYSTEM_TYPES)).fields, *shown])


def rows_schema(table: Table, columns: Sequence[str]) -> StructType:
    """Spark's schema of a table's rows; system columns come when they are named."""
    if "__change" in columns:
        raise Invalid(f"table {table.name}: a read has rows, not changes; __change comes with a stream")
    return spark_schema(table, table.selected(list(columns)))


@dataclass(frozen=True)
class Shown:
    """Columns of one version of a table."""

    table: Table
    """The version."""
    names: tuple[str, ...]
    """Names in that version, and of system columns."""
    labels: tuple[str, ...]
    """The names as Spark's schema has them: it may differ in case."""

    @staticmethod
    def of(table: Table, schema: StructType) -> Shown:
        """The columns of Spark's schema; `Invalid` for one that the table does not have, or of another type."""
        known = {column.name.lower(): column for column in table.columns}
        names = []
        for field in schema.fields:
            if field.name in SYSTEM_TYPES:
                names.append(field.name)
                continue
            column = known.get(field.name.lower())
            if column is None:
                raise Invalid(
                    f"table {table.name} has no column {field.name!r}: load it, or create the Spark table, anew"
                )
            kind = spark_type(column.type).simpleString()
            if kind != field.dataType.simpleString():
                raise Invalid(
                    f"table {table.name}: column {column.name} is {kind} and the schema says"
                    f" {field.dataType.simpleString()}: load it, or create the Spark table, anew"
                )
            names.append(column.name)
        return Shown(table, tuple(names), tuple(schema.fieldNames()))

    @property
    def columns(self) -> list[Column]:
        """The user's columns among them, in the bound version."""
        return [self.table.column(name) for name in self.names if name not in SYSTEM_TYPES]

    def names_in(self, version: Table) -> list[str]:
        """The names of the columns in another version, which may lack younger ones; `Invalid` where one is gone."""
        names = {column.id: column.name for column in version.columns}
        self._check(version)
        found = [name if name in SYSTEM_TYPES else names.get(self.table.column(name).id) for name in self.names]
        return [name for name in found if name is not None]

    def batch(self, batch: pa.RecordBatch, version: Table) -> pa.RecordBatch:
        """Rows of a version in Spark's types; `Unavailable` if they lack a column that the version has."""
        missing = set(self.names_in(version)) - set(batch.schema.names)
        if missing:
            raise Unavailable(f"table {version.name} was altered while column {min(missing)} was asked for: read again")
        columns = self._columns(batch, version)
        arrays = [
            batch.column(batch.schema.get_field_index(name)) if name in SYSTEM_TYPES else columns[name]
            for name in self.names
        ]
        fields = [pa.field(name, array.type) for name, array in zip(self.labels, arrays, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        return for_spark(rows, schema_for_spark(rows.schema))

    def check(self, version: Table, where: str) -> None:
        """`NotFound` for another table of the name; `Invalid` if a name in a condition means another column by now."""
        if version.uuid != self.table.uuid:
            raise NotFound(f"table {version.name} was dropped, and this is another one of that name: load it again")
        if version.schema_id == self.table.schema_id or not where:
            return
        ids = {column.name.lower(): column.id for column in version.columns}
        for name in condition_text.parse(where, self.table).columns:
            if name not in SYSTEM_TYPES and ids.get(name.lower(), -1) not in (-1, self.table.column(name).id):
                raise Invalid(
                    f"table {version.name}: {name} in the condition is another column by now: load it again, with a"
                    " condition on the columns as they are"
                )

    def _columns(self, batch: pa.RecordBatch, version: Table) -> dict[str, pa.Array]:
        columns = self.columns
        if version.schema_id == self.table.schema_id:
            return {column.name: batch.column(batch.schema.get_field_index(column.name)) for column in columns}
        self._check(version)
        arrays = Projection(version, self.table).columns(batch, columns)
        return {column.name: array for column, array in zip(columns, arrays, strict=True)}

    def _check(self, version: Table) -> None:
        """`Invalid` if a newer version has lost a column, or holds wider values in it."""
        if version.schema_id <= self.table.schema_id:
            return
        held = {column.id: column for column in version.columns}
        for column in self.columns:
            now = held.get(column.id)
            if now is None or now.type != column.type:
                what = "dropped" if now is None else f"widened to {now.type}"
                raise Invalid(
                    f"table {version.name}: column {column.name} was {what} in schema version {version.schema_id}, and"
                    f" this DataFrame was loaded in version {self.table.schema_id}: load it again; a stream goes on"
                    " from its checkpoint"
                )

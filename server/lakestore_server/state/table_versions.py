"""Every definition a table has had, and the LSN since which each one holds.

A row is stored in the version current at its commit and never rewritten into another: readers project it, by column
ids. Options alone (freshness, retention, `deletes`, `skip_unchanged`, `ttl`, `tombstone_ttl`) make no new version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.projection import Projection
from lakestore.model.table import Table
from lakestore_server.state.chunk import CHANGE, PREV


def stored_schema(table: Table) -> pa.Schema:
    """The schema of a table's batches in journal and segments."""
    if not table.keyed:
        return table.storage_schema
    return pa.schema([pa.field(CHANGE, pa.int8()), pa.field(PREV, pa.int64()), *table.storage_schema])


@dataclass(frozen=True, slots=True)
class Versions:
    """The definitions of one table, oldest first."""

    lsns: tuple[int, ...]
    """The commit since which each definition holds."""
    tables: tuple[Table, ...]

    @staticmethod
    def first(table: Table, lsn: int) -> Versions:
        """The versions of a new table."""
        return Versions((lsn,), (table,))

    @property
    def current(self) -> Table:
        """The newest definition."""
        return self.tables[-1]

    def altered(self, table: Table, lsn: int) -> Versions:
        """With one more version; a definition that differs in options only takes the newest one's place."""
        if table.schema_id == self.current.schema_id:
            return Versions(self.lsns, (*self.tables[:-1], table))
        return Versions((*self.lsns, lsn), (*self.tables, table))

    def known_as(self, *, name: str | None = None, number: int | None = None) -> Versions:
        """The same definitions of a table that has another name or number."""
        current = self.current
        said = current.name if name is None else name, current.number if number is None else number
        tables = (replace(table, name=said[0], number=said[1]) for table in self.tables)
        return Versions(self.lsns, tuple(tables))

    def at(self, lsn: int) -> Table:
        """The definition that holds at an LSN."""
        found = [table for since, table in zip(self.lsns, self.tables, strict=True) if since <= lsn]
        return found[-1] if found else self.tables[0]

    def until(self, lsn: int, limit: int) -> int:
        """The last LSN up to `limit` that the definition of the commit right behind `lsn` reaches."""
        return min((since - 1 for since in self.lsns if lsn + 1 < since <= limit), default=limit)

    def since(self, schema_id: int) -> int:
        """The LSN since which the version of that number holds."""
        return next(lsn for lsn, table in zip(self.lsns, self.tables, strict=True) if table.schema_id == schema_id)

    def numbered(self, schema_id: int) -> Table:
        """The version of that number, or `Invalid`."""
        for table in reversed(self.tables):
            if table.schema_id == schema_id:
                return table
        raise Invalid(f"table {self.current.name} has no schema version {schema_id}: load the table again")

    def column_id(self, name: str) -> int:
        """The id of the column that has the name, or had it last, so that readers follow a renamed column."""
        named = (column.id for table in reversed(self.tables) for column in table.columns if column.name == name)
        found = next(named, None)
        return self.current.column(name).id if found is None else found

    def stored(self, schema_id: int) -> pa.Schema:
        """The schema of batches that were stored in that version."""
        return stored_schema(self.numbered(schema_id))

    def projection(self, schema_id: int, target: Table) -> Projection:
        """From a stored version to another one."""
        return Projection(self.numbered(schema_id), target)

    def shown_as(self, target: Table) -> Callable[[pa.RecordBatch, int], pa.RecordBatch]:
        """A function that turns stored batches into batches of that version."""
        return lambda batch, schema_id: self.projection(schema_id, target).batch(batch)

    def stored_names(self, target: Table, columns: Sequence[str]) -> Callable[[int], list[str]]:
        """A function from a stored version to its names of these columns of `target`, by default of all."""
        names = [name for name in columns if name not in SYSTEM_TYPES] if columns else target.selected(None)
        ids = {target.column(name).id for name in names}

        def of(schema_id: int) -> list[str]:
            return [column.name for column in self.numbered(schema_id).columns if column.id in ids]

        return of

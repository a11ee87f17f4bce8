"""Tables without rows in DuckDB, so that DESCRIBE, SHOW and information_schema tell of types, nullability and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lakestore.model.table import Table
from lakestore.union.sql_gate import folded

_EMPTY = "__lakestore_empty"
CATALOG = "memory"
"""DuckDB's catalog of what is in memory, named in full: a database of the lake may be called `temp` or `system`."""
_FULL_SCHEMAS = frozenset({"information_schema", "pg_catalog"})
"""Schemas that DuckDB takes no table in."""


def declare(connection: Any, tables: Iterable[Table]) -> None:
    """Make an empty table of each definition, with its key and the columns that take no nulls.

    DuckDB has no room for some tables: those in its own schemas, and of names that differ by case alone all but the
    first. They are left out, so that the others can be shown.
    """
    taken: set[str] = set()
    for table in tables:
        name = folded(table.name)
        if name in taken or name.partition(".")[0] in _FULL_SCHEMAS:
            continue
        taken.add(name)
        part, short = (quoted(part) for part in table.name.split(".", 1))
        database = f"{CATALOG}.{part}"
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
        schema = table.read_schema([column.name for column in table.columns])
        connection.register(_EMPTY, pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))
        connection.execute(f"CREATE TABLE {database}.{short} AS SELECT * FROM {_EMPTY}")  # noqa: S608
        connection.unregister(_EMPTY)
        for column in table.columns:
            if column.required:
                said = f"ALTER TABLE {database}.{short} ALTER COLUMN {quoted(column.name)} SET NOT NULL"
                connection.execute(said)
        if table.primary_key:
            key = ", ".join(map(quoted, table.primary_key))
            connection.execute(f"ALTER TABLE {database}.{short} ADD PRIMARY KEY ({key})")


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'

"""Tables without rows in DuckDB, so that DESCRIBE, SHOW and information_schema tell of types, nullability and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lakestore.model.table import Table

_EMPTY = "__lakestore_empty"


def declare(connection: Any, tables: Iterable[Table]) -> None:
    """Make an empty table of each definition, with its key and the columns that take no nulls."""
    for table in tables:
        database, short = (quoted(part) for part in table.name.split(".", 1))
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

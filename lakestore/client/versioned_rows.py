"""Rows of a user, and the version of their table whose names they use.

A handle keeps the names of the version it was loaded with, and looks at the table anew when rows name a column that
it does not know.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakestore.client.connection import Connection
from lakestore.client.row_marks import NO_MARKS, Keep, Marks, marked
from lakestore.errors import NotFound
from lakestore.model.table import Table
from lakestore.rows import user


def fitting(connection: Connection, definition: Table, data: Any) -> tuple[Table, pa.RecordBatch]:
    """The rows as a batch, and the version whose names they use: an unknown name has the table looked at anew."""
    data = user.readable_again(data)
    batch = user.from_user(data, definition.schema)
    if {column.name for column in definition.columns}.issuperset(batch.schema.names):
        return definition, batch
    newest = connection.newest(definition.name)
    if newest.uuid != definition.uuid:
        raise NotFound(f"table {definition.name!r} was dropped, and this is another one of that name: open it anew")
    if newest == definition:
        return definition, batch
    return newest, user.from_user(data, newest.schema)


def fitting_parts(connection: Connection, definition: Table, data: Any) -> list[tuple[Table, pa.RecordBatch]]:
    """The rows as `fitting` makes them, in parts that name the same columns where the merge engine asks for it."""
    return [fitting(connection, definition, part) for part in user.by_columns(data, definition)]


def marked_parts(
    connection: Connection, definition: Table, data: Any, keep: Keep, as_of: Any = None
) -> list[tuple[Table, pa.RecordBatch, Marks]]:
    """The parts of `fitting_parts`, each with its marks; rows that have some are one part, in their order."""
    data = user.readable_again(data)
    if not keep and as_of is None:
        return [(version, batch, NO_MARKS) for version, batch in fitting_parts(connection, definition, data)]
    version, batch = fitting(connection, definition, data)
    return [(version, *marked(batch, keep, as_of))]

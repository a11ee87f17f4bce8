"""The largest row of a table: one that fits into a message by itself, with its system columns and the batch around it.

A row beyond that is refused when it is written, or when a merge would make it, for no stream, scan or look-up could
send it. Rows of older folders, or from under a larger limit, are named when they are to be sent.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model import typed, types
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore_server.arrays import row_sizes

_RESERVE = 64
"""One part in so many of a message is left for what later versions of the table add to its rows."""
_MESSAGE_BYTES, _FIELD_BYTES = 4 << 10, 512
"""Bytes of a message's token, names and frames, and of each field inside its rows: buffers and their padding."""


def row_bytes_max(table: Table, message_bytes: int) -> int:
    """The bytes that the values of one row may take."""
    schema = table.read_schema([*table.selected(None), *SYSTEM_TYPES])
    fields = len(schema) + sum(types.nested_count(column.type) for column in table.columns)
    around = _MESSAGE_BYTES + int(schema.serialize().size) + _FIELD_BYTES * fields
    return max(message_bytes - message_bytes // _RESERVE - around, 0)


def check(batch: pa.RecordBatch, table: Table, message_bytes: int, *, merged: bool = False) -> None:
    """`Invalid` if a row of the batch, as it was sent or after a merge, could never be sent."""
    if batch.nbytes <= message_bytes // 4:
        return
    most = row_bytes_max(table, message_bytes)
    if batch.nbytes <= most:
        return
    sizes = row_sizes.of_rows(batch, np.arange(batch.num_rows))
    row = int(np.argmax(sizes))
    if sizes[row] > most:
        what = f"the merged row {key_of(batch, row, table)}" if merged else f"row {row}"
        raise Invalid(
            f"table {table.name}: {what} takes {sizes[row]} bytes, and no message could hold it: a row of this table"
            f" has at most {most} under limits.message_bytes={message_bytes}; make it smaller, or raise the limit"
        )


def unsendable(
    batch: pa.RecordBatch, table: Table, message_bytes: int, place: tuple[int, int] | None = None
) -> Invalid:
    """The error of a batch with a stored row that no message holds; `place` is its bucket and offset, if not in it."""
    row = int(np.argmax(row_sizes.of_rows(batch, np.arange(batch.num_rows))))
    if place is None and {"__bucket", "__offset"} <= set(batch.schema.names):
        place = batch.column("__bucket")[row].as_py(), batch.column("__offset")[row].as_py()
    where = f" (bucket {place[0]}, offset {place[1]})" if place else ""
    return Invalid(
        f"table {table.name}: the row {key_of(batch, row, table)}{where} is larger than a message of {message_bytes}"
        " bytes: read without its large columns (columns=), delete it by its key and start behind it, or raise"
        " limits.message_bytes"
    )


def key_of(batch: pa.RecordBatch, row: int, table: Table) -> str:
    """A row's key for an error, as far as the batch has it."""
    names = [name for name in table.primary_key if name in batch.schema.names]
    return ", ".join(f"{name}={typed.shown(batch.column(name)[row].as_py())}" for name in names) or str(row)

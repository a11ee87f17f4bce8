"""The form of a dead-letter table, which is the same for dead letters of a bridge and of a server."""

from __future__ import annotations

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.table import Table, define

SUFFIX = "__dlq"
KEY = ("kafka_source", "kafka_offset")
"""The source of a record is `topic/topic id/partition`: a topic that was created again is another source. The source of
a row that a server refused is `commit/producer/epoch/sequence/change`."""
COMMIT = "commit"
"""The topic of dead letters that a server made, and the first part of their source."""
SCHEMA = pa.schema(
    [
        pa.field("kafka_source", pa.string(), nullable=False),
        pa.field("kafka_offset", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))),
        pa.field("value_bytes", pa.int64(), nullable=False),
        pa.field("bridge", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("sentence", pa.string(), nullable=False),
        pa.field("path", pa.string()),
    ]
)
"""A value above the row limit is cut. `value_bytes` is its full length; the broker keeps the whole record for a
while.
"""


def table_of(table: str) -> str:
    """The name of the dead-letter table of a table."""
    return table + SUFFIX


def definition(table: str) -> Table:
    """The definition of the dead-letter table of a table."""
    return define(table_of(table), SCHEMA, primary_key=KEY, buckets=1)


def has_letters(letters: Table) -> bool:
    """Whether a table has the form of a dead-letter table."""
    return letters.primary_key == KEY and {each.name for each in letters.columns} >= {*SCHEMA.names}


def check(letters: Table, table: str) -> None:
    """Refuse another kind of table in the place of the dead-letter table of `table`."""
    if not has_letters(letters):
        raise Invalid(
            f"dead letters of table {table} belong in table {letters.name}, which is another kind of table: rename"
            f" that table, or let records for {table} go to a table of another name"
        )

"""Look-ups as a client makes them: however many keys and rows, in requests and answers of bounded size, at one cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lakestore.client.connection import Connection
from lakestore.errors import Internal, PositionExpired
from lakestore.model.table import Table as Definition
from lakestore.model.times import At, position_text
from lakestore.rows import ipc, user
from lakestore.v1 import lakestore_pb2 as pb

KEYS_MAX = 65_536
"""Keys of one request."""
KEYS_BYTES_MAX = 4 << 20
TRIES = 3
"""Tries of a look-up in several requests whose cut fell out of the log meanwhile."""


def lookup(
    connection: Connection,
    definition: Definition,
    keys: Any,
    columns: Sequence[str] | None = None,
    at: At | None = None,
) -> pa.Table:
    """The rows of keys, or of leading parts of keys, in their order."""
    wanted = _keys_of(user.from_user(keys, definition.schema), definition)
    if not wanted.num_rows:
        return definition.read_schema(list(columns or ())).empty_table()
    position = "" if at is None else position_text(at)
    for tries_left in reversed(range(TRIES)):
        try:
            answers = list(_answers(connection, definition, wanted, list(columns or ()), position))
        except PositionExpired:
            if position or not tries_left:
                raise
        else:
            return _joined(answers, definition, columns)
    raise Internal("a look-up ended without an answer")


def _keys_of(batch: pa.RecordBatch, definition: Definition) -> pa.RecordBatch:
    """The key columns of rows: the rest need not travel. Leading parts of a key go as they are."""
    key, names = definition.primary_key, batch.schema.names
    if len(names) == len(key) or not set(key) <= set(names):
        return batch
    return batch.select(list(key))


def _answers(
    connection: Connection, definition: Definition, keys: pa.RecordBatch, columns: list[str], position: str
) -> Iterator[pb.RowBatch]:
    """All answers, at the cut of the first."""
    following, after = 0, b""
    room = max(min(KEYS_MAX, KEYS_BYTES_MAX * keys.num_rows // max(keys.nbytes, 1)), 1)
    while True:
        part = keys.slice(following, room)
        request = pb.LookupRequest(
            table=definition.name,
            keys=ipc.encode(part.schema, [part]),
            columns=columns,
            at_least=connection.last_token,
            schema_id=definition.schema_id,
            at=position,
            in_parts=True,
            after=after,
        )
        answer = connection.transport.lookup(request)
        yield answer
        # A server that does not answer in parts answers all, and says no cut to go on at.
        following += answer.answered if answer.token else part.num_rows
        after = answer.next
        if following >= keys.num_rows:
            return
        position = answer.token


def _joined(answers: list[pb.RowBatch], definition: Definition, columns: Sequence[str] | None) -> pa.Table:
    found = pa.Table.from_batches(
        [batch for answer in answers for batch in ipc.decode_trusted(answer.rows, crc=answer.crc32c)]
    )
    if answers[0].schema_id != definition.schema_id:
        return found
    schema = definition.read_schema(list(columns or ()))
    return pa.Table.from_arrays(found.columns, schema=schema)

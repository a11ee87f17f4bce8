"""Look-ups of any number of keys, at one cut, in requests and answers of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from lakestore.client.connection import Connection
from lakestore.errors import Internal, Invalid, OtherTimeline, PositionExpired
from lakestore.model.alteration import Requirement
from lakestore.model.table import Table as Definition
from lakestore.model.times import At, position_text
from lakestore.rows import ipc, user
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc

KEYS_MAX = 65_536
"""Keys of one request."""
KEYS_BYTES_MAX = 4 << 20
ONE_KEY_PROTOCOL = rpc.FIELDS_SINCE["LookupRequest"]["key"]
TRIES = 3
"""Tries of a look-up whose cut is lost from the log between its requests."""


def lookup(
    connection: Connection,
    definition: Definition,
    keys: Any,
    columns: Sequence[str] | None = None,
    at: At | None = None,
    require: Requirement | None = None,
) -> pa.Table:
    """The rows of keys, or of key prefixes, in order."""
    names = list(columns or ())
    required = None if require is None else plan.required(require)
    key = _one_key(connection, definition, keys) if at is None else None
    if key is not None:
        try:
            return _tried(connection, "", lambda: _row_of(connection, definition, key, names, required))
        except Invalid:
            if _takes_one_key(connection):
                raise  # another, older server answers there now
    wanted = _keys_of(user.from_user(keys, definition.schema), definition)
    if not wanted.num_rows:
        return definition.read_schema(names).empty_table()
    position = "" if at is None else position_text(at)
    return _tried(
        connection,
        position,
        lambda: join_answers(
            list(_answers(connection, definition, wanted, names, position, required)), definition, names
        ),
    )


def _tried(connection: Connection, position: str, ask: Callable[[], pa.Table]) -> pa.Table:
    """The answer. Asked again if the server's chosen cut left the log or its history ended."""
    for tries_left in reversed(range(TRIES)):
        try:
            return ask()
        except PositionExpired as error:
            if position or not tries_left:
                raise
            if isinstance(error, OtherTimeline):
                connection.begin_anew()
    raise Internal("a look-up ended without an answer")


def _takes_one_key(connection: Connection) -> bool:
    return connection.transport.server.protocol >= ONE_KEY_PROTOCOL


def _one_key(connection: Connection, definition: Definition, keys: Any) -> bytes | None:
    return connection.single_rows(definition).key(keys) if _takes_one_key(connection) else None


def _row_of(
    connection: Connection, definition: Definition, key: bytes, columns: list[str], required: pb.Requirement | None
) -> pa.Table:
    request = _request(connection, definition, columns, required)
    request.key = key
    answer = connection.transport.lookup(request)
    found = connection.single_rows(definition).row(answer, columns)
    return join_answers([answer], definition, columns) if found is None else found


def _request(
    connection: Connection, definition: Definition, columns: list[str], required: pb.Requirement | None
) -> pb.LookupRequest:
    return pb.LookupRequest(
        table=definition.name,
        columns=columns,
        at_least=connection.last_token,
        schema_id=definition.schema_id,
        table_uuid=definition.uuid,
        in_parts=True,
        require=required,
    )


def _keys_of(batch: pa.RecordBatch, definition: Definition) -> pa.RecordBatch:
    """The key columns of rows. Prefixes of keys stay as they are."""
    key, names = definition.primary_key, batch.schema.names
    if len(names) == len(key) or not set(key) <= set(names):
        return batch
    return batch.select(list(key))


def _answers(
    connection: Connection,
    definition: Definition,
    keys: pa.RecordBatch,
    columns: list[str],
    position: str,
    required: pb.Requirement | None,
) -> Iterator[pb.RowBatch]:
    following, after = 0, b""
    room = max(min(KEYS_MAX, KEYS_BYTES_MAX * keys.num_rows // max(keys.nbytes, 1)), 1)
    while True:
        part = keys.slice(following, room)
        request = _request(connection, definition, columns, required)
        request.keys, request.at, request.after = ipc.encode(part.schema, [part]), position, after
        answer = connection.transport.lookup(request)
        yield answer
        # A server without partial answers answers everything and names no cut.
        following += answer.answered if answer.token else part.num_rows
        after = answer.next
        if following >= keys.num_rows:
            return
        position, required = answer.token, None  # the first answer's cut has met the requirement


def join_answers(answers: list[pb.RowBatch], definition: Definition, columns: Sequence[str] | None = None) -> pa.Table:
    """Concatenate answers in the declared types."""
    found = pa.Table.from_batches(
        [batch for answer in answers for batch in ipc.decode_server_rows(answer.rows, crc=answer.crc32c)]
    )
    if answers[0].schema_id != definition.schema_id:
        return found
    schema = definition.read_schema(list(columns or ()))
    return pa.Table.from_arrays(found.columns, schema=schema)

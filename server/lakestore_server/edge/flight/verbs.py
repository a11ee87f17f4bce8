"""Verbs of Flight SQL for an authenticated caller. Thread-safe; calls block.

- Tables, databases and the newest cut come from the server's own RPCs in the caller's name, so the policy decides what
  the caller sees. Texts go to the query service.
- A command of the catalog is its own ticket; the ticket of a text is sealed for its principal.
- Everything that writes is refused with the sentence that names the doors that write.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakestore.errors import Denied, Invalid, NotFound
from lakestore.model.table import Table
from lakestore.v1 import flight_pb2 as pb
from lakestore.v1 import lakestore_pb2 as core
from lakestore.wire.rpc import parsed
from lakestore_server.access.callers import Caller
from lakestore_server.edge.flight import catalog_tables, messages, sql_info
from lakestore_server.edge.flight.handles import Handles
from lakestore_server.edge.flight.messages import Command, any_bytes, schema_bytes
from lakestore_server.edge.flight.options import SessionOptions
from lakestore_server.edge.flight.tickets import Seals, Ticket
from lakestore_server.host.clock import Clock
from lakestore_server.queries.parameter import Parameter, parameters_of
from lakestore_server.queries.question import READS_ONLY, Cancelled, Question
from lakestore_server.queries.service import QueryService, QuerySession

DOOR = "flight"
CANCELLED_MAX = 10_000
"""Cancelled tickets that are remembered, so that a later `DoGet` does not run them."""
COOKIE = "arrow_flight_session_id"
"""The cookie by which a client names its session."""
_WRITING = ("CommandStatementUpdate", "CommandPreparedStatementUpdate", "CommandStatementIngest")
_NO_SUBSTRAIT = "Substrait plans are not supported: send SQL"
_Rows = Callable[[Caller, Any], pa.Table]


@dataclass(frozen=True, slots=True)
class Peer:
    """The caller of one call and its session."""

    caller: Caller
    session: bytes = b""
    """The value of the session's cookie; empty without a session."""

    @property
    def owner(self) -> str:
        return self.caller.principal.name


@dataclass(slots=True)
class Transaction:
    """A transaction: all its queries read one cut."""

    token: str = ""
    """Empty before its first query."""

    def choose(self, token: str) -> None:
        """Choose the cut, unless another query of the transaction was faster."""
        self.token = self.token or token


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A prepared statement."""

    question: Question
    transaction: bytes
    schema: pa.Schema
    nbytes: int
    """Bytes of text and schema. A short text may have a long schema: `SELECT *` of a wide table."""
    kinds: Sequence[pa.DataType]
    """The types of the parameters, as the text tells them."""
    bound: pa.Schema | None = None
    """The schema with the present parameters, if their types change it: `SELECT $1`."""


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """The results of an action, and the cookie that it sets."""

    results: Sequence[bytes] = ()
    cookie: str = ""


class RowStream:
    """The answer to a `DoGet`."""

    def __init__(self, items: Generator[bytes], cancel: Callable[[str], None]) -> None:
        self.items = items
        """`FlightData` as bytes, the schema first."""
        self.cancel = cancel
        """Ends the query behind the rows, if it still runs. Callable from any thread."""


class Verbs:
    """The verbs of one port."""

    def __init__(self, queries: QueryService, clock: Clock) -> None:
        self._queries, self._rpcs, self._seals = queries, queries.rpcs, Seals()
        self._prepared: Handles[PreparedStatement] = Handles(clock, "prepared statement")
        self._transactions: Handles[Transaction] = Handles(clock, "transaction")
        self._sessions: Handles[SessionOptions] = Handles(clock, "session")
        self._lock = threading.Lock()
        self._running: dict[tuple[str, bytes], list[QuerySession]] = {}
        """By principal and number of the ticket, which may be redeemed several times at once."""
        self._cancelled: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._catalog: dict[str, tuple[pa.Schema | None, _Rows]] = {
            "CommandGetCatalogs": (catalog_tables.CATALOGS, lambda _, __: catalog_tables.catalogs()),
            "CommandGetDbSchemas": (
                catalog_tables.SCHEMAS,
                lambda caller, asked: catalog_tables.schemas(self._databases(caller), asked),
            ),
            "CommandGetTables": (None, lambda caller, asked: catalog_tables.tables(self._tables(caller), asked)),
            "CommandGetTableTypes": (catalog_tables.TABLE_TYPES, lambda _, __: catalog_tables.table_types()),
            "CommandGetPrimaryKeys": (
                catalog_tables.PRIMARY_KEYS,
                lambda caller, asked: catalog_tables.primary_keys(self._tables(caller), asked),
            ),
            "CommandGetSqlInfo": (sql_info.SQL_INFO, lambda _, asked: sql_info.sql_info(asked.info)),
            "CommandGetXdbcTypeInfo": (
                sql_info.XDBC_TYPES,
                lambda _, asked: sql_info.xdbc_types(asked.data_type if asked.HasField("data_type") else None),
            ),
        } | {
            f"CommandGet{name}": (catalog_tables.FOREIGN_KEYS, lambda _, __: catalog_tables.FOREIGN_KEYS.empty_table())
            for name in ("ExportedKeys", "ImportedKeys", "CrossReference")
        }
        """Name of a command of the catalog to its schema, None if it depends on the command, and its rows."""
        self._actions: dict[str, Callable[[Peer, bytes], ActionAnswer]] = {
            "CreatePreparedStatement": self._prepare,
            "ClosePreparedStatement": self._close_prepared,
            "BeginTransaction": self._begin,
            "EndTransaction": self._end,
            "CancelQuery": self._cancel_query,
            "CancelFlightInfo": self._cancel_info,
            "SetSessionOptions": self._set_options,
            "GetSessionOptions": self._get_options,
            "CloseSession": self._close_session,
        }

    @property
    def actions(self) -> Sequence[str]:
        """The names of the actions."""
        return list(self._actions)

    def handle_counts(self) -> dict[str, int]:
        """Kind of handle to the number of its entries."""
        kinds: tuple[Handles[Any], ...] = (self._prepared, self._transactions, self._sessions)
        return {each.what: len(each) for each in kinds}

    def info(self, peer: Peer, descriptor: pb.FlightDescriptor) -> pb.FlightInfo:
        """The schema of a command's rows, and the ticket for them."""
        command = messages.command_of(descriptor.cmd)
        if command.name in self._catalog:
            schema, ticket = self._catalog_schema(command), descriptor.cmd
        else:
            question, schema = self._asked(peer, command)
            sealed = self._seals.seal(peer.owner, question)
            ticket = any_bytes(pb.TicketStatementQuery(statement_handle=sealed))
        endpoint = pb.FlightEndpoint(ticket=pb.Ticket(ticket=ticket))
        return pb.FlightInfo(
            schema=schema_bytes(schema),
            flight_descriptor=descriptor,
            endpoint=[endpoint],
            total_records=-1,
            total_bytes=-1,
        )

    def schema(self, peer: Peer, descriptor: pb.FlightDescriptor) -> pb.SchemaResult:
        """The schema of a command's rows."""
        command = messages.command_of(descriptor.cmd)
        if command.name in self._catalog:
            schema = self._catalog_schema(command)
        else:
            _, schema = self._asked(peer, command)
        return pb.SchemaResult(schema=schema_bytes(schema))

    def rows(self, peer: Peer, data: bytes) -> RowStream:
        """The rows of a ticket."""
        command = messages.command_of(data)
        if command.name in self._catalog:
            table = self._catalog[command.name][1](peer.caller, command.message)
            return RowStream(_generated(messages.table_data(table)), lambda _: None)
        if command.name != "TicketStatementQuery":
            raise Invalid(f"{command.name} is no ticket: ask for its info, which has one")
        ticket = self._seals.open(peer.owner, command.message.statement_handle)
        session = self._queries.session(peer.caller, door=DOOR)
        return RowStream(self._answers(peer, ticket, session), session.cancel)

    def put(self, peer: Peer, descriptor: pb.FlightDescriptor, parts: Sequence[pb.FlightData]) -> bytes:
        """The answer to rows that a client sends: the parameters of a prepared statement."""
        command = self.check_put(descriptor)
        handle: bytes = command.message.prepared_statement_handle
        prepared = self._prepared.get(peer.owner, handle)
        table = messages.rows_of(parts).combine_chunks()
        if table.num_rows > 1:
            raise Invalid(f"{table.num_rows:,} rows of parameters: a query takes one row, so run it once for each")
        batch = table.to_batches()[0] if table.num_rows else None
        given = () if batch is None else parameters_of(batch)
        kinds = [*prepared.kinds, *(each.kind for each in given[len(prepared.kinds) :])]
        parameters = tuple(
            Parameter(kind) if pa.types.is_null(each.kind) else each for kind, each in zip(kinds, given, strict=False)
        )
        question = replace(prepared.question, parameters=parameters)
        # Only a place that tells nothing about its parameter, which is a string then, takes another type.
        is_other = any(
            pa.types.is_string(kind) and not pa.types.is_string(each.kind)
            for kind, each in zip(kinds, parameters, strict=False)
        )
        bound = self._described(peer, question)[1] if is_other else None
        nbytes = prepared.nbytes + (0 if batch is None else batch.nbytes) + (len(schema_bytes(bound)) if bound else 0)
        self._prepared.put(peer.owner, handle, replace(prepared, question=question, bound=bound), nbytes)
        return pb.DoPutPreparedStatementResult(prepared_statement_handle=handle).SerializeToString()

    @staticmethod
    def check_put(descriptor: pb.FlightDescriptor) -> Command:
        """The command of rows that a client begins to send; `Denied` if it writes."""
        command = messages.command_of(descriptor.cmd)
        if command.name in _WRITING:
            raise Denied(READS_ONLY)
        if command.name != "CommandPreparedStatementQuery":
            raise Invalid(f"{command.name} takes no rows")
        return command

    def act(self, peer: Peer, action: pb.Action) -> ActionAnswer:
        """The results of an action."""
        verb = self._actions.get(action.type)
        if verb is not None:
            return verb(peer, action.body)
        if action.type == "CreatePreparedSubstraitPlan":
            raise Invalid(_NO_SUBSTRAIT)
        if action.type in ("BeginSavepoint", "EndSavepoint"):
            raise Invalid("savepoints are not supported: a transaction only reads, at one cut")
        raise Invalid(f"there is no action {action.type[:100]!r} here: there are {', '.join(self._actions)}")

    # The catalog.

    def _catalog_schema(self, command: Command) -> pa.Schema:
        schema, _ = self._catalog[command.name]
        if schema is not None:
            return schema
        return catalog_tables.TABLES_WITH_SCHEMA if command.message.include_schema else catalog_tables.TABLES

    def _tables(self, caller: Caller) -> list[Table]:
        answer = self._rpcs.call(caller, "ListTables", core.ListTablesRequest())
        return [Table.from_json(info.definition) for info in answer.tables]

    def _databases(self, caller: Caller) -> list[str]:
        answer = self._rpcs.call(caller, "ListDatabases", core.ListDatabasesRequest())
        return sorted({*(each.name for each in answer.databases), *(t.namespace for t in self._tables(caller))})

    # Queries.

    def _asked(self, peer: Peer, command: Command) -> tuple[Question, pa.Schema]:
        """The question of a command, and the schema of its rows."""
        if command.name == "CommandStatementQuery":
            question = self._question(peer, command.message.query, command.message.transaction_id)
            return question, self._described(peer, question)[1]
        if command.name == "CommandPreparedStatementQuery":
            prepared = self._prepared.get(peer.owner, command.message.prepared_statement_handle)
            at = self._cut(peer, prepared.transaction)
            question = replace(prepared.question, at=at, require=None) if at else prepared.question
            return question, prepared.bound or prepared.schema
        if command.name in _WRITING:
            raise Denied(READS_ONLY)
        if command.name == "CommandStatementSubstraitPlan":
            raise Invalid(_NO_SUBSTRAIT)
        raise Invalid(f"{command.name[:100]} is no command that this server knows")

    def _question(self, peer: Peer, text: str, transaction: bytes) -> Question:
        options = self._options(peer)
        at = self._cut(peer, transaction)
        return Question(
            text,
            at=at or options.at,
            require=None if at else options.require,
            search_path=options.search_path,
        )

    def _cut(self, peer: Peer, transaction: bytes) -> str:
        """The cut of a transaction, which its first query chooses; empty without a transaction."""
        if not transaction:
            return ""
        mine = self._transactions.get(peer.owner, transaction)
        if not mine.token:
            token = self._options(peer).at or self._rpcs.call(peer.caller, "Head", core.HeadRequest()).token
            with self._lock:
                mine.choose(token)
        return mine.token

    def _described(self, peer: Peer, question: Question) -> tuple[Sequence[pa.DataType], pa.Schema]:
        """The types of the parameters, and the schema of the rows."""
        session = self._queries.session(peer.caller, door=DOOR)
        try:
            description = session.describe(question)
        finally:
            session.close()
        if description.schema is None:
            raise Invalid("the statement returns no rows: send a query")
        return description.parameters, description.schema

    def _answers(self, peer: Peer, ticket: Ticket, session: QuerySession) -> Generator[bytes]:
        with self._noted(peer, ticket, session), session.run(ticket.question) as answer:
            yield from messages.data_of(answer.schema.serialize())
            for part in answer.parts():
                yield from messages.data_of(part.data)

    @contextmanager
    def _noted(self, peer: Peer, ticket: Ticket, session: QuerySession) -> Iterator[None]:
        """Let `CancelFlightInfo` find the query while the block runs; then close its session."""
        key = (peer.owner, ticket.number)
        try:
            with self._lock:
                if key in self._cancelled:
                    raise Cancelled("the query was cancelled by its client")
                self._running.setdefault(key, []).append(session)
            yield
        finally:
            with self._lock:
                rest = [each for each in self._running.pop(key, ()) if each is not session]
                if rest:
                    self._running[key] = rest
            session.close()

    # Actions.

    def _prepare(self, peer: Peer, body: bytes) -> ActionAnswer:
        asked = _message(body, pb.ActionCreatePreparedStatementRequest)
        question = self._question(peer, asked.query, b"")
        if asked.transaction_id:
            self._transactions.get(peer.owner, asked.transaction_id)
        parameters, schema = self._described(peer, question)
        told = schema_bytes(schema)
        nbytes = len(question.text) + len(told)
        prepared = PreparedStatement(question, asked.transaction_id, schema, nbytes, parameters)
        handle = self._prepared.add(peer.owner, prepared, prepared.nbytes)
        fields = [pa.field(f"${place}", kind) for place, kind in enumerate(parameters, 1)]
        made = pb.ActionCreatePreparedStatementResult(
            prepared_statement_handle=handle,
            dataset_schema=told,
            parameter_schema=schema_bytes(pa.schema(fields)) if fields else b"",
        )
        return ActionAnswer([any_bytes(made)])

    def _close_prepared(self, peer: Peer, body: bytes) -> ActionAnswer:
        asked = _message(body, pb.ActionClosePreparedStatementRequest)
        self._prepared.close(peer.owner, asked.prepared_statement_handle)
        return ActionAnswer()

    def _begin(self, peer: Peer, body: bytes) -> ActionAnswer:
        _message(body, pb.ActionBeginTransactionRequest)
        handle = self._transactions.add(peer.owner, Transaction())
        return ActionAnswer([any_bytes(pb.ActionBeginTransactionResult(transaction_id=handle))])

    def _end(self, peer: Peer, body: bytes) -> ActionAnswer:
        asked = _message(body, pb.ActionEndTransactionRequest)
        if asked.action == pb.ActionEndTransactionRequest.END_TRANSACTION_UNSPECIFIED:
            raise Invalid("the end of a transaction is COMMIT or ROLLBACK")
        if not self._transactions.close(peer.owner, asked.transaction_id):
            raise NotFound("there is no such transaction: it has ended, was idle for an hour, or the server restarted")
        return ActionAnswer()

    def _cancel_query(self, peer: Peer, body: bytes) -> ActionAnswer:
        info = parsed(pb.FlightInfo, _message(body, pb.ActionCancelQueryRequest).info)
        return ActionAnswer([any_bytes(pb.ActionCancelQueryResult(result=self._cancel(peer, info)))])

    def _cancel_info(self, peer: Peer, body: bytes) -> ActionAnswer:
        info = parsed(pb.CancelFlightInfoRequest, body).info
        return ActionAnswer([pb.CancelFlightInfoResult(status=self._cancel(peer, info)).SerializeToString()])

    def _cancel(self, peer: Peer, info: pb.FlightInfo) -> Any:
        """The status after the queries of an info were cancelled."""
        status = pb.CANCEL_STATUS_NOT_CANCELLABLE
        for endpoint in info.endpoint:
            command = messages.command_of(endpoint.ticket.ticket)
            if command.name != "TicketStatementQuery":
                continue
            ticket = self._seals.open(peer.owner, command.message.statement_handle)
            key, status = (peer.owner, ticket.number), pb.CANCEL_STATUS_CANCELLED
            with self._lock:
                sessions = self._running.get(key, [])
                self._cancelled[key] = None
                if len(self._cancelled) > CANCELLED_MAX:
                    self._cancelled.popitem(last=False)
            for session in sessions:
                session.cancel("its client cancelled it")
        return status

    # Sessions.

    def _options(self, peer: Peer) -> SessionOptions:
        return self._sessions.get(peer.owner, peer.session) if peer.session else SessionOptions()

    def _set_options(self, peer: Peer, body: bytes) -> ActionAnswer:
        asked = parsed(pb.SetSessionOptionsRequest, body)
        options, refused = self._options(peer).changed(asked.session_options)
        nbytes = sum(len(name) + len(text) for name, text in options.values.items())
        cookie = ""
        if peer.session:
            self._sessions.put(peer.owner, peer.session, options, nbytes)
        else:
            session = self._sessions.add(peer.owner, options, nbytes)
            cookie = f"{COOKIE}={session.decode()}; HttpOnly"
        answer = pb.SetSessionOptionsResult()
        for name, number in refused.items():
            answer.errors[name].value = number
        return ActionAnswer([answer.SerializeToString()], cookie)

    def _get_options(self, peer: Peer, body: bytes) -> ActionAnswer:
        parsed(pb.GetSessionOptionsRequest, body)
        answer = pb.GetSessionOptionsResult()
        for name, text in self._options(peer).values.items():
            answer.session_options[name].string_value = text
        return ActionAnswer([answer.SerializeToString()])

    def _close_session(self, peer: Peer, body: bytes) -> ActionAnswer:
        parsed(pb.CloseSessionRequest, body)
        self._sessions.close(peer.owner, peer.session)
        closed = pb.CloseSessionResult(status=pb.CloseSessionResult.CLOSED).SerializeToString()
        return ActionAnswer([closed], f"{COOKIE}=; Max-Age=0" if peer.session else "")


def _message(body: bytes, kind: Any) -> Any:
    """The message of this kind in an action's `Any`, or `Invalid`."""
    command = messages.command_of(body)
    if command.message is None or command.name != kind.DESCRIPTOR.name:
        raise Invalid(f"the body of the action is a {command.name[:100]}, not a {kind.DESCRIPTOR.name}")
    return command.message


def _generated(items: Iterator[bytes]) -> Generator[bytes]:
    yield from items

"""The state of one connection: bytes in, bytes out, questions to the query service; no socket and no thread.

    session.receive(data)                 bytes of the client
    for data in session.answers(): …      bytes for the client; blocks after `MAY_WAIT` while the query service works

- The session knows the order of messages; `executor` knows what statements do.
- After an error of the extended protocol, messages up to the next Sync are ignored.
- `MAY_WAIT` among the answers says that the next step may wait. The steps up to it never wait.
- An error that ends the connection is sent, and `is_over` is true afterwards.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, Protocol

import pyarrow as pa

from lakestore.errors import LakestoreError, NotAuthenticated
from lakestore.limits import Limits
from lakestore_server.access.callers import Access, Caller
from lakestore_server.edge.postgres import messages, sqlstates
from lakestore_server.edge.postgres.executor import Arguments, Executor, PreparedStatement, Questions
from lakestore_server.edge.postgres.login import Greeting, Login, Peer, first_variables, greeting_of
from lakestore_server.edge.postgres.messages import Inbox, MalformedMessage, Message
from lakestore_server.edge.postgres.portals import Portal, described
from lakestore_server.edge.postgres.sqlstates import FatalError, SqlError
from lakestore_server.edge.postgres.statements import (
    EmptyStatement,
    ExecuteStatement,
    FetchStatement,
    ShowStatement,
    Statement,
    statements_of,
)
from lakestore_server.edge.postgres.variables import Variables
from lakestore_server.queries.postgres.names import VERSION
from lakestore_server.queries.postgres.types import postgres_type
from lakestore_server.queries.question import Cancelled

log = logging.getLogger("lakestore.postgres")
AT_ONCE_CHARS_MAX = 4_096
"""Characters of a statement that is parsed at once."""
CANCEL_REQUESTED = "canceling statement due to user request"
TIMED_OUT = "canceling statement due to statement timeout"
MAY_WAIT = memoryview(b"")
"""An empty answer. The caller may go on in another thread."""
_AT_ONCE = frozenset({messages.Parse, messages.Describe, messages.Execute, messages.Flush, messages.CopyMessage})
"""Messages that may be answered at once. Their handlers tell where they may wait."""
_ENDS_PORTALS = frozenset({messages.Bind, messages.Close, messages.Sync})
"""Messages that may end a portal, which waits for the process of its answer if there is one."""
_ENDS = frozenset({messages.Query, messages.Execute, messages.Sync})
"""Messages of a statement's end: a cancel that came before is over with them."""
Data = Generator[bytes | memoryview]
_UNTIMED: AbstractContextManager[None] = nullcontext()


class Door(Protocol):
    """The services of a port for its sessions."""

    access: Access
    limits: Limits

    def questions(self, caller: Caller) -> Questions:
        """The query service for a caller."""

    def nonce(self, size: int) -> str:
        """Random text without a comma."""

    def register(self, session: Session, minor: int) -> tuple[int, bytes]:
        """(number, secret) by which a CancelRequest names the session."""

    def cancel(self, number: int, secret: bytes) -> None:
        """Cancel what the session of this number and secret does."""

    def after(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Act later, in another thread. Returns what calls it off."""


class Session:
    """One connection."""

    def __init__(self, door: Door, peer: Peer) -> None:
        self._door, self.peer = door, peer
        self.inbox = Inbox()
        self.is_over = False
        """Whether the connection is to be closed once the last answer is sent."""
        self.wants_tls = False
        """Whether the client waits for the begin of TLS. The port begins it, and makes this false."""
        self._is_tls_answered = self._is_gss_answered = False
        self._login: Login | None = None
        self._greeting = Greeting()
        self.caller: Caller | None = None
        """The client, once it has proved who it is."""
        self._questions: Questions | None = None
        self._executor: Executor | None = None
        self._skips_to_sync = False
        self._is_awaited = False
        """Whether the port has bytes that are not answered yet, or are being answered now."""
        self._cancelled_by = ""
        self._cancelling = threading.Lock()
        """Guards the reason of a cancel, and the states that decide whether there is something to cancel."""
        self._handlers: Mapping[type, Callable[[Executor, Any], Data]] = {
            messages.Query: self._query,
            messages.Parse: self._parse,
            messages.Bind: self._bind,
            messages.Describe: self._describe,
            messages.Execute: self._execute,
            messages.Close: self._close,
            messages.Sync: self._sync,
            messages.Flush: self._ignore,
            messages.Terminate: self._terminate,
            messages.FunctionCall: self._call,
            messages.CopyMessage: self._ignore,
        }

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""
        self.inbox.feed(data)

    def answers(self) -> Data:
        """Answer every whole message that has come."""
        try:
            while not self.is_over and not self.wants_tls and (message := self.inbox.next_message()) is not None:
                yield from self._answer(message)
        except MalformedMessage as error:
            yield self.end(FatalError(sqlstates.PROTOCOL_VIOLATION, str(error)))
        except FatalError as error:
            yield self.end(error)

    def end(self, error: FatalError) -> bytes:
        """End the connection: the message that tells why."""
        self.is_over = True
        return messages.report(b"E", sqlstates.fields_of(error))

    def cancel(self, why: str = CANCEL_REQUESTED) -> None:
        """End the statement under way, also if its question has not begun, or if its message still waits for the
        session. Callable from any thread; nothing happens if there is none."""
        with self._cancelling:
            questions = self._questions
            if questions is not None and self._is_awaited:
                self._cancelled_by = self._cancelled_by or why
                questions.cancel(why, refuses=True)

    def expect(self) -> None:
        """The port has bytes for the session. Callable from any thread."""
        with self._cancelling:
            self._is_awaited = True

    def rest(self) -> None:
        """Everything that came is answered: a cancel that comes later has nothing to end."""
        with self._cancelling:
            self._is_awaited = False
            self._forget_cancel()

    def _forget_cancel(self) -> None:
        if self._cancelled_by and self._questions is not None:
            self._questions.admit()
        self._cancelled_by = ""

    def close(self) -> None:
        """The client is gone: end what runs. Callable from any thread."""
        self.is_over = True
        if self._questions is not None:
            self._questions.close()

    def release(self) -> None:
        """Close every portal and cursor."""
        self.close()
        if self._executor is not None:
            self._executor.close()

    @property
    def user(self) -> str:
        """The user of the first message."""
        return self._greeting.user

    def check_rights(self) -> None:
        """`FatalError` if the client's token or certificate is no longer valid."""
        if self.caller is not None:
            try:
                self.caller = self._door.access.renewed(self.caller)
            except NotAuthenticated as error:
                raise FatalError(sqlstates.NOT_AUTHENTICATED, error.message) from error

    def _answer(self, message: Message) -> Data:
        executor = self._executor
        if executor is None:
            yield from self._begin(message)
            return
        kind = type(message)
        handler = self._handlers.get(kind)
        if handler is None:
            raise FatalError(sqlstates.PROTOCOL_VIOLATION, f"a message {type(message).__name__} is out of place")
        if self._skips_to_sync and not isinstance(message, (messages.Sync, messages.Terminate)):
            yield b""  # the port counts answers, to give other connections their turn
            return
        if kind not in _AT_ONCE and (kind not in _ENDS_PORTALS or executor.end_waits):
            yield MAY_WAIT
        try:
            yield from handler(executor, message)
        except FatalError:
            raise
        except Exception as error:  # the edge: an error becomes an answer
            yield self._refusal(error)
            executor.fail()
            if isinstance(message, messages.Query):
                yield self._ready(executor)
            else:
                self._skips_to_sync = True
        finally:
            if kind in _ENDS:
                with self._cancelling:
                    self._forget_cancel()

    def _refusal(self, error: Exception) -> bytes:
        if isinstance(error, NotAuthenticated):
            raise FatalError(sqlstates.NOT_AUTHENTICATED, error.message) from error
        if not isinstance(error, LakestoreError):
            log.error("a defect in a session of %s", self.user, exc_info=error)
            error = SqlError("XX000", "a defect of Lakestore: the server's log has it")
        if isinstance(error, Cancelled) and self._cancelled_by:
            error = SqlError(sqlstates.CANCELLED, self._cancelled_by)
        return messages.report(b"E", sqlstates.fields_of(error))

    # --- the begin

    def _begin(self, message: Message) -> Data:
        yield MAY_WAIT
        if isinstance(message, messages.CancelRequest):
            self._door.cancel(message.process, message.secret)
            self.is_over = True
        elif isinstance(message, messages.GssRequest) and not self._is_gss_answered:
            self._is_gss_answered = True
            yield b"N"
        elif isinstance(message, messages.TlsRequest) and not self._is_tls_answered:
            yield self._tls_answer()
        elif isinstance(message, messages.StartMessage):
            self._greeting = greeting_of(message)
            self.inbox.started()
            if message.minor > messages.PROTOCOL_MINOR_MAX or self._greeting.unknown:
                yield messages.negotiated_version(self._greeting.minor, self._greeting.unknown)
            self._login = Login(self._door.access, self.peer, self._greeting, self._door.nonce)
            yield self._login.begin()
            yield from self._welcome(self._login)
        elif self._login is None:
            raise FatalError(sqlstates.PROTOCOL_VIOLATION, "a session does not begin so")
        elif isinstance(message, messages.Terminate):
            self.is_over = True
        else:
            yield self._login.receive(message)
            yield from self._welcome(self._login)

    def _tls_answer(self) -> bytes:
        self._is_tls_answered = True
        self.wants_tls = self.peer.may_encrypt and not self.peer.is_encrypted
        if self.wants_tls and len(self.inbox):
            self.wants_tls = False
            raise FatalError(sqlstates.PROTOCOL_VIOLATION, "bytes without encryption follow the request for it")
        return b"S" if self.wants_tls else b"N"

    def _welcome(self, login: Login) -> Data:
        """The answers after the proof of who the client is; none before it."""
        if login.caller is None:
            return
        try:
            variables = Variables(first_variables(self._greeting))
            self._questions = questions = self._door.questions(login.caller)
        except LakestoreError as error:
            raise FatalError(sqlstates.sqlstate_of(error), error.message) from error
        self.caller, self._login = login.caller, None
        self.inbox.bytes_max = self._door.limits.message_bytes
        number, secret = self._door.register(self, self._greeting.minor)
        self._executor = executor = Executor(questions, variables, self._facts(number))
        yield messages.authentication(0)
        yield b"".join(_reports(executor))
        yield messages.key_data(number, secret)
        yield messages.ready("I")

    def _facts(self, number: int) -> Mapping[str, str]:
        user, database = self._greeting.user, self._greeting.database
        users = dict.fromkeys(("current_user", "session_user", "current_role", "user"), user)
        return {**users, "current_database": database, "current_catalog": database, "pg_backend_pid": str(number)} | {
            "version": VERSION
        }

    # --- both protocols

    @staticmethod
    def _ready(executor: Executor) -> bytes:
        """The end of a message of the simple protocol, or of messages up to Sync."""
        executor.end_message()
        return b"".join((*executor.notices(), *_reports(executor), messages.ready(executor.status)))

    def _timed(self, executor: Executor) -> AbstractContextManager[None]:
        """Cancel what the block does after the time that `statement_timeout` allows."""
        seconds = executor.variables.reading.timeout_seconds
        return self._cancelled_after(seconds) if seconds else _UNTIMED

    @contextmanager
    def _cancelled_after(self, seconds: float) -> Iterator[None]:
        call_off = self._door.after(seconds, lambda: self.cancel(TIMED_OUT))
        try:
            yield
        finally:
            call_off()

    @staticmethod
    def _fetched(executor: Executor, portal: Portal, rows_max: int) -> Data:
        """The rows of a portal, and the message after them."""
        count = yield from portal.fetch(rows_max)
        yield from executor.notices()
        is_suspended = rows_max and count == rows_max
        yield messages.PORTAL_SUSPENDED if is_suspended else portal.completion(count)

    def _query(self, executor: Executor, message: messages.Query) -> Data:
        self.check_rights()
        statements = statements_of(message.text)
        if not statements:
            yield messages.EMPTY_QUERY
        executor.forget_portal("")
        executor.allows_cursors = len(statements) > 1
        for statement in statements:
            executor.check_state(statement)
            with self._timed(executor), closing(executor.portal(statement)) as portal:
                description = portal.description()
                if description != messages.NO_DATA:
                    yield description
                yield from self._fetched(executor, portal, 0)
        yield self._ready(executor)

    def _parse(self, executor: Executor, message: messages.Parse) -> Data:
        if len(message.text) > AT_ONCE_CHARS_MAX:
            yield MAY_WAIT
        statements = statements_of(message.text)
        if len(statements) > 1:
            raise SqlError(sqlstates.SYNTAX_ERROR, "cannot insert multiple commands into a prepared statement")
        statement = statements[0] if statements else EmptyStatement("")
        executor.check_state(statement)
        executor.keep(message.name, PreparedStatement(statement, message.oids))
        yield messages.PARSE_COMPLETE

    def _bind(self, executor: Executor, message: messages.Bind) -> Data:
        prepared = executor.prepared(message.statement)
        executor.check_state(prepared.statement)
        executor.check_new_portal(message.portal)
        if type(prepared.statement) is not Statement:
            yield MAY_WAIT
        count = len(message.values)
        formats = message.formats * count if len(message.formats) == 1 else message.formats or (0,) * count
        given = Arguments(prepared, message.values, formats)
        executor.bind(message.portal, prepared.statement, message.result_formats, given)
        yield messages.BIND_COMPLETE

    def _describe(self, executor: Executor, message: messages.Describe) -> Data:
        if message.kind == "P":
            portal = executor.bound(message.name).portal
            if not portal.begins_at_once():
                yield MAY_WAIT
            with self._timed(executor):
                yield portal.description()
            yield from executor.notices()
            return
        prepared = executor.prepared(message.name)
        statement = prepared.statement
        executor.check_state(statement)
        if prepared.description is None:
            yield MAY_WAIT
        if type(statement) is not Statement:
            yield messages.parameter_description(())
            has_rows = isinstance(statement, (ShowStatement, FetchStatement, ExecuteStatement))
            yield executor.portal(statement).description() if has_rows else messages.NO_DATA
            return
        self.check_rights()
        with self._timed(executor):
            description = executor.description(prepared)
        prepared.is_told = True
        oids = [prepared.oid(number) or _oid(kind) for number, kind in enumerate(description.parameters)]
        yield messages.parameter_description(oids)
        schema = description.schema
        yield messages.NO_DATA if schema is None else messages.row_description(described(list(schema), ()))

    def _execute(self, executor: Executor, message: messages.Execute) -> Data:
        bound = executor.bound(message.portal)
        if bound.statement is not None:
            executor.check_state(bound.statement)
        self.check_rights()
        if not bound.portal.begins_at_once():
            yield MAY_WAIT
        with self._timed(executor):
            yield from self._fetched(executor, bound.portal, message.rows_max)

    def _close(self, executor: Executor, message: messages.Close) -> Data:
        if message.kind == "P":
            executor.forget_portal(message.name)
        else:
            executor.forget(message.name)
        yield messages.CLOSE_COMPLETE

    def _sync(self, executor: Executor, _: Message) -> Data:
        self._skips_to_sync = False
        yield self._ready(executor)

    def _call(self, executor: Executor, _: Message) -> Data:
        error = SqlError(sqlstates.FEATURE_NOT_SUPPORTED, "functions are called by SELECT")
        yield messages.report(b"E", sqlstates.fields_of(error))
        executor.fail()
        yield self._ready(executor)

    def _terminate(self, executor: Executor, _: Message) -> Data:
        self.is_over = True
        executor.close()
        yield from ()

    def _ignore(self, _: Executor, __: Message) -> Data:
        yield b""


def _reports(executor: Executor) -> list[bytes]:
    return [messages.parameter_status(name, value) for name, value in executor.variables.reports()]


def _oid(kind: pa.DataType) -> int:
    return postgres_type(pa.field("", kind)).oid

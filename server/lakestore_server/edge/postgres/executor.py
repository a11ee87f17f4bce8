"""Statements as portals: the variables, prepared statements, cursors and the transaction of one session.

- A statement that the session knows itself is answered here; every other one is a `Question` to the query service.
- All questions of a transaction read the cut of the first one. Without BEGIN, a transaction is one message of the
  simple protocol, or the messages up to a Sync.
- After an error in a transaction, statements up to its ROLLBACK are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import pyarrow as pa

from lakestore.errors import LakestoreError
from lakestore_server.edge.postgres import messages, sqlstates
from lakestore_server.edge.postgres.own_functions import with_own_values
from lakestore_server.edge.postgres.portals import (
    CommandPortal,
    CopyPortal,
    CursorPortal,
    EmptyPortal,
    Portal,
    QuestionPortal,
    TextPortal,
)
from lakestore_server.edge.postgres.positions import place_of
from lakestore_server.edge.postgres.sqlstates import SqlError
from lakestore_server.edge.postgres.statements import (
    CloseStatement,
    CopyStatement,
    DeallocateStatement,
    DeclareStatement,
    DiscardStatement,
    EmptyStatement,
    ExecuteStatement,
    FetchStatement,
    PrepareStatement,
    SetStatement,
    ShowStatement,
    SilentStatement,
    Statement,
    TransactionStatement,
    TransactionVerb,
    WriteStatement,
)
from lakestore_server.edge.postgres.variables import AT, Variables
from lakestore_server.queries.answer import Answer
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.postgres import types, values
from lakestore_server.queries.postgres.rows import CopyOptions
from lakestore_server.queries.question import READS_ONLY, Description, Dialect, Form, Question

STATEMENTS_MAX, STATEMENTS_CHARS_MAX, CURSORS_MAX, PORTALS_MAX = 4_096, 16 << 20, 64, 64
"""Prepared statements of one session, their characters, its cursors, and its portals."""
USUAL_COPY = CopyOptions()
_COPY_FORMS = {"text": Form.COPY_TEXT, "csv": Form.COPY_CSV, "binary": Form.COPY_BINARY}


class Questions(Protocol):
    """The query service for one caller: `queries.service.QuerySession`."""

    def describe(self, question: Question, *, waits: bool = True) -> Description: ...

    def run(self, question: Question, *, waits: bool = True) -> Answer: ...

    def cancel(self, why: str, *, refuses: bool = False) -> None: ...

    def admit(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class PreparedStatement:
    """A prepared statement."""

    statement: Statement
    oids: tuple[int, ...] = ()
    description: Description | None = None
    is_told: bool = False
    """Whether the client was told the columns of the description."""

    def oid(self, number: int) -> int:
        """The type that the client has given to a parameter; 0 if it has given none."""
        return self.oids[number] if number < len(self.oids) else 0


class Arguments(NamedTuple):
    """The values of a statement's parameters, as a client sends them."""

    prepared: PreparedStatement
    data: Sequence[bytes | None] = ()
    formats: Sequence[int] = ()


class BoundPortal(NamedTuple):
    """A portal of the extended protocol and its statement, which is None for a cursor."""

    portal: Portal
    statement: Statement | None


class Executor:
    """Everything that a session keeps between its statements."""

    def __init__(self, questions: Questions, variables: Variables, facts: Mapping[str, str]) -> None:
        """`facts` are the answers to functions such as current_user."""
        self._questions, self.variables, self._facts = questions, variables, facts
        self.status = "I"
        """I outside of a transaction, T in one, E in a failed one, as ReadyForQuery says it."""
        self.allows_cursors = False
        """Whether a message with several statements runs, which is a transaction too."""
        self._cut = ""
        self._has_failed = False
        self._statements: dict[str, PreparedStatement] = {}
        self._portals: dict[str, BoundPortal] = {}
        """Portals of the extended protocol. FETCH, MOVE and CLOSE find them as they find cursors."""
        self._cursors: dict[str, QuestionPortal] = {}
        self._held: set[str] = set()
        """Cursors that have outlived their transaction."""
        self._holdable: set[str] = set()
        """Cursors of the transaction that outlive it, if it is not undone."""
        self._notices: list[bytes] = []
        self._own: Mapping[type[Statement], Callable[[Any, Sequence[int]], Portal]] = {
            EmptyStatement: self._empty,
            WriteStatement: self._write,
            SetStatement: self._set,
            ShowStatement: self._show,
            TransactionStatement: self._transaction,
            DeclareStatement: self._declare,
            FetchStatement: self._fetch,
            CloseStatement: self._close_cursor,
            PrepareStatement: self._prepare,
            ExecuteStatement: self._execute,
            DeallocateStatement: self._deallocate,
            DiscardStatement: self._discard,
            CopyStatement: self._copy,
            SilentStatement: self._silent,
        }
        """Type of a statement that the session answers itself, to the method that makes its portal."""

    # --- the transaction

    def check_state(self, statement: Statement) -> None:
        """Refuse every statement of a failed transaction but those that end it."""
        if self.status == "E" and not _is_end(statement):
            raise SqlError(
                sqlstates.FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            )
        self.variables.begin()

    def fail(self) -> None:
        """A statement has failed."""
        self._has_failed = True
        if self.status == "T":
            self.status = "E"

    def end_message(self) -> None:
        """A message of the simple protocol, or messages up to Sync, are done: without BEGIN the transaction ends."""
        self.allows_cursors = False
        if self.status == "I":
            self._end(undo=self._has_failed)
            if self._portals:
                self._close_portals()
        self._has_failed = False

    def _end(self, *, undo: bool) -> None:
        if undo:
            self.variables.rollback()
        else:
            self.variables.commit()
        self._cut = ""
        if self._cursors:
            self._held |= set() if undo else self._holdable
            self._holdable.clear()
            for name in set(self._cursors) - self._held:
                self._forget_cursor(name)

    def _close_portals(self) -> None:
        for name in list(self._portals):
            self.forget_portal(name)

    def close(self) -> None:
        """Close every portal and cursor."""
        self._close_portals()
        for name in list(self._cursors):
            self._forget_cursor(name)

    def notices(self) -> list[bytes]:
        """The notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def _warn(self, sqlstate: str, message: str, severity: str = "WARNING") -> None:
        self._notices.append(messages.report(b"N", sqlstates.notice_fields(sqlstate, message, severity)))

    # --- statements as portals

    def portal(self, statement: Statement, results: Sequence[int] = (), given: Arguments | None = None) -> Portal:
        """The portal of a statement; `results` are the formats of its columns."""
        make = self._own.get(type(statement))
        portal = make(statement, results) if make else self._query_portal(statement, results, given)
        return portal.with_formats(results) if isinstance(portal, TextPortal) else portal

    def _query_portal(
        self, statement: Statement, results: Sequence[int] | None, given: Arguments | None
    ) -> QuestionPortal:
        def ask(formats: tuple[bool, ...], waits: bool) -> Answer:
            return self._answer(statement, given, Form.ROWS, formats, waits=waits)

        def schema() -> Sequence[pa.Field]:
            return list(self.description(PreparedStatement(statement)).schema or ())

        return QuestionPortal(statement.tag, ask, results, schema)

    def description(self, prepared: PreparedStatement, *, waits: bool = True) -> Description:
        """The parameters and columns of a query; asked once for each prepared statement. Raises `MayWait`."""
        if prepared.description is None:
            question = self._question(self._text(prepared.statement, None), Form.ROWS)
            with _Placed(prepared.statement):
                prepared.description = self._questions.describe(question, waits=waits)
        return prepared.description

    def _answer(
        self,
        statement: Statement,
        given: Arguments | None,
        form: Form,
        formats: tuple[bool, ...],
        copy: CopyOptions = USUAL_COPY,
        *,
        waits: bool,
    ) -> Answer:
        """Every question that is run passes here. Raises `MayWait`."""
        text = self._text(statement, given.data if given else ())
        parameters = self._parameters(given, waits=waits) if given is not None and given.data else ()
        question = self._question(text, form, parameters, formats, copy)
        with _Placed(statement):
            answer = self._questions.run(question, waits=waits)
            if form is Form.ROWS and given is not None and given.prepared.is_told:
                self._check_columns(given.prepared, answer, waits=waits)
        self._cut = self._cut or answer.token
        for sentence in answer.notices:
            self._warn(sqlstates.SUCCESSFUL, sentence, "NOTICE")
        return answer

    def _check_columns(self, prepared: PreparedStatement, answer: Answer, *, waits: bool) -> None:
        """Refuse columns that the client does not expect, because a table has changed. Raises `MayWait`.

        A value may change a type too: `'a' || $1` of NULL is a number for DuckDB. So a new description decides.
        """
        told = prepared.description.schema if prepared.description else None
        if told is None or told is answer.schema or _columns(told) == _columns(answer.schema):
            return
        question = self._question(self._text(prepared.statement, None), Form.ROWS)
        try:
            fresh = self._questions.describe(question, waits=waits).schema
            if fresh is not None and _columns(told) != _columns(fresh):
                raise sqlstates.ChangedColumns
        except BaseException:
            answer.close()
            raise

    def _text(self, statement: Statement, given: Sequence[bytes | None] | None) -> str:
        return with_own_values(statement.text, self._facts, self.variables, given)

    def _question(
        self,
        text: str,
        form: Form,
        parameters: tuple[Parameter, ...] = (),
        formats: tuple[bool, ...] = (),
        copy: CopyOptions = USUAL_COPY,
    ) -> Question:
        reading = self.variables.reading
        return Question(
            text=text,
            parameters=parameters,
            at=self._cut or reading.at,
            require=None if self._cut else reading.requirement,
            dialect=Dialect.POSTGRES,
            search_path=reading.search_path,
            user=self._facts.get("current_user", ""),
            database=self._facts.get("current_database", "lake"),
            form=form,
            binary=formats,
            zone=reading.zone,
            copy=copy,
        )

    def _parameters(self, given: Arguments, *, waits: bool) -> tuple[Parameter, ...]:
        """The values of a statement's parameters. The server is asked for the types that the client does not give."""
        prepared, count = given.prepared, len(given.data)
        oids, zone = [prepared.oid(number) for number in range(count)], self.variables.reading.zone
        wanted: list[pa.DataType | None] = [None if oid == types.UNKNOWN else types.arrow_type(oid) for oid in oids]
        if None in wanted:
            described = self.description(prepared, waits=waits).parameters
            if len(described) != count:
                raise SqlError(
                    sqlstates.PROTOCOL_VIOLATION,
                    f"bind message supplies {count} parameters, but prepared statement requires {len(described)}",
                )
            wanted = [kind or described[number] for number, kind in enumerate(wanted)]
        return tuple(
            [
                values.parameter(oid, bool(form), data, kind, zone)
                for oid, form, data, kind in zip(oids, given.formats, given.data, wanted, strict=True)
            ]
        )

    # --- statements that the session answers

    def _set(self, statement: SetStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            if statement.name == AT and self._cut:
                raise SqlError(
                    sqlstates.ACTIVE_TRANSACTION, f"{AT} must be set before any query: a transaction reads one cut"
                )
            if statement.is_local and self.status == "I" and not self.allows_cursors:
                self._warn(sqlstates.NO_TRANSACTION, "SET LOCAL can only be used in transaction blocks")
            self.variables.put(statement.name, statement.values, is_local=statement.is_local)

        return CommandPortal(statement.tag, do)

    def _show(self, statement: ShowStatement, _: Sequence[int]) -> Portal:
        if statement.name == "all":
            return TextPortal("SHOW", ("name", "setting", "description"), self.variables.rows)
        value = self.variables[statement.name]
        return TextPortal("SHOW", (_shown_name(statement.name),), lambda: [(value,)])

    def _transaction(self, statement: TransactionStatement, _: Sequence[int]) -> Portal:
        return CommandPortal(statement.tag, lambda: self._move(statement))

    def _move(self, statement: TransactionStatement) -> str | None:
        verb = statement.verb
        if verb is TransactionVerb.BEGIN:
            if self.status != "I":
                self._warn(sqlstates.ACTIVE_TRANSACTION, "there is already a transaction in progress")
            self.status = "T"
            return None
        if verb in (TransactionVerb.COMMIT, TransactionVerb.ROLLBACK):
            return self._leave(statement)
        if self.status == "I":
            raise SqlError(sqlstates.NO_TRANSACTION, f"{verb.value} can only be used in transaction blocks")
        if verb is TransactionVerb.SAVEPOINT:
            self.variables.save(statement.name)
            return None
        if not self.variables.saves(statement.name):
            raise SqlError(sqlstates.UNKNOWN_SAVEPOINT, f'savepoint "{statement.name}" does not exist')
        self.variables.release(statement.name, undo=verb is TransactionVerb.ROLLBACK_TO)
        if verb is TransactionVerb.ROLLBACK_TO:
            self.status = "T"
        return None

    def _leave(self, statement: TransactionStatement) -> str | None:
        status = self.status
        if status == "I":
            self._warn(sqlstates.NO_TRANSACTION, "there is no transaction in progress")
            return None
        is_undone = statement.verb is TransactionVerb.ROLLBACK or status == "E"
        self._end(undo=is_undone)
        self.status = "I"
        if statement.has_chain:
            self.variables.begin()
            self.status = "T"
        return "ROLLBACK" if is_undone else None

    def _declare(self, statement: DeclareStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            if not (statement.has_hold or self.status == "T" or self.allows_cursors):
                raise SqlError(sqlstates.NO_TRANSACTION, "DECLARE CURSOR can only be used in transaction blocks")
            if statement.name in self._cursors or statement.name in self._portals:
                raise SqlError(sqlstates.TAKEN_CURSOR, f'cursor "{statement.name}" already exists')
            if len(self._cursors) >= CURSORS_MAX:
                raise SqlError("54000", f"a session has at most {CURSORS_MAX} cursors: close some")
            cursor = self._query_portal(statement.query, (1,) if statement.is_binary else None, None)
            if not statement.is_binary:
                cursor.description()  # a text that cannot run is refused here
            self._cursors[statement.name] = cursor
            if statement.has_hold:
                self._holdable.add(statement.name)

        return CommandPortal(statement.tag, do)

    @property
    def end_waits(self) -> bool:
        """Whether the end of a transaction or portal may wait: for a cursor, or for the process of an answer."""
        if self._cursors:
            return True
        return bool(self._portals) and True in [bound.portal.has_process for bound in self._portals.values()]

    def check_new_portal(self, name: str) -> None:
        """Refuse the name of another portal or cursor. The portal without a name ends for the next one."""
        if name and (name in self._portals or name in self._cursors):
            raise SqlError(sqlstates.TAKEN_CURSOR, f'cursor "{name}" already exists')
        self.forget_portal(name)
        if len(self._portals) >= PORTALS_MAX:
            raise SqlError("54000", f"a session has at most {PORTALS_MAX} portals: close some")

    def bind(self, name: str, statement: Statement, results: Sequence[int], given: Arguments) -> None:
        """Make a portal of the extended protocol."""
        self._portals[name] = BoundPortal(self.portal(statement, results, given), statement)

    def bound(self, name: str) -> BoundPortal:
        """The portal of a name, which may be that of a cursor."""
        bound = self._portals.get(name)
        if bound is None and name in self._cursors:
            bound = BoundPortal(self._cursors[name], None)
        if bound is None:
            raise SqlError(sqlstates.UNKNOWN_CURSOR, f'portal "{name}" does not exist')
        return bound

    def forget_portal(self, name: str) -> None:
        """Close a portal of the extended protocol, if there is one."""
        bound = self._portals.pop(name, None)
        if bound is not None:
            bound.portal.close()

    def _fetch(self, statement: FetchStatement, results: Sequence[int]) -> Portal:
        bound = self._portals.get(statement.name)
        cursor = self._cursors.get(statement.name) if bound is None else bound.portal
        if not isinstance(cursor, QuestionPortal):
            raise _no_cursor(statement.name)
        return CursorPortal(statement.tag, cursor, statement.rows, results)

    def _close_cursor(self, statement: CloseStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            name = statement.name
            if not name:
                self.close()
            elif name in self._cursors:
                self._forget_cursor(name)
            elif name in self._portals:
                self.forget_portal(name)
            else:
                raise _no_cursor(name)

        return CommandPortal(statement.tag, do)

    def _forget_cursor(self, name: str) -> None:
        self._held.discard(name)
        self._holdable.discard(name)
        self._cursors.pop(name).close()

    def keep(self, name: str, prepared: PreparedStatement) -> None:
        """Remember a prepared statement."""
        if name and name in self._statements:
            raise SqlError(sqlstates.TAKEN_STATEMENT, f'prepared statement "{name}" already exists')
        self._statements.pop(name, None)
        chars = len(prepared.statement.text)
        if len(self._statements) >= STATEMENTS_MAX or chars + self._chars() > STATEMENTS_CHARS_MAX:
            raise SqlError(
                "54000",
                f"a session has at most {STATEMENTS_MAX:,} prepared statements and {STATEMENTS_CHARS_MAX:,} characters"
                " in them: close some",
            )
        self._statements[name] = prepared

    def _chars(self) -> int:
        return sum(len(each.statement.text) for each in self._statements.values())

    def prepared(self, name: str) -> PreparedStatement:
        """The prepared statement of a name."""
        try:
            return self._statements[name]
        except KeyError:
            said = (
                f'prepared statement "{name}" does not exist' if name else "unnamed prepared statement does not exist"
            )
            raise SqlError(sqlstates.UNKNOWN_STATEMENT, said) from None

    def forget(self, name: str) -> None:
        """Forget a prepared statement, if there is one."""
        self._statements.pop(name, None)

    def _prepare(self, statement: PrepareStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            self.keep(statement.name, prepared)
            self.description(prepared)  # a text that cannot run is refused here

        prepared = PreparedStatement(statement.query)
        return CommandPortal(statement.tag, do)

    def _execute(self, statement: ExecuteStatement, results: Sequence[int]) -> Portal:
        prepared = self.prepared(statement.name)
        data = [None if value is None else value.encode() for value in statement.values]
        count = len(self.description(prepared).parameters) if type(prepared.statement) is Statement else 0
        if count != len(data):
            raise SqlError(
                sqlstates.SYNTAX_ERROR,
                f'wrong number of parameters for prepared statement "{statement.name}"',
                detail=f"Expected {count} parameters but got {len(data)}.",
            )
        return self.portal(prepared.statement, results, Arguments(prepared, data, (0,) * len(data)))

    def _deallocate(self, statement: DeallocateStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            if not statement.name:
                self._statements.clear()
                return
            self.prepared(statement.name)
            self.forget(statement.name)

        return CommandPortal(statement.tag, do)

    def _discard(self, statement: DiscardStatement, _: Sequence[int]) -> Portal:
        def do() -> None:
            if statement.what != "all":
                return
            if self.status != "I":
                raise SqlError(sqlstates.ACTIVE_TRANSACTION, "DISCARD ALL cannot run inside a transaction block")
            self.close()
            self._statements.clear()
            self.variables.put("all", None)

        return CommandPortal(statement.tag, do)

    def _copy(self, statement: CopyStatement, _: Sequence[int]) -> Portal:
        def ask(formats: tuple[bool, ...], waits: bool) -> Answer:
            form = _COPY_FORMS[statement.format]
            return self._answer(statement.query, None, form, formats, statement.options, waits=waits)

        return CopyPortal(QuestionPortal("COPY", ask, ()), is_binary=statement.format == "binary")

    def _silent(self, statement: SilentStatement, _: Sequence[int]) -> Portal:
        return CommandPortal(statement.tag, lambda: None)

    def _empty(self, _: EmptyStatement, __: Sequence[int]) -> Portal:
        return EmptyPortal()

    def _write(self, statement: WriteStatement, _: Sequence[int]) -> NoReturn:
        raise SqlError(sqlstates.READ_ONLY, f"cannot execute {statement.verb}: {READS_ONLY}")


class _Placed:
    """Gives an error its position in the client's text."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, LakestoreError):
            position = getattr(error, "position", 0) or place_of(error.message, self._statement.text)
            if position:
                error.position = position + self._statement.begin  # type: ignore[attr-defined]


def _is_end(statement: Statement) -> bool:
    """Whether a statement ends a failed transaction."""
    return isinstance(statement, TransactionStatement) and statement.verb in (
        TransactionVerb.COMMIT,
        TransactionVerb.ROLLBACK,
        TransactionVerb.ROLLBACK_TO,
    )


def _no_cursor(name: str) -> SqlError:
    return SqlError(sqlstates.UNKNOWN_CURSOR, f'cursor "{name}" does not exist')


def _columns(schema: pa.Schema) -> list[tuple[str, int, int]]:
    kinds = map(types.postgres_type, schema)
    return [(name, kind.oid, kind.modifier) for name, kind in zip(schema.names, kinds, strict=True)]


def _shown_name(name: str) -> str:
    from_list = {"timezone": "TimeZone", "datestyle": "DateStyle", "intervalstyle": "IntervalStyle"}
    return from_list.get(name, name)

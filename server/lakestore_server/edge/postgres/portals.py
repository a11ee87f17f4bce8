"""Portals: what a statement returns, described once and fetched in pieces.

- A portal of a question begins its answer when it is described or first fetched. Rows pass through as they come.
- `fetch` yields bytes to send, and returns the number of rows.
- A portal that is closed before its last row interrupts the process of its answer.
- `begins_at_once` never waits. After it has returned true, no call waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from lakestore.union.sql_origins import origin_of
from lakestore_server.edge.postgres import messages
from lakestore_server.edge.postgres.messages import Field
from lakestore_server.edge.postgres.sqlstates import FEATURE_NOT_SUPPORTED, SqlError
from lakestore_server.queries.answer import Answer, MayWait
from lakestore_server.queries.postgres.oids import table_oid
from lakestore_server.queries.postgres.types import postgres_type
from lakestore_server.queries.question import Part

_ATTNUM_MAX = 0x7FFF
Rows = Generator[bytes | memoryview, None, int]
DERIVED_MAX = 16
"""Descriptions of one text's columns that are kept: one for each choice of formats."""


class Portal(Protocol):
    """The answer to one statement."""

    tag: str

    @property
    def has_process(self) -> bool:
        """Whether an answer of a query process is open, so that `close` waits."""

    def begins_at_once(self) -> bool:
        """Whether every row is there without a wait; asks for them if it was not done."""

    def description(self) -> bytes:
        """RowDescription, or NoData."""

    def fetch(self, rows_max: int) -> Rows:
        """At most so many rows; 0 is all."""

    @property
    def is_at_end(self) -> bool:
        """Whether every row was fetched."""

    def close(self) -> None:
        """Release what the portal holds."""

    def completion(self, count: int) -> bytes:
        """The message after the last row."""


class QuestionPortal:
    """The rows of a question to the query service."""

    def __init__(
        self,
        tag: str,
        ask: Callable[[tuple[bool, ...], bool], Answer],
        formats: Sequence[int] | None,
        schema: Callable[[], Sequence[pa.Field]] = list,
    ) -> None:
        """`ask` gets the formats, and whether it may wait: else it raises `MayWait`.

        With `formats` of None the first fetch decides: the portal is a cursor, and `schema` describes it before.
        """
        self.tag, self._ask, self._schema = tag, ask, schema
        self._formats = None if formats is None else tuple(map(bool, formats))
        self._answer: Answer | None = None
        self._description = messages.NO_DATA
        self._parts: Iterator[Part] = iter(())
        self._data: memoryview = memoryview(b"")
        self._place = self._rows = 0
        self.is_at_end = False

    @property
    def has_process(self) -> bool:
        return self._answer is not None and not self._answer.is_whole

    def begins_at_once(self) -> bool:
        if self._formats is None:
            return False
        try:
            answer = self.begin(waits=False)
        except MayWait:
            return False
        return answer is None or answer.is_whole

    def begin(self, formats: Sequence[int] = (), *, waits: bool = True) -> Answer | None:
        """Ask, unless that was done; None if every row was fetched."""
        if self._formats is None:
            self._formats = tuple(map(bool, formats))
        if self._answer is None and not self.is_at_end:
            self._answer = answer = self._ask(self._formats, waits)
            self._parts = answer.parts()
            description = answer.derived.get(self._formats)
            if description is None:
                description = messages.row_description(described(list(answer.schema), self._formats))
                if len(answer.derived) < DERIVED_MAX:
                    answer.derived[self._formats] = description
            self._description = description
        return self._answer

    def check_formats(self, formats: Sequence[int]) -> None:
        """Refuse another format than that of the rows that were fetched before."""
        if self._formats is not None and formats and set(map(bool, formats)) != (set(self._formats) or {False}):
            raise SqlError(
                FEATURE_NOT_SUPPORTED,
                "a cursor returns rows in one format: fetch all as text, or all as binary",
            )

    def description(self) -> bytes:
        if self._formats is None:
            return messages.row_description(described(self._schema(), ()))
        self.begin()
        return self._description

    def fetch(self, rows_max: int) -> Rows:
        answer = self.begin()
        if answer is not None and self._rows:
            answer.recheck()  # rows of a part wait here for as long as the client likes
        sent = 0
        while not rows_max or sent < rows_max:
            if not self._rows and not self._next_part():
                break
            if not rows_max or self._rows <= rows_max - sent:
                yield self._data[self._place :] if self._place else self._data
                sent, self._rows = sent + self._rows, 0
            else:
                end, count = messages.rows_end(self._data, self._place, rows_max - sent)
                yield self._data[self._place : end]
                sent, self._rows, self._place = sent + count, self._rows - count, end
        return sent

    def _next_part(self) -> bool:
        while not self.is_at_end:
            part = next(self._parts, None)
            if part is None:
                self.is_at_end = True
                self.close()
            elif part.rows or part.data:
                self._data, self._place, self._rows = part.data, 0, part.rows
                return True
        return False

    def close(self) -> None:
        answer, self._answer = self._answer, None
        self.is_at_end = True
        if answer is not None:
            answer.close()

    def completion(self, count: int) -> bytes:
        return messages.complete(self.tag if self.tag == "EXPLAIN" else f"{self.tag} {count}")


def described(schema: Sequence[pa.Field], formats: Sequence[bool]) -> list[Field]:
    """Arrow's fields as fields of a RowDescription; one format holds for all, none is text."""
    if len(formats) not in (0, 1, len(schema)):
        raise SqlError("08P01", f"bind message has {len(formats)} result formats but query has {len(schema)} columns")
    each = [False] * len(schema) if not formats else list(formats) * (len(schema) if len(formats) == 1 else 1)
    fields = []
    for field, is_binary in zip(schema, each, strict=True):
        kind, origin = postgres_type(field), origin_of(field)
        table = table_oid(origin.table) if origin is not None and origin.column <= _ATTNUM_MAX else 0
        column = origin.column if origin is not None and table else 0
        fields.append(Field(field.name, kind.oid, kind.size, kind.modifier, is_binary, table, column))
    return fields


class CursorPortal:
    """FETCH or MOVE: some rows of a cursor."""

    has_process = False

    def begins_at_once(self) -> bool:
        return False

    def __init__(self, tag: str, cursor: QuestionPortal, rows: int | None, formats: Sequence[int]) -> None:
        self.tag, self._cursor, self._wanted, self._formats = tag, cursor, rows, formats
        self.is_at_end = False
        cursor.check_formats(formats)

    def description(self) -> bytes:
        if self.tag == "MOVE":
            return messages.NO_DATA
        self._cursor.begin(self._formats)
        return self._cursor.description()

    def fetch(self, rows_max: int) -> Rows:
        self._cursor.begin(self._formats)
        self.is_at_end = True
        if self._wanted == 0:
            return 0
        rows = self._cursor.fetch(self._wanted or 0)
        if self.tag != "MOVE":
            return (yield from rows)
        while True:
            try:
                next(rows)
            except StopIteration as end:
                return int(end.value)

    def close(self) -> None:
        """The cursor stays."""

    def completion(self, count: int) -> bytes:
        return messages.complete(f"{self.tag} {count}")


class TextPortal:
    """Rows of texts that the session itself knows, such as the answer to SHOW."""

    has_process = False

    def begins_at_once(self) -> bool:
        return False

    def __init__(self, tag: str, names: Sequence[str], rows: Callable[[], Sequence[Sequence[str | None]]]) -> None:
        self.tag, self._rows = tag, rows
        self._fields = [Field(name, _TEXT_OID) for name in names]
        self._left: list[Sequence[str | None]] | None = None
        self.is_at_end = False

    def with_formats(self, formats: Sequence[int]) -> TextPortal:
        """The same with formats: a text is the same bytes in both."""
        if len(formats) == 1:
            formats = list(formats) * len(self._fields)
        if len(formats) == len(self._fields):
            pairs = zip(self._fields, formats, strict=True)
            self._fields = [field.with_format(is_binary=bool(form)) for field, form in pairs]
        return self

    def description(self) -> bytes:
        return messages.row_description(self._fields)

    def fetch(self, rows_max: int) -> Rows:
        if self._left is None:
            self._left = list(self._rows())
        now = self._left[: rows_max or None]
        self._left = self._left[len(now) :]
        self.is_at_end = not self._left
        yield b"".join(map(messages.data_row, now))
        return len(now)

    def close(self) -> None:
        """Nothing is held."""

    def completion(self, count: int) -> bytes:
        return messages.complete(self.tag if self.tag == "SHOW" else f"{self.tag} {count}")


_TEXT_OID = 25


class CommandPortal:
    """A statement without rows: it is done when it is executed."""

    has_process = False

    def begins_at_once(self) -> bool:
        return False

    def __init__(self, tag: str, do: Callable[[], str | None]) -> None:
        """`do` may return another tag."""
        self.tag, self._do = tag, do
        self.is_at_end = False

    def description(self) -> bytes:
        return messages.NO_DATA

    def fetch(self, rows_max: int) -> Rows:
        self.tag = self._do() or self.tag
        self.is_at_end = True
        yield from ()
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def completion(self, count: int) -> bytes:
        return messages.complete(self.tag)


class EmptyPortal(CommandPortal):
    """The portal of a text without a statement."""

    def __init__(self) -> None:
        super().__init__("", lambda: None)

    def completion(self, count: int) -> bytes:
        return messages.EMPTY_QUERY


class CopyPortal:
    """COPY … TO STDOUT: the parts are CopyData messages."""

    tag = "COPY"

    def __init__(self, portal: QuestionPortal, *, is_binary: bool) -> None:
        self._portal, self._is_binary = portal, is_binary

    @property
    def has_process(self) -> bool:
        return self._portal.has_process

    def begins_at_once(self) -> bool:
        return False

    @property
    def is_at_end(self) -> bool:
        return self._portal.is_at_end

    def description(self) -> bytes:
        return messages.NO_DATA

    def fetch(self, rows_max: int) -> Rows:
        answer = self._portal.begin()
        yield messages.copy_out(len(answer.schema) if answer else 0, is_binary=self._is_binary)
        count = yield from self._portal.fetch(0)
        yield messages.COPY_DONE
        return count

    def close(self) -> None:
        self._portal.close()

    def completion(self, count: int) -> bytes:
        return messages.complete(f"COPY {count}")

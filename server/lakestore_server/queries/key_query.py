"""Key queries: SQL texts that ask for rows by their whole key, answered by a look-up in the server.

`SELECT columns FROM t WHERE every key column = constant or parameter` needs no query process.

1. A key query has the answer of the query process: rows, names, types. Whatever is not certainly the same, in text,
   types or values, is None here, and the process answers it. So are all errors, because the process words them.
2. A text is read from its tree: every part of the tree is of a kind that is named here, or the text is no key query.
3. Rights are checked by the RPC `Lookup`, for each answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import LakestoreError, NotFresh
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.rows.one_key import KeyCode
from lakestore.union import plan
from lakestore.union.sql_origins import with_origin
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.callers import Caller
from lakestore_server.host.page_faults import disk_reads
from lakestore_server.queries.answer import Answer
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.postgres.rows import DataRows, SingleRow
from lakestore_server.queries.question import Description, Dialect, Figures, Form, Part, Question
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.read.lookup import KeyRow

TEXT_CHARS_MAX = 4_096
TEXTS_MAX = 1_024
"""Texts whose reading is cached, and statements whose forms are."""
ENCODERS_MAX = 16
_FORMS = (Form.ARROW, Form.ROWS)
_Value = TypeVar("_Value")
KEYS_MAX = 1_000
"""Keys of one IN list."""
QUICK_SECONDS = 0.0005
"""A look-up that takes less has read nothing from the disk."""
DISK_SECONDS = 0.5
"""Time after a read of the disk in which look-ups are taken to wait for it."""
_CANDIDATE = re.compile(r"\s*SELECT\s.*\sFROM\s.*\sWHERE\s", re.IGNORECASE | re.DOTALL)
_OTHER = re.compile(
    r"\b(JOIN|GROUP|ORDER|UNION|EXCEPT|INTERSECT|HAVING|OFFSET|FETCH|OVER|FOR|OR|NOT|LIKE|BETWEEN|IS|CASE)\b|\(\s*SELECT\b",
    re.IGNORECASE,
)
"""Words of texts that are no key queries: they are not parsed here. In a constant they only cost the look-up."""
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_INTEGER = re.compile(r"[0-9]{1,18}")
RESERVED = frozenset(
    "all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check"
    " collate collation column columns concurrently constraint create cross current_catalog current_date current_role"
    " current_schema current_time current_timestamp current_user default deferrable desc describe distinct do else end"
    " except false fetch for foreign freeze from full generated glob grant group having ilike in initially inner"
    " intersect into is isnull join lambda lateral leading left like limit localtime localtimestamp map natural not"
    " notnull null offset on only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary"
    " qualify references returning right select semi session_user show similar some struct summarize symmetric"
    " system_user table tablesample then to trailing true try_cast union unique unpack unpivot user using variadic"
    " verbose when where window with".split()
)
"""Words that name no column unless they are quoted, in DuckDB or in Postgres."""
_CASTS = {
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.VARCHAR: pa.string(),
}


class _NoKeyQueryError(Exception):
    """The text or its table is no key query's."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant or a parameter that a key column is compared with."""

    value: int | str | None = None
    number: int = 0
    """The parameter's number; 0 for a constant."""
    kind: pa.DataType | None = None
    """The type to which the text casts the parameter."""


@dataclass(frozen=True, slots=True)
class KeyText:
    """The parts of a text that has the form of a key query."""

    database: str
    """Empty for a table without a database."""
    table: str
    columns: tuple[tuple[str, str], ...]
    """Column and shown name; () for all columns."""
    operands: Mapping[str, tuple[Operand, ...]]
    """The operands of each compared column: several of an IN list."""
    names: frozenset[str]
    """All names in the text, also aliases."""
    qualifiers: frozenset[str]
    parameters: int

    @staticmethod
    def parsed(text: str, dialect: Dialect) -> KeyText | None:
        """The parts of a text; None if it does not have the form of a key query."""
        if len(text) > TEXT_CHARS_MAX:
            return None
        return _parsed(text, "postgres" if dialect is Dialect.POSTGRES else "duckdb")


@lru_cache(maxsize=TEXTS_MAX)
def _parsed(text: str, dialect: str) -> KeyText | None:
    if not _CANDIDATE.match(text) or _OTHER.search(text):
        return None
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect=dialect) if tree is not None]
        return _Reader().text(trees[0]) if len(trees) == 1 else None
    except (SqlglotError, RecursionError, _NoKeyQueryError):
        return None


class _Reader:
    """Reads one tree. Raises `_NoKeyQueryError` for a part that key queries do not have."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._qualifiers: set[str] = set()
        self._numbers: list[int] = []

    def text(self, tree: exp.Expr) -> KeyText:
        parts = _parts(tree, exp.Select, "expressions", "from_", "where", "limit")
        table = _parts(_parts(parts["from_"], exp.From, "this")["this"], exp.Table, "this", "db", "alias")
        name, database = self._name(table["this"]), self._name(table["db"]) if table.get("db") else ""
        alias = self._name(_parts(table["alias"], exp.TableAlias, "this")["this"]) if table.get("alias") else ""
        shown = parts["expressions"]
        columns = () if self._is_star(shown) else tuple(map(self._column, shown))
        compared = dict[str, tuple[Operand, ...]]()
        for term in _terms(_parts(parts["where"], exp.Where, "this")["this"]):
            column, operands = self._comparison(term)
            if column in compared:
                raise _NoKeyQueryError
            compared[column] = operands
        if "limit" in parts:
            self._check_limit(parts["limit"], compared)
        count = len(self._numbers)
        if sorted(self._numbers) != list(range(1, count + 1)):
            raise _NoKeyQueryError
        known = {alias} if alias else {name, f"{database}.{name}"}
        if not self._qualifiers <= known:
            raise _NoKeyQueryError
        qualifiers = frozenset({name, database, alias})
        return KeyText(database, name, columns, compared, frozenset(self._names), qualifiers, count)

    def _name(self, node: Any) -> str:
        parts = _parts(node, exp.Identifier, "this", "quoted")
        name: str = parts["this"]
        if not parts.get("quoted") and (not _PLAIN.fullmatch(name) or name in RESERVED):
            raise _NoKeyQueryError
        self._names.add(name.lower())
        return name

    def _is_star(self, shown: Sequence[exp.Expr]) -> bool:
        if len(shown) != 1:
            return False
        (only,) = shown
        if type(only) is exp.Column and type(only.this) is exp.Star:
            parts = _parts(only, exp.Column, "this", "table", "db")
            self._qualify(parts)
            only = parts["this"]
        if type(only) is exp.Star:
            _parts(only, exp.Star)
            return True
        return False

    def _column(self, node: Any) -> tuple[str, str]:
        """(column, shown name)."""
        if type(node) is exp.Alias:
            parts = _parts(node, exp.Alias, "this", "alias")
            return self._column(parts["this"])[0], self._name(parts["alias"])
        parts = _parts(node, exp.Column, "this", "table", "db")
        self._qualify(parts)
        name = self._name(parts["this"])
        return name, name

    def _qualify(self, parts: Mapping[str, Any]) -> None:
        if parts.get("table"):
            database = f"{self._name(parts['db'])}." if parts.get("db") else ""
            self._qualifiers.add(database + self._name(parts["table"]))

    def _comparison(self, node: exp.Expr) -> tuple[str, tuple[Operand, ...]]:
        if type(node) is exp.In:
            parts = _parts(node, exp.In, "this", "expressions")
            if not 0 < len(parts.get("expressions", ())) <= KEYS_MAX:
                raise _NoKeyQueryError
            return self._column(parts["this"])[0], tuple(map(self._operand, parts["expressions"]))
        parts = _parts(node, exp.EQ, "this", "expression")
        left, right = parts["this"], parts["expression"]
        column, value = (left, right) if type(left) is exp.Column else (right, left)
        return self._column(column)[0], (self._operand(value),)

    def _operand(self, node: Any) -> Operand:
        if type(node) is exp.Paren:
            return self._operand(_parts(node, exp.Paren, "this")["this"])
        if type(node) is exp.Cast:
            parts = _parts(node, exp.Cast, "this", "to", "_type")
            inner = self._operand(parts["this"])
            kind = _CASTS.get(_parts(parts["to"], exp.DataType, "this", "nested")["this"])
            if not inner.number or inner.kind is not None or kind is None:
                raise _NoKeyQueryError
            return Operand(number=inner.number, kind=kind)
        if type(node) in (exp.Parameter, exp.Placeholder):
            return Operand(number=self._number(node))
        if type(node) is exp.Neg:
            inner = self._operand(_parts(node, exp.Neg, "this")["this"])
            if type(inner.value) is not int:
                raise _NoKeyQueryError
            return Operand(-inner.value)
        parts = _parts(node, exp.Literal, "this", "is_string")
        value: str = parts["this"]
        if parts.get("is_string"):
            if "\\" in value or "\0" in value:
                raise _NoKeyQueryError
            return Operand(value)
        if not _INTEGER.fullmatch(value):
            raise _NoKeyQueryError
        return Operand(int(value))

    def _number(self, node: exp.Expr) -> int:
        """The number of `$1`; a `?` has the next one."""
        said = _parts(node, type(node), "this").get("this")
        digits = said.this if type(said) is exp.Literal else said
        if digits is None and type(node) is exp.Placeholder:
            number = len(self._numbers) + 1
        elif isinstance(digits, str) and _INTEGER.fullmatch(digits):
            number = int(digits)
        else:
            raise _NoKeyQueryError
        self._numbers.append(number)
        return number

    @staticmethod
    def _check_limit(node: Any, compared: Mapping[str, Sequence[Operand]]) -> None:
        """A limit of a list of keys chooses rows, which only the process does."""
        said = _parts(_parts(node, exp.Limit, "expression")["expression"], exp.Literal, "this")["this"]
        is_list = any(len(operands) > 1 for operands in compared.values())
        if is_list or not _INTEGER.fullmatch(said) or not int(said):
            raise _NoKeyQueryError


def _parts(node: Any, kind: type[exp.Expr], *names: str) -> dict[str, Any]:
    """The parts of a node of exactly this kind, which has no others than these."""
    if type(node) is not kind:
        raise _NoKeyQueryError
    found = {
        name: value for name, value in node.args.items() if value is not None and value is not False and value != []
    }
    if not found.keys() <= set(names):
        raise _NoKeyQueryError
    return found


def _terms(node: exp.Expr) -> Iterator[exp.Expr]:
    """The terms of a condition that are joined by AND, in the text's order, which numbers every `?`."""
    left = [node]
    while left:
        node = left.pop()
        if type(node) is exp.And:
            parts = _parts(node, exp.And, "this", "expression")
            left += parts["expression"], parts["this"]
        elif type(node) is exp.Paren:
            left.append(_parts(node, exp.Paren, "this")["this"])
        else:
            yield node


@dataclass(slots=True)
class KeyForm:
    """A key query over one version of its table."""

    text: KeyText
    table: Table
    columns: tuple[str, ...]
    """Empty for all columns in their order."""
    schema: pa.Schema
    """The answer's."""
    parameters: tuple[pa.DataType, ...]
    operands: tuple[tuple[Operand, ...], ...]
    """The operands of each key column, in the key's order."""
    code: KeyCode | None
    encoders: dict[tuple[tuple[bool, ...], str], SingleRow] = field(default_factory=dict)
    """Encoders of one row, by the formats of the columns and the session's zone."""
    derived: dict[Any, Any] = field(default_factory=dict)
    """The `derived` of every answer."""
    _fitting: pa.Schema | None = None
    """A schema of look-ups that has the answer's types."""

    @staticmethod
    def bound(text: KeyText, table: Table, dialect: Dialect) -> KeyForm | None:
        """The form of a text over a table; None if the text is no key query of this table."""
        names = {column.name: column for column in table.columns}
        if not table.keyed or text.operands.keys() != set(table.primary_key):
            return None
        columns = text.columns or tuple((name, name) for name in names)
        if not _is_plain(text, table, columns):
            return None
        fields = [pa.field(shown, _shown_type(names[name].arrow.type)) for name, shown in columns]
        if dialect is Dialect.POSTGRES:
            pairs = zip(fields, columns, strict=True)
            fields = [with_origin(shown, table, names[name]) for shown, (name, _) in pairs]
        kinds: dict[int, pa.DataType] = {}
        for name, operands in text.operands.items():
            if not _is_comparable(names[name].arrow.type, operands):
                return None
            kinds |= {each.number: each.kind or names[name].arrow.type for each in operands if each.number}
        selected = tuple(name for name, _ in columns) if text.columns else ()
        in_order = tuple(text.operands[name] for name in table.primary_key)
        if max(map(len, in_order)) > 1 and len(in_order) > 1:
            return None
        parameters = tuple(kinds[number] for number in range(1, text.parameters + 1))
        return KeyForm(text, table, selected, pa.schema(fields), parameters, in_order, KeyCode.of(table))

    def shown(self, stored: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a look-up under the names and in the types of the answer. `stored` is their schema."""
        columns = rows.columns
        if not self._fits(stored):
            columns = [column.cast(kind) for column, kind in zip(columns, self.schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fits(self, stored: pa.Schema) -> bool:
        if stored is not self._fitting and stored.types == self.schema.types:
            self._fitting = stored
        return stored is self._fitting

    def row_part(self, row: KeyRow, question: Question) -> Part:
        """The row, or no row, in the form that was asked for."""
        if row.stored is None or question.form is not Form.ROWS or not self._fits(row.schema):
            return self.part(self.shown(row.schema, row.batch()), question)
        return Part(1, memoryview(self._encoder(question).message(row.values())))

    def part(self, rows: pa.RecordBatch, question: Question) -> Part:
        """The rows in the form that was asked for."""
        count, formats, zone = rows.num_rows, question.binary, question.zone
        if not count:
            return Part(0, memoryview(b""))
        if question.form is Form.ARROW:
            return Part(count, memoryview(rows.serialize()))
        if count > 1:
            return Part(count, DataRows(self.schema, formats, zone).rows(rows).data)
        return Part(1, memoryview(self._encoder(question).message([column[0] for column in rows.columns])))

    def _encoder(self, question: Question) -> SingleRow:
        formats, zone = question.binary, question.zone
        encoder = self.encoders.get((formats, zone))
        if encoder is None:
            encoder = SingleRow(self.schema, formats, zone)
            if len(self.encoders) < ENCODERS_MAX:
                self.encoders[formats, zone] = encoder
        return encoder

    def keys(self, given: Sequence[Parameter]) -> bytes | pa.RecordBatch | None:
        """The key in the form of `pb.LookupRequest.key`, or keys as rows; None if only the process compares these
        values."""
        values = self._values(given)
        if values is None:
            return None
        if self.code is not None and len(values[0]) == 1:
            return self.code.key([value for (value,) in values])
        arrays = []
        for name, found in zip(self.table.primary_key, values, strict=True):
            try:
                arrays.append(pa.array(dict.fromkeys(found), self.table.column(name).arrow.type))
            except (pa.ArrowInvalid, OverflowError):  # an integer beyond the column's
                return None
        return pa.RecordBatch.from_arrays(arrays, names=list(self.table.primary_key))

    def _values(self, given: Sequence[Parameter]) -> list[list[Any]] | None:
        if len(given) != len(self.parameters):
            return None
        parameters: list[Any] = []
        for parameter, kind in zip(given, self.parameters, strict=True):
            if parameter.kind is not kind and not _is_alike(parameter.kind, kind):
                return None
            parameters.append(parameter.value)
        values = [
            [parameters[each.number - 1] if each.number else each.value for each in operands]
            for operands in self.operands
        ]
        return None if any([None in found for found in values]) else values


def _is_plain(text: KeyText, table: Table, columns: Sequence[tuple[str, str]]) -> bool:
    """Whether the names of the text mean columns of this table, and nothing else that they might mean."""
    kinds = {column.name: column.arrow.type for column in table.columns}
    own = {name.lower() for name in kinds}
    shown = [name.lower() for _, name in columns]
    if not text.names.isdisjoint(SYSTEM_TYPES) or not text.names.isdisjoint(
        old.name.lower() for old in table.old_names
    ):
        return False
    if len(set(shown)) < len(shown) or len(own) < len(kinds):
        return False
    if any(name not in kinds or pa.types.is_nested(kinds[name]) for name, _ in columns):
        return False
    if len({name for name, _ in columns}) < len(columns):
        return False
    if any(alias != name and alias.lower() in own for name, alias in columns):
        return False  # a condition may mean the alias
    return not any(name.lower() in own for name in text.qualifiers if name)  # `t.id` may be a field of column t


def _is_comparable(kind: pa.DataType, operands: Sequence[Operand]) -> bool:
    """Whether equality of a column and these operands is equality of their values."""
    is_integer, is_text = pa.types.is_integer(kind), pa.types.is_string(kind)
    for operand in operands:
        if operand.number:
            alike = operand.kind is None or _is_alike(operand.kind, kind)
            if not alike or pa.types.is_fixed_size_binary(kind):
                return False
        elif not (is_integer if isinstance(operand.value, int) else is_text):
            return False
    return True


def _is_alike(kind: pa.DataType, other: pa.DataType) -> bool:
    return kind == other or bool(pa.types.is_integer(kind) and pa.types.is_integer(other))


def _shown_type(kind: pa.DataType) -> pa.DataType:
    """The type that DuckDB gives to a column of a union read."""
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


class KeyAnswer(Answer):
    """The rows of a key query, which are there at once."""

    is_whole = True

    def __init__(
        self, form: KeyForm, rows: Callable[[], pa.RecordBatch], token: str, part: Part, check: Callable[[], object]
    ) -> None:
        """`check` raises an error if the caller may no longer read the table."""
        super().__init__(form.schema, token, (), form.derived)
        self._rows, self.part, self._check = rows, part, check
        self.figures = Figures(rows=part.rows)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows under the names of the answer."""
        return self._rows()

    def parts(self) -> Iterator[Part]:
        if self.part.rows:
            yield self.part

    def checked(self, read: Callable[[Any], _Value], data: object) -> _Value:
        return read(data)

    def recheck(self) -> None:
        self._check()

    def close(self) -> None:
        """No-op: an answer by look-up holds nothing."""


class KeyQueries:
    """The key queries of one server. Thread-safe."""

    def __init__(self, rpcs: Rpcs) -> None:
        self._rpcs = rpcs
        self._forms: dict[tuple[str, tuple[str, ...], Dialect], KeyForm] = {}
        self._disk_reads = 0
        self._waits_until = 0.0

    def describe(self, caller: Caller, question: Question, *, waits: bool = True) -> Description | None:
        """Parameters and columns of a key query that the caller may ask; None for every other text.

        Without `waits` also None for a text that is not known yet: reading it takes milliseconds.
        """
        form = self._form(question, waits=waits)
        if form is None:
            return None
        try:
            self._check(caller, form)
        except LakestoreError:
            return None
        return Description(form.parameters, form.schema)

    def answer(self, caller: Caller, question: Question, *, waits: bool = True) -> KeyAnswer | None:
        """The rows; None if the query process must answer. Raises `NotFresh`.

        Without `waits` also None if the look-up may wait: for many keys, a past cut, freshness, the other servers of a
        group, or the disk. The locks that a look-up takes are held for microseconds.
        """
        if not waits and (self._rpcs.key_row_waits or time.monotonic() < self._waits_until):
            return None
        form = self._form(question, waits=waits) if question.form in _FORMS and question.rows_max is None else None
        keys = form.keys(question.parameters) if form is not None else None
        if form is None or keys is None:
            return None
        request = pb.LookupRequest(
            table=form.table.name,
            table_uuid=form.table.uuid,
            schema_id=form.table.schema_id,
            columns=form.columns,
            at=question.at,
        )
        if question.require is not None:
            request.require.CopyFrom(plan.required(question.require))
        if isinstance(keys, bytes):
            request.key = keys
        else:
            request.keys = ipc.encode(keys.schema, [keys])
        check = partial(self._check, caller, form)
        try:
            row = self._row(caller, form, request) if waits else self._row_at_once(caller, form, request)
            if row is not None:
                rows = partial(self._shown, form, row)
                return KeyAnswer(form, rows, row.view.token(), form.row_part(row, question), check)
            found = self._rows(caller, form, request) if waits else None
        except NotFresh:
            raise
        except LakestoreError:  # the process meets it too, and words it
            return None
        if found is None:
            return None
        batch, token = found
        return KeyAnswer(form, lambda: batch, token, form.part(batch, question), check)

    @staticmethod
    def _shown(form: KeyForm, row: KeyRow) -> pa.RecordBatch:
        return form.shown(row.schema, row.batch())

    def _check(self, caller: Caller, form: KeyForm) -> None:
        self._rpcs.begin(caller, "Lookup").request(pb.LookupRequest(table=form.table.name))

    def _row(self, caller: Caller, form: KeyForm, request: pb.LookupRequest) -> KeyRow | None:
        """The row of one key at the newest commit, in half the time of `_rows`; None if `_rows` must answer."""
        if not request.key or request.at or request.HasField("require"):
            return None
        found = self._rpcs.key_row(caller, request)
        return found if found is not None and found.table is form.table else None

    def _row_at_once(self, caller: Caller, form: KeyForm, request: pb.LookupRequest) -> KeyRow | None:
        """`_row`; if it had to read the disk, the next look-ups may have to as well, so they go where one may wait."""
        began = time.monotonic()
        try:
            return self._row(caller, form, request)
        finally:
            now = time.monotonic()
            if now - began > QUICK_SECONDS:  # a system call for every look-up would take longer than its rights
                before, self._disk_reads = self._disk_reads, disk_reads()
                if self._disk_reads != before:
                    self._waits_until = now + DISK_SECONDS

    def _rows(self, caller: Caller, form: KeyForm, request: pb.LookupRequest) -> tuple[pa.RecordBatch, str] | None:
        answer = self._rpcs.call(caller, "Lookup", request)
        if answer.schema_id != form.table.schema_id:
            return None
        (rows,) = ipc.decode_server_rows(answer.rows, crc=answer.crc32c)
        return form.shown(rows.schema, rows), answer.token

    def _form(self, question: Question, *, waits: bool) -> KeyForm | None:
        key = question.text, question.search_path, question.dialect
        form = self._forms.get(key)
        if form is not None and form.table is self._table(form.text, question.search_path):
            return form
        text = KeyText.parsed(question.text, question.dialect) if waits else None
        table = self._table(text, question.search_path) if text is not None else None
        form = KeyForm.bound(text, table, question.dialect) if text is not None and table is not None else None
        if form is not None:
            if len(self._forms) >= TEXTS_MAX:
                self._forms = {}
            self._forms[key] = form
        return form

    def _table(self, text: KeyText, search_path: Sequence[str]) -> Table | None:
        """The table that the text names."""
        view = self._rpcs.view()
        if not text.database and text.table.startswith("pg_"):
            return None
        for database in (text.database,) if text.database else search_path:
            uuid = view.names.get(f"{database}.{text.table}")
            state = view.tables.get(uuid) if uuid is not None else None
            if state is not None:
                return state.table
        return None

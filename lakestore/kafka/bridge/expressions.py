"""SQL expressions of columns, evaluated by DuckDB over a block of records.

- Expressions are pure: they read no file, no clock and no other row.
- A part that a column also reads has the type of the column. A part that is cast directly has the type of the cast.
  Other JSON fields are texts.
- If the query of a block fails, the block is halved until the failing rows are isolated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from lakestore.errors import Invalid
from lakestore.kafka.bridge.inputs import Inputs
from lakestore.kafka.bridge.outcome import Reject, Stage
from lakestore.kafka.bridge.paths import ROOTS, WITH_PARTS, Path
from lakestore.kafka.bridge.records import Ints
from lakestore.kafka.bridge.spec import RouteSpec, TableSpec, TopicSpec
from lakestore.model.outside_values import first_line
from lakestore.release import needs_extra
from lakestore.rows.casting import RECORDS, mask
from lakestore.rows.literals import cast_type, short
from lakestore.rows.scalar_casts import python_value
from lakestore.union import sql_functions, sql_gate

if TYPE_CHECKING:
    import duckdb


_PLACE = re.compile(r"\{(topic|database|schema|table)\}")
_ODD = re.compile(r"[^A-Za-z0-9_]")
ORIGIN = ("database", "schema", "table")


@dataclass(slots=True)
class TableRouting:
    """Rows by table."""

    tables: list[tuple[str, TableSpec, Ints]] = field(default_factory=list)
    """Table's full name, its spec, and row numbers."""
    rejects: list[Reject] = field(default_factory=list)
    skipped: list[Ints] = field(default_factory=list)
    """Records without a table, if the route says `otherwise: skip`."""


def table_name(template: str, topic: str, origin: Mapping[str, str | None] | None = None) -> str:
    """The table's full name. Invalid characters become _; an unknown origin becomes the topic."""
    known = {"topic": topic, **(origin or {})}
    return _PLACE.sub(lambda place: _ODD.sub("_", known.get(place[1]) or topic), template)


def names_origin(template: str) -> bool:
    """True if the table's name depends on the origin of change events."""
    return any(place[1] in ORIGIN for place in _PLACE.finditer(template))


def first_table(topic: TopicSpec, name: str) -> str:
    """The table whose dead letters take records without a route."""
    return table_name(topic.tables[0].table, name)


def known_tables(topic: TopicSpec, name: str) -> list[str]:
    """The tables that a topic fills, without tables whose names come from change events."""
    return [table_name(spec.table, name) for spec in topic.tables if not names_origin(spec.table)]


def route_rows(topic: TopicSpec, inputs: Inputs) -> TableRouting:
    """Assign rows to tables."""
    found = TableRouting()
    if isinstance(topic.target, TableSpec):
        _named(topic.target, inputs, np.arange(len(inputs)), found)
        return found
    route = topic.target
    path = Path.of(route.by)
    texts, _ = mask(inputs.read(path), pa.field("value", pa.string()), RECORDS)
    values = texts.dictionary_encode()
    codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for code, value in enumerate(values.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        if value in route.tables:
            _named(route.tables[value], inputs, rows, found)
        else:
            _without(route, path, short(repr(value)), inputs.record[rows], found)
    nulls = np.flatnonzero(codes == -1)
    if len(nulls):
        _without(route, path, "null, missing or no text", inputs.record[nulls], found)
    return found


def _without(route: RouteSpec, path: Path, value: str, records: Ints, routing: TableRouting) -> None:
    if route.otherwise == "skip":
        routing.skipped.append(records)
        return
    say = f"{path} is {value}, for which the route names no table: add it under route.tables, or say otherwise: skip"
    routing.rejects += [Reject(record, Stage.ROUTE, "no-route", say, str(path)) for record in records.tolist()]


def _named(spec: TableSpec, inputs: Inputs, rows: Ints, routing: TableRouting) -> None:
    if inputs.origin is None or not names_origin(spec.table):
        if len(rows):
            routing.tables.append((table_name(spec.table, inputs.records.topic), spec, rows))
        return
    for origin, of_it in origins(inputs.origin.take(pa.array(rows))):
        routing.tables.append((table_name(spec.table, inputs.records.topic, origin), spec, rows[of_it]))


def origins(origin: pa.StructArray) -> Iterator[tuple[dict[str, str | None], Ints]]:
    """Each origin with its rows. A part is None if the rows lack it."""
    names = [name for name in ORIGIN if origin.type.get_field_index(name) >= 0]
    texts = [pc.struct_field(origin, [origin.type.get_field_index(name)]).cast(pa.string()) for name in names]
    joined = pc.binary_join_element_wise(*[text.fill_null("") for text in texts], "\x1f").dictionary_encode()
    codes = joined.indices.to_numpy(zero_copy_only=False)
    for code in range(len(joined.dictionary)):
        rows = np.flatnonzero(codes == code)
        yield {name: text[int(rows[0])].as_py() for name, text in zip(names, texts, strict=True)}, rows


CHARS_MAX = 1 << 16
"""Longest expression in characters."""
_CLOSED = sql_gate.CLOSED | {"threads": "1", "memory_limit": "1GB"}
_CLOCKS_AND_USERS = {
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
    "current_user",
    "session_user",
    "current_role",
    "current_schema",
    "current_catalog",
    "current_database",
    "user",
}
_UNBOUNDED = {"repeat", "lpad", "rpad", "range", "generate_series", "list_resize", "array_resize", "bar", "bitstring"}
"""Functions whose result can be far larger than their arguments."""
_TEMPLATES = {"printf", "format"}
_WIDE = re.compile(r"\*|\{[^}]*\{|[0-9]{4}")
_PURE = sql_functions.PURE - _UNBOUNDED
"""Functions that expressions may call: deterministic, with a bounded result."""
_CHANGING = sql_functions.CLOCK | sql_functions.CHANCE | sql_functions.SESSION
_MANY_ROWS = sql_functions.AGGREGATES | sql_functions.WINDOWS | sql_functions.ROWS
_OTHER_ROWS = (exp.Query, exp.Window, exp.AggFunc, exp.Star, exp.Placeholder, exp.Parameter, exp.Command)
_BRANCHES = (exp.Case, exp.If, exp.Coalesce, exp.TryCast, exp.Connector, exp.Lambda, exp.Nullif)
_TEXTS = ("headers", "key")
"""Roots whose bytes are passed as text when read whole."""


class Expression:
    """The expression of one column."""

    def __init__(self, text: str, column: str) -> None:
        """Raises `Invalid` that names the refused piece."""
        self.text, self._column = text, column
        self._types: Mapping[Path, pa.DataType] = {}
        tree = _tree(text, column)
        self._check(tree)
        self._paths: dict[Path, str] = {}
        self.wanted: dict[Path, pa.DataType] = {}
        """Parts that the expression casts directly, with the cast's type."""
        bound = self._bound(tree)
        self._sql = _query(bound)
        self._check_calls()
        self._misfits = _misfits(bound)
        self._cursor: duckdb.DuckDBPyConnection | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._paths)

    def bind(self, types: Mapping[Path, pa.DataType]) -> None:
        self._types = types

    def check(self, kinds: Mapping[Path, pa.DataType]) -> pa.DataType:
        """Run over two rows of nulls of these types and return the result type. Raises `Invalid`."""
        import duckdb

        block = pa.table({"": pa.nulls(2), **{name: pa.nulls(2, kinds[p]) for p, name in self._paths.items()}})
        try:
            made = self._run(block)
        except duckdb.Error as error:
            hint = "; a field of JSON is text, unless a column reads it or it is cast at once"
            raise self._invalid(f"{first_line(error)}{hint}") from error
        if len(made) != 2:
            raise self._invalid("it makes other rows of the rows")
        return made.type

    def values(self, inputs: Inputs) -> tuple[pa.Array, dict[int, str]]:
        """Evaluate. A failing row has null and an entry with the reason."""
        failed: dict[int, str] = {}
        columns: dict[str, pa.Array] = {"": pa.nulls(len(inputs))}
        for path, name in self._paths.items():
            raw = inputs.read(path)
            kind = self._types.get(path, raw.type)
            if pa.types.is_binary(raw.type) and path.root in _TEXTS:
                kind = pa.string()
            columns[name], bad = mask(raw, pa.field("value", kind), RECORDS)
            if bad is not None:
                rows = bad.nonzero()[0].tolist()
                failed |= {row: f"{path} is {short(repr(python_value(raw, row)))}, and no {kind}" for row in rows}
        return self._evaluated(pa.table(columns), failed), failed

    def _evaluated(self, block: pa.Table, failed: dict[int, str]) -> pa.Array:
        import duckdb

        try:
            return self._run(block)
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException) as error:
            for row in range(block.num_rows):
                failed.setdefault(row, short(first_line(error)))
            return pa.nulls(block.num_rows)
        except duckdb.Error:
            good = self._cast_well(block, failed)
        if good is None:
            return self._by_halves(block, failed)
        refused: dict[int, str] = {}
        values, places = self._by_halves(block.filter(pa.array(good)), refused), np.flatnonzero(good)
        failed.update({int(places[row]): why for row, why in refused.items()})
        return values.take(pa.array(np.cumsum(good) - 1, mask=~good))

    def _cast_well(self, block: pa.Table, failed: dict[int, str]) -> npt.NDArray[np.bool_] | None:
        """Mask of rows whose casts all succeed. None if a failing cast may be in a branch not taken."""
        import duckdb

        if not self._misfits:
            return None
        good = np.ones(block.num_rows, dtype=np.bool_)
        for query, what in self._misfits:
            try:
                wrong = self._run(block, query).to_numpy(zero_copy_only=False).astype(np.bool_)
            except duckdb.Error:
                return None
            for row in np.flatnonzero(wrong & good).tolist():
                failed.setdefault(row, f"{what} is not possible")
            good &= ~wrong
        return good

    def _by_halves(self, block: pa.Table, failed: dict[int, str]) -> pa.Array:
        import duckdb

        made: list[pa.Array] = [pa.nulls(0)]
        todo = [(0, block.num_rows)]
        while todo:
            start, end = todo.pop()
            try:
                made.append(self._run(block.slice(start, end - start)))
            except duckdb.Error as error:
                if end - start == 1:
                    failed.setdefault(start, short(first_line(error)))
                    made.append(pa.nulls(1))
                else:
                    middle = (start + end) // 2
                    todo += [(middle, end), (start, middle)]
        kind = next((part.type for part in made if not pa.types.is_null(part.type)), pa.null())
        return pa.concat_arrays([part.cast(kind) if part.type != kind else part for part in made])

    def _run(self, block: pa.Table, query: str = "") -> pa.Array:
        if self._cursor is None:
            self._cursor = _engine().cursor()
        self._cursor.register("block", block)
        made = self._cursor.execute(query or self._sql).to_arrow_table().column(0).combine_chunks()
        return made.storage if isinstance(made.type, pa.BaseExtensionType) else made

    def _check(self, tree: exp.Expr) -> None:
        for node in tree.walk():
            if isinstance(node, _OTHER_ROWS):
                raise self._invalid(f"{short(node.sql())!r} reads more than one row")
            if isinstance(node, exp.Func):
                self._check_arguments(node)
        for text in (self.text, tree.sql(dialect="duckdb")):  # a quoted name may be a clock function of the dialect
            self._check_names(text)

    def _check_names(self, text: str) -> None:
        tokens = sqlglot.tokenize(text, read="duckdb")
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            name = token.text.lower()
            called = following is not None and following.token_type is TokenType.L_PAREN
            if token.token_type is TokenType.STRING or (token.token_type is TokenType.IDENTIFIER and not called):
                continue
            if name in _CLOCKS_AND_USERS or (called and name in _CHANGING):
                raise self._invalid(f"{name} is not the same for each reading of a record")
            if called and name in _MANY_ROWS - _PURE:
                raise self._invalid(f"{name}() reads more than one row")
            if called and name in _UNBOUNDED:
                raise self._invalid(f"{name}() makes values of any size")

    def _check_calls(self) -> None:
        rules = sql_gate.Rules(bare=frozenset({"block"}), functions=_PURE, table_functions=frozenset(), views=False)
        try:
            sql_gate.check(_duckdb(), self._sql, rules)
        except Invalid as error:
            raise self._invalid(error.message.removeprefix("the query failed: ")) from error

    def _check_arguments(self, call: exp.Func) -> None:
        name = (call.name if isinstance(call, exp.Anonymous) else call.sql_name()).lower()
        if name == "age" and len(call.expressions) == 1:
            raise self._invalid("age() of one time reads the clock: say age(a, b)")
        if name in _TEMPLATES:
            template = call.this if isinstance(call.this, exp.Expr) else next(iter(call.expressions), None)
            chained = isinstance(call.parent, exp.Dot)
            fixed = isinstance(template, exp.Literal) and template.is_string and not chained
            if not fixed or _WIDE.search(template.name if template is not None else ""):
                raise self._invalid(f"{name}() takes a text of fixed widths below 1,000 first")

    def _bound(self, tree: exp.Expr) -> exp.Expr:
        holder = exp.Paren(this=tree)
        casts_of: dict[Path, set[pa.DataType | None]] = {}
        for node in list(holder.find_all(exp.Column)):
            whole, names = _chain(node)
            if names[0].lower() not in ROOTS:
                raise self._invalid(f"{short(whole.sql())!r} begins with none of {', '.join(ROOTS)}")
            path = self._path(names)
            name = self._paths.setdefault(path, f"c{len(self._paths)}")
            casts_of.setdefault(path, set()).add(_cast_at_once(whole))
            whole.replace(exp.column(name))
        for path, kinds in casts_of.items():
            if len(kinds) == 1 and (kind := kinds.pop()) is not None and path.root == "value" and path.parts:
                self.wanted[path] = kind
        return holder

    def _path(self, names: list[str]) -> Path:
        root, parts = names[0].lower(), names[1:]
        if parts and root not in WITH_PARTS:
            raise self._invalid(f"{root} has no part {parts[0]!r}")
        return Path(root, (".".join(parts),) if root == "headers" and parts else tuple(parts))

    def _invalid(self, why: str) -> Invalid:
        return Invalid(f"column {self._column!r}: the expression {short(self.text)!r} is refused: {why}")


def _query(node: exp.Expr) -> str:
    return f"SELECT {node.sql(dialect='duckdb')} FROM block"  # noqa: S608  the text is the operator's own


def _misfits(tree: exp.Expr) -> list[tuple[str, str]]:
    """For each cast, a query for the rows in which it fails, and its text. Empty if a cast may not be evaluated."""
    if tree.find(*_BRANCHES):
        return []
    found: list[tuple[str, str]] = []
    for node in tree.find_all(exp.Cast):
        safe = exp.Paren(this=node.copy())
        while failing := next((part for part in safe.find_all(exp.Cast) if type(part) is exp.Cast), None):
            failing.replace(exp.TryCast(**failing.args))
        wrong = f"{safe.sql(dialect='duckdb')} IS NULL AND {safe.this.this.sql(dialect='duckdb')} IS NOT NULL"
        found.append((f"SELECT {wrong} FROM block", short(node.sql(dialect="duckdb"))))  # noqa: S608
    return found


def _tree(text: str, column: str) -> exp.Expr:
    if len(text) > CHARS_MAX:
        raise Invalid(f"column {column!r}: the expression has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        return sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"column {column!r}: {short(text)!r} is not an SQL expression") from error


def _chain(node: exp.Column) -> tuple[exp.Expr, list[str]]:
    names = [part.name for part in node.parts]
    whole: exp.Expr = node
    while isinstance(whole.parent, exp.Dot) and whole.parent.this is whole:
        after = whole.parent.expression
        if not isinstance(after, exp.Identifier):
            break
        names.append(after.name)
        whole = whole.parent
    return whole, names


def _cast_at_once(node: exp.Expr) -> pa.DataType | None:
    parent = node.parent
    if not isinstance(parent, exp.Cast) or isinstance(parent, exp.TryCast) or parent.find_ancestor(*_BRANCHES):
        return None
    try:
        return cast_type(parent)
    except Invalid:
        return None


@cache
def _engine() -> Any:
    connection = _duckdb().connect(":memory:", config=_CLOSED)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def _duckdb() -> Any:
    with needs_extra("duckdb", "an expression of a column"):
        import duckdb
    return duckdb

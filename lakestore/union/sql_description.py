"""Descriptions of queries that do not run: the types of their parameters, and a text with their columns and no rows.

- DuckDB tells no types of parameters, so they follow from what a parameter stands next to: the column that it is
  compared with, the type that it is cast to. A parameter whose place tells nothing is a string.
- `SELECT * FROM (query) LIMIT 0` has the columns of the query; DuckDB plans it and reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.union import sql_text

Tables = Callable[[], Sequence[Table]]
_SIDE = (exp.Predicate, exp.Binary, exp.Between, exp.In, exp.Paren, exp.Coalesce, exp.Neg)
"""Expressions whose parts have one type."""
_SHORT = re.compile(r"SHOW\b", re.IGNORECASE)
"""A statement whose rows are few, so it runs."""
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_DECIMAL = re.compile(r"DECIMAL\((\d+), (\d+)\)")
PARAMETERS_MAX = 1_000


def describe(text: str, tables: Tables) -> tuple[tuple[pa.DataType, ...], str]:
    """The types of `$1`, `$2`, …, and a query with the same columns, without parameters and without rows.

    A `?` has its place as number. `tables` is called if there are parameters.
    """
    places = list(_places(text))
    found: dict[int, pa.DataType] = {}
    bare: set[int] = set()
    if places:
        asked = sql_text.statement(_replaced(text, places, lambda number: f"${number}"))
        columns = _columns(asked, {table.name: table for table in tables()})
        for node in asked.tree.find_all(exp.Placeholder, exp.Parameter):
            kind = _kind(node, columns)
            if kind is not None:
                found.setdefault(int(node.name), kind)
            elif isinstance(node.parent, exp.Select | exp.Alias):
                bare.add(int(node.name))
    last = max((number for _, _, number in places), default=0)
    types = tuple(found.get(number, pa.string()) for number in range(1, last + 1))

    def null(number: int) -> str:  # a subquery keeps its type, where DuckDB folds a constant and forgets the type
        kind = found.get(number, pa.string() if number in bare else None)
        return "NULL" if kind is None or not _name(kind) else f"(SELECT CAST(NULL AS {_name(kind)}))"

    return types, _without_rows(_replaced(text, places, null).strip())


def _without_rows(text: str) -> str:
    asked = sql_text.statement(text)
    if asked.explained:
        return "SELECT '' AS explanation LIMIT 0"
    is_short = _SHORT.match(text) is not None or not isinstance(asked.tree, exp.Query)
    return text if is_short else "\n".join(("SELECT * FROM (", text.rstrip(";").rstrip(), ") LIMIT 0"))


def _places(text: str) -> Iterator[tuple[int, int, int]]:
    """Begin, end and number of each parameter in the text."""
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except SqlglotError as error:
        raise Invalid(f"the query cannot be read: {sql_text.plain(error)}") from error
    count = 0
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.PLACEHOLDER:
            count += 1
            yield token.start, token.end + 1, count
        elif token.token_type is TokenType.PARAMETER and place + 1 < len(tokens):
            name = tokens[place + 1]
            if not (name.text.isdecimal() and len(name.text) < 5 and 0 < int(name.text) <= PARAMETERS_MAX):
                raise Invalid(
                    f"parameter ${name.text[:80]} is no number up to {PARAMETERS_MAX:,}: write $1, $2, … or ?"
                )
            yield token.start, name.end + 1, int(name.text)


def _replaced(text: str, places: Sequence[tuple[int, int, int]], word: Callable[[int], str]) -> str:
    said, done = [], 0
    for begin, end, number in places:
        said += [text[done:begin], word(number)]
        done = end
    return "".join([*said, text[done:]])


def _columns(asked: sql_text.Statement, known: Mapping[str, Table]) -> dict[str, pa.DataType]:
    """Column, and column with the name or alias of its table, to its type; names in lower case."""
    past = {sql_text.past_name(place, name): name for place, (name, _) in enumerate(asked.past)}
    columns: dict[str, pa.DataType] = {}
    for node in asked.tree.find_all(exp.Table):
        name = f"{node.db}.{node.name}"
        table = known.get(past.get(name, name)) or known.get(node.name)
        for field in table.schema if table else ():
            columns.setdefault(field.name.lower(), field.type)
            columns.setdefault(f"{node.alias_or_name}.{field.name}".lower(), field.type)
    return columns


def _kind(node: exp.Expr, columns: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """The type that the place of a parameter tells; None if it tells nothing."""
    parent = node.parent
    if isinstance(parent, exp.Cast):
        return _cast(parent)
    if isinstance(parent, exp.Limit | exp.Offset):
        return pa.int64()
    while isinstance(parent, _SIDE):
        for each in parent.iter_expressions():
            if each is not node and (kind := _own_kind(each, columns)) is not None:
                return kind
        if isinstance(parent, exp.Predicate):
            return None
        parent = parent.parent
    return None


def _own_kind(node: exp.Expr, columns: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """The type of a column, a cast, a number, or arithmetic of them."""
    if isinstance(node, exp.Column):
        return columns.get(".".join(filter(None, (node.table, node.name))).lower())
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Literal):
        return pa.string() if node.is_string else pa.int64() if node.name.isdecimal() else pa.float64()
    if isinstance(node, _SIDE) and not isinstance(node, exp.Predicate):
        return next((kind for each in node.iter_expressions() if (kind := _own_kind(each, columns)) is not None), None)
    return None


def _cast(node: exp.Cast) -> pa.DataType | None:
    name = node.to.sql(dialect="duckdb")
    match = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(match[1]), int(match[2])) if match else _TYPES.get(name)


def _name(kind: pa.DataType) -> str:
    """DuckDB's name of a type; empty for nested ones."""
    return f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else _NAMES.get(kind, "")

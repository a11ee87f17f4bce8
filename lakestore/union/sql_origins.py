"""The column of a table that a column of a result shows, as the RowDescription of Postgres tells it.

- A column that is a plain name has an origin, also through a query in brackets in FROM. An expression has none.
- If the shape of a query is not known here, no column has an origin: a wrong one is worse than none.
- An origin is metadata of the field: the table's number and the column's permanent id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.union.sql_gate import folded

_TABLE, _COLUMN = b"lakestore.table", b"lakestore.column"


class Origin(NamedTuple):
    """A column of a table by its permanent numbers."""

    table: int
    column: int


class _Shown(NamedTuple):
    name: str
    """Empty for an expression without an alias: any name fits."""
    origin: Origin | None = None


class _Relation(NamedTuple):
    qualifiers: frozenset[str]
    """`orders` and `shop.orders`, or the alias alone."""
    columns: Sequence[_Shown] | None
    """None if they are not known."""


class _UnknownShapeError(Exception):
    """The query has a form that is not read here."""


def with_origin(field: pa.Field, table: Table, column: Column) -> pa.Field:
    """The field with its origin; a table of an old server has no number, so there is none."""
    return _marked(field, Origin(table.number, column.id)) if table.number else field


def origin_of(field: pa.Field) -> Origin | None:
    """The origin that a field has."""
    found = field.metadata or {}
    return Origin(int(found[_TABLE]), int(found[_COLUMN])) if _TABLE in found else None


def with_origins(schema: pa.Schema, tree: exp.Expr, tables: Mapping[str, Table]) -> pa.Schema:
    """The schema of a query's result with origins. `tables` are those that the query reads, by `database.table`."""
    try:
        shown = _columns(tree, {folded(name): table for name, table in tables.items()})
    except _UnknownShapeError:
        return schema
    if len(shown) != len(schema) or any(
        column.name and folded(column.name) != folded(name) for column, name in zip(shown, schema.names, strict=True)
    ):
        return schema
    return pa.schema([_marked(field, column.origin) for field, column in zip(schema, shown, strict=True)])


def _marked(field: pa.Field, origin: Origin | None) -> pa.Field:
    if origin is None:
        return field
    return field.with_metadata({_TABLE: str(origin.table), _COLUMN: str(origin.column)})


def _columns(tree: exp.Expr, tables: Mapping[str, Table]) -> list[_Shown]:
    while isinstance(tree, exp.Subquery | exp.Paren) and not tree.alias:
        tree = tree.this
    if not isinstance(tree, exp.Select) or tree.args.get("with_") is not None:
        raise _UnknownShapeError
    relations, merged = _relations(tree, tables)
    return [column for item in tree.expressions for column in _items(item, relations, merged)]


def _relations(tree: exp.Select, tables: Mapping[str, Table]) -> tuple[list[_Relation], bool]:
    """The relations of FROM in order, and whether a join merges columns."""
    sources = [tree.args["from_"].this] if tree.args.get("from_") is not None else []
    joins: Sequence[exp.Join] = tree.args.get("joins") or ()
    if tree.args.get("laterals"):
        raise _UnknownShapeError
    merged = any(join.args.get("using") or join.args.get("method") for join in joins)
    return [_relation(source, tables) for source in [*sources, *(join.this for join in joins)]], merged


def _relation(source: exp.Expr, tables: Mapping[str, Table]) -> _Relation:
    alias = folded(source.alias)
    if source.args.get("joins") or source.args.get("pivots"):
        raise _UnknownShapeError
    if isinstance(source, exp.Subquery):
        columns = _columns(source.this, tables)
        qualifiers = {alias}
    elif isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
        full = folded(f"{source.db}.{source.name}")
        table = tables.get(full)
        qualifiers = {alias} if alias else {folded(source.name), full}
        if table is None:
            return _Relation(frozenset(qualifiers), None)
        origins = [Origin(table.number, column.id) if table.number else None for column in table.columns]
        columns = [_Shown(column.name, origin) for column, origin in zip(table.columns, origins, strict=True)]
    else:
        return _Relation(frozenset({alias}), None)
    names = [each.name for each in source.args["alias"].columns] if source.args.get("alias") is not None else []
    renamed = [_Shown(name, column.origin) for name, column in zip(names, columns, strict=False)]
    return _Relation(frozenset(qualifiers), [*renamed, *columns[len(renamed) :]])


def _items(item: exp.Expr, relations: Sequence[_Relation], merged: bool) -> Iterator[_Shown]:
    """The columns of one item of the list after SELECT."""
    inner = item.this if isinstance(item, exp.Alias) else item
    star = inner if isinstance(inner, exp.Star) else inner.this if isinstance(inner, exp.Column) else None
    if isinstance(star, exp.Star):
        qualifier = _qualifier(inner) if isinstance(inner, exp.Column) else ""
        if (merged and not qualifier) or any(star.args.values()):
            raise _UnknownShapeError
        chosen = [each for each in relations if not qualifier or qualifier in each.qualifiers]
        for relation in chosen[: 1 if qualifier else None]:
            if relation.columns is None:
                raise _UnknownShapeError
            yield from relation.columns
    elif isinstance(inner, exp.Column):
        yield _Shown(item.alias_or_name, _found(inner, relations))
    else:
        yield _Shown(item.alias)


def _qualifier(column: exp.Column) -> str:
    return folded(".".join(part.name for part in column.parts[:-1]))


def _found(column: exp.Column, relations: Sequence[_Relation]) -> Origin | None:
    qualifier, name = _qualifier(column), folded(column.name)
    for relation in relations:
        if not qualifier or qualifier in relation.qualifiers:
            for shown in relation.columns or ():
                if folded(shown.name) == name:
                    return shown.origin
    return None

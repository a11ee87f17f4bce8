"""Table names in Spark SQL text: found by sqlglot, replaced in the text itself.

Only the characters of a name change, so the rest of the text reaches Spark as it was written: a statement that was
parsed and written again would be sqlglot's Spark SQL, not the user's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table

_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter)


class Query:
    """One statement and the `database.table` names in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = _parsed(text)
        found = self.tree.find_all(exp.Table)
        self._tables = [table for table in found if table.db and not table.catalog and len(table.parts) == 2]

    @property
    def names(self) -> list[str]:
        """Each `database.table` once; names with a catalog, such as `lake.shop.orders`, are Spark's."""
        return list(dict.fromkeys(_name(table) for table in self._tables))

    def target(self) -> str:
        """The table a statement writes to; empty for a query."""
        if not isinstance(self.tree, _WRITES):
            return ""
        target = self.tree.this.find(exp.Table) if isinstance(self.tree.this, exp.Expr) else None
        return _name(target) if target is not None and target.db and not target.catalog else ""

    def columns(self, table: Table) -> list[str]:
        """The columns of a table that the text may need: the columns named in it, or all after a star; at least one."""
        words = {identifier.name.lower() for identifier in self.tree.find_all(exp.Identifier)}
        system = [name for name in SYSTEM_TYPES if name in words and name != "__change"]
        every = table.selected(None)
        if self._takes_all():
            return [*every, *system]
        return [*[name for name in every if name.lower() in words], *system] or every[:1]

    def _takes_all(self) -> bool:
        stars = (star for star in self.tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))
        natural = (join for join in self.tree.find_all(exp.Join) if join.args.get("method"))
        return not self.tree.find(exp.Select) or any(
            next(nodes, None) is not None
            for nodes in (stars, natural, self.tree.find_all(exp.Pivot), self.tree.find_all(exp.Command))
        )

    def replaced(self, views: Mapping[str, str]) -> str:
        """The text with each of these names replaced by a view; an alias keeps the old short name."""
        edits = [_table_edit(table, views) for table in self._tables if _name(table) in views]
        columns = (_column_edit(column, views) for column in self.tree.find_all(exp.Column))
        edits += [edit for edit in columns if edit is not None]
        text = self.text
        # From the end backwards, so that the places in front of an edit stay right.
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            text = text[: edit.start] + edit.new + text[edit.end :]
        return text


@dataclass(frozen=True, slots=True)
class _Edit:
    """The characters [start, end) of a text, and their replacement."""

    start: int
    end: int
    new: str


def _parsed(text: str) -> exp.Expr:
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="spark") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"the query cannot be read: {' '.join(str(error).split())}") from error
    if len(trees) != 1:
        raise Invalid("lake.sql takes one statement")
    tree = trees[0]
    assert isinstance(tree, exp.Expr)
    return tree


def _name(table: exp.Table) -> str:
    return f"{table.db}.{table.name}"


def _table_edit(table: exp.Table, views: Mapping[str, str]) -> _Edit:
    """The view's name in place of the table's; a table without an alias keeps its short name as one."""
    start, end = _span(table.parts)
    bare = table.args.get("alias") is None and table.args.get("sample") is None
    alias = f" AS `{table.name}`" if bare else ""
    return _Edit(start, end, f"`{views[_name(table)]}`{alias}")


def _column_edit(column: exp.Column, names: Collection[str]) -> _Edit | None:
    """The edit that makes `orders.customer` of `shop.orders.customer`; None for a column without a database."""
    parts = column.parts
    if len(parts) < 3 or f"{parts[0].name}.{parts[1].name}" not in names:
        return None
    return _Edit(_span(parts[:1])[0], _span(parts[1:])[0], "")


def _span(parts: list[exp.Expr]) -> tuple[int, int]:
    """(first character, character behind the last) of some parts of a name."""
    first, last = parts[0].meta, parts[-1].meta
    return int(first["start"]), int(last["end"]) + 1

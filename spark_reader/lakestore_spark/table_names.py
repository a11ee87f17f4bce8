"""Table names in a Spark SQL query or write: found by sqlglot, replaced in the text itself.

Only the characters of a name change, so the rest of the text reaches Spark as it was written: a statement that was
parsed and written again would be sqlglot's Spark SQL, not the user's. A table in the place of rows becomes a query in
parentheses, which Catalyst merges with the query around; the short name stays its alias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from lakestore.errors import Invalid
from lakestore.model.columns import LAKE_COLUMNS
from lakestore_spark.cut_tables import CutTable
from lakestore_spark.types import quoted
from lakestore_spark.words import Edit, edited, hinted

_ROWS = (exp.From, exp.Join, exp.Subquery)
"""Parents of a table in the place of rows; a child of another one stands for itself, and is written to."""
_KEPT_KINDS = ("VIEW", "FUNCTION")


class Query:
    """One statement that reads or writes rows, and the `database.table` names in it; `Invalid` if it is not read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = _parsed(text)
        found = self.tree.find_all(exp.Table)
        # The places of names in hints count from the hint's start: they are found by their words.
        self._tables = [
            table
            for table in found
            if table.db and not table.catalog and len(table.parts) == 2 and not isinstance(table.parent, exp.JoinHint)
        ]

    @property
    def names(self) -> list[str]:
        """Each `database.table` once; names with a catalog, such as `lake.shop.orders`, are Spark's."""
        return list(dict.fromkeys(_name(table) for table in self._tables))

    def check(self, ours: Collection[str]) -> None:
        """Refuse a statement that writes to one of our tables, or that would keep a cut for longer than it can be."""
        tables = [table for table in self._tables if _name(table) in ours]
        for table in tables:
            if isinstance(table.parent, exp.LikeProperty):
                raise Invalid(f"Spark makes no table like {_name(table)}: CREATE TABLE … AS SELECT … LIMIT 0")
            if not _is_rows(table):
                raise Invalid(f"table {_name(table)} is not written by SQL: use upsert, append or delete of the client")
            if table.args.get("version") or table.args.get("when"):
                raise Invalid(f"table {_name(table)} is read at a time or token by lake.at(…).sql(…), not by AS OF")
        if tables and self._is_kept():
            name = _name(tables[0])
            raise Invalid(
                f"table {name} at one cut lives for an hour, so no view or function over it is kept: "
                f"CREATE TEMP VIEW, or name now.{name} and give the statement to spark.sql"
            )

    def _is_kept(self) -> bool:
        """Whether the text itself is kept, beyond the session."""
        if isinstance(self.tree, exp.Alter):
            return True
        if not isinstance(self.tree, exp.Create) or self.tree.kind not in _KEPT_KINDS:
            return False
        return self.tree.find(exp.TemporaryProperty) is None

    def replaced(self, cuts: Mapping[str, CutTable]) -> str:
        """The text with each of these names replaced by its table at a cut."""
        system = self._system_columns()
        queries = {name: cut.select([*cut.table.selected(None), *system]) for name, cut in cuts.items()}
        edits = [_table_edit(table, queries) for table in self._tables if _name(table) in cuts]
        known = {name.lower() for name in cuts}
        columns = (_column_edit(column, known) for column in self.tree.find_all(exp.Column))
        edits += [edit for edit in columns if edit is not None]
        edits += [Edit(start, end, quoted(cuts[name].table.short_name)) for name, start, end in self._hinted(cuts)]
        return edited(self.text, edits)

    def _hinted(self, ours: Collection[str]) -> Iterator[tuple[str, int, int]]:
        if self.tree.find(exp.Hint) is not None:
            yield from ((name, start, end) for name, start, end in hinted(self.text) if name in ours)

    def _system_columns(self) -> list[str]:
        """The system columns that the text names, which is when they are shown."""
        words = {identifier.name.lower() for identifier in self.tree.find_all(exp.Identifier)}
        return [name for name in LAKE_COLUMNS if name in words]


def _parsed(text: str) -> exp.Expr:
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="spark") if tree is not None]
    except ParseError as error:
        raise Invalid(f"the query cannot be read: {_said(error)}") from error
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"the query cannot be read: {' '.join(str(error).split())}") from error
    if len(trees) != 1:
        raise Invalid("lake.sql takes one statement")
    tree = trees[0]
    assert isinstance(tree, exp.Expr)
    return tree


def _said(error: ParseError) -> str:
    """The first thing that is wrong, and where."""
    found = error.errors[0]
    description = str(found["description"]).split(" but got <")[0].rstrip(".")
    return f"{description}, at {found['highlight']!r} in line {found['line']}"


def _name(table: exp.Table) -> str:
    return f"{table.db}.{table.name}"


def _is_rows(table: exp.Table) -> bool:
    """Whether a table stands where rows are read: all others are written to."""
    parent = table.parent
    if isinstance(parent, exp.Merge):
        return table.arg_key == "using"
    if isinstance(parent, exp.MultitableInserts):
        return table.arg_key == "source"
    return isinstance(parent, _ROWS)


def _table_edit(table: exp.Table, queries: Mapping[str, str]) -> Edit:
    """The query in place of the table, with the short name as its alias; an alias of the text's own goes before it."""
    start, end = _span(table.parts)
    query, alias = f"({queries[_name(table)]})", f" AS {quoted(table.name)}"
    if isinstance(table.parent, exp.Merge):
        return Edit(start, end, query if table.args.get("alias") else query + alias)
    return Edit(start, end, f"({query}{alias})")


def _column_edit(column: exp.Column, names: Collection[str]) -> Edit | None:
    """The edit that makes `orders.customer` of `shop.orders.customer`; None for a column without a database.

    Spark takes a column by its table's name in any case.
    """
    parts = column.parts
    if len(parts) < 3 or f"{parts[0].name}.{parts[1].name}".lower() not in names:
        return None
    return Edit(_span(parts[:1])[0], _span(parts[1:])[0], "")


def _span(parts: list[exp.Expr]) -> tuple[int, int]:
    """(first character, character behind the last) of some parts of a name."""
    first, last = parts[0].meta, parts[-1].meta
    return int(first["start"]), int(last["end"]) + 1

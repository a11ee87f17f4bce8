"""Queries that are one union read: columns of one table, perhaps with a condition and a limit, or the number of rows.

1. The union read answers them, without DuckDB, which would only copy the rows.
2. A query is one union read only if each part of its tree is named here. DuckDB answers every other query.
3. The answer has the names, the types and the values that DuckDB gives. The order of rows is promised by neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.rows import condition_text, literals
from lakestore.rows.condition import RowFilter, RowTest
from lakestore.union.sql_gate import folded
from lakestore.union.sql_text import Statement

if TYPE_CHECKING:
    from lakestore.union.dataset import Rows

_PARTS = {"expressions", "from_", "where", "limit"}
"""Parts that the tree of a query may have."""
_COUNT_NAME = "count_star()"


@dataclass(frozen=True, slots=True)
class PlainScan:
    """One union read that answers a query."""

    rows: Rows
    columns: Mapping[str, str]
    """Columns of the table by their names in the answer."""
    condition: RowFilter | None = None
    limit: int | None = None
    count_name: str = ""
    """The name of the only column if the query asks for the number of rows."""

    @staticmethod
    def of(asked: Statement, name: str, rows: Rows, *, zone: str, aliases: Mapping[str, str]) -> PlainScan | None:
        """The read that answers a query of one table, whose full name is `name`; None if DuckDB has to answer it.

        `zone` is the zone of times without a zone, and `aliases` has the tables of names without a database.
        """
        tree = asked.tree
        if not isinstance(tree, exp.Select) or any(value for part, value in tree.args.items() if part not in _PARTS):
            return None
        where, limit = tree.args.get("where"), tree.args.get("limit")
        if not _is_table(tree.args.get("from_"), name, aliases) or not _is_limit(limit):
            return None
        condition = _condition(where.this, name, rows.table) if where else None
        if where and (condition is None or zone != "UTC"):
            return None  # times without a zone in a condition are UTC for the union read
        if where and not limit and (count_name := _count_name(tree)):
            return PlainScan(rows, {}, condition, count_name=count_name)
        columns = _columns(tree, rows)
        if not columns or (where and any(shown != column for shown, column in columns.items())):
            return None  # a condition may also name a column by the query's own name
        return PlainScan(rows, columns, condition, int(limit.expression.this) if limit else None)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer, as DuckDB gives them: without NOT NULL."""
        if self.count_name:
            return pa.schema([(self.count_name, pa.int64())])
        kinds = self.rows.schema
        return pa.schema([(shown, kinds.field(column).type) for shown, column in self.columns.items()])

    def batches(self, started: Callable[[Callable[[], None]], None] | None = None) -> Generator[pa.RecordBatch]:
        """The rows, read while the caller iterates. `started` gets a function that interrupts the read."""
        stopped = threading.Event()
        if started is not None:
            started(stopped.set)
        return self._batches(stopped)

    def _batches(self, stopped: threading.Event) -> Generator[pa.RecordBatch]:
        schema, left = self.schema, self.limit
        if self.count_name:
            yield pa.RecordBatch.from_arrays([pa.array([self.rows.count(self.condition)])], schema=schema)
            return
        with closing(self.rows.read(list(self.columns.values()), self.condition)) as batches:
            for batch in batches:
                if stopped.is_set():
                    raise Invalid("the query was interrupted")
                kept = batch if left is None else batch.slice(0, left)
                yield pa.RecordBatch.from_arrays(kept.columns, schema=schema)
                if left is not None and not (left := left - kept.num_rows):
                    return


def _is_table(source: exp.Expr | None, name: str, aliases: Mapping[str, str]) -> bool:
    """Whether FROM names this table and nothing else."""
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table):
        return False
    if any(value for part, value in table.args.items() if part not in ("this", "db")):
        return False
    return (f"{table.db}.{table.name}" if table.db else aliases.get(table.name)) == name


def _is_limit(limit: exp.Expr | None) -> bool:
    """Whether there is no limit or a number of rows."""
    if limit is None:
        return True
    rows, options = limit.args.get("expression"), [value for part, value in limit.args.items() if part != "expression"]
    return isinstance(rows, exp.Literal) and rows.is_int and not any(options)


def _columns(tree: exp.Select, rows: Rows) -> dict[str, str]:
    """Columns of the table by their names in the answer; empty if the query asks for anything else.

    Types are left out if DuckDB's differ from the table's: lists and maps have other names of fields there, and
    `fixed` is binary.
    """
    if len({folded(column) for column in rows.columns}) < len(rows.columns):
        return {}  # DuckDB renames one of two columns that differ in case
    found = dict[str, str]()
    if len(tree.expressions) == 1 and isinstance(tree.expressions[0], exp.Star):
        if not any(tree.expressions[0].args.values()):
            found = {column: column for column in rows.columns}
    else:
        for each in tree.expressions:
            column = each.this if isinstance(each, exp.Alias) else each
            if not isinstance(column, exp.Column) or len(column.parts) != 1 or column.name not in rows.columns:
                return {}
            found[each.alias or column.name] = column.name
        if len({folded(shown) for shown in found}) < len(tree.expressions):
            return {}
    kinds = [rows.schema.field(column).type for column in found.values()]
    return {} if any(pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind) for kind in kinds) else found


def _count_name(tree: exp.Select) -> str:
    """The name of the column of `SELECT count(*)`; empty for another query."""
    (column,) = tree.expressions if len(tree.expressions) == 1 else (exp.Null(),)
    if column.unalias().sql(dialect="duckdb").upper() != "COUNT(*)":
        return ""
    return column.alias or _COUNT_NAME


def _condition(where: exp.Expr, name: str, table: Table) -> RowFilter | None:
    """The condition of a query; None if the union read may understand it in another way than DuckDB."""
    own = {part.lower() for part in name.split(".")}
    if any(len(each.parts) > 1 and each.parts[0].name.lower() in own for each in where.find_all(exp.Column)):
        return None  # in a condition of a union read, `t.id` is a field of a struct, never a column of table t
    try:
        condition = condition_text.parse(literals.fixed(where.sql(dialect="duckdb")), table)
    except Invalid:
        return None  # DuckDB accepts more than this parser
    # For computed values: integers have 64 bits here, and the width of their type in SQL.
    return None if isinstance(condition.expression, RowTest) else condition

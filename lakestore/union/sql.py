"""SQL by DuckDB over union reads: every table of a query at one cut.

Each `database.table` of the text becomes a view over a scan that DuckDB asks, as it would ask a pyarrow dataset,
for the columns and rows its plan needs. DuckDB is an extra and imported when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid, LakestoreError
from lakestore.model.columns import SYSTEM_PREFIX, SYSTEM_TYPES
from lakestore.model.requirement import Requirement
from lakestore.model.token import Token
from lakestore.rows import condition_text
from lakestore.union import arrow
from lakestore.union.cut import Cut, Source, opened
from lakestore.union.explanation import Explanation
from lakestore.union.figures import Figures
from lakestore.union.scan import frame_of_pandas, frame_of_polars

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from lakestore.union.dataset import Rows

TEXT_CHARS_MAX = 1 << 20
PUSHED_CHARS_MAX = 16 << 10
"""Characters of a query whose conditions DuckDB may hand to a scan: as one nested expression, which Arrow walks down by
recursion until the stack is at its end."""
_OWN_SCHEMAS = {"information_schema", "pg_catalog", "main", "temp", "system"}
_QUERIES = (exp.Query, exp.Describe, exp.Summarize)
_REPLACES_NOTHING = {"python_enable_replacements": "false"}
"""Names are tables, never variables of the program that asks."""
_CLOSED = _REPLACES_NOTHING | {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""No file and no address is read, and nothing is installed; the text cannot change that, as the settings are locked."""
_WORD = re.compile(r"\w+")
_NAN = re.compile(r"\bnan\b", re.IGNORECASE)
"""A query that may compare with NaN: DuckDB hands `x <= 'nan'` down as true, where it is unknown for a null."""


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows of a query."""

    table: pa.Table
    """All of them."""
    token: str
    """The cut they were read at; empty when the query names no table."""
    reads: tuple[Explanation, ...] = ()
    """The reads of tables that the query made, each with the condition that reached it and its figures."""

    def explain(self) -> str:
        """A few lines for each table: what was read of it, what was spared, and what it took."""
        return "\n".join(map(str, self.reads))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def to_batches(self) -> list[pa.RecordBatch]:
        """The rows as Arrow batches."""
        batches: list[pa.RecordBatch] = self.table.to_batches()
        return batches

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame."""
        return frame_of_pandas(self.table)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame."""
        return frame_of_polars(self.table)

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __str__(self) -> str:
        connection = _duckdb().connect()
        try:
            connection.register("answer", self.table)
            return str(connection.sql("SELECT * FROM answer"))
        finally:
            connection.close()

    def show(self) -> None:
        """Print the rows as a table."""
        import sys

        sys.stdout.write(f"{self}\n")


def run(
    source: Source,
    text: str,
    *,
    at: str | Token | None = None,
    require: Requirement | None = None,
    external_access: bool = False,
) -> SqlResult:
    """The answer of one query over the tables at one cut, and over nothing else unless `external_access` says so."""
    from lakestore.union.dataset import Rows  # pyarrow.dataset imports pandas, if there is one: only for queries

    engine = _duckdb()
    tree = parsed(text)
    names = table_names(tree)
    if not names:
        return SqlResult(_answer(engine, tree, text, {}, [], external_access=external_access), "")
    with opened(source, names, at, require) as cut:
        system = {word for word in _WORD.findall(text.lower()) if word in SYSTEM_TYPES}
        failures: list[LakestoreError] = []
        tables = {name: Rows(cut, cut.plan.scan(name), system, failures) for name in names}
        counted = _counted(tree, cut, names)
        if counted is not None:
            return counted
        found = _answer(engine, tree, text, tables, failures, external_access=external_access)
        return SqlResult(found, cut.token, tuple(read for rows in tables.values() for read in rows.reads))


def _counted(tree: exp.Expr, cut: Cut, names: list[str]) -> SqlResult | None:
    """The answer of `SELECT count(*) FROM t WHERE …`, where statistics may know it; None for any other query."""
    if not isinstance(tree, exp.Select) or not tree.args.get("where"):
        return None
    if any(value for name, value in tree.args.items() if name not in ("expressions", "from_", "where")):
        return None
    source, where = tree.args["from_"].this, tree.args["where"].this
    plain = isinstance(source, exp.Table) and not any(v for k, v in source.args.items() if k not in ("this", "db"))
    (column,) = tree.expressions if len(tree.expressions) == 1 else (exp.Null(),)
    if not plain or column.unalias().sql(dialect="duckdb").upper() != "COUNT(*)":
        return None
    scan, figures = cut.plan.scan(names[0]), Figures()
    try:
        condition = condition_text.parse(where.sql(dialect="duckdb"), scan.table)
    except Invalid:
        return None  # DuckDB understands more.
    count = arrow.count(cut, scan, condition, figures)
    read = Explanation(scan.table.name, cut.token, (), condition.text, count, scan.live_rows, figures)
    found = pa.table({column.alias or "count_star()": pa.array([count], pa.int64())})
    return SqlResult(found, cut.token, (read,))


def parsed(text: str) -> exp.Expr:
    """The one query that a text is, or `Invalid`."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(f"the query has {len(text)} characters; at most {TEXT_CHARS_MAX} are read")
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="duckdb") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"the query cannot be read: {_plain(error)}") from error
    if len(trees) != 1 or not isinstance(trees[0], _QUERIES):
        raise Invalid("lake.sql takes one query (SELECT …); rows are written by upsert, append and delete")
    return trees[0]


def table_names(tree: exp.Expr) -> list[str]:
    """The `database.table` names of a query. Names without a database are DuckDB's: functions and WITH parts."""
    found = [table for table in tree.find_all(exp.Table) if table.db and table.db.lower() not in _OWN_SCHEMAS]
    return list(dict.fromkeys(f"{table.db}.{table.name}" for table in found if not table.catalog))


def _has_bare_names(tree: exp.Expr) -> bool:
    """Whether a query names a table without a database that is none of its WITH parts."""
    parts = {part.alias for part in tree.find_all(exp.CTE)}
    return any(not table.db and table.name and table.name not in parts for table in tree.find_all(exp.Table))


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise Invalid('lake.sql needs DuckDB: pip install "lakestore[duckdb]"') from error
    return duckdb


def _answer(
    engine: Any,
    tree: exp.Expr,
    text: str,
    tables: Mapping[str, Rows],
    failures: list[LakestoreError],
    *,
    external_access: bool,
) -> pa.Table:
    connection = engine.connect(config=_REPLACES_NOTHING if external_access else _CLOSED)
    try:
        connection.execute("SET TimeZone = 'UTC'")
        if len(text) > PUSHED_CHARS_MAX or _NAN.search(text):
            connection.execute("SET disabled_optimizers = 'filter_pushdown'")
        connection.execute("SET lock_configuration = true")
        for number, (name, rows) in enumerate(tables.items()):
            _register(connection, name, f"{SYSTEM_PREFIX}lakestore_{number}", rows)
        return _utc(connection.execute(text).to_arrow_table())
    except engine.Error as error:
        if failures:
            raise failures[0] from error
        unknown = isinstance(error, engine.CatalogException) and _has_bare_names(tree)
        hint = "; tables are named database.table" if unknown else ""
        if isinstance(error, engine.PermissionException) and not external_access:
            hint = "; a query reads the tables of the lake alone: external_access=True lets it read files and addresses"
        raise Invalid(f"the query failed: {_plain(error)}{hint}") from error
    finally:
        connection.close()


def _register(connection: duckdb.DuckDBPyConnection, name: str, alias: str, rows: Rows) -> None:
    """A view over a table's rows.

    DuckDB takes no number of rows from a Python object. A branch of no rows with an estimate (`UNION ALL` of a range
    with a LIMIT that is no constant) would say it; joins like those of TPC-H were slower with it, by up to a half.
    """
    database, short = name.split(".")
    connection.register(alias, rows)
    names = ", ".join('"' + column.replace('"', '""') + '"' for column in rows.columns)
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{database}"')
    connection.execute(f'CREATE VIEW "{database}"."{short}" AS SELECT {names} FROM {alias}')  # noqa: S608


def _utc(table: pa.Table) -> pa.Table:
    """DuckDB calls the zone Etc/UTC; here it is UTC everywhere."""
    return table.cast(pa.schema([field.with_type(_utc_type(field.type)) for field in table.schema]))


def _utc_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_utc_type(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc_type(kind.value_type)))
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_utc_type(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_utc_type(kind.item_type)))
    return kind


def _plain(error: BaseException) -> str:
    """The message of another parser on one line, without its colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())

"""SQL by DuckDB over union reads: all tables of a query at one cut.

Each `database.table` in the text becomes a view over a scan. DuckDB asks the scan, as it asks a pyarrow dataset, for
the columns and rows that its plan needs. DuckDB is an optional dependency, imported on first use.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from sqlglot import exp

from lakestore.errors import Invalid, LakestoreError, NotFound
from lakestore.model.alteration import Requirement
from lakestore.model.columns import SYSTEM_PREFIX, SYSTEM_TYPES
from lakestore.model.names import nearest, suggestion
from lakestore.model.table import Table
from lakestore.model.terminal_text import terminal_text
from lakestore.model.times import position_text
from lakestore.model.token import Token
from lakestore.release import needs_extra
from lakestore.rows import literals, pushdown
from lakestore.rows.literals import short
from lakestore.union import databases, old_names, sql_gate, sql_origins, sql_parameters, sql_text
from lakestore.union.cut import Source, opened
from lakestore.union.explanation import Explanation
from lakestore.union.plain_scan import PlainScan
from lakestore.union.scan import frame_of_pandas, frame_of_polars
from lakestore.union.sql_functions import CHANCE
from lakestore.union.sql_gate import folded
from lakestore.union.sql_text import Statement
from lakestore.union.views import CATALOG, TableView, ViewList, quoted
from lakestore.wire import tracing

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from lakestore.union.dataset import Rows


_EMPTY = "__lakestore_empty"
_LETTER = f'{CATALOG}.main."{SYSTEM_PREFIX}lakestore_letter"'
"""The type of dictionary columns in `Extra.relations`."""
_FULL_SCHEMAS = frozenset({"information_schema", "pg_catalog"})
"""DuckDB's schemas in which no table can be created."""


def declare(connection: Any, tables: Iterable[Table]) -> None:
    """Create an empty DuckDB table for each definition, with its primary key and NOT NULL columns.

    Some tables cannot be created and are skipped: tables in DuckDB's own schemas, and all but the first of names that
    differ only in case.
    """
    taken: set[str] = set()
    for table in tables:
        name = folded(table.name)
        if name in taken or name.partition(".")[0] in _FULL_SCHEMAS:
            continue
        taken.add(name)
        part, short = (quoted(part) for part in table.name.split(".", 1))
        database = f"{CATALOG}.{part}"
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
        schema = table.read_schema([column.name for column in table.columns])
        connection.register(_EMPTY, pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))
        connection.execute(f"CREATE TABLE {database}.{short} AS SELECT * FROM {_EMPTY}")  # noqa: S608
        connection.unregister(_EMPTY)
        for column in table.columns:
            if column.required:
                connection.execute(f"ALTER TABLE {database}.{short} ALTER COLUMN {quoted(column.name)} SET NOT NULL")
        if table.primary_key:
            key = ", ".join(map(quoted, table.primary_key))
            connection.execute(f"ALTER TABLE {database}.{short} ADD PRIMARY KEY ({key})")


def first(reader: pa.RecordBatchReader, rows: int) -> pa.Table:
    """The first rows of a result; the rest is not computed."""
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < rows:
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
    return pa.Table.from_batches(batches, reader.schema).slice(0, rows)


def first_rows(reader: pa.RecordBatchReader, rows: int, nbytes: int | None) -> tuple[pa.Table, int]:
    """The first rows of a result, and the number of the others, which are computed one batch at a time and dropped."""
    batches: list[pa.RecordBatch] = []
    taken = behind = 0
    for batch in reader:
        mine = batch.slice(0, rows - taken)
        if nbytes is not None:
            mine = _fitting(mine, nbytes, first=not taken)
            nbytes -= mine.nbytes
        if mine.num_rows:
            batches.append(mine)
        taken += mine.num_rows
        behind += batch.num_rows - mine.num_rows
        if mine.num_rows < batch.num_rows:
            rows = taken
    return pa.Table.from_batches(batches, reader.schema), behind


def _fitting(batch: pa.RecordBatch, nbytes: int, *, first: bool) -> pa.RecordBatch:
    """The first rows of a batch that fit into `nbytes`, copied unless all fit. With `first`, at least one row."""
    if batch.nbytes <= nbytes:
        return batch
    fits = bisect_right(range(1, batch.num_rows + 1), nbytes, key=lambda rows: batch.slice(0, rows).nbytes)
    return batch.take(pa.array(range(max(fits, int(first))), pa.int64()))


Params = Sequence[Any] | Mapping[str, Any] | None
PUSHED_CHARS_MAX = 16 << 10
"""In a longer query DuckDB pushes no conditions into scans: Arrow's recursion through them overflows the stack."""
_OPEN = {"python_enable_replacements": "false"}
"""Settings of a query that may read files. Names mean tables or files, never variables of the calling program."""
_BATCH_ROWS = 2_048
"""Rows of a batch of a result that is not kept whole: the size of DuckDB's own vectors."""
_STREAM_ROWS = 16 * _BATCH_ROWS
"""Rows of a batch of a result that is read to its end."""
_DOTTED = re.compile(r"\w+\.\w+")
_WORD = re.compile(r"\w+")
_INTERRUPTED = "INTERRUPT Error"
_NOT_PUSHED = re.compile(rf"{pushdown.ANOTHER}|Arrow Scan|\bAt:\n +pyarrow/")
"""Errors that mean: DuckDB could not express a condition in Arrow, or expressed another one."""
_NO_PUSHDOWN = {"disabled_optimizers": "filter_pushdown"}


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows of a query."""

    table: pa.Table
    """All rows, or as many of the first as the query keeps."""
    token: str
    """The cut of the read; empty if the query names no table."""
    reads: tuple[Explanation, ...] = ()
    """One entry for each table read, with the condition that reached it and its figures."""
    rows_behind: int = 0
    """Rows that the query produced and did not keep because of `Query.kept_rows`."""

    def explain(self) -> str:
        """A few lines for each table: what was read, what was skipped, what it cost."""
        return "\n".join(map(str, self.reads))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def to_batches(self) -> list[pa.RecordBatch]:
        """The rows as Arrow batches."""
        return list(self.table.to_batches())

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
        connection = load_engine().connect()
        try:
            connection.register("answer", self.table)
            return str(connection.sql("SELECT * FROM answer"))
        finally:
            connection.close()

    def show(self) -> None:
        """Print the rows as a table."""
        import sys

        sys.stdout.write(f"{terminal_text(str(self))}\n")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a query that a server answers."""

    memory_bytes: int
    """DuckDB's memory. It may not spill to disk."""
    rows: int | None = None
    """The most rows of the result; no more are computed. None for all."""

    @property
    def settings(self) -> dict[str, str]:
        """The limits as settings of DuckDB."""
        return {"memory_limit": f"{self.memory_bytes}B", "temp_directory": "", "threads": "2"}


@dataclass(frozen=True, slots=True)
class Extra:
    """Things that a text needs beside the tables of the lake: of the dialect from which it was translated."""

    relations: Mapping[str, pa.Table] = field(default_factory=dict)
    """Relations by `schema.name`. A dictionary column is an ENUM of `letters` for DuckDB."""
    letters: Sequence[str] = ()
    macros: Sequence[str] = ()
    """Statements that create macros. Their author is this program, never the user."""
    functions: frozenset[str] = frozenset()
    """The names of the macros."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of DuckDB."""
    has_catalog_types: bool = False
    """Whether the result may have types that only the dialect's catalog has."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query with its options."""

    text: str
    params: Params = None
    """Values of the parameters: a list for `?` and `$1`, a mapping for `$name`."""
    at: str | Token | None = None
    require: Requirement | None = None
    only_types: bool = False
    """Whether the query is bound and not run: `describe`."""
    external_access: bool = False
    """Whether the query may read files and URLs."""
    bounds: Bounds | None = None
    """None for no limits."""
    search_path: Sequence[str] = ()
    """Databases in which names without a database are looked up, in this order."""
    kinds: Sequence[str | None] = ()
    """Types in SQL to which the parameters `$1`, `$2`, … are cast; None for the type of the value."""
    extra: Extra = Extra()
    kept_rows: int | None = None
    """Rows to keep, in bounded memory. Further rows are computed and counted. None for all."""
    kept_bytes: int | None = None
    """Bytes of Arrow after which no further rows are kept (one row at least); None for no limit."""
    started: Callable[[Callable[[], None]], None] | None = None
    """Called before the query runs, with a function by which another thread can interrupt it."""
    zone: str = "UTC"
    """The zone in which DuckDB reads times without a zone, and cuts times with a zone into days. Rows are in UTC."""
    is_lossless: bool = False
    """Whether uuid, json, hugeint, bit and time with a zone are extension types of Arrow. Otherwise they are the text,
    the decimal or the bytes that DuckDB makes of them."""
    has_origins: bool = False
    """Whether the fields of a result tell the columns of tables that they show: `sql_origins`. For `stream` and
    `describe`."""

    @property
    def settings(self) -> dict[str, str]:
        """The options as settings of DuckDB."""
        own = (_OPEN if self.external_access else sql_gate.CLOSED) | (self.bounds.settings if self.bounds else {})
        return {**self.extra.settings, **own}


@dataclass(frozen=True, slots=True)
class SqlStream:
    """A query that runs. Its rows are computed while they are read."""

    schema: pa.Schema
    token: str
    """The cut of the read; empty if the query names no table."""
    batches: Iterator[pa.RecordBatch]
    """The rows, once."""
    _reads: Callable[[], tuple[Explanation, ...]] = tuple

    def explain(self) -> str:
        """A few lines for each table, for the rows that were read so far."""
        return "\n".join(map(str, self._reads()))


def run(source: Source, query: Query | str, tables: Callable[[], Sequence[Table]] = tuple) -> SqlResult:
    """Run one query over the tables at one cut. `tables` returns all tables that the caller may see."""
    query = Query(query) if isinstance(query, str) else query
    with ExitStack() as held:
        asked, answer = _begun(source, query, tables, _kept, held)
        kept, behind = answer.rows
        reads = answer.reads()
        if asked.explained:
            return SqlResult(_explanation(reads), answer.token, reads)
        return SqlResult(_utc(kept), answer.token, reads, behind)


@contextmanager
def stream(source: Source, query: Query | str, tables: Callable[[], Sequence[Table]] = tuple) -> Iterator[SqlStream]:
    """Run one query in memory that does not grow with its rows: schema and token are known before all are computed.

    DuckDB may refuse a condition or find another name of a column in its first batch: the query then starts again. It
    does not start again after the first batch has been read.
    """
    query = Query(query) if isinstance(query, str) else query
    with ExitStack() as held:
        asked, answer = _begun(source, query, tables, _first_batch, held)
        if asked.explained:
            for _ in answer.rows.batches():
                pass
            lines = _explanation(answer.reads())
            yield SqlStream(lines.schema, answer.token, iter(lines.to_batches()))
            return
        schema = _with_origins(_utc_schema(answer.rows.schema), query, asked, answer)
        batches = (batch.cast(schema) for batch in answer.rows.batches())
        yield SqlStream(schema, answer.token, batches, answer.reads)


def describe(
    source: Source, query: Query, tables: Callable[[], Sequence[Table]] = tuple
) -> tuple[pa.Schema, pa.Schema]:
    """(types of the parameters, columns of the result) of a query, which is bound and not run."""
    query = replace(query, only_types=True)

    def take(found: Any, request: _Request) -> tuple[pa.Schema, pa.Schema]:
        if request.asked.explained:
            return pa.schema([]), _explanation(()).schema
        connection, text = found, f"SELECT * FROM ({request.asked.text}\n) LIMIT 0"  # noqa: S608
        samples = sql_parameters.samples(request.kinds)
        try:
            columns = _executed(connection, text, samples).to_arrow_reader(_BATCH_ROWS).read_all().schema
        except request.engine.Error:
            if not samples:
                raise
            columns = _executed(connection, text, [None] * len(samples)).to_arrow_reader(_BATCH_ROWS).read_all().schema
        columns = pa.schema(
            [each.with_name(name) for each, name in zip(columns, _selected(columns.names), strict=True)]
        )
        casts = ", ".join(f"CAST(NULL AS {kind}) AS p{place}" for place, kind in enumerate(request.kinds, 1))
        kinds = connection.execute(f"SELECT {casts}").to_arrow_table().schema if casts else pa.schema([])
        request.read_to_end()
        return _utc_schema(kinds), _utc_schema(columns)

    with ExitStack() as held:
        asked, answer = _begun(source, query, tables, take, held)
        kinds, columns = answer.rows
        return kinds, _with_origins(columns, query, asked, answer)


def _with_origins(schema: pa.Schema, query: Query, asked: Statement, answer: _Answer[Any]) -> pa.Schema:
    if not query.has_origins or asked.explained or not answer.tables:
        return schema
    return sql_origins.with_origins(schema, asked.tree, answer.tables)


def _selected(names: Sequence[str]) -> list[str]:
    """The names of a query's columns by their names around brackets, where the second `a` of two is `a_1`."""
    own = list[str]()
    for name in names:
        base, _, number = name.rpartition("_")
        is_repeated = number.isdecimal() and folded(base) in map(folded, own)
        own.append(base if is_repeated and len(own) >= int(number) else name)
    return own


def _begun(
    source: Source,
    query: Query,
    tables: Callable[[], Sequence[Table]],
    take: _Take[_Taken],
    held: ExitStack,
) -> tuple[Statement, _Answer[_Taken]]:
    """The statement, and the value of `take` for DuckDB's result. `held` closes cuts and connection."""
    asked = sql_text.statement(query.text)
    held.enter_context(tracing.span("sql", text=query.text))  # the calls that close the cuts belong to it too
    try:
        return asked, _run(source, query, asked, tables, take, held)
    except NotFound as error:
        raise _meant(error, asked, tables) from error


def _explanation(reads: Sequence[Explanation]) -> pa.Table:
    lines = "\n".join(map(str, reads)).splitlines() or ["the query reads no table of the lake"]
    return pa.table({"explanation": pa.array(lines, pa.string())})


_Taken = TypeVar("_Taken")
_Take = Callable[[Any, "_Request"], _Taken]
"""Reads of DuckDB's result while the query may still start again."""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[_Taken]):
    """The begin of a query's answer: the rows, or a reader of them."""

    rows: _Taken
    token: str
    reads: Callable[[], tuple[Explanation, ...]]
    tables: Mapping[str, Table] = field(default_factory=dict)
    """The tables of the query by `database.table`."""


class _Reader:
    """A result of DuckDB behind its first batch, which has been read."""

    def __init__(self, reader: pa.RecordBatchReader, request: _Request) -> None:
        self._reader, self._request = reader, request
        self._left = request.query.bounds.rows if request.query.bounds else None
        self._first = next(reader, None)
        self.schema: pa.Schema = reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as many as the query may have."""
        batch, self._first = self._first, None
        while batch is not None and self._left != 0:
            if self._left is not None:
                batch = batch.slice(0, self._left)
                self._left -= batch.num_rows
            yield batch
            if self._left == 0:
                return
            try:
                batch = next(self._reader, None)
            except _engine_errors(self._request.engine) as error:
                if self._request.failures:
                    raise self._request.failures[0] from error
                raise Invalid(f"the query failed: {sql_text.plain(error)}") from error
        if batch is None:
            self._request.read_to_end()


def _run(
    source: Source,
    query: Query,
    asked: Statement,
    tables: Callable[[], Sequence[Table]],
    take: _Take[_Taken],
    held: ExitStack,
) -> _Answer[_Taken]:
    from lakestore.union.dataset import Rows  # imports pandas if it is installed: only for queries

    engine = load_engine()
    own = query.extra.relations
    named = {name: name for name in asked.names if name not in own} if not asked.of_catalog else {}
    bare = sql_text.bare_names(asked.tree)
    looks_up = bool(bare) and (bool(query.search_path) or any(map(_DOTTED.fullmatch, bare)))
    known = tables() if looks_up or asked.of_catalog else ()
    aliases = _aliases(bare, query.search_path, known)
    named |= {} if asked.of_catalog else {name: name for name in aliases.values()}
    dotted = {table.name for table in known} if asked.of_catalog else set(named)
    rules = _rules(asked, query, (dotted | own.keys(), frozenset(aliases)), tables)
    sql_gate.check(engine, asked.text, rules)
    declared = sorted(known, key=lambda table: table.name not in asked.names) if asked.of_catalog else ()
    failures: list[LakestoreError] = []
    request = _Request(engine, asked, query, failures, held, declared, aliases)
    if not named and not asked.past:
        return _Answer(_taken(_typed(request, {}, rules), {}, {}, take), "", tuple)
    cut = held.enter_context(opened(source, list(named), query.at, query.require)) if named else None
    system = {word for word in _WORD.findall(query.text.lower()) if word in SYSTEM_TYPES}
    views = {name: Rows(cut, cut.plan.scan(name), system, failures) for name in named} if cut else {}
    for place, (name, position) in enumerate(asked.past):
        then = held.enter_context(opened(source, [name], _position(engine, position)))
        views[sql_text.past_name(place, name)] = Rows(then, then.plan.scan(name), system, failures)
    token = cut.token if cut else then.token

    def reads() -> tuple[Explanation, ...]:
        return tuple(read for rows in views.values() for read in rows.reads)

    used = {identifier.name.lower() for identifier in asked.tree.find_all(exp.Identifier)}
    shown = old_names.spellings({name: rows.table for name, rows in views.items()}, used)
    read = {name: rows.table for name, rows in views.items()}
    plain = None
    if shown == [{}] and len(views) == 1 and not (query.params or query.only_types or query.extra.functions):
        ((name, rows),) = views.items()
        plain = PlainScan.of(asked, name, rows, zone=query.zone, aliases=aliases)
    if plain is not None:
        return _Answer(_read(plain, request, take), token, reads, read)
    request = _typed(request, {name: rows.schema for name, rows in views.items()}, rules)
    return _Answer(_spelled(request, views, shown, take), token, reads, read)


def _read(plain: PlainScan, request: _Request, take: _Take[_Taken]) -> _Taken:
    """The value of `take` for the answer of a union read."""
    batches = request.held.enter_context(closing(plain.batches(request.query.started)))
    try:
        return take(_Batches(pa.RecordBatchReader.from_batches(plain.schema, batches)), request)
    except _engine_errors(request.engine) as error:
        raise Invalid(f"the query failed: {sql_text.plain(error)}") from error


@dataclass(frozen=True, slots=True)
class _Batches:
    """A result with the methods of DuckDB's that are used here, for rows that come without DuckDB."""

    reader: pa.RecordBatchReader

    def to_arrow_table(self) -> pa.Table:
        return self.reader.read_all()

    def to_arrow_reader(self, _rows: int) -> pa.RecordBatchReader:
        return self.reader


def _aliases(bare: Sequence[str], search_path: Sequence[str], known: Sequence[Table]) -> dict[str, str]:
    """The table of each name without a database: the first on the search path, or a `database.table` in quotes. In a
    database, the table of exactly the name comes before tables whose names differ in case."""
    names, found = {folded(table.name): table.name for table in reversed(known)}, dict[str, str]()
    exact = {table.name for table in known}
    for name in bare:
        tried = [f"{database}.{name}" for database in search_path] + [name] * bool(_DOTTED.fullmatch(name))
        if full := next((each for each in tried if folded(each) in names), ""):
            found[name] = full if full in exact else names[folded(full)]
    return found


def _typed(request: _Request, schemas: Mapping[str, pa.Schema], rules: sql_gate.Rules) -> _Request:
    """The request with a cast around each parameter. If only types are asked for, they come from the text."""
    query, text = request.query, request.asked.text
    kinds = query.kinds
    if query.only_types or sql_parameters.JSON in kinds:
        known = {**schemas, **{name: rows.schema for name, rows in query.extra.relations.items()}}
        inferred = sql_parameters.parameter_types(text, request.asked.tree, known, request.aliases)
        given = [*kinds, *[None] * len(inferred)] if query.only_types else kinds
        kinds = [sql_parameters.placed_type(own, kind) for own, kind in zip(given, inferred, strict=False)]
    if not kinds:
        return request if not query.only_types else replace(request, kinds=kinds)
    text = sql_parameters.with_casts(text, kinds)
    sql_gate.check(request.engine, text, rules)
    return replace(request, asked=replace(request.asked, text=text), kinds=kinds)


def _rules(
    asked: Statement, query: Query, names: tuple[set[str], frozenset[str]], tables: Callable[[], Sequence[Table]]
) -> sql_gate.Rules:
    """The names that the text may use: its tables, and the lists in `sql_functions`."""
    past = (sql_text.past_name(place, name) for place, (name, _) in enumerate(asked.past))
    dotted, bare = (frozenset(map(sql_gate.folded, each)) for each in ((*names[0], *past), names[1]))
    macros, files = query.extra.functions, query.external_access
    return sql_gate.Rules(dotted, bare, macros=macros, files=files, hint=lambda name: _hint(name, tables))


def _position(engine: Any, text: str) -> str:
    """The position that the constant after AT means: a token or a time."""
    try:
        found = sql_gate.constant(engine, literals.fixed(text))
    except (engine.Error, Invalid) as error:
        raise Invalid(f"AT ({short(text)}) is neither a time nor a token: {sql_text.plain(error)}") from error
    if isinstance(found, datetime) and found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return position_text(found if isinstance(found, datetime) else str(found))


def _meant(error: NotFound, asked: Statement, tables: Callable[[], Sequence[Table]]) -> NotFound:
    """The error extended by the table name that is most similar to the unknown one."""
    known = [table.name for table in tables()]
    wrong = [name for name in (*asked.names, *(name for name, _ in asked.past)) if name not in known]
    return NotFound(f"{error.message}{suggestion(wrong[0], known)}") if wrong and suggestion(wrong[0], known) else error


def preload() -> None:
    """Import what a query needs and start DuckDB's parser, so that the first query does not wait for it."""
    with suppress(Invalid):  # DuckDB is not installed: the query says so
        sql_gate.check(load_engine(), "SELECT 1", sql_gate.Rules())


def load_engine() -> Any:
    """The module `duckdb`. Raises `Invalid` with the extra to install."""
    with needs_extra("duckdb", "lake.sql"):
        import duckdb
    return duckdb


@dataclass(frozen=True, slots=True)
class _Request:
    """A query and the DuckDB connection that answers it."""

    engine: Any
    asked: Statement
    query: Query
    failures: list[LakestoreError]
    """Errors of the reads, which DuckDB reports as its own."""
    held: ExitStack
    """Closes the connection of a query that runs."""
    declared: Sequence[Table] = ()
    """Tables that are created in DuckDB without rows."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names without a database, and names such as `"db.t"` in quotes, with the tables that they mean."""
    kinds: Sequence[str | None] = ()
    """Types in SQL of the parameters."""
    database: databases.Database | None = None
    """None until DuckDB answers."""

    @property
    def needs_more(self) -> bool:
        """Whether the text needs anything beside views of the tables that it reads."""
        return bool(self.declared or self.query.extra.relations or self.query.extra.macros)

    def read_to_end(self) -> None:
        """Note that the result was read to its end."""
        if self.database is not None:
            self.database.is_read = True


def _spelled(
    request: _Request, tables: Mapping[str, Rows], shown: Sequence[old_names.Spelling], take: _Take[_Taken]
) -> _Taken:
    """The answer with the first spelling of the columns in which DuckDB finds every name of the query."""
    refusal: _UnboundError | None = None
    for spelling in shown:
        try:
            return _taken(request, tables, spelling, take)
        except _UnboundError as error:
            refusal = refusal or error
    assert refusal is not None
    raise Invalid(refusal.message) from refusal.__cause__


def _taken(request: _Request, tables: Mapping[str, Rows], spelling: old_names.Spelling, take: _Take[_Taken]) -> _Taken:
    """The value of `take` for the result, after as many starts as it needs."""
    settings = dict(request.query.settings)
    if len(request.asked.text) > PUSHED_CHARS_MAX:
        settings |= _NO_PUSHDOWN
    while True:
        try:
            return _started(request, tables, settings, spelling, take)
        except _RetryError as again:
            settings |= again.settings
            for rows in tables.values():
                rows.checks &= not _NO_PUSHDOWN.items() <= settings.items()


class _UnboundError(Invalid):
    """DuckDB refuses the query before it reads a row."""


class _RetryError(Exception):
    """The query has to run again with these additional settings."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self.settings = settings


def _started(
    request: _Request,
    tables: Mapping[str, Rows],
    settings: Mapping[str, str],
    spelling: old_names.Spelling,
    take: _Take[_Taken],
) -> _Taken:
    """The value of `take` for the result. `request.held` releases the database, or this function if it fails."""
    engine, query, failures = request.engine, request.query, request.failures
    kind = databases.Kind(tuple(sorted(settings.items())), query.zone, query.is_lossless)
    asked_to_stop = threading.Event()
    with ExitStack() as failing:
        try:
            wanted = _view_list(request, tables, spelling)
            database = databases.idle_or_new(engine, kind, ViewList() if request.needs_more else wanted)
            failing.callback(_release, database, request)
            request, connection = replace(request, database=database), database.connection

            def stop() -> None:
                asked_to_stop.set()
                connection.interrupt()

            _prepare(connection, request)
            database.views.show(wanted, list(tables.values()))
            if query.started is not None:
                query.started(stop)
            found = connection if query.only_types else _executed(connection, request.asked.text, query.params)
            taken = take(found, request)
        # while results are streamed, DuckDB's errors arrive as Arrow's
        except _engine_errors(engine) as error:
            if failures:
                raise failures[0] from error
            if _INTERRUPTED in str(error) and settings.get("threads") != "1" and not asked_to_stop.is_set():
                # with one thread, no other thread stops before the failure is reported
                raise _RetryError({"threads": "1"}) from error
            if _NOT_PUSHED.search(str(error)) and not _NO_PUSHDOWN.items() <= settings.items():
                raise _RetryError(_NO_PUSHDOWN) from error
            refusal = _UnboundError if isinstance(error, engine.BinderException) else Invalid
            raise refusal(f"the query failed: {sql_text.plain(error)}") from error
        request.held.enter_context(failing.pop_all())
        return taken


def _prepare(connection: Any, request: _Request) -> None:
    """Make everything that the text needs beside views of the tables that it reads."""
    declare(connection, request.declared)
    extra = request.query.extra
    if any(map(_dictionaries, extra.relations.values())):
        values = ", ".join(map(literals.text_literal, extra.letters))
        connection.execute(f"CREATE TYPE {_LETTER} AS ENUM ({values})")
    for number, (name, relation) in enumerate(extra.relations.items()):
        _register_relation(connection, name, f"{SYSTEM_PREFIX}lakestore_relation_{number}", relation)
    for macro in extra.macros:
        connection.execute(macro)  # after the relations: DuckDB binds a macro when it is created


def _view_list(request: _Request, tables: Mapping[str, Rows], spelling: old_names.Spelling) -> ViewList:
    """The views over tables, with the names of columns that `spelling` has for them."""
    made = [TableView(name, _shown_names(rows, spelling.get(name, {})), rows.schema) for name, rows in tables.items()]
    return ViewList(made, request.aliases)


def _shown_names(rows: Rows, spelling: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The names that a view shows, with their columns."""
    if not spelling:
        return tuple((column, column) for column in rows.columns)
    return (*spelling.items(), *((column, column) for column in rows.columns if column in SYSTEM_TYPES))


def _release(database: databases.Database, request: _Request) -> None:
    """Give the database back. One with relations, macros or tables is closed."""
    if request.needs_more or request.query.external_access:
        database.close()
        return
    is_random = not CHANCE.isdisjoint(_WORD.findall(request.query.text.lower()))
    database.give_back(keeps_connection=not is_random)


def _engine_errors(engine: Any) -> tuple[type[Exception], ...]:
    return engine.Error, pa.ArrowException, OSError


def _first_batch(found: Any, request: _Request) -> _Reader:
    """The result with its first batch read: until then DuckDB may refuse a condition, and the query starts again."""
    return _Reader(found.to_arrow_reader(_STREAM_ROWS), request)


def _kept(found: Any, request: _Request) -> tuple[pa.Table, int]:
    """(the rows to keep, the number of further rows)."""
    query = request.query
    if query.kept_rows is not None:
        rows = first_rows(found.to_arrow_reader(_BATCH_ROWS), query.kept_rows, query.kept_bytes)
    elif query.bounds is not None and (most := query.bounds.rows) is not None:
        table = first(found.to_arrow_reader(most), most)
        if table.num_rows == most:
            return table, 0  # there may be more
        rows = table, 0
    else:
        rows = found.to_arrow_table(), 0
    request.read_to_end()
    return rows


def _executed(connection: Any, text: str, params: Params) -> Any:
    given = None if params is None else dict(params) if isinstance(params, Mapping) else list(params)
    return connection.execute(text) if given is None else connection.execute(text, given)


def _register_relation(connection: Any, name: str, alias: str, relation: pa.Table) -> None:
    """Create a view over rows that are in memory."""
    database, _, short = name.rpartition(".")
    plain = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in relation.schema]
    connection.register(alias, relation.cast(pa.schema(plain)))  # DuckDB fails on some dictionaries
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{quoted(database)}")
    casts = ", ".join(f"{quoted(column)}::{_LETTER} AS {quoted(column)}" for column in _dictionaries(relation))
    selected = f"SELECT * REPLACE ({casts}) " if casts else ""
    connection.execute(f"CREATE VIEW {CATALOG}.{quoted(database)}.{quoted(short)} AS {selected}FROM {alias}")


def _dictionaries(relation: pa.Table) -> list[str]:
    """The columns that are dictionaries."""
    return [field.name for field in relation.schema if pa.types.is_dictionary(field.type)]


def _hint(name: str, tables: Callable[[], Sequence[Table]]) -> str:
    """The end of the error for a name that is not a table."""
    names = [table.name for table in tables()]
    known = {each.lower() if "." in name else each.split(".")[1].lower(): each for each in names}
    close = nearest(name, known)
    return f"; tables are named database.table{f': did you mean {known[close]}?' if close else ''}"


def _utc(table: pa.Table) -> pa.Table:
    """DuckDB calls the time zone Etc/UTC; results use UTC."""
    return table.cast(_utc_schema(table.schema))


def _utc_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_utc_type(field.type)) for field in schema])


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

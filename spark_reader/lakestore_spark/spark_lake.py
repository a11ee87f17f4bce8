"""`SparkLake`: a server's tables in a Spark session, each query at one cut.

A query takes one token. Each Lakestore table in it is replaced by the table at that cut in the catalog `now`, which
Iceberg's own reader scans with all its files, filters and statistics. Nothing is leased: the server keeps a cut
readable for an hour after a load, and presents it again as long as log and snapshots allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import sqlglot
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from lakestore.client.snapshot import requirement
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, NotFound
from lakestore.model.alteration import Freshness, Requirement, Through
from lakestore.model.columns import LAKE_COLUMNS, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.times import At, position_text
from lakestore.model.token import position_of
from lakestore.union import plan
from lakestore.union.old_names import Spelling, spellings
from lakestore.v1.lakestore_pb2 import TableRequest
from lakestore_spark.cut_tables import CutTable
from lakestore_spark.types import Edit, Word, apply_edits, hint_names, is_cast, pairs, quote_name, spark_type, words_of

_ROWS = (exp.From, exp.Join, exp.Subquery)
"""Parents of a table that is read. Under any other parent the table is written."""
_KEPT_KINDS = ("VIEW", "FUNCTION")


class Query:
    """One statement about rows, and its `database.table` names. Raises `Invalid` if it is not parsed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = _parsed(text)
        found = self.tree.find_all(exp.Table)
        # Positions of names in hints are relative to the hint, so they are located by their words.
        self._tables = [
            table
            for table in found
            if table.db and not table.catalog and len(table.parts) == 2 and not isinstance(table.parent, exp.JoinHint)
        ]

    @property
    def names(self) -> list[str]:
        """Each `database.table` once. Names with a catalog, such as `lake.shop.orders`, belong to Spark."""
        return list(dict.fromkeys(_name(table) for table in self._tables))

    def check(self, ours: Collection[str]) -> None:
        """Refuse a statement that writes to a Lakestore table, or stores a cut for longer than it lives."""
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
        if isinstance(self.tree, exp.Alter):
            return True
        if not isinstance(self.tree, exp.Create) or self.tree.kind not in _KEPT_KINDS:
            return False
        return self.tree.find(exp.TemporaryProperty) is None

    def replace_tables(self, cuts: Mapping[str, CutTable], spelling: Spelling) -> str:
        """The text with these names replaced by tables at a cut, whose columns have the names of the spelling."""
        system = self._system_columns()
        for cut in cuts.values():
            _check_numbered(cut.table, system)
        queries = {
            name: cut.select([*cut.table.selected(None), *system], spelling.get(name)) for name, cut in cuts.items()
        }
        edits = [_table_edit(table, queries) for table in self._tables if _name(table) in cuts]
        known = {name.lower() for name in cuts}
        columns = (_column_edit(column, known) for column in self.tree.find_all(exp.Column))
        edits += [edit for edit in columns if edit is not None]
        edits += [Edit(start, end, quote_name(cuts[name].table.short_name)) for name, start, end in self._hinted(cuts)]
        return apply_edits(self.text, edits)

    def _hinted(self, ours: Collection[str]) -> Iterator[tuple[str, int, int]]:
        if self.tree.find(exp.Hint) is not None:
            yield from ((name, start, end) for name, start, end in hint_names(self.text) if name in ours)

    def _system_columns(self) -> list[str]:
        words = {identifier.name.lower() for identifier in self.tree.find_all(exp.Identifier)}
        return [name for name in LAKE_COLUMNS if name in words]


def _check_numbered(table: Table, columns: Collection[str]) -> None:
    """Refuse system columns of a table with adopted files, whose rows have nulls there for Spark."""
    asked = [name for name in LAKE_COLUMNS if name in columns]
    if asked and table.lake.adopted:
        raise Invalid(
            f"table {table.name} has adopted files, which have no {asked[0]} for Spark: read this column with"
            f" lake.table({table.name!r}).scan() of lakestore"
        )


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
    found = error.errors[0]
    description = str(found["description"]).split(" but got <")[0].rstrip(".")
    return f"{description}, at {found['highlight']!r} in line {found['line']}"


def _name(table: exp.Table) -> str:
    return f"{table.db}.{table.name}"


def _is_rows(table: exp.Table) -> bool:
    """True if rows of the table are read. Otherwise the table is written."""
    parent = table.parent
    if isinstance(parent, exp.Merge):
        return table.arg_key == "using"
    if isinstance(parent, exp.MultitableInserts):
        return table.arg_key == "source"
    return isinstance(parent, _ROWS)


def _table_edit(table: exp.Table, queries: Mapping[str, str]) -> Edit:
    start, end = _span(table.parts)
    query, alias = f"({queries[_name(table)]})", f" AS {quote_name(table.name)}"
    if isinstance(table.parent, exp.Merge):
        return Edit(start, end, query if table.args.get("alias") else query + alias)
    return Edit(start, end, f"({query}{alias})")


def _column_edit(column: exp.Column, names: Collection[str]) -> Edit | None:
    """Rewrite `shop.orders.customer` to `orders.customer`; None for a column without a database."""
    parts = column.parts
    if len(parts) < 3 or f"{parts[0].name}.{parts[1].name}".lower() not in names:
        return None
    return Edit(_span(parts[:1])[0], _span(parts[1:])[0], "")


def _span(parts: list[exp.Expr]) -> tuple[int, int]:
    first, last = parts[0].meta, parts[-1].meta
    return int(first["start"]), int(last["end"]) + 1


_TABLE, _COLUMN, _NAMES = ["col_name", "data_type", "comment"], ["info_name", "info_value"], ["col_name"]


def declared_answer(answer: DataFrame, table: Table) -> DataFrame:
    """The answer of DESCRIBE or SHOW COLUMNS without system columns. Other answers are unchanged."""
    if answer.columns == _TABLE:
        rows = list(_described(answer.collect(), table))
    elif answer.columns == _COLUMN:
        rows = list(_one_column(answer.collect(), table))
    elif answer.columns == _NAMES:
        rows = [tuple(row) for row in answer.collect() if row[0] not in LAKE_COLUMNS]
    else:
        return answer
    return answer.sparkSession.createDataFrame(rows, answer.schema)


def _described(rows: Sequence[Row], table: Table) -> Iterator[tuple[str, ...]]:
    in_columns = True
    for name, kind, comment in rows:
        in_columns &= bool(name)
        if not in_columns:
            yield name, kind, comment
        elif name not in LAKE_COLUMNS:
            yield name, _declared_type(table, name, kind), comment


def _one_column(rows: Sequence[Row], table: Table) -> Iterator[tuple[str, ...]]:
    said = dict(tuple(row) for row in rows)
    for name, value in rows:
        yield name, _declared_type(table, said.get("col_name", ""), value) if name == "data_type" else value


def _declared_type(table: Table, name: str, kind: str) -> str:
    found = next((column for column in table.columns if column.name == name and is_cast(column.type)), None)
    return spark_type(found.type).simpleString() if found else kind


class CachedTables:
    """Tables of one session that are cached at a cut."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cuts: dict[str, CutTable] = {}

    def position(self, names: Iterable[str]) -> str:
        """The newest cut of these tables in the cache; empty if none is cached."""
        held = [cut for name in names if (cut := self._cuts.get(name)) and self._is_held(name, cut)]
        return max((cut.token for cut in held), key=lambda token: position_of(token).lsn, default="")

    def mark_cached(self, cuts: Iterable[CutTable]) -> None:
        """Record that Spark has cached these tables."""
        self._cuts |= {cut.table.name: cut for cut in cuts}

    def renew(self, cuts: Iterable[CutTable]) -> None:
        """Make Spark cache these tables at their next read."""
        for cut in cuts:
            self._spark.sql(f"CACHE LAZY TABLE {cut.name}")
            self._cuts[cut.table.name] = cut

    def release(self, names: Iterable[str]) -> list[str]:
        """Make Spark forget these tables. Returns the names that it had cached."""
        held = [name for name in names if name in self._cuts]
        for cut in [self._cuts.pop(name) for name in held]:
            self._spark.sql(f"UNCACHE TABLE IF EXISTS {cut.name}")
        return held

    def _is_held(self, name: str, cut: CutTable) -> bool:
        """True if Spark still caches the table. Its cache may be cleared in other ways."""
        if self._spark.catalog.isCached(cut.name):
            return True
        del self._cuts[name]
        return False


_MODES = ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL")
_QUERY_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "(")
_NAMED = {"DESCRIBE", "DESC", "SHOW", "REFRESH", "UNCACHE", "ANALYZE"}
"""First words of statements that name tables anywhere in their text."""
_QUERY_FOLLOWS = {"AS", "UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "MINUS"}


class Kind(Enum):
    """Statements that need more than a replacement of names."""

    OTHER = auto()
    DESCRIBE = auto()
    CACHE = auto()
    UNCACHE = auto()
    REFRESH = auto()


class _Body(Protocol):
    """A parsed statement."""

    @property
    def names(self) -> list[str]: ...

    def check(self, ours: Collection[str]) -> None: ...

    def replace_tables(self, cuts: Mapping[str, CutTable], spelling: Spelling) -> str: ...


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, which may follow `EXPLAIN`."""

    kind: Kind
    prefix: str
    """For example `EXPLAIN FORMATTED `; empty without it."""
    body: _Body

    @staticmethod
    def of(text: str) -> Statement:
        words = words_of(text)
        inner = _inner(words)
        if inner:
            found = Statement.of(text[inner:])
            return Statement(Kind.OTHER, text[:inner] + found.prefix, found.body)
        first = words[0].text.upper() if words else ""
        if first in _NAMED:
            return Statement(_kind(words), "", _Named(text, words))
        if first == "CACHE" and _is_bare_cache(words):
            return Statement(Kind.CACHE, "", _Named(text, words))
        text = apply_edits(text, [Edit(word.start, word.end, "SELECT * FROM") for word in _table_queries(words)])
        try:
            return Statement(Kind.OTHER, "", Query(text))
        except Invalid as error:
            return Statement(Kind.OTHER, "", _Unread(text, words_of(text), error))

    @property
    def names(self) -> list[str]:
        return self.body.names

    def check(self, ours: Collection[str]) -> None:
        """Refuse statements that these tables do not support, above all writes."""
        self.body.check(ours)

    def replace_tables(self, cuts: Mapping[str, CutTable], spelling: Spelling) -> str:
        return self.prefix + self.body.replace_tables(cuts, spelling)


class _Named:
    """A statement that contains plain table names."""

    def __init__(self, text: str, words: list[Word]) -> None:
        self._text, self._pairs = text, list(pairs(words))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _, _ in self._pairs))

    def check(self, ours: Collection[str]) -> None:
        return

    def replace_tables(self, cuts: Mapping[str, CutTable], spelling: Spelling) -> str:
        edits = [Edit(start, end, cuts[name].name) for name, start, end in self._pairs if name in cuts]
        return apply_edits(self._text, edits)


class _Unread(_Named):
    """A statement that sqlglot cannot parse. Spark gets it unchanged if it names no Lakestore table."""

    def __init__(self, text: str, words: list[Word], error: Invalid) -> None:
        super().__init__(text, words)
        self._error = error

    def check(self, ours: Collection[str]) -> None:
        for name in self.names:
            if name in ours:
                raise Invalid(f"{self._error.message}; name table {name} as now.{name} and give it to spark.sql")


def _inner(words: list[Word]) -> int:
    said = [word.text.upper() for word in words[:3]] + ["", "", ""]
    if said[0] == "EXPLAIN":
        skipped = 2 if said[1] in _MODES else 1
    elif said[0] in ("DESCRIBE", "DESC") and (said[1] == "QUERY" or said[1] in _QUERY_STARTS):
        skipped = 2 if said[1] == "QUERY" else 1
    else:
        return 0
    return words[skipped].start if len(words) > skipped else 0


def _kind(words: list[Word]) -> Kind:
    first = words[0].text.upper()
    if first in ("DESCRIBE", "DESC", "SHOW"):
        return Kind.DESCRIBE
    return {"UNCACHE": Kind.UNCACHE, "REFRESH": Kind.REFRESH}.get(first, Kind.OTHER)


def _is_bare_cache(words: list[Word]) -> bool:
    """True if a table is cached under its own name. The cached result of a query has a name of one part."""
    name = 3 if len(words) > 1 and words[1].text.upper() == "LAZY" else 2
    return len(words) > name + 1 and words[name + 1].text == "."


def _table_queries(words: list[Word]) -> Iterator[Word]:
    inserts = bool(words) and words[0].text.upper() == "INSERT"
    for place, word in enumerate(words):
        if word.text.upper() != "TABLE" or word.is_own or not _is_name(words, place + 1):
            continue
        before = words[place - 1].text.upper() if place else ""
        behind_target = inserts and (before == ")" or _is_own(words, place - 1))
        in_parentheses = before == "(" and not _is_own(words, place - 2)
        if not place or before in _QUERY_FOLLOWS or behind_target or in_parentheses:
            yield word


def _is_name(words: list[Word], place: int) -> bool:
    return place < len(words) and words[place].is_name


def _is_own(words: list[Word], place: int) -> bool:
    return place >= 0 and words[place].is_own


_RELEASES = (Kind.CACHE, Kind.UNCACHE, Kind.REFRESH)


class SparkLake:
    """A server's tables in a Spark session; created by `attach`."""

    def __init__(
        self, spark: SparkSession, transport: Transport, *, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.spark = spark
        self._on_close = on_close
        self._reads = SparkLakeAt(spark, transport)

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> DataFrame:
        """The table at the current head. System columns must be named. Requirements are as in `sql`."""
        return self._reads.table(
            name, columns, require_freshness=require_freshness, require_complete_through=require_complete_through
        )

    def sql(
        self,
        text: str,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> DataFrame:
        """A Spark SQL statement. Its `database.table` names are Lakestore tables, all at one cut.

        A table kept by `CACHE TABLE` is read at its cached cut, and so are the other tables of the query, until
        `UNCACHE TABLE` or `REFRESH TABLE`. `require_freshness="60s"` or `require_complete_through` (a time) applies to
        all these tables. The head is waited for as long as in `Lake.sql`; then `NotFresh` is raised.
        """
        return self._reads.sql(
            text, require_freshness=require_freshness, require_complete_through=require_complete_through
        )

    def at(self, position: At) -> SparkLakeAt:
        """The same reads at the cut of a token or time (UTC without a zone)."""
        return self._reads.at(position_text(position) if position else "")

    def close(self) -> None:
        """Close the connection to the server. DataFrames stay readable. Idempotent."""
        self._on_close()


class SparkLakeAt:
    """Reads at the cut of a token or time; at the current head without one."""

    def __init__(self, spark: SparkSession, transport: Transport, position: str = "") -> None:
        self._spark = spark
        self._transport = transport
        self._position = position
        self._cached = CachedTables(spark)

    def at(self, position: str) -> SparkLakeAt:
        """The same reads at another position."""
        return SparkLakeAt(self._spark, self._transport, position)

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> DataFrame:
        """The table at the cut. System columns must be named. Requirements are as in `sql`."""
        cut = self._cuts([name], requirement(require_freshness, require_complete_through))[name]
        wanted = cut.table.selected(list(columns or ()))
        for column in wanted:
            if column in SYSTEM_TYPES and column not in LAKE_COLUMNS:
                raise Invalid(f"table {name}: rows have no column {column}, changes have it")
        _check_numbered(cut.table, wanted)
        return self._spark.sql(cut.select(wanted))

    def sql(
        self,
        text: str,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> DataFrame:
        """A Spark SQL statement at the cut. A cut that does not meet the requirements is refused as `NotFresh`."""
        statement = Statement.of(text)
        ours = [name for name in statement.names if self._is_ours(name)]
        if not ours:
            return self._spark.sql(text)
        statement.check(ours)
        released = self._cached.release(ours) if statement.kind in _RELEASES else []
        cuts = self._cuts(ours, requirement(require_freshness, require_complete_through))
        found = self._analyzed(text, statement, cuts)
        if statement.kind is Kind.CACHE:
            self._cached.mark_cached(cuts.values())
        elif statement.kind is Kind.REFRESH:
            self._cached.renew(cuts[name] for name in released)
        elif statement.kind is Kind.DESCRIBE:
            return declared_answer(found, cuts[ours[0]].table)
        return found

    def _analyzed(self, text: str, statement: Statement, cuts: Mapping[str, CutTable]) -> DataFrame:
        """The answer with the first spelling of the columns in which Spark finds every name of the query."""
        words = {word.text.strip("`").lower() for word in words_of(text)}
        refusal: AnalysisException | None = None
        for spelling in spellings({name: cut.table for name, cut in cuts.items()}, words):
            try:
                return self._spark.sql(statement.replace_tables(cuts, spelling))
            except AnalysisException as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _is_ours(self, name: str) -> bool:
        try:
            self._transport.get_table(TableRequest(table=name))
        except NotFound:
            return False
        return True

    def _cuts(self, names: Sequence[str], require: Requirement | None) -> dict[str, CutTable]:
        position = self._position or self._cached.position(names)
        request = plan.request(names, at=position, no_dead=True, require=require)
        found = plan.decode(self._transport.plan(request))
        return {name: CutTable(found.scan(name).table, found.token) for name in names}

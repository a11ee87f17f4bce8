"""The text of a query: one statement, the tables that it names, and past cuts (`FROM t AT (…)`).

`AT (TIMESTAMP => …)`, `AT (VERSION => …)` and `AT (TOKEN => …)` follow a table's name, as in DuckDB. The name and the
clause are replaced by the name of a view before DuckDB sees the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from lakestore.errors import Invalid
from lakestore.union.sql_functions import OWN_SCHEMAS

TEXT_CHARS_MAX = 1 << 20
TEXTS_KEPT, KEPT_CHARS_MAX = 64, 1_024
"""Programs send the same texts again and again, and reading one takes as long as a small query: so many of the last
texts are kept as they were read, if they are no longer than this.
"""
PAST = "__lakestore_at_"
"""The schema prefix of tables at a past cut; the cut's number follows."""
_MASK = "__lakestore_parameter_"
_QUERIES = (exp.Query, exp.Describe, exp.Summarize)
_EXPLAIN = re.compile(r"\s*EXPLAIN\b(\s+ANALYZE\b)?", re.IGNORECASE)
_SHOW = re.compile(r"\s*SHOW\s+(?:ALL\s+)?(TABLES|DATABASES|SCHEMAS)(?:\s+(?:FROM|IN)\s+(\w+))?\s*;?\s*", re.IGNORECASE)
_PARAMETER = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/"""
    r"""|\$(?P<tag>[^\W\d]\w*|)\$.*?\$(?P=tag)\$|\$(?P<number>\d+)|(?P<mark>\?)|(?P<end>;)|\w[\w$]*""",
    re.DOTALL,
)
"""Parameters and semicolons, and the parts of a text in which there are none: literals, names, comments."""
_NOTHING = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_ARGUMENTS = re.compile("Required keyword: .* missing for|number of provided arguments")
_KINDS = {"timestamp", "version", "token"}
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
SHOWN_TABLES = """
SELECT table_schema AS database, table_name AS "table", count(*) AS columns,
    count(*) FILTER (column_name IN (SELECT column_name FROM information_schema.key_column_usage k
        WHERE k.table_schema = c.table_schema AND k.table_name = c.table_name)) > 0 AS keyed
FROM information_schema.columns c GROUP BY 1, 2 {having} ORDER BY 1, 2
"""
SHOWN_DATABASES = (
    "SELECT DISTINCT table_schema AS database FROM information_schema.tables WHERE table_schema <> 'main' ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A query as it is passed to DuckDB."""

    text: str
    tree: exp.Expr
    """Nobody changes it: queries of the same text share it."""
    explained: bool = False
    """Whether to explain the query instead of running it."""
    past: tuple[tuple[str, str], ...] = ()
    """Table and position (an SQL expression) of each past cut. Its index is the cut's number."""
    names: tuple[str, ...] = field(default=())
    """The `database.table` names at the query's own cut."""

    @property
    def of_catalog(self) -> bool:
        """Whether the query is about the tables themselves: DESCRIBE, information_schema."""
        if isinstance(self.tree, exp.Describe) and isinstance(self.tree.this, exp.Table):
            return True
        return any(table.db.lower() in ("information_schema", "pg_catalog") for table in self.tree.find_all(exp.Table))


def statement(text: str) -> Statement:
    """Parses a text. Raises `Invalid` unless it is one statement."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(f"the query has {len(text)} characters; at most {TEXT_CHARS_MAX} are read")
    return _kept_statement(text) if len(text) <= KEPT_CHARS_MAX else _statement(text)


def _statement(text: str) -> Statement:
    text = _numbered(_without_end(text))
    if shown := _SHOW.fullmatch(text):
        text = _shown(shown[1].upper(), shown[2])
    explained = _EXPLAIN.match(text)
    if explained:
        text = text[explained.end() :]
    text, past = without_past(text)
    tree = _parsed(text)
    names = [name for name in table_names(tree) if not name.startswith(PAST)]
    return Statement(text, tree, explained is not None, tuple(past), tuple(names))


_kept_statement = lru_cache(TEXTS_KEPT)(_statement)


def parameter_places(text: str) -> list[tuple[int, int, int]]:
    """(number from 0, begin, end) of each parameter `$1` or `?` in a text."""
    places, marks = list[tuple[int, int, int]](), 0
    for match in _PARAMETER.finditer(text):
        if match["number"]:
            places.append((int(match["number"]) - 1, match.start(), match.end()))
        elif match["mark"]:
            places.append((marks, match.start(), match.end()))
            marks += 1
    return places


def _without_end(text: str) -> str:
    """The text without its semicolon and the comments behind it."""
    end = next((match.start() for match in _PARAMETER.finditer(text) if match["end"]), len(text))
    return text[:end] if _NOTHING.fullmatch(text, end) else text


def _numbered(text: str) -> str:
    """The text with `$1`, `$2`, … for each `?`."""
    places = parameter_places(text)
    parts, done = list[str](), 0
    for number, begin, end in places:
        parts += [text[done:begin], f"${number + 1}"]
        done = end
    has_both = len({text[begin] for _, begin, _ in places}) > 1  # DuckDB refuses it
    return text if has_both else "".join([*parts, text[done:]])


def _shown(what: str, database: str | None) -> str:
    if what != "TABLES":
        return SHOWN_DATABASES
    return SHOWN_TABLES.format(having=f"HAVING table_schema = '{database}'" if database else "")


def _parsed(text: str) -> exp.Expr:
    """The tree of a text. Raises `Invalid` unless it is one query."""
    try:
        trees = [tree for tree in sqlglot.parse(_masked(text), dialect="duckdb") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        if isinstance(error, ParseError) and (name := _miscalled(text, error)):
            wrong = f"Binder Error: No function matches the given name and number of arguments '{name}'"
            raise Invalid(f"the query failed: {wrong}") from error
        raise Invalid(f"the query cannot be read: {plain(error)}{past_hint(text)}") from error
    if not trees:
        raise Invalid("the query is empty")
    if len(trees) != 1 or not isinstance(trees[0], _QUERIES):
        raise Invalid(
            "lake.sql takes one query (SELECT, SHOW TABLES, DESCRIBE, EXPLAIN …); rows are written by upsert, append"
            " and delete"
        )
    for column in list(trees[0].find_all(exp.Column)):
        if column.name.startswith(_MASK) and not column.table:
            column.replace(exp.Placeholder(this=column.name.removeprefix(_MASK)))
    return trees[0]


def _masked(text: str) -> str:
    """The text with a column's name for each `$1`: sqlglot takes a `$` for the begin of a string."""
    parts, done = list[str](), 0
    for number, begin, end in parameter_places(text):
        if text[begin] == "$":
            parts += [text[done:begin], f"{_MASK}{number + 1}"]
            done = end
    return "".join([*parts, text[done:]])


def table_names(tree: exp.Expr) -> list[str]:
    """The `database.table` names of a query. Names without a database are functions of DuckDB or WITH parts."""
    found = [table for table in tree.find_all(exp.Table) if table.db and table.db.lower() not in OWN_SCHEMAS]
    return list(dict.fromkeys(f"{table.db}.{table.name}" for table in found if not table.catalog))


def bare_names(tree: exp.Expr) -> list[str]:
    """Table names without a database, except the query's WITH parts."""
    parts = {part.alias for part in tree.find_all(exp.CTE)}
    found = [table.name for table in tree.find_all(exp.Table) if not table.db]
    return list(dict.fromkeys(name for name in found if name and name not in parts))


def without_past(text: str, database_of: Callable[[str], str] = lambda name: "") -> tuple[str, list[tuple[str, str]]]:
    """The text with each table at a past cut replaced by a view's name; the tables and their positions.

    `database_of` returns the database of a table whose name has none; empty if there is no such table.
    """
    if not re.search(r"\bAT\s*\(", text, re.IGNORECASE):
        return text, []
    try:
        marked = list(text)
        for _, begin, _ in parameter_places(text):
            marked[begin] = "?"  # as long as `$`, which sqlglot takes for the begin of a string
        tokens = sqlglot.tokenize("".join(marked), read="duckdb")
    except SqlglotError as error:
        raise Invalid(f"the query cannot be read: {plain(error)}") from error
    said: list[str] = []
    past: list[tuple[str, str]] = []
    done = 0
    for place in range(len(tokens)):
        found = _clause(tokens, place, database_of)
        if found is None:
            continue
        first, name, end = found
        position = (name, text[tokens[place + 4].start : tokens[end].start].strip())
        if position not in past:
            past.append(position)
        said += [text[done : tokens[first].start], f'"{PAST}{past.index(position)}"."{name.split(".")[1]}"']
        done = tokens[end].end + 1
    return "".join([*said, text[done:]]), past


def _clause(tokens: list[Any], place: int, database_of: Callable[[str], str]) -> tuple[int, str, int] | None:
    """The first token of the name, the name, and the closing token, if `AT (KIND => …)` begins at this token; else
    None.
    """
    words = [token.text.lower() for token in tokens[place : place + 4]]
    if len(words) < 4 or words[0] != "at" or words[1] != "(" or words[2] not in _KINDS:
        return None
    if tokens[place + 3].token_type is not TokenType.FARROW and words[3] != "=>":
        return None
    depth, end = 1, place + 4
    while end < len(tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[end].token_type, 0)
        if not depth:
            break
        end += 1
    dotted = tokens[place - 1].token_type is TokenType.IDENTIFIER and "." in tokens[place - 1].text
    if dotted and end < len(tokens):
        return place - 1, tokens[place - 1].text, end
    has_database = place >= 3 and tokens[place - 2].token_type is TokenType.DOT
    if end < len(tokens) and not has_database and (database := database_of(tokens[place - 1].text)):
        return place - 1, f"{database}.{tokens[place - 1].text}", end
    if not has_database or end == len(tokens):
        raise Invalid("AT (…) follows a table's name, written database.table, and precedes its alias")
    return place - 3, f"{tokens[place - 3].text}.{tokens[place - 1].text}", end


def _miscalled(text: str, error: ParseError) -> str:
    """The function that a text calls with too few or too many arguments; empty for another error."""
    if not _ARGUMENTS.search(str(error)):
        return ""
    line, column = (error.errors[0].get(key) for key in ("line", "col"))
    tokens = sqlglot.tokenize(_masked(text), read="duckdb")
    place = next((at for at, each in enumerate(tokens) if (each.line, each.col) == (line, column)), -1)
    depth = 0
    while place > 0:
        depth += {")": 1, "(": -1}.get(tokens[place].text, 0)
        if depth <= 0:
            break
        place -= 1
    return str(tokens[place - 1].text) if place > 0 and tokens[place].text == "(" else ""


def past_name(place: int, table: str) -> str:
    """The name of the view of a table at the past cut with this number."""
    return f"{PAST}{place}.{table.split('.')[1]}"


def past_hint(text: str) -> str:
    """The syntax of a past cut, for a text that uses another dialect's syntax; empty for other texts."""
    if not re.search(r"\b(AS\s+OF|FOR\s+(SYSTEM_)?(TIME|VERSION))\b", text, re.IGNORECASE):
        return ""
    return "; for a past cut write FROM shop.orders AT (TIMESTAMP => '2026-11-20T10:00Z'), or AT (TOKEN => '…')"


def plain(error: BaseException) -> str:
    """The message of DuckDB's or sqlglot's parser on one line, without colours and without the marked source text."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(re.split(r"\n\s*LINE \d+:", said)[0].split())

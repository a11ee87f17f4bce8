"""SQLite's sqllogictest files, fetched by Maven coordinates, and their queries asked of two engines.

- A file makes tables, fills them and asks queries. Conditions (`skipif`, `onlyif`) are read as PostgreSQL.
- DuckDB runs the statements. Before the next query the tables go to the lake as they are then.
- A query is asked through the Postgres port and in DuckDB. The answers must agree as the file's sort mode says.
- If they do not, or if both are errors, a PostgreSQL with the same tables says which answer is right.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import psycopg

from lakestore.client.lake import Lake
from lakestore_demo.ivy import fetch
from tests.support.postgres import DATABASE, USER, Postgres

VERSION = "0.3"
_JARS = (f"net.hydromatic:sql-logic-test:{VERSION}",)
_ENGINE = "postgresql"
_FLOAT = re.compile(r"\bFLOAT\b")
_MADE_BY_SQL = re.compile(r"view|trigger")
_INDEX = re.compile(r"(CREATE (UNIQUE )?|DROP )INDEX|REINDEX")
CLOSE = 1e-12
"""Relative difference of numbers with a point: PostgreSQL has numeric where DuckDB has double."""

Row = tuple[Any, ...]


class Record(NamedTuple):
    """A statement or a query of a file. `line` is the line of its first word; `sort` is empty for a statement."""

    line: int
    text: str
    sort: str

    @property
    def is_query(self) -> bool:
        """Whether rows come back."""
        return bool(self.sort)


def archive() -> zipfile.ZipFile:
    """The files. The caller closes it."""
    (jar,) = fetch("sqllogictest", VERSION, _JARS, transitive=False).glob("*.jar")
    return zipfile.ZipFile(jar)


def names(files: zipfile.ZipFile) -> list[str]:
    """Names of the files in order, without those whose queries need views or triggers: both are made by SQL."""
    return sorted(name for name in files.namelist() if name.endswith(".test") and not _MADE_BY_SQL.search(name))


def records(text: str) -> Iterator[Record]:
    """The records that PostgreSQL is meant to run."""
    place = 1
    for block in re.split(r"\n[ \t]*\n", text.replace("\r", "")):
        yield from _record(block.split("\n"), place)
        place += block.count("\n") + 2


def _record(lines: Sequence[str], place: int) -> Iterator[Record]:
    for number, line in enumerate(lines):
        words = line.split("#")[0].split()
        if not words or words[0] in ("hash-threshold",):
            continue
        if (words[0] == "skipif" and words[1] == _ENGINE) or (words[0] == "onlyif" and words[1] != _ENGINE):
            return
        if words[0] in ("statement", "query"):
            rest = list(lines[number + 1 :])
            if "----" in rest:
                rest = rest[: rest.index("----")]
            text = "\n".join(rest).strip()
            is_query = words[0] == "query"
            yield Record(place + number, text, (words[2:3] or ["nosort"])[0] if is_query else "")
            return


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, or the message of an error."""

    rows: Sequence[Row] = ()
    error: str = ""

    def agrees(self, other: Answer, sort: str) -> bool:
        """Whether two engines say the same."""
        if self.error or other.error:
            return bool(self.error) and bool(other.error)
        mine, theirs = _sorted(self.rows, sort), _sorted(other.rows, sort)
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))


def _sorted(rows: Sequence[Row], sort: str) -> list[Row]:
    if sort == "valuesort":
        return sorted(((value,) for row in rows for value in row), key=_order)
    return sorted(rows, key=_order) if sort == "rowsort" else list(rows)


def _order(row: Row) -> list[tuple[int, float, str]]:
    return [
        (0, 0.0, "") if value is None else (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
        for value in row
    ]


def _same(mine: Row, theirs: Row) -> bool:
    return len(mine) == len(theirs) and all(map(_equal, mine, theirs))


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float | Decimal) and isinstance(theirs, int | float | Decimal):
        return math.isclose(mine, theirs, rel_tol=CLOSE)
    if isinstance(theirs, float | Decimal) and isinstance(mine, int):
        return math.isclose(mine, theirs, rel_tol=CLOSE)
    return type(mine) is type(theirs) and mine == theirs


class Tables:
    """The tables of one file: in DuckDB, which runs the statements, and in a database of the lake."""

    def __init__(self, lake: Lake, database: str) -> None:
        self._lake, self._database = lake, database
        self._duck = duckdb.connect(":memory:", config={"threads": "1"})
        self._duck.execute("SET integer_division = true")  # 7 / 2 is 3 in PostgreSQL
        self._statements: list[str] = []
        self._is_stale = False
        self._carried: list[str] = []

    def run(self, text: str) -> None:
        """Run a statement that the file has."""
        text = _FLOAT.sub("DOUBLE", text)  # FLOAT has 8 bytes in PostgreSQL, 4 in DuckDB
        if _INDEX.match(text):
            return
        with suppress(duckdb.Error):  # some statements are expected to fail
            self._duck.execute(text)
            self._statements.append(text)
            self._is_stale = True

    def ask(self, text: str) -> Answer:
        """DuckDB's answer."""
        try:
            return Answer(self._duck.execute(text).fetchall())
        except duckdb.Error as error:
            return Answer(error=str(error))

    def carry(self) -> None:
        """Make the lake's tables those of DuckDB."""
        if not self._is_stale:
            return
        self._is_stale = False
        self.drop()
        rows = self._duck.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for (name,) in rows:
            (keys,) = self._duck.execute(
                "SELECT list(constraint_column_names) FROM duckdb_constraints()"
                " WHERE table_name = ? AND constraint_type = 'PRIMARY KEY'", [name],
            ).fetchone() or ([],)  # fmt: skip
            data = self._duck.table(name).to_arrow_table()
            table = self._lake.create_table(f"{self._database}.{name}", data.schema, primary_key=(keys or [[]])[0])
            self._carried.append(f"{self._database}.{name}")
            if len(data):
                (table.upsert if keys else table.append)(data)

    def drop(self) -> None:
        """Drop the lake's tables."""
        while self._carried:
            self._lake.drop_table(self._carried.pop())

    def judged(self, real: Postgres, text: str) -> Answer:
        """The answer of a PostgreSQL whose tables are those of DuckDB."""
        with psycopg.connect(host="127.0.0.1", port=real.port, user=USER, dbname=DATABASE) as connection:
            connection.execute(f"CREATE SCHEMA {self._database}".encode())
            connection.execute(f"SET search_path = {self._database}".encode())
            for statement in self._statements:
                connection.execute(statement.replace("DOUBLE", "FLOAT8").encode())
            answer = ask(connection, text)
            connection.rollback()
        return answer

    def close(self) -> None:
        """End DuckDB."""
        self._duck.close()


def ask(connection: psycopg.Connection[Any], text: str) -> Answer:
    """The answer of a server of the Postgres protocol."""
    try:
        return Answer(connection.execute(text.encode()).fetchall())
    except psycopg.Error as error:
        return Answer(error=str(error))

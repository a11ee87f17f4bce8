"""Texts in PostgreSQL's dialect, asked of the port and of a real PostgreSQL with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.pq import DiagnosticField

from tests.support.dialect_texts import (
    ITEMS,
    TYPES,
    DialectAnswer,
    DialectText,
    dialect_answer,
    dialect_texts,
    items_rows,
    make_postgres_items,
)
from tests.support.postgres import USER, Postgres
from tests.support.sql_door import Door

TEXTS = list(dialect_texts())
GROUPS = sorted({text.group for text in TEXTS})


@pytest.fixture(scope="module")
def lakestore(door: Door) -> Iterator[psycopg.Connection[Any]]:
    table = door.lake.create_table("shop.items", ITEMS, primary_key=["id"])
    table.upsert(pa.Table.from_pylist(items_rows(), ITEMS))
    with door.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    with (
        Postgres() as server,
        psycopg.connect(host="127.0.0.1", port=server.port, user=USER, dbname="shop", autocommit=True) as connection,
    ):
        make_postgres_items(connection)
        yield connection


@pytest.mark.parametrize("group", GROUPS)
def test_the_port_answers_as_postgresql_unless_the_file_says_why_not(
    group: str, lakestore: psycopg.Connection[Any], postgres: psycopg.Connection[Any]
) -> None:
    """Fails too for a text that is said to differ and does not."""
    told: list[tuple[DialectText, str]] = []
    for text in TEXTS:
        if text.group == group:
            said = dialect_answer(lakestore, text.text).difference(dialect_answer(postgres, text.text))
            if bool(said) != bool(text.differs):
                told.append((text, said or "no difference"))
    assert told == []


PLACED = (
    "SELECT nope FROM shop.items",
    "SELECT id,\n  'nope', /* nope */ \"Nope\" FROM shop.items",
    "SELECT 'ä' || '😀', nope FROM shop.items",
    "SELECT i.nope FROM shop.items i",
    "SELECT x.id FROM shop.items",
    "SELECT a.id, id FROM shop.items a JOIN shop.items b ON true",
    "SELECT t, sum(n) FROM shop.items",
    "SELECT * FROM shop.nothing",
    "SELECT nofunc(1) FROM shop.items",
    "SELECT id FROM shop.items WHERE n = 'abc'::int",
    "SELECT id FROM",
    "SELECT 1; SELECT nope FROM shop.items",
    "SELECT id,\n  t + day\nFROM shop.items",
    "SELECT n + 1, t + day, 3 + n FROM shop.items",
    f"SELECT {', '.join(f'n + {number} AS c{number}' for number in range(40))}, t + day, n + 1 FROM shop.items",
    "SELECT 'ä' || '😀', t + day FROM shop.items",
    "SELECT 1; SELECT -t FROM shop.items",
    "SELECT id FROM shop.items WHERE day > 5",
    "SELECT id FROM shop.items WHERE n ~ 'a'",
    "SELECT id FROM shop.items WHERE n > 1 AND count(*) > 5",
    "SELECT sum(sum(n)) FROM shop.items",
    "SELECT id FROM shop.items WHERE row_number() OVER () = 1",
    "SELECT id::nosuch FROM shop.items",
    "SELECT CAST(id AS nosuch) FROM shop.items",
    "SELECT lower(t), upper(lower(t), 5) FROM shop.items",
    "SELECT date_trunc('day') FROM shop.items",
    "SELECT abs(t) FROM shop.items",
    "SELECT sum(n), sum(t) FROM shop.items",
    "SELECT width_bucket(1, 2)",
    "SELECT id FROM shop.items ORDER BY 1, 3",
    "SELECT n FROM shop.items GROUP BY 1, 5",
    "SELECT count(*) FROM shop.items GROUP BY id HAVING n > 1",
    "SELECT x.* FROM shop.items i",
    "SELECT date '2024-13-01'",
    "SELECT id FROM shop.items LIMIT 'a'",
    "SELECT lower(t) OVER () FROM shop.items",
    "SELECT sum(n) OVER w FROM shop.items",
    "SELECT id, sum(id) OVER (PARTITION BY n + t) FROM shop.items",
    "EXPLAIN SELECT t + day FROM shop.items",
)
"""Texts with an error at a place."""


@pytest.mark.parametrize("text", PLACED)
def test_an_error_is_where_postgresql_says_it_is(
    text: str, lakestore: psycopg.Connection[Any], postgres: psycopg.Connection[Any]
) -> None:
    ours, theirs = (_place(connection, text) for connection in (lakestore, postgres))
    assert ours == theirs
    assert theirs[1]


def _place(connection: psycopg.Connection[Any], text: str) -> tuple[str, str]:
    """The SQLSTATE of the error of a text, and its position."""
    result = connection.pgconn.exec_(text.encode())
    code, position = (
        (result.error_field(field) or b"").decode()
        for field in (DiagnosticField.SQLSTATE, DiagnosticField.STATEMENT_POSITION)
    )
    return code, position


def test_most_texts_are_compared() -> None:
    assert len(TEXTS) > 500
    assert sum(not text.differs for text in TEXTS) > 450


def test_every_difference_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/postgres.md").read_text()
    section = page.partition("\n## Differences\n")[2].partition("\n## ")[0].replace("\\|", "|")
    told = {cells[1].strip() for line in section.splitlines() if len(cells := line.split(" | ")[0].split("| ", 1)) > 1}
    reasons = {text.differs for text in TEXTS if text.differs}
    assert reasons - told == set()
    assert told - reasons == {"difference", "refused"}


def test_a_difference_is_seen_in_code_rows_names_and_types() -> None:
    one = DialectAnswer("", ("a",), (20,), (("1",),))
    assert one.difference(one) == ""
    assert (20, 23) in TYPES
    assert one.difference(DialectAnswer("", ("a",), (23,), (("1",),))) == ""
    for other in (
        DialectAnswer("22012"),
        DialectAnswer("", ("b",), (20,), (("1",),)),
        DialectAnswer("", ("a",), (25,), (("1",),)),
        DialectAnswer("", ("a",), (20,), (("2",),)),
        DialectAnswer("", ("a",), (20,), ()),
    ):
        assert one.difference(other) != ""

"""Texts made of DuckDB's whole catalog: in what the allow list takes, the binder finds listed functions only.

The judge is independent of the list's walk: `json_serialize_plan` says what a text is bound to, with macros and views
expanded.
No text is run. `make long` draws other texts each time, and prints their seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from lakestore.errors import Invalid
from lakestore.union import sql_functions as lists
from lakestore.union import sql_gate
from lakestore.union.sql_gate import Rules
from tests.support.seeds import seeded

RULES = Rules(frozenset({"shop.orders"}))
BOUND = {"BOUND_FUNCTION", "BOUND_AGGREGATE", "BOUND_WINDOW"}
BINDER = {"seq_scan", "duckdb_views", "struct_extract_at", "unnest", "column_data_scan"}
"""What DuckDB itself puts in the place of a table, of information_schema and of a struct's field."""
CONSTANTS = [
    "1", "-1", "0", "2.5", "1e3", "'x'", "'a,b'", "''", "NULL", "true", "[1, 2]", "['a']", "[]", "{'a': 1}",
    "MAP {'a': 1}", "DATE '2026-01-01'", "TIMESTAMP '2026-01-01'", "TIMESTAMPTZ '2026-01-01'", "INTERVAL 1 DAY",
    "x'00ff'::BLOB", "'{\"a\": 1}'::JSON", "'1'::BIT", "id", "name", "x -> x", "lambda x, y: x", "'%Y'", "'sum'",
    "'SELECT 1'", "'finalize'", "'/etc/passwd'", "*", "(SELECT 1)", "[[1]]", "1::UTINYINT", "'8a1e'::VARIANT", "?",
]  # fmt: skip
FORMS = [
    "SELECT {0}", "SELECT {0} FROM shop.orders", "SELECT sum(id) FILTER ({0}) FROM shop.orders", "SELECT * FROM {0}",
    "SELECT * FROM shop.orders, LATERAL (SELECT {0})", "SELECT id FROM shop.orders WHERE {0} IS NULL", "VALUES ({0})",
    "SELECT {0} OVER (PARTITION BY name ORDER BY id) FROM shop.orders", "SUMMARIZE SELECT {0}",
    "SELECT [{0} FOR x IN [1]]",
    "WITH q AS (SELECT {0} AS a) SELECT {1} FROM q", "SELECT {0} UNION ALL SELECT {1}",
    "SELECT CASE WHEN {0} THEN {1} END",
    "SELECT any_value({0}) FROM shop.orders GROUP BY {1}", "DESCRIBE SELECT {0}", "SELECT ({0}).{1}", "SELECT x.{0}",
    "FROM range({0}), {1}", "SELECT COLUMNS(*)::VARCHAR || {0} FROM shop.orders", "SELECT {0}; SELECT {1}", "CALL {0}",
    "PRAGMA {0}", "SET VARIABLE a = {0}", "CREATE MACRO m(x) AS {0}", "COPY (SELECT {0}) TO '/tmp/x'",
    "EXPLAIN SELECT {0}",
    "PREPARE p AS SELECT {0}", "ATTACH {0}", "INSERT INTO shop.orders SELECT {0}", "SELECT {0} COLLATE de",
    "PIVOT shop.orders ON {0}",
    "SELECT * FROM shop.orders AT (VERSION => {0})", "SELECT * FROM query({0})",
    "SELECT {0} EXPORT_STATE FROM shop.orders",
]  # fmt: skip


def _connection() -> Any:
    settings: dict[str, Any] = {**sql_gate.CLOSED, "threads": "1", "memory_limit": "512MB"}
    connection = duckdb.connect(config=settings)
    connection.execute("CREATE SCHEMA shop")
    connection.execute("CREATE TABLE shop.orders (id BIGINT, name VARCHAR, place STRUCT(city VARCHAR))")
    return connection


def _catalog(connection: Any) -> tuple[list[str], list[str]]:
    """(names of all functions, the calls that DuckDB's documentation shows)."""
    names = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY 1").fetchall()
    shown = connection.execute("SELECT DISTINCT unnest(examples) FROM duckdb_functions() ORDER BY 1").fetchall()
    return [name for (name,) in names], [text for (text,) in shown]


def _calls(draw: random.Random, names: list[str], shown: list[str], depth: int = 0) -> str:
    """A call of any function, with any arguments, deep at times."""
    if draw.random() < 0.2:
        return draw.choice(shown)
    name = draw.choice(names)
    name = draw.choice([name, name.upper(), f'"{name}"', f"main.{name}", f"system.main.{name}"])
    arguments = [
        _calls(draw, names, shown, depth + 1) if depth < 2 and draw.random() < 0.2 else draw.choice(CONSTANTS)
        for _ in range(draw.randrange(5))
    ]
    return f"{name}({', '.join(arguments)})"


def _bound(connection: Any, text: str) -> Iterator[str]:
    """The functions that DuckDB binds a text to; none if it refuses the text."""
    asked = "SELECT json_serialize_plan(?::VARCHAR, skip_default := true, skip_empty := true, optimize := false)"
    try:
        (answer,) = connection.execute(asked, [text]).fetchone()
    except duckdb.Error:
        return
    left: list[Any] = [json.loads(answer)]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("expression_class") in BOUND or node.get("type") == "LOGICAL_GET":
                yield str(node.get("name") or "first_value").lower()  # a window without an aggregate has no name
            left += node.values()
        elif isinstance(node, list):
            left += node


def _judge(connection: Any, text: str) -> bool:
    """Whether the list takes a text; then DuckDB finds listed functions in it only."""
    try:
        sql_gate.check(duckdb, text, RULES)
    except Invalid:
        return False
    strange = set(_bound(connection, text)) - lists.FUNCTIONS - lists.TABLE_FUNCTIONS - BINDER
    assert not {name for name in strange if not name.startswith(lists.REFUSED_PREFIXES)}, text
    return True


def _run(draw: random.Random, count: int) -> None:
    connection = _connection()
    names, shown = _catalog(connection)
    taken = 0
    for _ in range(count):
        text = draw.choice(FORMS).format(_calls(draw, names, shown), _calls(draw, names, shown))
        taken += _judge(connection, text)
    assert count * 0.02 < taken < count * 0.8, "the texts are all refused, or all taken: they test nothing"


def test_documented_calls_are_judged_as_their_functions_are() -> None:
    connection = _connection()
    _, shown = _catalog(connection)
    taken = [text for text in shown if _judge(connection, f"SELECT {text}")]
    assert len(taken) > len(shown) * 0.7


def test_texts_of_one_seed() -> None:
    _run(seeded(31), 1_500)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_texts_of_any_seed() -> None:
    _run(seeded(), 10_000)

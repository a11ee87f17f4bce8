"""The allow list of SQL: every function of the installed DuckDB is judged, and a query runs listed ones only."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.errors import Invalid, LakestoreError
from lakestore.union import sql_functions as lists
from lakestore.union import sql_gate
from lakestore.union.sql_gate import Rules
from tests.support.served import Served

RULES = Rules(frozenset({"shop.orders", "shop.orders at"}), frozenset({"shop.whole"}))
REFUSED = frozenset().union(*lists.REFUSED.values())


@pytest.fixture
def lake(served: Served) -> Lake:
    served.lake.create_table("shop.orders", pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_key=["id"])
    served.lake.table("shop.orders").upsert([{"id": number, "name": "x"} for number in range(5)])
    return served.lake


def _catalog(query: str) -> list[Any]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def _functions() -> list[tuple[str, bool]]:
    """(name in lower case, whether it is a table function) of each function of the installed DuckDB."""
    rows = _catalog("SELECT DISTINCT lower(function_name), function_type FROM duckdb_functions()")
    return sorted({(name, kind.startswith("table")) for name, kind in rows if kind != "pragma"})


def _is_listed(name: str, *, is_table: bool) -> bool:
    return name in (lists.TABLE_FUNCTIONS | lists.FILE_TABLES if is_table else lists.FUNCTIONS)


def test_every_function_of_this_duckdb_is_listed_or_refused_with_a_reason() -> None:
    """After an upgrade of DuckDB this names the functions that somebody has to judge. Until then they are refused."""
    unjudged = [
        name
        for name, is_table in _functions()
        if not _is_listed(name, is_table=is_table)
        and name not in REFUSED
        and not name.startswith(lists.REFUSED_PREFIXES)
    ]
    assert unjudged == []


def test_no_function_is_listed_and_refused_or_listed_twice() -> None:
    assert not (lists.TABLE_FUNCTIONS | lists.FILE_TABLES) & REFUSED
    assert lists.FUNCTIONS & REFUSED == {"histogram"}  # the aggregate is listed, the table macro runs query_table
    assert sum(map(len, lists.SCALARS.values())) == len(frozenset().union(*lists.SCALARS.values()))


def test_what_takes_texts_pointers_files_or_settings_is_on_no_list() -> None:
    kinds = _catalog(
        "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE list_contains(parameter_types, 'POINTER')"
        " OR return_type = 'POINTER' OR contains(parameters::VARCHAR || return_type, 'AGGREGATE_STATE')"
        " OR regexp_matches(function_name, '(?i)serialize|secret|setting|_log|execute|_scan$|^read_|^query|extension')"
    )
    assert {name for (name,) in kinds} >= {"arrow_scan", "json_serialize_plan", "read_csv", "query_table"}
    assert not {name for (name,) in kinds} & (lists.FUNCTIONS | lists.TABLE_FUNCTIONS)


def test_bodies_of_listed_macros_and_views_call_listed_functions_only() -> None:
    bodies = _catalog(
        "SELECT lower(function_name), macro_definition FROM duckdb_functions() WHERE function_type='macro'"
    )
    rules = Rules()
    for name, body in bodies:
        if name in lists.FUNCTIONS:
            sql_gate.check(duckdb, f"SELECT {body}", rules)
    views = _catalog("SELECT schema_name, view_name, sql FROM duckdb_views() WHERE internal")
    for schema, name, text in views:
        assert (name in lists.VIEWS[schema]) != (name in lists.REFUSED_VIEWS[schema]), f"judge the view {schema}.{name}"
        if name in lists.VIEWS[schema]:
            assert "duckdb_views" not in text or '"sql"' not in text, f"{name} shows the texts of views"
            sql_gate.check(duckdb, text.partition(" AS ")[2].replace("duckdb_views", "duckdb_tables"), rules)


def test_a_function_that_nobody_has_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sql_gate.check(duckdb, "SELECT lower('A')", RULES)
    with pytest.raises(Invalid, match="lowr is on no list: did you mean lower"):
        sql_gate.check(duckdb, "SELECT lowr('A')", RULES)
    without = Rules(functions=lists.FUNCTIONS - {"lower"})
    with pytest.raises(Invalid, match="lower is on no list"):
        sql_gate.check(duckdb, "SELECT lower('A')", without)


def _forms(name: str, *, is_table: bool) -> Iterator[str]:
    """Queries that call a function in every place where a call may stand."""
    quoted = '"' + name.upper().replace('"', '""') + '"'
    if is_table:
        yield f"SELECT * FROM {quoted}()"
        yield f"SELECT (SELECT count(*) FROM {quoted}(1, a := 2))"
        yield f"WITH t AS (FROM main.{quoted}('x')) SELECT 1"
        yield f"SELECT 1 UNION ALL (SELECT 1 FROM {quoted}(1) LIMIT 1)"
        yield f"SUMMARIZE SELECT * FROM {quoted}(1)"
        yield f"FROM range(3), LATERAL (FROM {quoted}(range)) PIVOT (sum(x) FOR y IN (1))"
        return
    call = f"{quoted}(1, 'x')"
    yield f"SELECT {call}"
    yield f"SELECT system.main.{call}"
    yield f"SELECT x.{quoted}() FROM shop.orders"
    yield f"SELECT list_transform([1], lambda y: {call})"
    yield f"SELECT [{call} FOR y IN [1]]"
    yield f"SELECT sum({call}) FILTER ({call}) OVER (PARTITION BY {call}) FROM shop.orders"
    yield f"SELECT 1 FROM shop.orders WHERE EXISTS (SELECT 1 WHERE {call} > 1)"
    yield f"SELECT 1 FROM shop.orders GROUP BY {call} HAVING {call} ORDER BY {call} LIMIT {call}"
    yield f"SELECT * FROM range({call})"
    yield f"VALUES ({call})"
    yield f"SELECT * REPLACE ({call} AS id) FROM shop.orders"
    yield f"SELECT COLUMNS(c -> {call}) FROM shop.orders"
    yield f"SELECT CASE WHEN {call} THEN TRY({call}) ELSE {call}::INT END"
    yield f"SELECT * FROM shop.orders a JOIN shop.orders b ON {call}"
    yield f"SELECT {quoted}(1) OVER (ORDER BY 1 ROWS BETWEEN {call} PRECEDING AND CURRENT ROW) FROM shop.orders"


def _refused_calls() -> list[Any]:
    unlisted = [(n, is_table) for n, is_table in _functions() if not _is_listed(n, is_table=is_table)]
    files = [(n, True) for n in sorted(lists.FILE_TABLES)]
    return [pytest.param(name, is_table, id=f"{name}-{is_table:d}") for name, is_table in [*unlisted, *files]]


@pytest.mark.parametrize(("name", "is_table"), _refused_calls())
def test_an_unlisted_function_is_refused_wherever_it_stands(name: str, is_table: bool) -> None:
    for text in _forms(name, is_table=is_table):
        with pytest.raises(Invalid, match=r"is refused|is on no list"):
            sql_gate.check(duckdb, text, RULES)


STATEMENTS = [
    "INSERT INTO shop.orders VALUES (1)", "UPDATE shop.orders SET id = 1", "DELETE FROM shop.orders", "DROP TABLE a",
    "CREATE TABLE a (b INT)", "CREATE MACRO m() AS 1", "CREATE VIEW v AS SELECT 1", "CREATE TYPE t AS INT",
    "ALTER TABLE a ADD COLUMN b INT", "COPY (SELECT 1) TO '/tmp/x'", "EXPORT DATABASE '/tmp/x'", "ATTACH '/tmp/x.db'",
    "DETACH memory", "USE memory", "SET threads = 1", "RESET threads", "SET VARIABLE a = 1", "PRAGMA database_list",
    "CALL enable_logging()", "INSTALL httpfs", "LOAD httpfs", "CHECKPOINT", "VACUUM", "ANALYZE", "BEGIN", "COMMIT",
    "PREPARE p AS SELECT 1", "EXECUTE p", "EXPLAIN SELECT 1", "CREATE SECRET (TYPE s3)", "COMMENT ON TABLE a IS 'x'",
    "SELECT 1; SELECT 2", "SELECT 1; SET threads = 1", "PIVOT shop.orders ON name USING sum(id)",
    "MERGE INTO a USING b ON 1",
    "SELECT sum(id) EXPORT_STATE FROM shop.orders", "SELECT 1::regclass", "SELECT '1'::POINTER", "SELECT 'x'::GEOMETRY",
    "SELECT 1::main.mine", "SELECT list_aggregate([1], 'fin' || 'alize')", "SELECT list_aggregate([1], 'finalize')",
    "SELECT name.list_aggregate('finalize', 'sum') FROM shop.orders", "SELECT main.list_aggregate([1], 'sum')",
    "SELECT t.main.list_aggregate('finalize', 'sum') FROM (SELECT [1] AS main) t",
    "SELECT * FROM memory.shop.orders",
    "SELECT * FROM '/etc/passwd'", "SELECT * FROM \"x.csv\"", "SELECT * FROM nothing", "SELECT * FROM duckdb_views",
    "SELECT * FROM information_schema.views", "SELECT * FROM pg_catalog.pg_settings", "SELECT * FROM sqlite_master",
    "SELECT * FROM main.duckdb_views", "SELECT * FROM temp.x", "SELECT * FROM duckdb_anything",
    "SELECT *, (WITH duckdb_views AS (SELECT 1) SELECT 1) FROM duckdb_views", "SELECT * FROM (SHOW TABLES)",
    "SELECT (WITH \"/x.csv\" AS (SELECT 1) FROM \"/x.csv\"), * FROM '/x.csv'", "FROM \"shop.orders\"",
    "FROM shop.whole",
    "FROM (WITH \"x.csv\" AS (SELECT 1) FROM \"x.csv\"), 'x.csv'", "WITH \"x.csv\" AS (FROM 'x.csv') FROM \"x.csv\"",
    "WITH a AS (FROM 'x.csv'), \"x.csv\" AS (SELECT 1) FROM a", "WITH \"é.csv\" AS (SELECT 1) FROM \"É.csv\"",
    "WITH RECURSIVE a AS (FROM 'x.csv'), \"x.csv\" AS (SELECT 1) FROM a",
    "WITH RECURSIVE \"x.csv\"(n) AS (FROM 'x.csv' UNION ALL SELECT n + 1 FROM \"x.csv\") FROM \"x.csv\"",
    "SELECT * FROM shop.orders AT (VERSION => 1)", "SELECT DEFAULT", "SELECT", "", "SELECT \0",
]  # fmt: skip


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_of_any_other_kind_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="the query failed"):
        sql_gate.check(duckdb, text, RULES)


QUERIES = [
    "SELECT id, sum(id) OVER (PARTITION BY name ORDER BY id) FROM shop.orders WHERE name LIKE 'a%' QUALIFY true",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t",
    "WITH a AS (SELECT 1 x), b AS (WITH a AS (FROM a) FROM a) SELECT (SELECT 1 FROM b WHERE x IN (FROM A)) FROM b",
    "WITH RECURSIVE a AS (SELECT 1 n UNION ALL SELECT n + 1 FROM (WITH b AS (FROM a) FROM b)), c AS (FROM a) FROM c, a",
    "WITH a AS (SELECT 1) (SELECT * FROM a UNION ALL FROM a) INTERSECT FROM a", "FROM \"shop.whole\"",
    "SUMMARIZE WITH q AS (SELECT 1) FROM q", "WITH a AS (SELECT 1 x) FROM (FROM a PIVOT (sum(x) FOR x IN (1)))",
    "FROM shop.orders o ASOF JOIN shop.orders p ON o.id >= p.id",
    "SELECT * EXCLUDE (id) FROM shop.orders TABLESAMPLE 10%",
    "PIVOT shop.orders ON name IN ('a', 'b') USING sum(id)", "UNPIVOT shop.orders ON id, name", "SUMMARIZE shop.orders",
    "DESCRIBE SELECT 1", "VALUES (1), (2)", "SELECT ?, ?", "SELECT $1 + $2", "SELECT $name",
    "SELECT x'00', 1.5, DATE '2026-01-01'",
    "SELECT '{\"a\": 1}'::JSON -> 'a', {'a': 1}.a, MAP {'a': 1}['a'], [1, 2][1], 'x'::ENUM ('x', 'y')",
    "SELECT list_aggregate([1, 2], 'sum'), [x + 1 FOR x IN [1, 2] IF x > 1], COLUMNS('i.*') FROM shop.orders",
    "SELECT * FROM range(3) t(x), unnest([1, 2]), json_each('[1]'), (SELECT 1)",
    "SELECT count(*) FROM information_schema.tables",
    "SELECT table_name FROM duckdb_tables() UNION SELECT tablename FROM pg_tables",
    "SELECT 1 EXCEPT SELECT 2 ORDER BY ALL",
    "SELECT name COLLATE NOCASE, TRY(1 / 0), CAST(id AS DECIMAL(9, 2)), current_user FROM shop.orders GROUP BY ALL",
    "SELECT any_value(name ORDER BY id) FILTER (id > 1), count(DISTINCT name) FROM shop.orders GROUP BY CUBE (id)",
    "SELECT id FROM shop.orders WHERE id IN (SELECT 1) AND id BETWEEN 1 AND 2 AND EXISTS (SELECT 1) LIMIT 10% OFFSET 1",
    "SELECT now() - INTERVAL 3 DAYS, date_trunc('month', today()), extract(year FROM now()), now() AT TIME ZONE 'UTC'",
]  # fmt: skip


@pytest.mark.parametrize("text", QUERIES)
def test_queries_of_every_form_are_taken(text: str) -> None:
    sql_gate.check(duckdb, text, RULES)


def _pointer_call() -> str:
    """A query that calls the function at an address: arrow_scan with a constant that SQL cannot write."""
    (text,) = _catalog("SELECT json_serialize_sql('SELECT * FROM arrow_scan(1, 2, 3)')")[0]
    document = json.loads(text)
    for child in document["statements"][0]["node"]["from_table"]["function"]["children"]:
        child["value"] = {"type": {"id": "POINTER", "type_info": None}, "is_null": False, "value": 0x4141414141414141}
    return f"SELECT * FROM json_execute_serialized_sql('{json.dumps(document)}')"


def test_a_query_calls_no_pointer_and_sees_none(lake: Lake) -> None:
    shown = "SELECT json_serialize_plan('SELECT * FROM shop.orders') FROM shop.orders"
    for text in (_pointer_call(), shown, shown.replace("plan(", "sql(")):
        with pytest.raises(Invalid, match=r"the function json_[a-z_]* is refused"):
            lake.sql(text)


POSITIONS = [
    "1; SELECT 2", "1; SET memory_limit='50GB'; SELECT 1", "1; SET enable_external_access=true; SELECT 3",
    "1; PRAGMA enable_profiling='json'; SELECT 42", "1; ATTACH '/tmp/x.db'; SELECT 43", "1; CREATE TABLE z AS SELECT 1",
    "(SELECT content FROM read_text('/etc/hostname'))", "(SELECT 'now')", "'a', 'b'", "'a') UNION SELECT ('b'",
    "'a' FROM range(3)", "current_setting('threads')", "repeat('x', 10)", "id", "$1", "getvariable('x')",
    "'a' WHERE true",
    "'a' ORDER BY 1", "'a' LIMIT 1", "[1][1]", "unnest(['now'])",
]  # fmt: skip


@pytest.mark.parametrize("text", POSITIONS)
def test_a_past_cut_is_one_constant(lake: Lake, text: str) -> None:
    with pytest.raises(Invalid):
        lake.sql(f"SELECT * FROM shop.orders AT (VERSION => {text})")
    with pytest.raises((Invalid, duckdb.Error)):
        sql_gate.constant(duckdb, text)


def test_a_past_cut_is_computed_from_constants() -> None:
    assert sql_gate.constant(duckdb, "'a'") == "a"
    for text in ("TIMESTAMP '2026-11-20 10:00' - INTERVAL 1 HOUR", "to_timestamp(0) + to_days(3)", "DATE '2026-11-20'"):
        assert sql_gate.constant(duckdb, text) is not None


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Keep the garbage of earlier tests from being collected, and complaining, at the end of a deep recursion."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
def test_hostile_sizes_are_refused_in_bounded_work(lake: Lake) -> None:
    deep = ["1+" * 20_000 + "1", "(" * 3_000 + "1" + ")" * 3_000, "[" * 2_000 + "]" * 2_000, "- " * 20_000 + "1"]
    deep += ["(SELECT " * 1_000 + "1" + ")" * 1_000, "x" + "::INT" * 5_000]
    for text in deep:
        for attempt in (lake.sql, lambda query: sql_gate.check(duckdb, query, RULES)):
            try:
                attempt(f"SELECT {text}")
            except LakestoreError as error:
                assert len(error.message) < 1_000
    sql_gate.check(duckdb, "SELECT 1" + " UNION SELECT 1" * 3_000, RULES)

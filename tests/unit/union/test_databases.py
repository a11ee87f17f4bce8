"""A query gets the database of an earlier one, and nothing of what that query had."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakestore import evolution
from lakestore.client.connection import Connection
from lakestore.errors import Invalid
from lakestore.union import databases, sql
from lakestore.union.views import TableView, ViewList, Views
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("databases") / "data") as served:
        for name, rows in {"a.one": 1, "b.two": 2}.items():
            served.lake.create_table(name, SCHEMA).append([{"id": number} for number in range(rows)])
        yield served


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each database that DuckDB makes from here on; no idle one is there."""
    sql.preload()  # the parser has a database of its own
    calls: list[Any] = []
    connect = duckdb.connect

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return connect(*args, **options)

    monkeypatch.setattr(databases._IDLE, "databases", [])
    monkeypatch.setattr(duckdb, "connect", noted)
    return calls


def summed(served: Served, table: str, **options: Any) -> list[dict[str, Any]]:
    query, transport = sql.Query(f"SELECT sum(id) + 1 AS s FROM {table}", **options), served.lake.transport
    return sql.run(transport, query, Connection(transport).all).to_pylist()


def views(database: databases.Database) -> set[str]:
    """The schemas and views that a database has."""
    found = database.connection.execute(
        "SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal UNION ALL"
        " SELECT schema_name FROM duckdb_schemas() WHERE NOT internal"
    )
    return {name for (name,) in found.fetchall()}


def test_the_next_query_gets_the_database_without_the_names_of_the_last(served: Served, made: list[Any]) -> None:
    for _ in range(2):
        assert summed(served, "a.one") == [{"s": 1}]
        [idle] = databases._IDLE.databases
        assert views(idle) == {"a", "a.one", "main.__lakestore_0"}
        assert summed(served, "two", search_path=("b",)) == [{"s": 2}]
        assert views(idle) == {"b", "b.two", "main.two", "main.__lakestore_0"}
        assert sql.run(served.lake.transport, "SELECT count(*) AS n FROM duckdb_tables").to_pylist() == [{"n": 0}]
        assert views(idle) == set()
    assert len(made) == 1


def test_queries_of_the_same_columns_use_the_views_of_the_last(
    served: Served, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    makes: list[TableView] = []
    make = Views._make

    def counted(views: Views, wanted: ViewList) -> None:
        makes.extend(wanted.tables[:1])
        make(views, wanted)

    monkeypatch.setattr(Views, "_make", counted)
    table = served.lake.create_table("c.three", SCHEMA)
    for number in range(3):
        table.append([{"id": number}])
        assert summed(served, "c.three") == [{"s": 1 + sum(range(number + 1))}]
        [idle] = databases._IDLE.databases
        assert [place.rows for place in idle.views._rows] == [None], "an idle database holds no cut"
    assert len(makes) == 1
    served.lake.alter(table.definition, [evolution.RenameColumn("id", "number")])
    text = "SELECT sum(number) AS s FROM c.three"
    assert sql.run(served.lake.transport, text).to_pylist() == [{"s": 3}]
    assert sql.run(served.lake.transport, f"{text} WHERE __offset >= 0").to_pylist() == [{"s": 3}]
    assert sql.run(served.lake.transport, text).to_pylist() == [{"s": 3}]
    assert len(makes) == 4


def test_random_numbers_have_no_state_of_an_earlier_query(served: Served, made: list[Any]) -> None:
    sql.run(served.lake.transport, "SELECT setseed(0.5) FROM a.one")
    again = [sql.run(served.lake.transport, "SELECT random() AS r FROM a.one").to_pylist() for _ in range(2)]
    connection = duckdb.connect()
    connection.execute("SELECT setseed(0.5)").fetchall()
    drawn = [connection.execute("SELECT random()").fetchone() for _ in range(3)]
    assert not {(row["r"],) for rows in again for row in rows}.intersection(drawn)
    assert len(made) == 2, "the connection ends, and the database stays"


def test_other_settings_need_another_database(served: Served, made: list[Any]) -> None:
    noon = "SELECT TIMESTAMPTZ '2026-01-01 12:00:00+00'::VARCHAR AS t FROM a.one"
    for zone, shown in {"UTC": "2026-01-01 12:00:00+00", "Asia/Tokyo": "2026-01-01 21:00:00+09"}.items():
        for _ in range(2):
            assert sql.run(served.lake.transport, sql.Query(noon, zone=zone)).to_pylist() == [{"t": shown}]
    assert len(made) == 2
    summed(served, "a.one", bounds=sql.Bounds(1 << 26))
    assert len(made) == 3
    assert len(databases._IDLE.databases) == databases.IDLE_MAX, "the oldest is closed"


def test_a_query_that_fails_or_is_left_closes_its_database(served: Served, made: list[Any]) -> None:
    transport = served.lake.transport
    with pytest.raises(Invalid, match="Conversion"):
        sql.run(transport, "SELECT ('x' || id)::INT FROM a.one")
    with pytest.raises(Invalid, match="Conversion"):
        sql.run(transport, "SELECT ('x' || i)::INT FROM range(3) r(i)")
    with sql.stream(transport, "SELECT b.id + i FROM b.two b, range(100_000) r(i)") as rows:
        next(rows.batches)
    few = sql.Query("SELECT b.id + i FROM b.two b, range(100_000) r(i)", bounds=sql.Bounds(1 << 28, 2))
    assert len(sql.run(transport, few)) == 2
    assert len(made) == 4
    assert not databases._IDLE.databases


def test_a_query_that_is_read_to_its_end_gives_its_database_back(served: Served, made: list[Any]) -> None:
    transport, text = served.lake.transport, "SELECT id + 1 AS n FROM b.two"
    for ids in (text, f"{text} WHERE id > 5"):
        with sql.stream(transport, ids) as rows:
            assert sum(batch.num_rows for batch in rows.batches) == 2 * (ids is text)
        assert len(sql.run(transport, sql.Query(ids, kept_rows=1))) == (ids is text)
        sql.describe(transport, sql.Query(ids))
    assert len(made) == 1
    assert len(databases._IDLE.databases) == 1


def test_queries_at_the_same_time_have_databases_of_their_own(served: Served, made: list[Any]) -> None:
    with sql.stream(served.lake.transport, "SELECT sum(id) FROM b.two") as rows:
        assert summed(served, "a.one") == [{"s": 1}]
        assert [batch.num_rows for batch in rows.batches] == [1]
    assert len(made) == 2


def test_a_database_that_refuses_the_drop_is_closed(served: Served, made: list[Any]) -> None:
    assert summed(served, "one", search_path=("main", "a")) == [{"s": 1}]
    [idle] = databases._IDLE.databases
    idle.connection.execute("DROP VIEW one").execute("CREATE TABLE one AS SELECT 1")
    assert summed(served, "b.two") == [{"s": 2}]
    with pytest.raises(duckdb.ConnectionException):
        idle.connection.execute("SELECT 1")
    assert len(made) == 2


def test_a_database_is_closed_if_memory_runs_out_before_it_is_kept(
    served: Served, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: Views) -> None:
        raise MemoryError

    database = databases.idle_or_new(duckdb, databases.Kind((), "UTC", is_lossless=False), ViewList())
    database.is_read = True
    monkeypatch.setattr(Views, "leave_rows", failing)
    with pytest.raises(MemoryError):
        database.give_back()
    assert not databases._IDLE.databases
    with pytest.raises(duckdb.ConnectionException):
        database._root.execute("SELECT 1")


FORKED = """
import os, sys
import duckdb
from lakestore.union import databases, sql

SUM = "SELECT sum(i)::BIGINT AS s FROM range(1_000_000) r(i)"
sql.run(None, SUM)
assert len(databases._IDLE.databases) == 1
child = os.fork()
if not child:
    assert not databases._IDLE.databases
    sql.run(None, SUM)
    os.write(1, b"answered ")
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(databases._IDLE.databases), len(sql.run(None, SUM)))
"""


def test_a_forked_child_has_databases_of_its_own() -> None:
    end = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert (end.stdout, end.stderr, end.returncode) == ("answered 0 0 1\n", "", 0)

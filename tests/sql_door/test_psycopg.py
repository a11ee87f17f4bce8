"""psycopg 3 through the Postgres port: text and binary, cursors, COPY, prepared statements, pipelines, asyncio."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.rows import dict_row

from tests.support.rights import token_of
from tests.support.sql_door import EVERY, HOT, JSON, ORDER_COUNT, TIERED, Door, every_rows, order


def seen(row: dict[str, Any]) -> dict[str, Any]:
    """A row of shop.every as psycopg gives it."""
    place = row["id"] - 1
    return {name: JSON[name][place] if name in JSON and place < 2 else value for name, value in row.items()}


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_every_type_comes_back_as_it_was_written(door: Door, binary: bool) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, ["id", *EVERY]))
    with door.connect(row_factory=dict_row) as connection, connection.cursor(binary=binary) as cursor:
        cursor.execute(sql.SQL("SELECT {} FROM shop.every ORDER BY id").format(names))
        assert list(cursor) == [seen(row) for row in every_rows()]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_value_that_came_is_a_parameter_that_finds_its_row(door: Door, binary: bool) -> None:
    mark = sql.SQL("%b" if binary else "%t")
    with door.connect() as connection:
        ((*values,),) = connection.execute("SELECT * FROM shop.every WHERE id = 2", binary=binary).fetchall()
        for column, value in zip(EVERY, values[1:], strict=True):
            if column not in JSON:
                back = sql.SQL("SELECT id FROM shop.every WHERE {0} = {1}").format(sql.Identifier(column), mark)
                assert connection.execute(back, [value]).fetchall() == [(2,)], column


def test_hot_rows_and_rows_of_the_lake_are_one_table(door: Door) -> None:
    with door.connect() as connection:
        rows = connection.execute("SELECT count(*), sum(seq), min(kind) FROM events").fetchall()
    total = TIERED + HOT
    assert rows == [(total, total * (total - 1) // 2, "even")]


def test_a_key_is_asked_again_and_again_and_becomes_a_prepared_statement(door: Door) -> None:
    with door.connect() as connection:
        for number in range(12):  # psycopg prepares at the sixth time
            rows = connection.execute("SELECT * FROM shop.orders WHERE order_id = %s", [number]).fetchall()
            assert rows == [tuple(order(number).values())]
        assert connection.execute("SELECT * FROM shop.orders WHERE order_id = %s", [-1]).fetchall() == []
        assert connection.execute("SELECT * FROM shop.orders WHERE order_id = %s", [None]).fetchall() == []


def test_a_cursor_of_the_server_gives_rows_in_pieces(door: Door) -> None:
    with psycopg.connect(**door.dsn()) as connection:
        with connection.cursor("some cursor") as cursor:
            cursor.itersize = 7
            cursor.execute("SELECT order_id FROM orders ORDER BY order_id")
            assert [number for (number,) in cursor] == list(range(ORDER_COUNT))
        with connection.cursor("other") as cursor, connection.cursor("third", binary=True) as third:
            cursor.execute("SELECT order_id FROM orders ORDER BY order_id")
            third.execute("SELECT order_id FROM orders ORDER BY order_id DESC")
            assert cursor.fetchmany(2) == [(0,), (1,)]
            assert third.fetchmany(2) == [(ORDER_COUNT - 1,), (ORDER_COUNT - 2,)]
            cursor.scroll(3)
            assert cursor.fetchone() == (5,)


@pytest.mark.parametrize("form", ["", " (FORMAT csv, HEADER)", " (FORMAT binary)"])
def test_copy_gives_what_a_query_gives(door: Door, form: str) -> None:
    with door.connect() as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY (SELECT order_id, customer FROM orders ORDER BY order_id) TO STDOUT{form}") as copy:
            if "csv" in form:
                text = b"".join(bytes(piece) for piece in copy).decode()
                assert text.splitlines()[:2] == ["order_id,customer", "0,customer 0"]
                assert len(text.splitlines()) == ORDER_COUNT + 1
            else:
                copy.set_types(["int8", "text"])
                assert list(copy.rows()) == [(n, f"customer {n % 7}") for n in range(ORDER_COUNT)]
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_copy_of_a_table_by_its_name(door: Door) -> None:
    with door.connect() as connection, connection.cursor() as cursor, cursor.copy("COPY shop.orders TO STDOUT") as copy:
        assert len([line for piece in copy for line in bytes(piece).splitlines()]) == ORDER_COUNT


def test_a_pipeline_answers_in_order_and_goes_on_after_an_error(door: Door) -> None:
    with door.connect() as connection:
        with connection.pipeline():
            cursors = [
                connection.execute("SELECT customer FROM orders WHERE order_id = %s", [number]) for number in range(20)
            ]
            assert [cursor.fetchone() for cursor in cursors] == [(f"customer {n % 7}",) for n in range(20)]
        with connection.pipeline():
            connection.execute("SELECT 1")
            wrong = connection.execute("SELECT * FROM shop.nothing")
            with pytest.raises(errors.UndefinedTable):
                wrong.fetchall()
        assert connection.execute("SELECT 3").fetchall() == [(3,)]


def test_connections_of_asyncio(door: Door) -> None:
    async def ask() -> list[Any]:
        async def one(number: int) -> Any:
            async with await psycopg.AsyncConnection.connect(**door.dsn()) as connection:
                cursor = await connection.execute("SELECT customer FROM orders WHERE order_id = %s", [number])
                return await cursor.fetchone()

        return await asyncio.gather(*(one(number) for number in range(8)))

    assert asyncio.run(ask()) == [(f"customer {n % 7}",) for n in range(8)]


def test_a_transaction_reads_one_cut(door: Door) -> None:
    door.lake.create_table("shop.counted", {"id": "int64", "n": "int64"}, primary_key=["id"])
    table = door.lake.table("shop.counted")
    try:
        table.upsert([{"id": 1, "n": 1}])
        with psycopg.connect(**door.dsn()) as connection:
            first = connection.execute("SELECT n FROM counted").fetchall()
            table.upsert([{"id": 1, "n": 2}, {"id": 2, "n": 2}])
            assert connection.execute("SELECT n FROM counted").fetchall() == first == [(1,)]
            assert connection.execute("SELECT n FROM counted WHERE id = 1").fetchall() == [(1,)]  # a look-up
            assert connection.execute("SELECT n FROM counted WHERE id = 2").fetchall() == []
            connection.commit()
            assert connection.execute("SELECT sum(n) FROM counted").fetchall() == [(4,)]
    finally:
        door.lake.drop_table("shop.counted")


def test_time_travel_by_a_setting_and_by_text(door: Door) -> None:
    door.lake.create_table("shop.dated", {"id": "int64", "n": "int64"}, primary_key=["id"])
    table = door.lake.table("shop.dated")
    try:
        before = str(table.upsert([{"id": 1, "n": 1}]))
        table.upsert([{"id": 1, "n": 2}])
        with door.connect() as connection:
            assert connection.execute("SELECT n FROM dated WHERE id = 1").fetchall() == [(2,)]
            connection.execute(sql.SQL("SET lakestore.at = {}").format(before))
            assert connection.execute("SELECT n FROM dated WHERE id = 1").fetchall() == [(1,)]
            assert connection.execute("SELECT sum(n) FROM dated").fetchall() == [(1,)]
            assert connection.execute("SHOW lakestore.at").fetchall() == [(before,)]
            connection.execute("RESET lakestore.at")
            assert connection.execute("SELECT sum(n) FROM dated").fetchall() == [(2,)]
            text = sql.SQL("SELECT n FROM dated AT (TOKEN => {})").format(before)
            assert connection.execute(text).fetchall() == [(1,)]
    finally:
        door.lake.drop_table("shop.dated")


def test_errors_have_their_class_and_the_session_lives(door: Door) -> None:
    with door.connect() as connection:
        wrong: list[tuple[str, type[psycopg.Error]]] = [
            ("SELEC 1", errors.SyntaxError),
            ("SELECT * FROM shop.nothing", errors.UndefinedTable),
            ("SELECT nothing FROM shop.orders", errors.UndefinedColumn),
            ("SELECT nothing(1)", errors.UndefinedFunction),
            ("SELECT 'x'::int", errors.InvalidTextRepresentation),
            ("INSERT INTO shop.orders VALUES (1)", errors.ReadOnlySqlTransaction),
            ("DROP TABLE shop.orders", errors.ReadOnlySqlTransaction),
            ("COPY shop.orders FROM STDIN", errors.ReadOnlySqlTransaction),
        ]
        for text, kind in wrong:
            with pytest.raises(psycopg.Error) as error:
                connection.execute(text)
            assert isinstance(error.value, kind), (text, error.value.sqlstate)
            assert connection.execute("SELECT 1").fetchall() == [(1,)], text


def test_an_error_ends_the_transaction(door: Door) -> None:
    with psycopg.connect(**door.dsn()) as connection:
        with pytest.raises(errors.UndefinedTable):
            connection.execute("SELECT * FROM shop.nothing")
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        with pytest.raises(errors.UndefinedTable), connection.transaction():
            connection.execute("SELECT * FROM shop.nothing")
        assert connection.execute("SELECT 2").fetchall() == [(2,)]


def test_a_query_is_cancelled_and_the_session_lives(door: Door) -> None:
    with door.connect() as connection:
        timer = threading.Timer(1.0, connection.cancel_safe)
        timer.start()
        with pytest.raises(errors.QueryCanceled):
            connection.execute("SELECT count(*) FROM range(300000000000)")
        timer.join()
        assert connection.execute("SELECT count(*) FROM orders").fetchall() == [(ORDER_COUNT,)]


def test_names_with_capitals_spaces_and_other_letters(door: Door) -> None:
    with door.connect(row_factory=dict_row) as connection:
        expected = [{"Order Id": 1, "Größe": "groß", '"; DROP TABLE x; --': "x"}]
        assert connection.execute('SELECT * FROM shop."OddNames"').fetchall() == expected
        assert connection.execute('SELECT * FROM "OddNames" WHERE "Order Id" = %s', [1]).fetchall() == expected
        text = sql.SQL("SELECT {} FROM {}").format(sql.Identifier('"; DROP TABLE x; --'), sql.Identifier("OddNames"))
        assert connection.execute(text).fetchall() == [{'"; DROP TABLE x; --': "x"}]


def test_types_of_columns_are_those_of_postgres(door: Door) -> None:
    with door.connect() as connection:
        cursor = connection.execute("SELECT * FROM shop.every")
        kinds = {column.name: column.type_display for column in cursor.description or ()}
    expected = {
        "price": "numeric(20,3)",
        "numbers": "int8[]",
        "deep": "jsonb",
        "moment": "timestamptz",
        "five": "bytea",
        "uwhole": "int8",
    }
    assert {name: kinds[name].replace(", ", ",") for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("SELECT * FROM shop.orders", "orders.1 orders.2 orders.3 orders.4"),
        ("SELECT * FROM shop.orders WHERE order_id = 1", "orders.1 orders.2 orders.3 orders.4"),
        ("SELECT amount, order_id AS a, amount + 1 FROM orders o WHERE o.order_id = 1", "orders.3 orders.1 none"),
        ("SELECT customer AS seq, e.* FROM orders JOIN events e ON seq = order_id", "orders.2 events.1 events.2"),
        ("SELECT * FROM (SELECT kind, seq + 1, seq FROM shop.events) s(a)", "events.2 none events.1"),
        ("SELECT kind, count(*) FROM events GROUP BY kind", "events.2 none"),
        ("SELECT seq FROM events UNION SELECT 1", "none"),
        ("WITH events AS (SELECT 1 AS seq) SELECT seq FROM events", "none"),
        ("SELECT relname FROM pg_class", "none"),
    ],
)
def test_a_column_tells_its_table_and_its_place_there(door: Door, text: str, origins: str) -> None:
    with door.connect() as connection:
        names = dict(connection.execute("SELECT oid, relname FROM pg_class WHERE relkind = 'r'").fetchall())
        for prepare in (False, True, True):
            result = connection.execute(text.encode(), prepare=prepare).pgresult
            assert result is not None
            found = [(result.ftable(place), result.ftablecol(place)) for place in range(result.nfields)]
            assert " ".join(f"{names[table]}.{column}" if table else "none" for table, column in found) == origins


def test_a_time_in_another_zone_is_the_same_moment(door: Door) -> None:
    with door.connect() as connection:
        connection.execute("SET TimeZone = 'Europe/Berlin'")
        ((moment,),) = connection.execute("SELECT moment FROM every WHERE id = 2").fetchall()
        text = "SELECT id FROM every WHERE moment = %s"  # psycopg sends a text without a type
        assert connection.execute(text, ["2026-11-28 16:30:01.234567"]).fetchall() == [(2,)]
    assert moment == EVERY["moment"][2]
    assert moment.utcoffset() == dt.timedelta(hours=1)


class TestRights:
    """A principal sees and reads what it may."""

    @pytest.fixture(autouse=True)
    def _only_guarded(self, door: Door) -> None:
        if not door.guarded:
            pytest.skip("an open server has no principals")

    def test_a_wrong_token_and_an_unknown_user_are_refused_alike(self, door: Door) -> None:
        said = set()
        for given in ({"password": token_of("boss")}, {"user": "nobody"}, {"user": "writer", "password": "x"}):
            with pytest.raises(psycopg.OperationalError) as error:
                psycopg.connect(**{**door.dsn(), **given})
            said.add(str(error.value).split("FATAL:")[-1].replace(given.get("user", "ann"), "USER"))
        assert len(said) == 1, said

    def test_another_table_is_not_there(self, door: Door) -> None:
        with door.connect("ann") as connection:
            with pytest.raises(errors.Error) as error:
                connection.execute('SELECT * FROM "Hr".salaries')
            assert error.value.sqlstate in ("42501", "42P01")
            names = connection.execute("SELECT table_schema, table_name FROM information_schema.tables").fetchall()
            assert ("Hr", "salaries") not in names
            assert ("shop", "orders") in names
        with door.connect("boss") as connection:
            assert connection.execute('SELECT pay FROM "Hr".salaries').fetchall() == [(7,)]

    def test_one_who_may_only_write_reads_nothing(self, door: Door) -> None:
        with door.connect("writer") as connection:
            for text in ("SELECT * FROM shop.orders", "SELECT * FROM shop.orders WHERE order_id = 1"):
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(text)
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute("COPY shop.orders TO STDOUT")

    def test_a_name_with_other_signs(self, door: Door) -> None:
        with door.connect("zoe@example.com") as connection:
            assert connection.execute("SELECT current_user").fetchall() == [("zoe@example.com",)]
            assert connection.execute("SELECT count(*) FROM shop.events").fetchall() == [(TIERED + HOT,)]
            with pytest.raises(errors.Error):
                connection.execute("SELECT * FROM shop.orders")

    def test_a_privilege_is_the_right_to_read(self, door: Door) -> None:
        text = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'shop'::regnamespace {} ORDER BY 1"
        with door.connect("zoe@example.com") as connection:
            assert connection.execute(text.format("")).fetchall() == [("events",), ("orders",)]
            may = text.format("AND has_table_privilege(oid, 'select')")
            assert connection.execute(may).fetchall() == [("events",)]

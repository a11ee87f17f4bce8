"""asyncpg through the Postgres port: everything in binary, its reading of the catalog, cursors, COPY, its pool."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
import uuid
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from tests.support.rights import token_of
from tests.support.sql_door import EVERY, JSON, ORDER_COUNT, Door, every_rows, order

ARRAYS = {"numbers": "int8[]", "words": "text[]", "days": "date[]"}
TYPES = {
    "truth": "bool",
    "tiny": "int2",
    "utiny": "int2",
    "usmall": "int4",
    "uwhole": "int8",
    "five": "bytea",
    "clock": "time",
    "local": "timestamp",
    "moment": "timestamptz",
    "price": "numeric",
    "deep": "jsonb",
    **ARRAYS,
}


async def connected(door: Door, user: str = "", **more: Any) -> Any:
    """A connection of asyncpg."""
    given = door.dsn(user, **more)
    return await asyncpg.connect(database=given.pop("dbname"), timeout=60, command_timeout=60, **given)


def asked(door: Door, act: Callable[[Any], Awaitable[Any]], user: str = "") -> Any:
    """The value of what `act` does with a connection."""

    async def run() -> Any:
        connection = await connected(door, user)
        try:
            return await act(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


async def _with_json(connection: Any) -> None:
    """Have jsonb decoded, as SQLAlchemy does at every connection."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


def test_every_type_comes_back_as_it_was_written(door: Door) -> None:
    async def act(connection: Any) -> Any:
        await _with_json(connection)
        statement = await connection.prepare("SELECT * FROM shop.every ORDER BY id")
        kinds = {each.name: each.type.name for each in statement.get_attributes()}
        return kinds, [dict(row) for row in await statement.fetch()]

    kinds, rows = asked(door, act)
    assert {name: kinds[name] for name in TYPES} == TYPES
    expected = [
        {
            name: JSON[name][row["id"] - 1] if name in JSON and value is not None else value
            for name, value in row.items()
        }
        for row in every_rows()
    ]
    assert rows == expected


def test_a_value_that_came_is_a_parameter_that_finds_its_row(door: Door) -> None:
    async def act(connection: Any) -> None:
        row = await connection.fetchrow("SELECT * FROM shop.every WHERE id = 2")
        for column in EVERY:
            statement = await connection.prepare(f'SELECT id FROM shop.every WHERE "{column}" = $1')
            (parameter,) = statement.get_parameters()
            assert parameter.name == TYPES.get(column, parameter.name), column
            assert [tuple(each) for each in await statement.fetch(row[column])] == [(2,)], column

    asked(door, act)


def test_parameters_of_every_type_come_back(door: Door) -> None:
    moment = dt.datetime(2026, 11, 28, 12, 0, 1, 5, tzinfo=dt.UTC)
    values: dict[str, Any] = {
        "bool": True,
        "int2": -5,
        "int4": 2**31 - 1,
        "int8": -(2**63),
        "oid": 4_000_000_000,
        "float4": 0.5,
        "float8": 1e300,
        "text": "ß😀",
        "varchar": "",
        "bytea": b"\0\xff",
        "date": dt.date(2026, 2, 28),
        "time": dt.time(23, 59, 59, 999999),
        "timestamp": moment.replace(tzinfo=None),
        "timestamptz": moment,
        "interval": dt.timedelta(days=3, microseconds=-7),
        "uuid": uuid.UUID(int=7),
        "numeric(20, 3)": Decimal("-12345678901234567.890"),
        "jsonb": '{"a": [1, null]}',
        "int8[]": [1, None, 3],
        "text[]": ["a", None, 'c"d', ""],
        "timestamptz[]": [moment],
        "float8[]": [],
        "oid[]": [1, 2],
    }

    async def act(connection: Any) -> None:
        casts = ", ".join(f"${place}::{kind}" for place, kind in enumerate(values, 1))
        (row,) = await connection.fetch(f"SELECT {casts}", *values.values())
        assert list(row) == list(values.values())
        (row,) = await connection.fetch(f"SELECT {casts}", *[None] * len(values))
        assert set(row) == {None}
        assert await connection.fetch("SELECT 'a' || $1::text AS t, quote_literal($2::int8::text)", "b", 5) == [
            ("ab", "'5'")
        ]

    asked(door, act)


def test_cursors_fetch_and_move(door: Door) -> None:
    async def act(connection: Any) -> None:
        async with connection.transaction():
            cursor = await connection.cursor("SELECT order_id FROM orders ORDER BY 1")
            assert [number for (number,) in await cursor.fetch(3)] == [0, 1, 2]
            assert await cursor.forward(5) == 5
            assert await cursor.fetchrow() == (8,)
            text = "SELECT order_id FROM orders WHERE order_id < $1 ORDER BY 1"
            assert [row[0] async for row in connection.cursor(text, 7, prefetch=3)] == list(range(7))
            assert await cursor.forward(1000) == ORDER_COUNT - 9
            assert await cursor.fetch(1) == []

    asked(door, act)


@pytest.mark.parametrize("isolation", ["serializable", "repeatable_read", "read_committed"])
def test_a_transaction_reads_one_cut(door: Door, isolation: str) -> None:
    door.lake.create_table("shop.tally", {"id": "int64", "n": "int64"}, primary_key=["id"])
    table = door.lake.table("shop.tally")
    table.upsert([{"id": 1, "n": 1}])

    async def act(connection: Any) -> None:
        async with connection.transaction(isolation=isolation, readonly=True):
            assert await connection.fetchval("SELECT sum(n) FROM tally") == 1
            await asyncio.to_thread(table.upsert, [{"id": 1, "n": 5}])
            async with connection.transaction():
                assert await connection.fetchval("SELECT n FROM tally WHERE id = $1", 1) == 1
            assert await connection.fetchval("SELECT sum(n) FROM tally") == 1
        assert await connection.fetchval("SELECT sum(n) FROM tally") == 5

    try:
        asked(door, act)
    finally:
        door.lake.drop_table("shop.tally")


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copy_from_query_and_table(door: Door, form: str) -> None:
    async def act(connection: Any) -> None:
        found, table = io.BytesIO(), io.BytesIO()
        text = "SELECT order_id, customer FROM orders WHERE order_id < $1 AND customer <> $2 ORDER BY 1"
        assert await connection.copy_from_query(text, 2, "it's", output=found, format=form) == "COPY 2"
        given = {"schema_name": "shop", "columns": ["order_id"], "output": table, "format": form}
        assert await connection.copy_from_table("orders", **given) == f"COPY {ORDER_COUNT}"
        if form == "binary":
            assert found.getvalue().startswith(b"PGCOPY\n\xff\r\n\0")
        else:
            assert found.getvalue().decode().splitlines() == [
                f"{number}{',' if form == 'csv' else chr(9)}customer {number}" for number in range(2)
            ]
            assert sorted(map(int, table.getvalue().split())) == list(range(ORDER_COUNT))

    asked(door, act)


def test_copy_with_every_option_of_csv(door: Door) -> None:
    async def act(connection: Any) -> bytes:
        found = io.BytesIO()
        options = {"delimiter": ";", "null": "none", "quote": "'", "escape": "'", "force_quote": ["customer"]}
        text = "SELECT order_id, customer, NULL::text AS note FROM orders WHERE order_id < 2 ORDER BY 1"
        await connection.copy_from_query(text, output=found, format="csv", header=True, encoding="utf-8", **options)
        return found.getvalue()

    assert asked(door, act) == b"order_id;customer;note\n0;'customer 0';none\n1;'customer 1';none\n"


def test_a_pool_resets_its_connections(door: Door) -> None:
    async def act() -> None:
        given = door.dsn()
        pool = asyncpg.create_pool(database=given.pop("dbname"), min_size=1, max_size=2, **given)
        async with pool:
            for number in range(4):
                async with pool.acquire() as connection:
                    assert await connection.fetchval("SHOW TimeZone") == "UTC"
                    await connection.execute("SET TimeZone = 'Europe/Berlin'")
                    assert await connection.fetchrow("SELECT * FROM orders WHERE order_id = $1", number) == tuple(
                        order(number).values()
                    )
            assert sorted(
                await asyncio.gather(
                    *(pool.fetchval("SELECT order_id FROM orders LIMIT 1 OFFSET $1", n) for n in (0, 1))
                )
            )

    asyncio.run(act())


def test_a_statement_is_cancelled_by_its_time_and_the_session_lives(door: Door) -> None:
    async def act(connection: Any) -> None:
        with pytest.raises(TimeoutError):
            await connection.fetch("SELECT count(*) FROM range(300000000000)", timeout=1)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(asyncpg.QueryCanceledError):
            await connection.fetch("SELECT count(*) FROM range(300000000000)")
        await connection.execute("SET statement_timeout = 0")
        assert await connection.fetchval("SELECT 2") == 2

    asked(door, act)


def test_a_cached_statement_outlives_a_change_of_its_table(door: Door) -> None:
    door.lake.create_table("shop.grows", {"id": "int64", "n": "int32"}, primary_key=["id"])
    table = door.lake.table("shop.grows")
    table.upsert([{"id": 1, "n": 1}])

    async def act(connection: Any) -> None:
        texts = ("SELECT * FROM grows WHERE id = $1", "SELECT * FROM grows WHERE id + 0 = $1")
        for text in texts:
            assert await connection.fetch(text, 1) == [(1, 1)]
        await asyncio.to_thread(table.alter, add={"more": "string"})
        for text in texts:
            assert await connection.fetch(text, 1) == [(1, 1, None)], text

    try:
        asked(door, act)
    finally:
        door.lake.drop_table("shop.grows")


def test_errors_have_their_class(door: Door) -> None:
    wrong: list[tuple[str, type[Exception]]] = [
        ("SELEC 1", asyncpg.PostgresSyntaxError),
        ("SELECT * FROM shop.nothing", asyncpg.UndefinedTableError),
        ("SELECT nothing FROM orders", asyncpg.UndefinedColumnError),
        ("INSERT INTO orders VALUES (1)", asyncpg.ReadOnlySQLTransactionError),
        ("SELECT 'x'::int", asyncpg.InvalidTextRepresentationError),
    ]

    async def act(connection: Any) -> None:
        for text, kind in wrong:
            with pytest.raises(kind):
                await connection.fetch(text)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.copy_records_to_table("orders", schema_name="shop", records=[(1, "a", None, None)])
        assert await connection.fetchval("SELECT current_setting($1)", "TimeZone") == "UTC"

    asked(door, act)


def test_a_wrong_token_is_refused(door: Door) -> None:
    if not door.guarded:
        pytest.skip("an open server has no principals")
    given = door.dsn(password=token_of("boss"))
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        asyncio.run(asyncpg.connect(database=given.pop("dbname"), **given))

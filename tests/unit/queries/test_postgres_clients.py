"""The texts that clients of PostgreSQL send about tables, asked of a lake and of a real server with the same tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from lakestore.client.lake import Lake
from lakestore_server.queries.postgres.fixed_catalog import relations
from lakestore_server.queries.postgres.lookup_relations import SECRET
from lakestore_server.queries.postgres.names import VERSION
from lakestore_server.queries.postgres.settings_rows import MAJOR, SERVER_VERSION, SERVER_VERSION_NUM
from tests.support.client_texts import (
    POSTGRES_TABLES,
    ClientText,
    answer,
    client_texts,
    lake_oids,
    make_tables,
    postgres_rows,
    rows_of,
)
from tests.support.postgres import Postgres
from tests.support.postgres_catalog import COLUMNS
from tests.support.served import Served

TEXTS = list(client_texts())
CLIENTS = sorted({text.client for text in TEXTS})
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
_OIDS = """
SELECT 'shop.orders'::regclass::oid::int8 AS orders, 'shop.orders_pkey'::regclass::oid::int8 AS orders_pkey,
    (SELECT oid::int8 FROM pg_constraint WHERE conname = 'orders_pkey') AS orders_constraint,
    (SELECT oid::int8 FROM pg_namespace WHERE nspname = 'shop') AS shop
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Served(tmp_path_factory.mktemp("clients") / "data") as served:
        make_tables(served.lake)
        yield served.lake


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        server.run(POSTGRES_TABLES)
        yield server


def _same(rows: list[list[tuple[str, Any]]], oids: dict[str, int]) -> list[Any]:
    """The rows in one order, with the names of oids, and numbers as numbers wherever PostgreSQL's JSON has texts."""
    names = {number: name for name, number in oids.items()}

    def value(told: Any) -> Any:
        if isinstance(told, list):
            return [value(each) for each in told]
        if isinstance(told, str) and _NUMBER.fullmatch(told):
            number = Decimal(told).normalize()
            told = int(number) if number == number.to_integral_value() else str(number)
        return names.get(told, told) if isinstance(told, int) and not isinstance(told, bool) else told

    return sorted(([(name, value(told)) for name, told in row] for row in rows), key=str)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lake_answers_what_a_client_asks_about_tables_as_postgresql_does(
    client: str, lake: Lake, postgres: Postgres
) -> None:
    ours, theirs = lake_oids(lake._connection.all()), postgres.rows(_OIDS)[0]
    told: list[ClientText] = []
    for text in TEXTS:
        if text.client != client:
            continue
        found = _same(rows_of(answer(lake, text.with_values(ours))), ours)
        if text.differs:
            continue
        if found != _same(postgres_rows(postgres, text.with_values(theirs)), theirs):
            told.append(text)
    assert [text.name for text in told] == []


def test_the_catalog_has_the_relations_and_columns_of_the_version_that_the_port_speaks(postgres: Postgres) -> None:
    (told,) = postgres.rows("SELECT current_setting('server_version_num')::int / 10000 AS major")
    assert told["major"] == MAJOR == int(SERVER_VERSION_NUM) // 10_000 == int(SERVER_VERSION.split(".")[0])
    assert VERSION.startswith(f"PostgreSQL {MAJOR}.")
    theirs = {(each["schema"], each["name"]): dict(each["columns"]) for each in postgres.rows(COLUMNS)}
    ours = {name: dict(relation.columns) for name, relation in relations().items()}
    assert ours == theirs
    assert all(list(ours[name]) == list(theirs[name]) for name in ours)


def test_what_postgresql_shows_to_superusers_alone_is_secret_here(postgres: Postgres) -> None:
    text = "SELECT relname FROM pg_class WHERE relnamespace = 11 AND relkind IN ('r', 'v')"
    text += " AND NOT has_table_privilege('public', oid, 'select')"
    assert {row["relname"] for row in postgres.rows(text)} == SECRET


def test_the_texts_of_every_client_are_there_and_most_are_compared() -> None:
    assert len(TEXTS) > 250
    assert sum(not text.differs for text in TEXTS) > 190

"""The texts that clients of PostgreSQL send about tables, asked of a lake and of a real server with the same tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from lakestore.client.lake import Lake
from lakestore_server.queries.postgres.catalog import Catalog
from lakestore_server.queries.postgres.fixed_catalog import INFORMATION_SCHEMA, relations
from lakestore_server.queries.postgres.lookup_relations import SECRET
from lakestore_server.queries.postgres.names import VERSION
from lakestore_server.queries.postgres.settings_rows import MAJOR, SERVER_VERSION, SERVER_VERSION_NUM
from tests.support.client_texts import (
    POSTGRES_TABLES,
    SESSION,
    ClientText,
    answer,
    client_texts,
    lake_oids,
    make_tables,
    plain,
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
    text = "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'v')"
    text += " AND nspname IN ('pg_catalog', 'information_schema') AND relname !~ '^_pg_'"
    text += " AND NOT has_table_privilege('public', c.oid, 'select')"
    assert {row["relname"] for row in postgres.rows(text)} == SECRET


_READER = "CREATE ROLE ann; GRANT USAGE ON SCHEMA shop, crm TO ann; GRANT SELECT ON shop.orders, crm.people TO ann"
_OTHER_RELATIONS = {
    "sequences and functions are none of the lake's": "data_type_privileges element_types parameters routines"
    " routine_privileges",
    "types have no rights": "udt_privileges usage_privileges",
    "a reader sees keys too, of the lake's tables": "constraint_column_usage key_column_usage table_constraints",
    "there are the collations C, POSIX and ucs_basic": "collations collation_character_set_applicability",
}
"""Views of information_schema with other rows than PostgreSQL's, by reason."""
_OTHER_COLUMNS = {
    "columns": "is_updatable collation_catalog collation_schema collation_name",
    "tables": "is_insertable_into",
    "views": "view_definition is_updatable is_insertable_into is_trigger_updatable",
}
"""The port only reads, knows no collations of columns, and has no definitions of the views of PostgreSQL."""


def test_a_reader_sees_in_information_schema_what_postgresql_shows_to_a_reader(postgres: Postgres, lake: Lake) -> None:
    postgres.run(_READER)
    catalog = Catalog(lake._connection.all(), SESSION)
    names = {name for schema, name in relations() if schema == INFORMATION_SCHEMA} - SECRET
    different: dict[str, list[str]] = {}
    names -= set(" ".join(_OTHER_RELATIONS.values()).split())
    for name in sorted(names):
        printed = postgres.run(f"SET ROLE ann; SELECT row_to_json(r) FROM information_schema.{name} r")
        printed = printed.replace('"postgres"', '"lakestore"')  # the owner of the catalog
        left_out = set(_OTHER_COLUMNS.get(name, "").split())
        theirs, ours = (
            {json.dumps({key: row[key] for key in row.keys() - left_out}, sort_keys=True) for row in rows}
            for rows in (
                map(json.loads, printed.splitlines()),
                plain(catalog.relation("information_schema", name).to_pylist()),
            )
        )
        # roles may update pg_settings, and read some columns of pg_subscription
        theirs = {row for row in theirs if '"UPDATE"' not in row and '"pg_subscription"' not in row}
        if ours != theirs:
            different[name] = sorted(ours ^ theirs)[:2]
    assert different == {}


def test_the_texts_of_every_client_are_there_and_most_are_compared() -> None:
    assert len(TEXTS) > 250
    assert sum(not text.differs for text in TEXTS) > 190

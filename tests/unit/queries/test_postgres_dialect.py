"""Texts in PostgreSQL's dialect: what changes, what stays, what is refused, and the catalog that they see."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.errors import Invalid, LakestoreError, NotFound
from lakestore.model.table import Table, define
from lakestore.union import sql_gate
from lakestore.union.sql_gate import Rules
from lakestore_server.edge.postgres.sqlstates import sqlstate_of
from lakestore_server.queries.postgres import dialect, functions, lookup_relations, tree
from lakestore_server.queries.postgres.catalog import Catalog, Session
from lakestore_server.queries.postgres.fixed_catalog import relations
from lakestore_server.queries.postgres.oids import Oids
from tests.support.client_texts import SESSION, answer, make_tables
from tests.support.served import Served

_FORM = re.compile(r"(?:^CREATE MACRO \S+?|, )\((?:\w+(?: [A-Z]+)?(?:, )?)*\) AS ")
"""The parameters of one form of a macro."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The tables of the texts, for tests that only read."""
    with Served(tmp_path_factory.mktemp("dialect")) as served:
        make_tables(served.lake)
        yield served.lake


@pytest.fixture
def own_lake(served: Served) -> Lake:
    """The same for one test, which changes them."""
    make_tables(served.lake)
    return served.lake


class ListedTables:
    """Tables that count how often all of them are asked for."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables, self.lists = tables, 0

    def all(self) -> Sequence[Table]:
        self.lists += 1
        return self._tables

    def find(self, name: str) -> Table | None:
        return next((table for table in self._tables if table.name == name), None)


def _tables(*names: str) -> list[Table]:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    made = (define(name, schema, primary_key=["id"]) for name in names)
    return [replace(table, number=number) for number, table in enumerate(made, 1)]


def _translated(text: str, tables: Sequence[Table] = (), session: Session = SESSION) -> str:
    return dialect.translated(duckdb, text, ListedTables(tables), session)[0]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM shop.orders WHERE order_id = $1 AND customer <> 'É~'",
        "SELECT o.order_id, o.customer AS c FROM shop.orders o ORDER BY 1 DESC LIMIT 3",
        "select a from shop.orders -- SELECT ~",
    ],
)
def test_a_text_that_means_the_same_in_duckdb_stays_as_it_is(text: str) -> None:
    assert _translated(text).lower() == text.lower()
    assert len(_translated(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("SELECT id / 2 FROM shop.a WHERE name ~ 'x' AND id + 1 > 2", 0),
        ("SELECT a.id / 2 FROM a JOIN shop.b ON a.id = b.id + 1", 0),
        ("WITH c AS (SELECT id FROM a) SELECT c.id / 2 FROM c WHERE c.id + 1 > 2", 0),
        ("SELECT id / 2 FROM shop.big WHERE id + 1 > 2", 1),  # only another spelling is there
        ("SELECT relname FROM pg_class", 1),
    ],
)
def test_only_the_tables_that_a_text_names_are_asked_for(text: str, lists: int) -> None:
    tables = ListedTables(_tables("shop.a", "shop.b", "shop.Big", "crm.a"))
    dialect.translated(duckdb, text, tables, SESSION)
    assert tables.lists == lists


def test_names_without_a_database_are_looked_up_in_the_search_path() -> None:
    tables = _tables("crm.orders", "shop.orders", "crm.people", "shop.pg_class")
    assert "FROM shop.orders" in _translated("SELECT * FROM orders", tables)
    assert "FROM crm.people" in _translated(
        "SELECT * FROM people", tables, replace(SESSION, search_path=("shop", "crm"))
    )
    assert _translated("SELECT * FROM people", tables) == "SELECT * FROM people".lower()  # the gate names it
    assert "__pg_catalog.pg_class" in _translated("SELECT * FROM pg_class", tables)
    assert _translated("WITH orders AS (SELECT 1 AS a) SELECT a FROM orders", tables).count("shop") == 0
    assert "FROM crm.people" in _translated('SELECT * FROM "shop".crm.people', tables)  # the connection's database


def test_a_table_at_a_past_cut_is_looked_up_in_the_search_path() -> None:
    tables = _tables("crm.orders", "shop.orders", "shop.People")
    crm = replace(SESSION, search_path=("crm", "shop"))
    assert '"crm"."orders" AT (TOKEN => \'x\')' in _translated("SELECT * FROM orders AT (TOKEN => 'x')", tables, crm)
    text = "SELECT * FROM \"People\" AT (TOKEN => 'x') g JOIN shop.orders AT (TOKEN => 'y') USING (id)"
    said = _translated(text, tables, crm)
    assert '"shop"."People" AT (TOKEN => \'x\')' in said
    assert '"shop"."orders" AT (TOKEN => \'y\')' in said
    for wrong in ("SELECT * FROM nobody AT (TOKEN => 'x')", "SELECT * FROM orders AT (TOKEN => 'x'"):
        with pytest.raises(Invalid, match="follows a table's name"):
            _translated(wrong, tables, crm)


def test_an_error_of_the_parser_names_the_position_in_the_users_text() -> None:
    text = "SELECT a OPERATOR(pg_catalog.~) 'é', b::numeric FROM t WHERE FROM"
    with pytest.raises(Invalid, match=f"at character {len(text) - 3}$"):
        _translated(text)


def test_bodies_of_macros_call_listed_functions_and_read_our_relations_only() -> None:
    names = {*(name for _, name in relations()), *lookup_relations.NAMES}
    rules = Rules(frozenset(f"{functions.SCHEMA}.{name}" for name in names), macros=frozenset(functions.MACROS))
    for text in functions.texts(functions.MACROS, SESSION, "x"):
        for body in _FORM.split(text)[1:]:
            sql_gate.check(duckdb, f"SELECT {body.replace('memory.', '')}", rules)


def test_every_macro_can_be_created_and_the_relations_that_it_names_are_there() -> None:
    catalog = Catalog(_tables("shop.orders"), SESSION)
    with duckdb.connect() as connection:
        connection.execute(f'CREATE SCHEMA "{functions.SCHEMA}"')
        for name in functions.calls_of(functions.MACROS)[1]:
            connection.register(f"rows_{name}", catalog.relation("pg_catalog", name))
            connection.execute(f'CREATE VIEW "{functions.SCHEMA}".{name} AS FROM rows_{name}')
        for text in functions.texts(functions.MACROS, SESSION, "x"):
            connection.execute(text)


def test_a_macro_is_admitted_only_where_it_hides_duckdbs_function() -> None:
    rules = Rules(macros=frozenset({"current_setting"}))
    sql_gate.check(duckdb, "SELECT current_setting('x')", rules)
    for text in ("SELECT main.current_setting('x')", "SELECT system.main.current_setting('x')"):
        with pytest.raises(Invalid, match="current_setting is refused"):
            sql_gate.check(duckdb, text, rules)
    with pytest.raises(Invalid, match="current_setting is refused"):
        sql_gate.check(duckdb, "SELECT current_setting('x')", Rules())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM duckdb_settings()",
        "SELECT getvariable('x')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT pg_catalog.json_execute_serialized_sql('x')",
        "SELECT * FROM pg_read_file('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT system.main.getvariable('x') ~ 'a'",
        "INSERT INTO shop.orders VALUES (1)",
        "SELECT 1; SELECT 2",
    ],
)
def test_the_gate_refuses_in_this_dialect_what_it_refuses_in_duckdbs(lake: Lake, text: str) -> None:
    with pytest.raises((Invalid, NotFound)):
        answer(lake, text)


def test_a_caller_sees_the_tables_that_he_has_a_right_to_and_no_others() -> None:
    catalog = Catalog(_tables("shop.orders"), SESSION)
    for schema, name in relations():
        rows = str(catalog.relation(schema, name).to_pylist())
        assert "secret" not in rows
    assert "orders" in str(catalog.relation("information_schema", "tables").to_pylist())
    with pytest.raises(NotFound, match=r'"shop.secret" does not exist'):
        _translated("SELECT 'shop.secret'::regclass", _tables("shop.orders"))


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("has_table_privilege('shop.orders', 'select')", True),
        ("has_table_privilege('Orders', 'SELECT ')", True),
        ("has_table_privilege('crm.people', 'select')", False),
        ("has_table_privilege('shop.orders', 'insert, Select')", True),
        ("has_table_privilege('shop.orders', 'insert, update')", False),
        ("has_table_privilege('shop.orders', 'SELECT WITH GRANT OPTION')", False),
        ("has_table_privilege('ann', 'shop.orders'::regclass, 'select')", True),
        ("has_table_privilege('lakestore', 'crm.people', 'select')", True),
        ("has_table_privilege('public', 'shop.orders', 'select')", False),
        ("has_table_privilege('public', 'pg_class', 'select')", True),
        ("has_table_privilege('pg_authid', 'select')", False),
        ("has_table_privilege(99::oid, 'select')", None),
        ("has_table_privilege('shop.orders', NULL)", None),
        ("has_any_column_privilege('crm.people', 'select')", False),
        ("has_column_privilege('shop.orders', 'customer', 'select')", True),
        ("has_column_privilege('shop.orders', 1::int2, 'select')", True),
        ("has_column_privilege('crm.people', 'name', 'select')", False),
        ("has_column_privilege('shop.orders', 99::int2, 'select')", None),
        ("has_schema_privilege('shop', 'create, USAGE')", True),
        ("has_schema_privilege('ann', 'shop', 'create')", False),
        ("has_database_privilege(current_database(), 'connect')", True),
        ("has_database_privilege(current_database(), 'create')", False),
        ("pg_has_role('lakestore', 'usage')", False),
        ("pg_has_role('ann', 'member')", True),
        (
            "(SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace > 16384"
            " AND has_table_privilege(oid, 'select'))",
            "orders",
        ),
        ("(SELECT string_agg(table_name, ' ') FROM information_schema.role_table_grants)", "orders"),
    ],
)
def test_privileges_are_the_callers_right_to_read(lake: Lake, call: str, value: object) -> None:
    found = answer(lake, f"SELECT {call} AS found", replace(SESSION, readable=("shop.*",)))
    assert found["found"].to_pylist() == [value]


def test_an_administrator_is_told_the_rights_of_every_principal(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = {"ann": ("*",), "bob": ("shop.*", "x.y"), "eve": ("crm.people",), "nil": ()}
    text = (
        "SELECT rolname, has_table_privilege(rolname, c.oid, 'select') AS may, has_any_column_privilege(r.oid, c.oid,"
        " 'select') AS some FROM pg_roles r, pg_class c WHERE c.relname = 'orders' AND relkind = 'r' ORDER BY 1"
    )
    found = answer(lake, text, replace(SESSION, readers=readers)).to_pydict()
    told = dict(zip(found["rolname"], found["may"], strict=True))
    assert {name: told[name] for name in ("ann", "bob", "eve", "nil", "lakestore")} == {
        "ann": True,
        "bob": True,
        "eve": False,
        "nil": False,
        "lakestore": True,
    }
    assert found["some"] == found["may"]
    calls = (
        "has_table_privilege('bob', 'crm.people', 'select') AS a, has_column_privilege('eve', 'crm.people', 'name',"
        " 'select') AS b, has_table_privilege('public', 'shop.orders', 'select') AS c,"
        " has_table_privilege('nil', 'pg_class', 'select') AS d, has_table_privilege('bob', 99::oid, 'select') AS e"
    )
    (row,) = answer(lake, f"SELECT {calls}", replace(SESSION, readers=readers)).to_pylist()
    assert list(row.values()) == [False, True, False, True, None]
    with pytest.raises(LakestoreError, match='role "zoe" does not exist'):
        answer(lake, "SELECT has_table_privilege('zoe', 'shop.orders', 'select')", replace(SESSION, readers=readers))
    roles = {"lakestore": 10, "ann": 20_001, "team": 20_002}
    monkeypatch.setattr(Catalog, "roles", property(lambda _: roles))
    owner = "SELECT has_table_privilege('team', 'shop.orders', 'select') AS a"
    assert answer(lake, owner, replace(SESSION, readers=readers))["a"].to_pylist() == [False]
    with pytest.raises(LakestoreError, match='role "team" does not exist'):
        answer(lake, owner)
    anyone = "SELECT has_table_privilege('public', 'crm.people', 'select') AS a"
    assert answer(lake, anyone, replace(SESSION, readers={"": ("*",)}))["a"].to_pylist() == [True]


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("has_table_privilege('shop.nope', 'select')", "42P01"),
        ("has_table_privilege(x, 'select') FROM (VALUES ('shop.nope')) v(x)", "42P01"),
        ("has_table_privilege('shop.orders', 'selec')", "22023"),
        ("has_table_privilege('bob', 'shop.orders', 'select')", "42704"),
        ("has_column_privilege('shop.orders', 'nope', 'select')", "42703"),
        ("has_schema_privilege('nope', 'usage')", "3F000"),
        ("has_database_privilege('nope', 'connect')", "3D000"),
        ("has_function_privilege('nope()', 'execute')", "42883"),
        ("has_type_privilege('nope', 'usage')", "42704"),
    ],
)
def test_privileges_of_unknown_objects_have_the_errors_of_postgresql(lake: Lake, call: str, sqlstate: str) -> None:
    with pytest.raises(LakestoreError) as error:
        answer(lake, f"SELECT {call}")
    assert sqlstate_of(error.value) == sqlstate


def test_oids_follow_from_numbers_and_names_and_never_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _tables("shop.orders")[0]
    one = Catalog([replace(table, number=7)], SESSION).tables[0]
    other = Catalog([*_tables("a.a", "b.b"), replace(table, number=7)], Session("bob")).tables[-1]
    assert (one.oid, one.index_oid, one.constraint_oid) == (16_440, 16_441, 16_442)
    assert (other.oid, other.schema_oid) == (one.oid, one.schema_oid)
    assert 16_384 < one.schema_oid < 1 << 31

    class Same:
        def digest(self) -> bytes:
            return b"\xff" * 32

    monkeypatch.setattr(hashlib, "sha256", lambda _: Same())
    oids = Oids()
    found = [oids.named("database", name) for name in ("a", "b", "c", "a")]
    assert len(set(found)) == 3
    assert found[0] == found[3]
    assert max(found) < 1 << 31


def test_attnum_is_the_id_of_a_column_and_survives_a_rename(own_lake: Lake) -> None:
    query = "SELECT attname, attnum FROM pg_attribute WHERE attrelid = 'orders'::regclass ORDER BY attnum"
    before = answer(own_lake, query).to_pylist()
    own_lake.table("shop.orders").alter(rename={"customer": "buyer"})
    after = answer(own_lake, query).to_pylist()
    assert [row["attnum"] for row in after] == [row["attnum"] for row in before]
    assert [row["attname"] for row in after][1] == "buyer"


def test_rows_of_the_lake_are_read_under_postgres_names_of_columns(own_lake: Lake) -> None:
    own_lake.table("shop.orders").upsert([{"order_id": number, "customer": "x"} for number in range(3)])
    found = answer(
        own_lake, "SELECT count(*), max(order_id)::text, order_id / 2 FROM Orders GROUP BY order_id / 2 ORDER BY 3"
    )
    assert found.column_names == ["count", "max", "?column?"]
    assert found.to_pylist()[0] == {"count": 2, "max": "1", "?column?": 0}
    token = str(own_lake.snapshot().token)
    own_lake.table("shop.orders").delete([{"order_id": 0}])
    then = answer(own_lake, f"SELECT count(*) FROM shop.orders AT (TOKEN => '{token}') o WHERE o.customer ~ '^x$'")
    assert then.to_pylist() == [{"count": 3}]


def test_a_print_that_duckdb_reads_as_another_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT a.x ~ 'x' FROM a CROSS JOIN b LEFT JOIN c ON a.x = c.x"
    assert "INNER JOIN b ON (CAST('t' AS BOOLEAN)) LEFT JOIN c" in _translated(text)
    monkeypatch.setattr(tree.Rewriting, "_join", lambda _self, node, _: node)
    with pytest.raises(Invalid, match="has another meaning in DuckDB"):
        _translated(text)


def test_the_tree_of_a_long_text_is_changed_without_recursion() -> None:
    text = "SELECT " + " + ".join(["count(*)"] * 400) + " FROM shop.orders"
    assert _translated(text).startswith("SELECT")


def test_names_that_differ_only_in_case_have_types_of_their_own(own_lake: Lake) -> None:
    for name, kind in (("shop.mixed", pa.int64()), ("shop.MIXED", pa.float64())):
        own_lake.create_table(name, pa.schema([("n", kind)])).append([{"n": 3}])
    for name, half in (("mixed", 1), ('"MIXED"', 1.5), ("shop.mixed", 1), ('shop."MIXED"', 1.5)):
        assert answer(own_lake, f"SELECT n / 2 AS half FROM {name}").to_pylist() == [{"half": half}], name
    catalog = dialect.LazyCatalog(ListedTables(own_lake._connection.all()), SESSION)
    assert catalog.made.tables
    assert [*catalog.types_of([("shop", "MIXED")], "n")] == [pa.float64()]
    assert {*catalog.types_of([("shop", "Mixed")], "n")} == {pa.int64(), pa.float64()}

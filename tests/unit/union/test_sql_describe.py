"""Types of a query's parameters and columns, which are found without running it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.connection import Connection
from lakestore.errors import Invalid
from lakestore.union import sql
from lakestore.union.sql import Query
from lakestore.union.sql_text import parameter_places, statement

INT, TEXT, TIME, COUNT = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC"), pa.int64()
PLACE, PROPS = pa.struct([("Größe", pa.int32()), ('a"b', pa.string())]), pa.map_(pa.string(), pa.int64())
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("seen", TIME),
        ("day", pa.date32()),
        ("five", pa.binary(5)),
        ("place", PLACE),
        ("props", PROPS),
        ("prices", pa.list_(pa.decimal128(12, 2))),
    ]
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ls.Lake]:
    with ls.open(tmp_path_factory.mktemp("describe")) as lake:
        lake.create_table("shop.orders", COLUMNS, primary_key=["id"], buckets=1)
        lake.create_table("other.orders", pa.schema([("id", pa.string())]), buckets=1)
        yield lake


def described(lake: ls.Lake, text: str, **options: object) -> tuple[list[pa.DataType], pa.Schema]:
    query = Query(text.replace("{now}", datetime.now(UTC).isoformat()), **{"search_path": ("shop", "other"), **options})  # type: ignore[arg-type]
    kinds, columns = sql.describe(lake.transport, query, Connection(lake.transport).all)
    return kinds.types, columns


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("SELECT * FROM shop.orders WHERE id = $1", [INT]),
        ("SELECT * FROM orders WHERE id = $1", [INT]),
        ("SELECT * FROM other.orders WHERE id = $1", [TEXT]),
        ("SELECT * FROM orders o WHERE $1 < o.small", [pa.int16()]),
        ("SELECT * FROM orders WHERE id IN ($1,$2,$3)", [INT, INT, INT]),
        ("SELECT * FROM orders WHERE id BETWEEN $2 AND $1 AND name LIKE $3", [INT, INT, TEXT]),
        ("SELECT * FROM orders WHERE id = ? AND seen >= ? LIMIT ? OFFSET ?", [INT, TIME, COUNT, COUNT]),
        ("SELECT * FROM orders WHERE id = ANY($1)", [pa.list_(pa.int64())]),
        ("SELECT * FROM orders WHERE (id, name) IN (($1,$2))", [INT, TEXT]),
        ("WITH w AS (SELECT id AS k FROM orders) SELECT * FROM w WHERE k = $1", [INT]),
        ("SELECT $1::date, CAST($2 AS double)", [pa.date32(), pa.float64()]),
        ("SELECT $1, coalesce(id, $2) FROM orders", [TEXT, INT]),
        ("SELECT * FROM orders WHERE date_trunc('day', seen) = $1", [TIME]),
        ("SELECT '$1', \"id\" /* $2 */ FROM orders WHERE id = $1 -- $3", [INT]),
        ("SELECT * FROM orders a JOIN other.orders b ON a.name = b.id WHERE b.id = $1 AND a.id = $2;", [TEXT, INT]),
        ("SELECT 1", []),
        ("SELECT * FROM orders WHERE five = $1", [pa.binary()]),
        ("SELECT * FROM orders WHERE place = $1 AND props = $2", [PLACE, PROPS]),
        ('SELECT * FROM orders WHERE place."a""b" = $1 OR id = $2', [TEXT, INT]),
        ("SELECT * FROM orders WHERE prices = $1", [pa.list_(pa.decimal128(38, 12))]),
        ("SELECT * FROM orders WHERE id IN ($1) AND name = ''", [INT]),
        ("SELECT * FROM shop.orders AT (TIMESTAMP => '{now}') WHERE id IN ($1) AND name = ''", [INT]),
    ],
)
def test_the_place_of_a_parameter_tells_its_type(lake: ls.Lake, text: str, kinds: list[pa.DataType]) -> None:
    found = [
        pa.list_(kind.value_type) if pa.types.is_list(kind) else kind for kind in described(lake, text)[0]
    ]  # DuckDB names the inner field
    assert found == kinds


def test_a_decimal_parameter_is_finer_than_its_column(lake: ls.Lake) -> None:
    """`amount > 0.005` must not become `amount > 0.01`."""
    ((kind,), _) = described(lake, "SELECT * FROM orders WHERE amount > $1")
    assert (kind.precision, kind.scale) == (38, 12)
    ((kinds,), _) = described(lake, "SELECT * FROM orders WHERE amount = ANY($1::decimal(12, 2)[])")
    assert (kinds.value_type.precision, kinds.value_type.scale) == (38, 12)


def test_parameters_leave_the_types_of_columns(lake: ls.Lake) -> None:
    """DuckDB takes `'a' || NULL` for an integer."""
    text = "SELECT 'a' || $1::text AS t, $2::bigint + 1 AS n, $3::text[] AS l, 'b' || $4::timestamptz AS m"
    found = described(lake, text)[1].types
    assert [found[0], found[1], found[2].value_type, found[3]] == [TEXT, INT, TEXT, TEXT]


def test_json_finds_values_with_parts(lake: ls.Lake) -> None:
    """A driver of Postgres sends structs and maps as JSON."""
    row = {"id": 1, "name": "x", "place": {"Größe": 1, 'a"b': "c"}, "props": [("ß", None), ("b", 2)]}
    lake.table("shop.orders").upsert([row])
    text = "SELECT id FROM shop.orders WHERE place = $1 AND props = $2 AND name = $3"
    given = ['{"a\\"b": "c", "Größe": 1}', '{"ß": null, "b": 2}', "x"]
    query = Query(text, given, kinds=("JSON", "JSON", "JSON"))
    assert sql.run(lake.transport, query, Connection(lake.transport).all).table.to_pylist() == [{"id": 1}]


def test_the_columns_are_those_of_the_answer(lake: ls.Lake) -> None:
    for text in (
        "SELECT * FROM orders",
        "SELECT id, id, name, count(*) OVER () FROM orders",
        "SELECT 1 AS a, 2 AS a, 3 AS b_1",
        "SELECT sum(amount) AS total, max(seen) FROM orders",
        "SHOW TABLES",
        "DESCRIBE shop.orders",
    ):
        ran = sql.run(lake.transport, Query(text, search_path=("shop",)), Connection(lake.transport).all)
        assert described(lake, text)[1] == ran.table.schema, text
    assert described(lake, "EXPLAIN SELECT * FROM orders")[1].names == ["explanation"]


def test_a_text_that_is_refused_is_refused(lake: ls.Lake) -> None:
    for text in (
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM orders WHERE nope = $1",
        "SELECT 1); SELECT (2",
        "SELECT 1; SELECT 2",
        "SELECT 1) UNION (SELECT 2",
        "DELETE FROM orders",
        "SELECT $999999999",
        "SELECT $0",
        "SELECT $name",
        "",
    ):
        with pytest.raises(Invalid):
            described(lake, text)


def test_the_first_database_of_the_path_wins(lake: ls.Lake) -> None:
    assert described(lake, "SELECT id FROM orders", search_path=("other", "shop"))[1].types == [TEXT]
    assert described(lake, "WITH orders AS (SELECT 1 AS x) SELECT * FROM orders")[1].names == ["x"]
    with pytest.raises(Invalid, match="no table 'orders'"):
        described(lake, "SELECT id FROM orders", search_path=())


def test_parameters_are_found_beside_literals_and_comments() -> None:
    text = "SELECT $1,$2,'$3','a''$4',E'\\'$5', \"$6\", $$ $7 $$, $x$ $8 $x$, a$9, -- $10\n /* $11 */ ?, $12"
    assert [text[begin:end] for _, begin, end in parameter_places(text)] == ["$1", "$2", "?", "$12"]
    assert statement("SELECT ';' /* ; */ ; -- ;\n ;").text.strip() == "SELECT ';' /* ; */"

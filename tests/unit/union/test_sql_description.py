"""What a query takes and returns, without running it: by the places of its parameters, and by DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.union.sql_description import describe

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.int32())),
    ]
)
TEXT, LONG, WHOLE, MONEY = pa.string(), pa.int64(), pa.int32(), pa.decimal128(12, 2)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> ls.Lake:
    lake = ls.open(tmp_path_factory.mktemp("described") / "lake")
    lake.create_table("shop.orders", schema=SCHEMA, primary_key=["id"])
    return lake


def definitions(lake: ls.Lake) -> list[Table]:
    return [lake.table("shop.orders").definition]


@pytest.mark.parametrize(
    ("text", "parameters", "columns"),
    [
        ("SELECT id, name FROM shop.orders WHERE id = $1", [LONG], [LONG, TEXT]),
        ("SELECT amount FROM shop.orders o WHERE ? = o.name AND amount > ?", [TEXT, MONEY], [MONEY]),
        ("SELECT id FROM shop.orders WHERE amount BETWEEN $2 AND $1 LIMIT $3", [MONEY, MONEY, LONG], [LONG]),
        ("SELECT id FROM shop.orders WHERE id + 1 IN (?, ?) OFFSET ?", [LONG, LONG, LONG], [LONG]),
        ("SELECT $1 AS a, CAST($2 AS DATE) AS b, $1 || 'x' AS c", [TEXT, pa.date32()], [TEXT, pa.date32(), TEXT]),
        ("SELECT tags FROM shop.orders WHERE tags = $1", [pa.list_(WHOLE)], [pa.list_(pa.field("l", WHOLE))]),
        ("SELECT seen FROM shop.orders WHERE lower(name) = $1", [TEXT], [pa.timestamp("us", tz="UTC")]),
        ("WITH x AS (SELECT id FROM shop.orders WHERE name LIKE ?) SELECT count(*) AS n FROM x", [TEXT], [LONG]),
        ("SELECT 'is it ?' AS a -- or $1 ?\n, 1 AS b;", [], [TEXT, WHOLE]),
        ("SHOW TABLES", [], [TEXT, TEXT, LONG, pa.bool_()]),
        ("EXPLAIN SELECT count(*) FROM shop.orders", [], [TEXT]),
    ],
)
def test_types_follow_from_places(
    lake: ls.Lake, text: str, parameters: list[pa.DataType], columns: list[pa.DataType]
) -> None:
    types, without_rows = describe(text, lambda: definitions(lake))
    assert list(types) == parameters
    found = lake.sql(without_rows).to_arrow()
    assert [str(kind).replace("item", "l") for kind in found.schema.types] == [
        str(kind).replace("item", "l") for kind in columns
    ]


def test_a_past_cut_has_the_types_of_its_table(lake: ls.Lake) -> None:
    token = lake.snapshot().token
    text = f"SELECT name FROM shop.orders AT (TOKEN => '{token}') WHERE id = ?"
    types, without_rows = describe(text, lambda: definitions(lake))
    assert types == (LONG,)
    assert lake.sql(without_rows).to_arrow().schema.names == ["name"]


def test_a_description_runs_nothing(lake: ls.Lake) -> None:
    text = "SELECT count(*) AS n FROM range(1000000000) a, range(1000000000) b WHERE a.range * b.range % 7 = 8"
    _, without_rows = describe(text, tuple)
    assert lake.sql(without_rows).to_arrow().num_rows == 0


@pytest.mark.parametrize("text", ["SELECT $name", "SELECT $99999", "SELECT $0", "DELETE FROM shop.orders", "", "SELEC"])
def test_what_cannot_be_described_is_invalid(lake: ls.Lake, text: str) -> None:
    with pytest.raises(Invalid):
        describe(text, lambda: definitions(lake))

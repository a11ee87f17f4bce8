"""Table names in Spark SQL: only their characters change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model.table import define
from lakestore_spark.table_names import Query

TABLE = define("shop.orders", pa.schema([("id", pa.int64()), ("Amount", pa.int64()), ("note", pa.string())]))
VIEWS = {"shop.orders": "v"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM shop.orders", "SELECT 1 FROM `v` AS `orders`"),
        ("SELECT 1 FROM `shop`.`orders` o", "SELECT 1 FROM `v` o"),
        ("SELECT shop.orders.id FROM shop.orders", "SELECT orders.id FROM `v` AS `orders`"),
        ("SELECT 'shop.orders' FROM shop.orders AS x", "SELECT 'shop.orders' FROM `v` AS x"),
        ("SELECT 1 FROM lake.shop.orders", "SELECT 1 FROM lake.shop.orders"),
        ("SELECT 1 FROM other.orders", "SELECT 1 FROM other.orders"),
        (
            "SELECT /* shop.orders */ 1 FROM shop.orders o -- shop.orders",
            "SELECT /* shop.orders */ 1 FROM `v` o -- shop.orders",
        ),
        ("SELECT 1 FROM shop.orders TABLESAMPLE (10 PERCENT) o", "SELECT 1 FROM `v` TABLESAMPLE (10 PERCENT) o"),
        (
            "SELECT 1 FROM shop.orders a JOIN shop.orders b ON a.id = b.id WHERE a.id IN (SELECT id FROM shop.orders)",
            "SELECT 1 FROM `v` a JOIN `v` b ON a.id = b.id WHERE a.id IN (SELECT id FROM `v` AS `orders`)",
        ),
    ],
)
def test_names_are_replaced_in_the_text(text: str, expected: str) -> None:
    assert Query(text).replaced(VIEWS) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id FROM shop.orders", ["id"]),
        ("SELECT sum(amount) FROM shop.orders", ["Amount"]),
        ("SELECT count(*) FROM shop.orders", ["id"]),
        ("SELECT * FROM shop.orders", ["id", "Amount", "note"]),
        ("SELECT o.* FROM shop.orders o", ["id", "Amount", "note"]),
        ("SELECT max(__offset) FROM shop.orders", ["__offset"]),
        ("SELECT 1 FROM shop.orders NATURAL JOIN lake.a.b", ["id", "Amount", "note"]),
        ("SELECT count(*) FROM shop.orders JOIN lake.a.b USING (note)", ["note"]),
    ],
)
def test_columns_the_text_may_need(text: str, expected: list[str]) -> None:
    assert Query(text).columns(TABLE) == expected


def test_targets_of_writes_are_known() -> None:
    assert Query("INSERT INTO shop.orders SELECT * FROM lake.a.b").target() == "shop.orders"
    assert Query("DELETE FROM shop.orders WHERE id = 1").target() == "shop.orders"
    assert Query("CREATE TABLE lake.a.b AS SELECT * FROM shop.orders").target() == ""
    assert Query("SELECT 1 FROM shop.orders").target() == ""


def test_what_is_no_statement_is_refused() -> None:
    with pytest.raises(Invalid):
        Query("SELECT 1; SELECT 2")
    with pytest.raises(Invalid):
        Query("SELECT FROM WHERE (")

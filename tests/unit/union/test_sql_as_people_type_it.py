"""lake.sql takes statements as people type them: parameters, the tables themselves, past cuts, names in quotes."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.errors import Invalid, NotFound
from tests.support.served import Served

ROWS = [{"id": n, "who": "ab"[n % 2], "amount": n / 2} for n in range(6)]


@pytest.fixture
def lake(served: Served) -> Lake:
    """Two tables with rows."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string()), ("amount", pa.float64())])
    served.lake.create_table("shop.orders", schema, primary_key=["id"]).upsert(ROWS)
    served.lake.create_table("shop.events", pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
    return served.lake


def _one(lake: Lake, text: str, params: Any = None) -> Any:
    (row,) = lake.sql(text, params).to_pylist()
    return next(iter(row.values()))


_VALUES_CASES: list[Any] = [
    ("SELECT count(*) FROM shop.orders WHERE id > ? AND who = ?", [1, "a"], 2),
    ("SELECT count(*) FROM shop.orders WHERE id > $2 AND who = $1", ["a", 1], 2),
    ("SELECT count(*) FROM shop.orders WHERE id > $least AND who = $who", {"least": 1, "who": "a"}, 2),
    ("SELECT count(*) FROM shop.orders WHERE who = ?", ["a' OR 1=1 --"], 0),
    ("SELECT count(*) FROM shop.orders WHERE list_contains(?, id)", [[1, 2]], 2),
    ("SELECT count(*) FROM shop.orders WHERE amount < $nan OR id IS NULL", {"nan": math.nan}, 6),
    ("SELECT count(*) FROM shop.orders WHERE id IS NOT DISTINCT FROM ?", [None], 0),
    ("SELECT ? + 1", [1], 2),
]


def test_values_are_handed_over_beside_the_text(lake: Lake) -> None:
    for text, params, found in _VALUES_CASES:
        assert _one(lake, text, params) == found
        with lake.snapshot() as snapshot:
            assert next(iter(snapshot.sql(text, params).to_pylist()[0].values())) == found


_PARAMETERS_CASES: list[Any] = [([], "parameter"), ([1, 2, 3], "parameter"), ({"x": 1}, "parameter")]


def test_parameters_that_do_not_fit_are_named(lake: Lake) -> None:
    for params, words in _PARAMETERS_CASES:
        with pytest.raises(Invalid, match=words) as refused:
            lake.sql("SELECT count(*) FROM shop.orders WHERE id > $1 AND id < $2", params)
        assert "\n" not in refused.value.message


def test_the_tables_themselves_are_shown(lake: Lake) -> None:
    shown = lake.sql("SHOW TABLES").to_pylist()
    assert [(row["database"], row["table"], row["columns"], row["keyed"]) for row in shown] == [
        ("shop", "events", 1, False),
        ("shop", "orders", 3, True),
    ]
    assert lake.sql("show tables from nothing;").to_pylist() == []
    assert lake.sql("SHOW DATABASES").to_pylist() == [{"database": "shop"}]
    described = {row["column_name"]: row for row in lake.sql("DESCRIBE shop.orders").to_pylist()}
    assert (described["id"]["null"], described["id"]["key"], described["id"]["column_type"]) == ("NO", "PRI", "BIGINT")
    assert (described["who"]["null"], described["who"]["key"]) == ("YES", None)
    assert [row["column_name"] for row in lake.sql("DESCRIBE SELECT id FROM shop.orders").to_pylist()] == ["id"]


def test_information_schema_has_our_tables(lake: Lake) -> None:
    text = "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables ORDER BY 1"
    assert [row["name"] for row in lake.sql(text).to_pylist()] == ["shop.events", "shop.orders"]
    text = "SELECT is_nullable FROM information_schema.columns WHERE table_name = 'orders' AND column_name = $name"
    assert _one(lake, text, {"name": "id"}) == "NO"


_NAMES_CASES: list[Any] = ["shop.orders", '"shop"."orders"', '"shop.orders"', "shop.orders o", "SHOP.orders"]


def test_names_in_quotes_are_names(lake: Lake) -> None:
    for name in _NAMES_CASES:
        if name.isupper() or name.startswith("SHOP"):
            with pytest.raises(NotFound, match=r"did you mean shop\.orders"):
                lake.sql(f"SELECT count(*) FROM {name}")
        else:
            assert _one(lake, f"SELECT count(*) FROM {name} WHERE id > 0") == 5


def test_past_cuts_stand_beside_the_present(lake: Lake, served: Served) -> None:
    token = str(lake.table("shop.orders").upsert([{"id": 10, "who": "c", "amount": 1.0}]))
    served.clock.advance(60)
    lake.table("shop.orders").upsert([{"id": n, "who": "d", "amount": 1.0} for n in range(20, 30)])
    assert _one(lake, f"SELECT count(*) FROM shop.orders AT (TOKEN => '{token}')") == 7
    assert _one(lake, f"SELECT count(*) FROM shop.orders AT (VERSION => '{token}') o WHERE o.id < 3") == 3
    both = f"SELECT (SELECT count(*) FROM shop.orders) - (SELECT count(*) FROM shop.orders AT (TOKEN => '{token}'))"
    assert _one(lake, both) == 10
    assert _one(lake, f"SELECT count(*) FROM \"shop.orders\" AT (TOKEN => '{token}')") == 7
    moment = _one(lake, f"SELECT max(__timestamp) FROM shop.orders AT (TOKEN => '{token}')")
    for time in (f"TIMESTAMPTZ '{moment.isoformat()}'", f"'{moment.isoformat()}'"):
        assert _one(lake, f"SELECT count(orders.id) FROM shop.orders AT (TIMESTAMP => {time})") == 7
    with pytest.raises(Invalid, match="neither a position token nor a time"):
        lake.sql("SELECT * FROM shop.orders AT (TOKEN => 'soon')")
    with pytest.raises(Invalid, match="follows a table's name"):
        lake.sql("SELECT * FROM shop.orders o AT (TOKEN => 'x')")


def test_explain_names_table_cut_and_condition(lake: Lake) -> None:
    lines = [row["explanation"] for row in lake.sql("EXPLAIN SELECT who FROM shop.orders WHERE id > 2").to_pylist()]
    assert lines[0].startswith("shop.orders at ")
    assert any("id" in line and "> 2" in line for line in lines)
    assert lake.sql("EXPLAIN ANALYZE SELECT 1").to_pylist() == [{"explanation": "the query reads no table of the lake"}]


_ERRORS_CASES: list[Any] = [
    ("SELECT * FROM shop.ordres", "did you mean shop.orders?"),
    ("SELECT * FROM orders", "did you mean shop.orders?"),
    ("SELECT whoo FROM shop.orders", '"who"'),
    ("SELECT sqr(id) FROM shop.orders", "sqrt"),
    ("DESCRIBE shop.ordrs", "orders"),
    ("SELECT * FROM shop.orders AT (TOKEN => 'x'", "follows a table's name"),
    ("INSERT INTO shop.orders VALUES (1)", "takes one query"),
]


def test_errors_are_one_sentence_with_our_names(lake: Lake) -> None:
    for text, words in _ERRORS_CASES:
        with pytest.raises((Invalid, NotFound)) as refused:
            lake.sql(text)
        assert words in refused.value.message
        assert "\n" not in refused.value.message
        assert "LINE 1" not in refused.value.message


CONDITIONS = [
    "amount * 2 > 1 AND upper(who) LIKE 'A%'",
    "CASE WHEN id % 2 = 0 THEN amount ELSE -amount END > 0",
    "coalesce(who, '') IS DISTINCT FROM 'a' AND round(amount) >= 1",
    "now() > TIMESTAMPTZ '2020-01-01 00:00:00+00' AND id > 2 - 1",
    "amount > '1.5'",
]


def test_a_stream_a_scan_and_a_query_take_the_same_conditions(lake: Lake) -> None:
    orders = lake.table("shop.orders")
    orders.upsert([{"id": 0, "who": "a", "amount": 9.0}, {"id": 5, "who": None, "amount": 0.1}])
    orders.delete([{"id": 3}])
    for condition in CONDITIONS:
        rows: dict[int, dict[str, Any]] = {}
        for batch in orders.changes(start="earliest", until="now", where=condition):
            for row in batch.to_pylist():
                if row["__change"] in ("+I", "+U"):
                    rows[row["id"]] = {name: row[name] for name in ("id", "who", "amount")}
                elif row["__change"] == "-D":
                    del rows[row["id"]]
        folded = sorted(rows.values(), key=lambda row: int(row["id"]))
        scanned = sorted(orders.scan(where=condition).to_arrow().to_pylist(), key=lambda row: int(row["id"]))
        asked = lake.sql(f"SELECT * FROM shop.orders WHERE {condition} ORDER BY id").to_pylist()
        assert folded == scanned == asked, condition
        assert asked


def test_rows_are_deleted_by_such_conditions(lake: Lake) -> None:
    orders = lake.table("shop.orders")
    condition = "round(amount * 2) % 2 = 1 AND upper(who) = 'B' AND TIMESTAMPTZ '2020-01-01 00:00:00+00' < now()"
    asked = orders.scan(where=condition).count()
    assert asked == 3
    assert orders.delete(where=condition).result.deleted == asked
    assert orders.scan(where=condition).count() == 0


_ODD_NAMES = ["memory.m", "temp.t", "system.s", "main.x", "information_schema.tables", "pg_catalog.a", "Shop.Orders"]


@pytest.mark.parametrize("name", _ODD_NAMES)
def test_a_table_that_is_called_as_something_of_duckdb_s_hides_no_other(lake: Lake, name: str) -> None:
    """SHOW TABLES and DESCRIBE work for every reader, whatever name somebody gave to a table."""
    lake.create_table(name, pa.schema([("other", pa.int64())])).append([{"other": 1}])
    shown = [(row["database"].lower(), row["table"].lower()) for row in lake.sql("SHOW TABLES").to_pylist()]
    assert ("shop", "orders") in shown
    assert _one(lake, "SELECT count(*) FROM shop.orders") == 6
    assert [row["column_name"] for row in lake.sql("DESCRIBE shop.orders").to_pylist()] == ["id", "who", "amount"]
    assert _one(lake, "SELECT count(*) FROM information_schema.tables WHERE table_name = 'events'") == 1
    if name in ("temp.t", "system.s", "main.x", "Shop.Orders"):
        assert _one(lake, f'SELECT count(*) FROM "{name}"') == 1
    if name == "Shop.Orders":
        assert [row["column_name"] for row in lake.sql("DESCRIBE Shop.Orders").to_pylist()] == ["other"]

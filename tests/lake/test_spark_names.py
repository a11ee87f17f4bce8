"""Table names in Spark SQL: only their characters change, whatever the statement is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model.table import define
from lakestore_spark.cut_tables import CutTable
from lakestore_spark.spark_lake import Kind, Statement
from lakestore_spark.types import declared_sql

ORDERS = define("shop.orders", pa.schema([("id", pa.int64()), ("Amount", pa.int64()), ("note", pa.string())]))
EVENTS = define("shop.events", pa.schema([("id", pa.int64())]))
CUTS = {table.name: CutTable(table, "T") for table in (ORDERS, EVENTS)}
NAME = "now.`shop`.`orders@T`"
ROWS = f"(SELECT `id`, `Amount`, `note` FROM {NAME})"
SHORT = f"({ROWS} AS `orders`)"
EVENT_ROWS = "((SELECT `id` FROM now.`shop`.`events@T`) AS `events`)"


def replaced(text: str) -> str:
    statement = Statement.of(text)
    ours = [name for name in statement.names if name in CUTS]
    statement.check(ours)
    return statement.replace_tables({name: CUTS[name] for name in ours}, {})


READS = [
    ("SELECT 1 FROM shop.orders", f"SELECT 1 FROM {SHORT}"),
    ("SELECT 1 FROM `shop`.`orders` o", f"SELECT 1 FROM {SHORT} o"),
    ("SELECT 1 FROM shop . orders;", f"SELECT 1 FROM {SHORT};"),
    ("SELECT 1 FROM shop.events", f"SELECT 1 FROM {EVENT_ROWS}"),
    ("SELECT shop.orders.id FROM shop.orders", f"SELECT orders.id FROM {SHORT}"),
    ("SELECT SHOP.orders.note.a[0].b FROM shop.orders", f"SELECT orders.note.a[0].b FROM {SHORT}"),
    ("SELECT shop.orders.* FROM shop.orders", f"SELECT orders.* FROM {SHORT}"),
    ("SELECT 'shop.orders' FROM shop.orders AS x", f"SELECT 'shop.orders' FROM {SHORT} AS x"),
    ("SELECT 'é🎉' FROM shop.orders -- shop.orders", f"SELECT 'é🎉' FROM {SHORT} -- shop.orders"),
    ("SELECT /* shop.orders */ 1 FROM shop.orders o", f"SELECT /* shop.orders */ 1 FROM {SHORT} o"),
    ("SELECT 1 FROM shop.orders TABLESAMPLE (9 PERCENT) o", f"SELECT 1 FROM {SHORT} TABLESAMPLE (9 PERCENT) o"),
    ("SELECT 1 FROM shop.orders PIVOT (sum(a) FOR b IN (1))", f"SELECT 1 FROM {SHORT} PIVOT (sum(a) FOR b IN (1))"),
    ("FROM shop.orders |> WHERE id > 1", f"FROM {SHORT} |> WHERE id > 1"),
    ("FROM shop.orders INSERT INTO lake.a.b SELECT id", f"FROM {SHORT} INSERT INTO lake.a.b SELECT id"),
    (
        "SELECT 1 FROM shop.orders a JOIN (shop.orders b) ON a.id = b.id WHERE a.id IN (SELECT id FROM shop.orders)",
        f"SELECT 1 FROM {SHORT} a JOIN ({SHORT} b) ON a.id = b.id WHERE a.id IN (SELECT id FROM {SHORT})",
    ),
    (
        "SELECT /*+ BROADCAST(shop.orders), MERGE(e) */ 1 FROM shop.orders, shop.events e",
        f"SELECT /*+ BROADCAST(`orders`), MERGE(e) */ 1 FROM {SHORT}, {EVENT_ROWS} e",
    ),
    (
        "WITH orders AS (TABLE shop.orders) SELECT 1 FROM orders UNION ALL TABLE shop.orders",
        f"WITH orders AS (SELECT * FROM {SHORT}) SELECT 1 FROM orders UNION ALL SELECT * FROM {SHORT}",
    ),
    ("TABLE shop.orders ORDER BY id", f"SELECT * FROM {SHORT} ORDER BY id"),
    ("INSERT INTO lake.a.b TABLE shop.orders", f"INSERT INTO lake.a.b SELECT * FROM {SHORT}"),
    ("INSERT INTO TABLE lake.a.b (c) TABLE shop.orders", f"INSERT INTO TABLE lake.a.b (c) SELECT * FROM {SHORT}"),
    ("CREATE TABLE lake.a.b AS SELECT * FROM shop.orders", f"CREATE TABLE lake.a.b AS SELECT * FROM {SHORT}"),
    (
        "MERGE INTO lake.a.b t USING shop.orders ON t.id = orders.id WHEN MATCHED THEN DELETE",
        f"MERGE INTO lake.a.b t USING {ROWS} AS `orders` ON t.id = orders.id WHEN MATCHED THEN DELETE",
    ),
    (
        "MERGE INTO lake.a.b t USING shop.orders s ON t.id = s.id WHEN MATCHED THEN DELETE",
        f"MERGE INTO lake.a.b t USING {ROWS} s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ),
    ("CREATE TEMP VIEW v AS SELECT * FROM shop.orders", f"CREATE TEMP VIEW v AS SELECT * FROM {SHORT}"),
    ("CREATE GLOBAL TEMPORARY VIEW v AS TABLE shop.orders", f"CREATE GLOBAL TEMPORARY VIEW v AS SELECT * FROM {SHORT}"),
    ("CACHE LAZY TABLE x AS SELECT * FROM shop.orders", f"CACHE LAZY TABLE x AS SELECT * FROM {SHORT}"),
    ("EXPLAIN SELECT * FROM shop.orders", f"EXPLAIN SELECT * FROM {SHORT}"),
    ("explain /* a.b */ FORMATTED TABLE shop.orders", f"explain /* a.b */ FORMATTED SELECT * FROM {SHORT}"),
    ("DESC QUERY SELECT * FROM shop.orders", f"DESC QUERY SELECT * FROM {SHORT}"),
    ("DESCRIBE SELECT * FROM shop.orders", f"DESCRIBE SELECT * FROM {SHORT}"),
]
NAMED = [
    "DESCRIBE {}",
    "DESC TABLE EXTENDED {}",
    "DESCRIBE {} id",
    "SHOW CREATE TABLE {}",
    "SHOW TBLPROPERTIES {}",
    "SHOW COLUMNS IN {}",
    "CACHE TABLE {}",
    "CACHE LAZY TABLE {} OPTIONS ('storageLevel' 'DISK_ONLY')",
    "UNCACHE TABLE IF EXISTS {}",
    "REFRESH TABLE {}",
    "REFRESH {}",
    "EXPLAIN DESCRIBE {}",
]
NOT_OURS = [
    "SELECT 1 FROM lake.shop.orders JOIN now.shop.orders USING (id)",
    "SELECT 1 FROM other.orders",
    "SELECT 1 FROM orders",
    "SELECT 1 FROM `shop.orders`",
    "SELECT shop.orders FROM other.shop",
    "WITH orders AS (SELECT 1) SELECT 1 FROM orders",
    "INSERT OVERWRITE TABLE a.b SELECT 1",
    "SELECT * FROM lake.shop.orders.files",
    "SELECT * FROM parquet.`shop.orders`",
    "CALL lake.system.expire_snapshots(table => 'shop.orders')",
    "SET shop.orders.x=1",
    "DESCRIBE DATABASE shop",
    "SELECT 'shop.orders",
    "CREATE VIEW v AS SELECT 1 FROM a.b",
]
REFUSED = [
    ("INSERT INTO shop.orders SELECT 1", "not written by SQL"),
    ("INSERT OVERWRITE TABLE shop.orders SELECT 1", "not written by SQL"),
    ("INSERT INTO shop.orders (id) VALUES (1)", "not written by SQL"),
    ("FROM a.b INSERT INTO shop.orders SELECT 1", "not written by SQL"),
    ("DELETE FROM shop.orders WHERE id = 1", "not written by SQL"),
    ("UPDATE shop.orders SET id = 1", "not written by SQL"),
    ("MERGE INTO shop.orders USING a.b ON true WHEN MATCHED THEN DELETE", "not written by SQL"),
    ("TRUNCATE TABLE shop.orders", "not written by SQL"),
    ("DROP TABLE shop.orders", "not written by SQL"),
    ("ALTER TABLE shop.orders ADD COLUMN x INT", "not written by SQL"),
    ("CREATE TABLE shop.orders AS SELECT 1", "not written by SQL"),
    ("COMMENT ON TABLE shop.orders IS 'x'", "not written by SQL"),
    ("LOAD DATA INPATH 'x' INTO TABLE shop.orders", "not written by SQL"),
    ("EXPLAIN DELETE FROM shop.orders", "not written by SQL"),
    ("CREATE TABLE x LIKE shop.orders", "AS SELECT"),
    ("SELECT 1 FROM shop.orders VERSION AS OF 5", r"lake\.at"),
    ("SELECT 1 FROM shop.orders TIMESTAMP AS OF '2020-01-01'", r"lake\.at"),
    ("CREATE VIEW v AS SELECT 1 FROM shop.orders", "CREATE TEMP VIEW"),
    ("ALTER VIEW v AS SELECT 1 FROM shop.orders", "CREATE TEMP VIEW"),
    ("CREATE FUNCTION f() RETURNS INT RETURN SELECT 1 FROM shop.orders", "CREATE TEMP VIEW"),
    ("SELECT 1 FROM f(TABLE shop.orders)", r"now\.shop\.orders"),
    ("SELECT FROM shop.orders WHERE (", r"now\.shop\.orders"),
    ("SELECT 1 FROM shop.orders; SELECT 2", "one statement"),
]


@pytest.mark.parametrize(("text", "expected"), READS)
def test_a_table_in_the_place_of_rows_becomes_a_query(text: str, expected: str) -> None:
    assert replaced(text) == expected


@pytest.mark.parametrize("text", NAMED)
def test_a_table_by_its_name_becomes_the_table_of_the_cut(text: str) -> None:
    assert replaced(text.format("shop.orders")) == replaced(text.format("`shop`.orders")) == text.format(NAME)


@pytest.mark.parametrize("text", NOT_OURS)
def test_other_texts_and_names_stay(text: str) -> None:
    assert replaced(text) == text


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_writes_and_what_outlives_a_cut_are_refused(text: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        replaced(text)


def test_statements_that_are_more_than_their_text_are_known() -> None:
    kinds = {text: Statement.of(text.format("shop.orders")).kind for text in NAMED}
    assert [kind.name for kind in kinds.values()] == [
        *["DESCRIBE"] * 6, *["CACHE"] * 2, "UNCACHE", *["REFRESH"] * 2, "OTHER",
    ]  # fmt: skip
    assert {Statement.of(text).kind for text, _ in READS} == {Kind.OTHER}


def test_system_columns_come_when_the_text_names_them() -> None:
    rows = f"((SELECT `id`, `Amount`, `note`, `__offset` FROM {NAME}) AS `orders`)"
    assert replaced("SELECT max(__OFFSET) FROM shop.orders") == f"SELECT max(__OFFSET) FROM {rows}"


def test_only_columns_that_iceberg_shows_otherwise_are_cast() -> None:
    narrow = pa.struct([("a `b`", pa.int8()), ("c", pa.list_(pa.int16()))])
    fields = [("i8", pa.int8()), ("u8", pa.uint8()), ("at", pa.time64("us")), ("n", narrow)]
    table = define("d.t", pa.schema([*fields, ("m", pa.map_(pa.string(), pa.int16())), ("f", pa.binary(4))]))
    assert [declared_sql(table, column.name) for column in table.columns] == [
        "CAST(`i8` AS tinyint) AS `i8`",
        "`u8`",
        "`at`",
        "CAST(`n` AS STRUCT<`a ``b```: tinyint, `c`: ARRAY<smallint>>) AS `n`",
        "CAST(`m` AS MAP<string, smallint>) AS `m`",
        "`f`",
    ]

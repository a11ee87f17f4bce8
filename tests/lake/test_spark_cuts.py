"""Queries at a cut in Spark: one Iceberg scan a mention, results that can be used later, answers as over plain rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from jepsen.system.server import free_port
from lakestore import limits
from lakestore.spark import SparkLake, attach, session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support.spark import SPARK_CONF
from tests.support.world.clock import HandClock

pytestmark = pytest.mark.spark

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("line", pa.int16()),
        ("customer", pa.string()),
        ("amount", pa.int64()),
        ("part", pa.struct([("name", pa.string()), ("count", pa.int8())])),
    ]
)
EVENTS = pa.schema([("id", pa.int64()), ("kind", pa.string())])
SYSTEM = ("__bucket", "__offset", "__timestamp")


def order(i: int, version: int = 0) -> dict[str, Any]:
    part = None if i % 7 == 0 else {"name": f"p{i % 5}", "count": i % 100}
    customer = None if i % 11 == 0 else f"c{i % 6}"
    return {"id": i, "line": i % 4, "customer": customer, "amount": i * 10 + version, "part": part}


@dataclass(frozen=True)
class Shop:
    """A server whose tables are in the lake and hot: ids below 100 tiered, of them 20 to 29 changed; 200 to 219 hot."""

    server: Server
    lake: ls.Lake
    spark: SparkSession
    reads: SparkLake

    @property
    def orders(self) -> ls.Table:
        """The primary-key table."""
        return self.lake.table("shop.orders")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    server = Server(Settings(tmp_path_factory.mktemp("cuts") / "data", port=0, http_port=0))
    server.start()
    spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
    with ls.connect(server.about["grpc"]) as lake:
        orders = lake.create_table("shop.orders", ORDERS, primary_key=["id"], buckets=2)
        events = lake.create_table("shop.events", EVENTS)
        orders.upsert([order(i) for i in range(100)])
        events.append([{"id": i % 50, "kind": f"k{i % 3}"} for i in range(80)])
        with Tierer(lake, spark) as tierer:
            tierer.run_once(compaction=False)
        orders.upsert([order(i, 1) for i in (*range(20, 30), *range(200, 220))])
        orders.delete([{"id": 3}])
        events.append([{"id": 300, "kind": "hot"}])
        reads = attach(spark, server.about["grpc"])
        yield Shop(server, lake, spark, reads)
        reads.close()
    server.close()


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def scans_of(frame: DataFrame) -> list[str]:
    """The leaves of a plan that read our tables."""
    return [line for line in plan_of(frame).splitlines() if "BatchScan now." in line]


def metric(frame: DataFrame, name: str) -> int:
    """A figure of the one scan of a plan that has run."""
    (leaf,) = [frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)]
    return int(leaf.metrics().apply(name).value())


def rows(frame: DataFrame) -> list[str]:
    return sorted(repr(row) for row in frame.toArrow().to_pylist())


FORMS = [
    "SELECT * FROM shop.orders",
    "SELECT orders.part.name, count(*) n FROM shop.orders GROUP BY 1",
    "SELECT shop.orders.customer, sum(shop.orders.amount) s FROM shop.orders WHERE line > 1 GROUP BY 1",
    "SELECT o.*, e.kind FROM shop.orders o JOIN shop.events e ON o.id = e.id",
    "SELECT * FROM shop.orders NATURAL JOIN shop.events",
    "SELECT a.id FROM shop.orders a JOIN shop.orders b ON a.id = b.id + 1 AND a.line = b.line + 1",
    "SELECT id FROM shop.orders WHERE id IN (SELECT id FROM shop.events WHERE kind = 'k1') AND customer IS NULL",
    "SELECT id FROM shop.orders WHERE amount > (SELECT avg(amount) FROM shop.orders)",
    "SELECT id FROM shop.orders o WHERE EXISTS (SELECT * FROM shop.events e WHERE e.id = o.id)",
    "SELECT id FROM shop.orders o WHERE NOT EXISTS (SELECT * FROM shop.events WHERE shop.events.id = o.id)",
    "WITH o AS (SELECT * FROM shop.orders), orders AS (SELECT 1 x) SELECT max(o.id), count(x) FROM o, orders",
    "SELECT id FROM shop.orders EXCEPT SELECT id FROM shop.events",
    "SELECT line, c0 FROM (SELECT line, customer, id FROM shop.orders) PIVOT (count(id) FOR customer IN ('c0' c0))",
    "SELECT id, word FROM shop.orders LATERAL VIEW explode(split(customer, 'c')) t AS word WHERE id < 50",
    "SELECT id, sum(amount) OVER (PARTITION BY line ORDER BY id) s FROM shop.orders",
    "SELECT count(*) n, count(customer) c, min(line) l, max(part.count) p FROM shop.orders",
    "FROM shop.orders |> WHERE line = 2 |> AGGREGATE count(*) AS n GROUP BY customer",
    "SELECT * FROM (TABLE shop.events) WHERE kind = 'hot' -- shop.orders",
    "SELECT /*+ MERGE(shop.events) */ o.id FROM shop.orders o LEFT ANTI JOIN shop.events USING (id)",
]


@pytest.fixture(scope="module")
def plain(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same rows as plain tables under the same names in Spark's own catalog."""
    folder = tmp_path_factory.mktemp("plain")
    shop.spark.sql(f"CREATE DATABASE shop LOCATION '{folder}'")
    for name in ("orders", "events"):
        found = shop.lake.table(f"shop.{name}").scan().to_arrow()
        shop.spark.createDataFrame(found).write.parquet(str(folder / name))
        shop.spark.sql(f"CREATE TABLE shop.{name} USING parquet LOCATION '{folder / name}'")
    yield
    shop.spark.sql("DROP DATABASE shop CASCADE")


@pytest.mark.parametrize("text", FORMS)
def test_queries_answer_as_over_plain_rows(shop: Shop, plain: None, text: str) -> None:
    found, expected = shop.reads.sql(text), shop.spark.sql(text)
    assert "now.shop" in plan_of(found)
    assert "now.shop" not in plan_of(expected)
    assert found.dtypes == expected.dtypes
    assert rows(found) == rows(expected)


def cut_that_begins_with_a_dash(shop: Shop) -> str:
    """A new newest cut whose token does: one of 64 that there are."""
    turns = shop.lake.create_table("turns.turns", pa.schema([("n", pa.int64())]))
    for turn in range(2_000):
        token = turns.append([{"n": turn}])
        if token.startswith("-"):
            return token
    raise AssertionError("no token began with a dash")


def test_semi_and_anti_joins_scan_a_table_once_a_mention(shop: Shop) -> None:
    """The form of TPC-H q21, whose union of two leaves was scanned five times. A cut's name begins with any letter."""
    cut = cut_that_begins_with_a_dash(shop)
    found = shop.reads.sql(
        "SELECT l1.line, count(*) n FROM shop.orders l1 WHERE l1.amount > 10 "
        "AND EXISTS (SELECT * FROM shop.orders l2 WHERE l2.line = l1.line AND l2.id <> l1.id) "
        "AND NOT EXISTS (SELECT * FROM shop.orders l3 WHERE l3.line = l1.line AND l3.id <> l1.id AND l3.amount > 2000) "
        "GROUP BY l1.line"
    )
    scans = scans_of(found)
    assert len(scans) == 3
    read = [re.findall(r"(\w+)#", scan.partition("[")[2].partition("]")[0]) for scan in scans]
    assert sorted(read) == [["id", "line"], ["id", "line", "amount"], ["id", "line", "amount"]], plan_of(found)
    assert {scan.partition("orders@")[2].partition("[")[0] for scan in scans} == {cut}, plan_of(found)


def test_exists_over_all_columns_reads_the_one_it_joins_by(shop: Shop) -> None:
    found = shop.reads.sql("SELECT id FROM shop.events e WHERE EXISTS (SELECT * FROM shop.orders o WHERE o.id = e.id)")
    (inner,) = [scan for scan in scans_of(found) if "orders@" in scan]
    assert re.findall(r"(\w+)#", inner.split("]")[0]) == ["id"]


def test_filters_and_columns_reach_lake_and_hot_files(shop: Shop) -> None:
    every = shop.reads.table("shop.orders", ["customer", "amount"])
    every.collect()
    assert metric(every, "skippedDataFiles") == 0
    lake = shop.reads.sql("SELECT customer FROM shop.orders WHERE amount < 150 AND line < 3")
    assert len(lake.collect()) == 12
    hot = shop.reads.sql("SELECT customer FROM shop.orders WHERE amount > 1500")
    assert len(hot.collect()) == 20
    for found in (lake, hot):
        (scan,) = scans_of(found)
        assert re.search(r"filters=.*amount [<>] 1\d+", scan)
        assert "id#" not in scan
        assert "part#" not in scan
        assert metric(found, "skippedDataFiles") > 0
        assert metric(found, "resultDataFiles") < metric(every, "resultDataFiles")


def test_all_tables_of_a_query_are_at_one_cut(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is committed between the token and Spark's loads of the tables, here after each of them."""
    asked = SparkSession.sql

    def slow(spark: SparkSession, text: str) -> DataFrame:
        with shop.lake.commit() as commit:
            commit.upsert("shop.orders", [order(900)])
            commit.append("shop.events", [{"id": 900, "kind": "late"}])
        return asked(spark, text)

    monkeypatch.setattr(SparkSession, "sql", slow)
    both = "SELECT count(*) n, count(e.id) e FROM shop.orders o LEFT JOIN shop.events e ON o.id = e.id AND o.id = 900"
    found, later = shop.reads.sql(both), shop.reads.sql(both)
    shop.orders.delete([{"id": 900}])
    assert [row.n - row.e for row in (found.collect()[0], later.collect()[0])] == [119, 119]
    assert {row.e for row in found.collect()} == {0}


def test_a_temporary_view_stays_at_its_cut(shop: Shop) -> None:
    before = shop.reads.table("shop.orders").count()
    shop.reads.sql("CREATE OR REPLACE TEMP VIEW few AS SELECT id, line FROM shop.orders WHERE id < 50")
    shop.spark.sql("CREATE OR REPLACE TEMP VIEW fewer AS SELECT * FROM few WHERE line = 1")
    shop.reads.sql("CREATE OR REPLACE GLOBAL TEMP VIEW every AS TABLE shop.orders")
    shop.orders.upsert([order(-3)])
    try:
        assert shop.spark.sql("SELECT count(*) FROM few").collect()[0][0] == 49
        assert shop.spark.table("fewer").count() == 13
        assert shop.spark.table("global_temp.every").count() == before
        assert shop.spark.table("global_temp.every").dtypes == shop.reads.table("shop.orders").dtypes
        joined = shop.reads.sql("SELECT count(*) n, count(few.id) f FROM shop.orders LEFT JOIN few USING (id)")
        assert tuple(joined.collect()[0]) == (before + 1, 49)
    finally:
        shop.orders.delete([{"id": -3}])


def test_a_cached_table_is_read_from_the_cache_until_it_is_let_go(shop: Shop) -> None:
    many = "SELECT count(*), max(e.kind) FROM shop.orders o LEFT JOIN shop.events e ON o.id = e.id"

    def counted(frame: DataFrame) -> int:
        return int(frame.collect()[0][0])

    before = counted(shop.reads.sql(many))
    shop.reads.sql("CACHE TABLE shop.orders")
    shop.orders.upsert([order(-4)])
    shop.lake.table("shop.events").append([{"id": -4, "kind": "z"}] * 2)
    try:
        cached = shop.reads.sql(many)
        assert "InMemoryRelation" in plan_of(cached)
        assert counted(cached) == before, "one cut, and that is the cache's"
        assert shop.reads.table("shop.orders", ["id"]).where("id = -4").count() == 0
        assert counted(shop.reads.sql("SELECT count(*) FROM shop.events WHERE id = -4")) == 2, "no cached table in it"
        shop.reads.sql("REFRESH TABLE shop.orders")
        refreshed = shop.reads.sql(many)
        assert "InMemoryRelation" in plan_of(refreshed)
        assert counted(refreshed) == before + 2
        shop.orders.delete([{"id": -4}])
        assert counted(shop.reads.sql(many)) == before + 2
        shop.reads.sql("UNCACHE TABLE shop.orders")
        assert "InMemoryRelation" not in plan_of(shop.reads.sql(many))
        assert counted(shop.reads.sql(many)) == before
        shop.reads.sql("CACHE TABLE shop.orders")
        shop.spark.sql("CLEAR CACHE")
        shop.orders.upsert([order(-5)])
        assert counted(shop.reads.sql("SELECT count(*) FROM shop.orders WHERE id = -5")) == 1
        shop.reads.sql("CACHE TABLE some AS SELECT * FROM shop.orders WHERE id < 10")
        assert "InMemoryRelation" in plan_of(shop.spark.sql("SELECT * FROM some"))
    finally:
        shop.spark.sql("CLEAR CACHE")
        shop.orders.delete([{"id": -4}, {"id": -5}])


def test_a_query_may_demand_complete_data(shop: Shop) -> None:
    feed = "complete/shop.orders/etl"
    with shop.lake.registers([feed]) as registers:
        with registers.commit({feed: "2026-01-01T10:00Z"}):
            pass
        for read in (shop.reads.sql, shop.reads.at(str(shop.lake.snapshot().token)).sql):
            found = read("SELECT * FROM shop.orders", require_complete_through="2026-01-01T10:00Z").count()
            assert found == shop.lake.table("shop.orders").scan().count()
            with shop.lake.within(10), pytest.raises(ls.errors.NotFresh, match=re.escape(feed)) as refused:
                read("SELECT * FROM shop.orders", require_complete_through="2026-01-01T10:01Z")
            assert refused.value.table == "shop.orders"
        with shop.lake.within(10), pytest.raises(ls.errors.NotFresh, match=re.escape(feed)):
            shop.reads.table("shop.orders", require_freshness="60s")
    shop.lake.drop_registers([feed])


def test_explain_and_describe_show_the_scan_and_our_columns(shop: Shop) -> None:
    text = "SELECT customer FROM shop.orders WHERE amount > 5"
    (said,) = shop.reads.sql(f"EXPLAIN {text}").collect()
    assert "BatchScan now.shop.orders@" in said[0]
    assert "amount > 5" in said[0]
    types = shop.reads.table("shop.orders").dtypes
    assert ("line", "smallint") in types
    for form in ("DESCRIBE shop.orders", "DESCRIBE SELECT * FROM shop.orders"):
        assert [(row.col_name, row.data_type) for row in shop.reads.sql(form).collect()][: len(types)] == types, form
    described = [tuple(row)[:2] for row in shop.reads.sql("DESC TABLE EXTENDED shop.orders").collect()]
    assert described[: len(types)] == types
    assert described[len(types)] == ("", "")
    assert "# Detailed Table Information" in dict(described)
    assert dict(tuple(row) for row in shop.reads.sql("DESC shop.orders line").collect())["data_type"] == "smallint"
    assert [row[0] for row in shop.reads.sql("SHOW COLUMNS IN shop.orders").collect()] == ORDERS.names
    assert "now.shop" in shop.reads.sql("SHOW CREATE TABLE shop.orders").collect()[0][0]


def test_a_dataframe_stays_what_it_was(shop: Shop) -> None:
    """Its actions, and what is made of it later, read the cut of its making."""
    found = shop.reads.sql("SELECT * FROM shop.orders")
    expected = found.count()
    shop.orders.upsert([order(i) for i in range(-20, -10)])
    try:
        assert found.count() == len(found.collect()) == expected
        assert found.where("id < 0").count() == 0
        assert found.join(found, "id").count() == expected
        assert shop.reads.table("shop.orders").count() == expected + 10
    finally:
        shop.orders.delete([{"id": i} for i in range(-20, -10)])


def test_a_session_with_settings_alone_reads_now(shop: Shop) -> None:
    """As spark-sql, the Thrift server and Spark Connect do: no code of ours in the session."""
    plain = shop.spark.newSession()
    key = "spark.sql.catalog.mine"
    for name, value in {
        key: "org.apache.iceberg.spark.SparkCatalog",
        f"{key}.type": "rest",
        f"{key}.uri": f"http://{shop.server.about['http']}/iceberg",
        f"{key}.warehouse": "now",
        f"{key}.cache-enabled": "false",
    }.items():
        plain.conf.set(name, value)
    count = "SELECT count(*) FROM mine.shop.orders WHERE id = -30"
    for known in (0, 1, 0):
        assert plain.sql(count).collect()[0][0] == known
        (shop.orders.delete if known else shop.orders.upsert)([order(-30)] if not known else [{"id": -30}])
    shop.orders.delete([{"id": -30}])
    assert rows(plain.sql("SELECT id, amount FROM mine.shop.orders")) == rows(
        shop.reads.table("shop.orders", ["id", "amount"])
    )
    with pytest.raises(Py4JJavaError, match="now"):
        plain.sql("INSERT INTO mine.shop.events SELECT * FROM mine.shop.events LIMIT 1")


def test_a_dataframe_lives_for_an_hour_and_through_a_restart(tmp_path: Path) -> None:
    """One whose files are gone fails whole."""
    clock = HandClock.real()

    port, http_port = free_port(), free_port()

    def served() -> Server:
        made = Server(Settings(tmp_path / "data", port=port, http_port=http_port), clock=clock)
        made.start()
        return made

    server = served()
    spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
    with ls.connect(server.about["grpc"]) as lake:
        events = lake.create_table("shop.events", EVENTS)
        events.append([{"id": i, "kind": "a"} for i in range(30)])
        found = SparkLake(spark, lake.transport).table("shop.events")
        expected = rows(found)
        assert len(found.collect()) == 30
        events.append([{"id": 30, "kind": "b"}])
        clock.advance(limits.DEFAULT.present_lease_seconds - 60)
        server.presented.sweep()
        assert len(found.collect()) == 30
        server.close()
        server = served()
        assert len(found.collect()) == 30, "the files stay for the grace time"
        assert rows(found) == expected
        clock.advance(2 * limits.DEFAULT.present_lease_seconds)
        server.presented.sweep()
        with pytest.raises(Py4JJavaError, match="__presented"):
            found.collect()
    server.close()

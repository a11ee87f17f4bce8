"""System tables are read by every engine, tiered as other tables are, and changed by none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.evolution import SetContract
from lakestore.model.system_tables import AUDIT, PROGRESS, SLA
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore_server.commit import system_rows
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.support.engines import DuckDb

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
"""
MINUTE = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
PLAIN = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".warehouse": "now", ".cache-enabled": "false"}


def fill(lake: ls.Lake, server: Server, name: str) -> None:
    """A decision, two measured promises and a feed of a new table."""
    lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
    lake.table(name).alter(SetContract(DOCUMENT, "orders", "ü"))
    row: dict[str, Any] = {"minute": MINUTE, "table": name, "promise": "freshness", "promised": 60.0, "unit": "s"}
    measured: list[dict[str, Any]] = [{"measured": 5.0, "met": True}, {"measured": None, "met": None}]
    system_rows.append_rows(server.engine, SLA, [row | each for each in measured])
    feed = f"complete/{name}/etl"
    with lake.registers([feed]) as registers, registers.commit({feed: MINUTE.isoformat()}):
        pass
    server.progress.run_once()


QUERIES = {
    f'SELECT "table", action, why, version FROM {AUDIT} ORDER BY 1': [
        ("shop.more", "apply contract", "ü", 1),
        ("shop.orders", "apply contract", "ü", 1),
    ],
    f"SELECT count(*), sum(measured), count(met) FROM {SLA} WHERE promise = 'freshness'": [(4, 10.0, 2)],
    f"SELECT \"table\", held_back_by FROM {PROGRESS} WHERE feed = '' ORDER BY 1": [
        ("shop.more", "complete/shop.more/etl"),
        ("shop.orders", "complete/shop.orders/etl"),
    ],
}


def test_every_engine_reads_them_partly_in_the_lake_and_none_writes(
    lake: ls.Lake, server: Server, spark: SparkSession, spark_lake: SparkLake
) -> None:
    fill(lake, server, "shop.orders")
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
    in_lake = spark.sql(f"SELECT action FROM lake.{AUDIT}").collect()
    assert [row.action for row in in_lake] == ["apply contract"]
    assert spark.sql(f"SELECT count(*) FROM lake.{SLA} WHERE minute >= '2026-11-01'").collect()[0][0] == 2
    fill(lake, server, "shop.more")
    uri = f"http://{server.about['http']}/iceberg"
    for key, value in {**PLAIN, ".uri": uri}.items():
        spark.conf.set(f"spark.sql.catalog.now{key}", value)
    duck = DuckDb(uri)
    try:
        now = duck.attach("now")
        for query, wanted in QUERIES.items():
            assert [tuple(row.values()) for row in lake.sql(query).to_arrow().to_pylist()] == wanted, query
            backticked = query.replace('"', "`")
            assert [tuple(row) for row in spark_lake.sql(backticked).collect()] == wanted, query
            plain = backticked.replace("lakestore.", "now.lakestore.")
            assert [tuple(row) for row in spark.sql(plain).collect()] == wanted, query
            assert duck.sql(query.replace("lakestore.", f"{now}.lakestore.")) == wanted, query
    finally:
        duck.close()
    audit = load_catalog("now", type="rest", uri=uri, warehouse="now").load_table(AUDIT).scan().to_arrow()
    assert sorted(audit["table"].to_pylist()) == ["shop.more", "shop.orders"]
    for name in (AUDIT, SLA, PROGRESS):
        assert not verify(lake.transport, name).problems()
    for refused in (
        f"INSERT INTO lake.{AUDIT} SELECT * FROM lake.{AUDIT}",
        f"DROP TABLE lake.{SLA}",
        f"ALTER TABLE lake.{PROGRESS} ADD COLUMN more int",
        f"ALTER TABLE lake.{PROGRESS} RENAME TO lake.shop.progress",
        "CREATE TABLE lake.lakestore.mine (id bigint) USING iceberg",
    ):
        with pytest.raises(Py4JJavaError):
            spark.sql(refused)
    assert [tuple(row.values()) for row in lake.sql(next(iter(QUERIES))).to_arrow().to_pylist()] == next(
        iter(QUERIES.values())
    )

"""The running service: every table by its freshness, compaction beside the rounds; and sessions brought along."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import attach, session
from lakestore_server.main import Server
from lakestore_tiering import Tierer, compact
from tests.lake.tiering_tables import NAME, SCHEMA, data_files, in_lake, in_table, items, keys

pytestmark = pytest.mark.spark


def test_service_keeps_up_and_compacts_beside(lake: ls.Lake, spark: SparkSession) -> None:
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"freshness": "1s"})
    stop = threading.Event()
    points: list[str] = []
    with Tierer(lake, spark, crash=points.append) as tierer:
        running = threading.Thread(target=tierer.run_forever, args=(stop,))
        running.start()
        for step in range(200):
            table.upsert(items(range(step * 3, step * 3 + 6), f"v{step}-"))
            table.delete(keys(range(step, step + 1)))
            time.sleep(0.2)
            if "compact-landed" in points:
                break
        time.sleep(3)
        stop.set()
        running.join()
    assert points.count("after-commit") >= compact.SMALL_FILES_MIN // 2
    assert "compact-landed" in points
    with Tierer(lake, spark) as tierer:
        tierer.run_once(compaction=False)
        assert in_lake(spark) == in_table(table)
        assert data_files(spark) < points.count("after-commit") * 2


def test_attach_says_what_a_session_lacks(server: Server, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.catalog.lake.uri", "http://127.0.0.1:1/iceberg")
    with pytest.raises(ls.Invalid, match=r"--conf spark.sql.catalog.lake.uri=http://"):
        attach(spark, server.about["grpc"])
    spark.conf.set("spark.sql.catalog.lake.uri", f"http://{server.about['http']}/iceberg")
    spark.conf.set("spark.sql.catalog.now.warehouse", "lake")
    spark.conf.unset("spark.sql.catalog.now.cache-enabled")
    settings = r"--conf spark.sql.catalog.now.warehouse=now --conf spark.sql.catalog.now.cache-enabled=false$"
    with pytest.raises(ls.Invalid, match=settings):
        attach(spark, server.about["grpc"])
    own = session(server.about["grpc"])
    assert own is not spark
    attach(own, server.about["grpc"]).close()

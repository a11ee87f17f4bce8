"""The running service: every table by its freshness, compaction beside the rounds; and sessions brought along."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import attach, session
from lakestore_server.main import Server
from lakestore_tiering import Tierer, compact, small_rows
from lakestore_tiering.progress import COMMIT, ROWS, SPARK, UPKEEP, WAIT, tasks_of
from tests.lake.tiering_tables import NAME, SCHEMA, create, data_files, in_lake, in_table, items, keys
from tests.support.waiting import until

pytestmark = pytest.mark.spark


def test_service_keeps_up_and_compacts_beside(lake: ls.Lake, spark: SparkSession) -> None:
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"freshness": "1s"})
    stop = threading.Event()
    points: list[str] = []
    with Tierer(lake, spark, crash=points.append) as tierer:
        running = threading.Thread(target=tierer.run_forever, args=(stop,))
        running.start()
        for step in range(1_000):
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


def test_the_steps_of_a_round_and_the_tasks_of_spark_are_known(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lake)
    table.upsert(items(range(100)))
    monkeypatch.setattr(small_rows, "OFFSETS_MAX", 0)
    steps: list[tuple[str, int]] = []
    with Tierer(lake, spark) as tierer:
        uuid, step = table.definition.uuid, tierer.tools.progress.step

        def noted(table_uuid: str, name: str, changes: int = 0) -> None:
            step(table_uuid, name, changes)
            steps.extend((each.step, each.changes) for each in tierer.tools.progress.messages(lambda _: (0, 0)))

        monkeypatch.setattr(tierer.tools.progress, "step", noted)
        tierer.run_once(compaction=False)
        assert steps == [(name, 100) for name in (ROWS, WAIT, SPARK, COMMIT, UPKEEP)]
        assert tierer.tools.progress.messages(lambda _: (0, 0)) == []
    tracker = spark.sparkContext.statusTracker()
    assert tracker.getJobIdsForGroup(uuid), "the jobs of the round have its table as their group"

    def job() -> None:
        spark.sparkContext.setJobGroup("ours", "four tasks")
        spark.sparkContext.parallelize(range(4), 4).map(lambda _: time.sleep(1.0)).count()

    running = threading.Thread(target=job)
    running.start()
    until(lambda: tasks_of(spark, "ours")[1] == 4, "a running job")
    running.join()
    until(lambda: tasks_of(spark, "ours") == (0, 0), "no running job")


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
    more = {"spark.sql.catalog.other.uri": "http://other", "spark.sql.catalog.lake.cache-enabled": "false"}
    own = session(server.about["grpc"], conf={**more, "spark.driver.memory": "7g"})
    assert own is not spark
    assert {name: own.conf.get(name) for name in more} == more
    assert own.conf.get("spark.driver.memory", "") != "7g", "fixed when Spark starts"
    attach(own, server.about["grpc"]).close()


def test_a_shorter_promise_is_kept_from_the_moment_it_is_given(lake: ls.Lake, spark: SparkSession) -> None:
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1, lake={"freshness": "1h"})
    table.upsert(items(range(5), "a"))
    stop, rounds = threading.Event(), threading.Semaphore(0)
    with Tierer(lake, spark, crash=lambda point: rounds.release() if point == "after-commit" else None) as tierer:
        running = threading.Thread(target=tierer.run_forever, args=(stop,))
        running.start()
        assert rounds.acquire(timeout=60)
        time.sleep(2)  # the service has planned the next round, an hour later
        table.upsert(items(range(5), "b"))
        table.alter(lake={"freshness": "1s"})
        was_begun = rounds.acquire(timeout=60)
        stop.set()
        running.join()
    assert was_begun, "the next round waits for the hour that was promised before"

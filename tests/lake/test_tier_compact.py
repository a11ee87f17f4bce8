"""Compaction and expiry while rows change: no row lost, none brought back, no reader's files taken."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore import limits
from lakestore.spark import SparkLake, session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer, compact, orphans
from tests.lake.tiering_tables import NAME, create, data_files, in_lake, in_table, items, keys, refs
from tests.support.spark import SPARK_CONF
from tests.support.world.clock import HandClock

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_rows_that_die_during_a_compaction_stay_dead(lake: ls.Lake, spark: SparkSession, version: int) -> None:
    table = create(lake, version=version)
    with Tierer(lake, spark) as tierer:
        for step in range(4):
            table.upsert(items(range(step * 20, step * 20 + 25), f"v{step}-"))
            tierer.run_once(compaction=False)
        before = data_files(spark)
        started = compact.fork(tierer.tools, NAME, force=True)
        assert started is not None
        table.delete(keys(range(0, 10)))
        table.upsert(items(range(60, 70), "late"))
        tierer.run_once(compaction=False)
        compact.rewrite(tierer.tools, started)
        table.delete(keys(range(30, 40)))
        tierer.run_once(compaction=False)
        done = compact.land(tierer.tools, started)
        assert done is not None
        assert done.deaths == 30
        assert data_files(spark) < before
        assert in_lake(spark) == in_table(table)
        assert refs(spark) == {"main", "lakestore-tier"}
        table.delete(keys(range(40, 50)))
        table.upsert(items(range(0, 5), "again"))
        tierer.run_once(compaction=True)
        assert in_lake(spark) == in_table(table)


def test_log_tables_are_compacted(lake: ls.Lake, spark: SparkSession) -> None:
    table = create(lake, keyed=False)
    with Tierer(lake, spark) as tierer:
        for step in range(compact.SMALL_FILES_MIN):
            table.append(items(range(step * 10, step * 10 + 10)))
            (outcome,) = tierer.run_once()
        assert outcome.compacted is not None
        assert in_lake(spark) == in_table(table)
        assert data_files(spark) < compact.SMALL_FILES_MIN


def test_foreign_compaction_is_adopted(lake: ls.Lake, spark: SparkSession) -> None:
    table = create(lake)
    with Tierer(lake, spark) as tierer:
        for step in range(3):
            table.upsert(items(range(step * 10, step * 10 + 15)))
            tierer.run_once(compaction=False)
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))")
        table.delete(keys(range(5)))
        tierer.run_once(compaction=False)
        assert in_lake(spark) == in_table(table)


@pytest.mark.parametrize(("version", "rounds"), [(2, 2), pytest.param(3, 3, marks=pytest.mark.long)])
def test_everything_expires_between_every_two_steps(
    lake: ls.Lake, spark: SparkSession, version: int, rounds: int
) -> None:
    table = create(lake, version=version)
    expiring: list[str] = []

    def expire_all(point: str) -> None:
        if point == "expired":
            return
        expiring.append(point)
        # The procedure is refused as a whole while a lease of the tierer itself holds one of the snapshots.
        with suppress(Py4JJavaError, PySparkException):
            spark.sql(
                f"CALL lake.system.expire_snapshots(table => '{NAME}', retain_last => 1, "
                "older_than => TIMESTAMP '2100-01-01 00:00:00')"
            ).collect()
        orphans.expire(tierer.tools, table.definition, keep_last=1, keep_seconds=-1_000.0)

    with Tierer(lake, spark, crash=expire_all) as tierer:
        for step in range(rounds):
            table.upsert(items(range(step * 10, step * 10 + 15), f"v{step}-"))
            tierer.run_once(compaction=True)
            assert in_lake(spark) == in_table(table)
    assert {"staged", "deaths-written", "compact-rewritten", "compact-landed"} <= set(expiring)


def test_expiry_leaves_what_a_reader_holds(tmp_path: Path) -> None:
    clock = HandClock.real()
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0), clock=clock)
    server.start()
    spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
    with ls.connect(server.about["grpc"]) as lake:
        table = create(lake)
        with Tierer(lake, spark) as tierer:
            table.upsert(items(range(20)))
            tierer.run_once(compaction=False)
            held, expected = SparkLake(spark, lake.transport).table(NAME).select("id", "text"), in_table(table)
            assert len(held.collect()) == 20
            for step in range(3):
                table.upsert(items(range(step, step + 10), "new"))
                tierer.run_once(compaction=True)
            known = table.definition
            assert orphans.expire(tierer.tools, known, keep_last=1, keep_seconds=0.0) > 0
            assert sorted(tuple(row) for row in held.collect()) == expected
        clock.advance(limits.DEFAULT.present_lease_seconds + 60)
        with Tierer(lake, spark) as tierer:
            tierer.acquire()
            assert orphans.expire(tierer.tools, known, keep_last=1, keep_seconds=0.0) == 1
            assert in_lake(spark) == in_table(table)
    server.close()


def test_a_compaction_orders_rows_along_a_z_curve(lake: ls.Lake, spark: SparkSession) -> None:
    """Each of the files then has a part of the range of both columns. By size alone each has the whole range of `b`."""
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("größe", pa.int64())])
    options = {"z_order_by": ["a", "größe"], "target_file_bytes": 60_000}
    table = lake.create_table("shop.points", schema, primary_key=["id"], buckets=1, lake=options)
    ids = np.arange(40_000)
    table.upsert(pa.table([ids, ids % 200, ids // 200], schema=schema))
    with Tierer(lake, spark) as tierer:
        tierer.run_once("shop.points", compaction=True)
        files = tierer.tools.main_files(table.definition, tierer.tools.standing(table.definition)[0]).files()
        read = [pq.read_table(file.path.removeprefix("file:"), partitioning=None) for file in files]
    assert len(read) >= 4
    for name in schema.names[1:]:
        near = [rows for rows in read if pc.min(rows[name]).as_py() <= 10]
        assert len(near) < len(read), "a condition on either column reads few files"
    assert sum(rows.num_rows for rows in read) == len(ids)

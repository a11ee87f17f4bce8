"""Tables that Spark made in the catalog become tables of ours, and plain tables again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.errors import Conflict, Invalid
from lakestore.iceberg import adopted_rows
from lakestore.spark import SparkLake
from lakestore.union import lake_snapshot
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, compact, orphans
from lakestore_tiering.flush import flush

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NAME, SOURCE = "shop.orders", "old.orders"
Model = dict[int, tuple[Any, ...]]


def _made(spark: SparkSession, partitioned: str = "", version: int = 2, rows: int = 2_000) -> Model:
    """A plain table with several files, position deletes or vectors, letters beyond ASCII and nulls."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.old")
    spark.sql(
        f"CREATE TABLE lake.{SOURCE} (id BIGINT, name STRING, city STRING, at TIMESTAMP) USING iceberg {partitioned}"
        f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read',"
        " 'write.delete.granularity'='partition')"
    )
    city = "CASE WHEN id % 3 = 0 THEN 'Köln am Rhein' WHEN id % 3 = 1 THEN 'Oslo' END AS city"
    for begin in (0, rows // 2):
        ids = f"range({begin}, {begin + rows // 2}, 1, 2)"
        spark.sql(
            f"INSERT INTO lake.{SOURCE} SELECT id, concat('n', id), {city},"
            f" timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) FROM {ids}"
        )
    spark.sql(f"DELETE FROM lake.{SOURCE} WHERE id % 50 = 7")
    return {row[0]: (row[1], row[2]) for row in spark.sql(f"SELECT id, name, city FROM lake.{SOURCE}").collect()}


def _files(spark: SparkSession, name: str) -> list[tuple[str, int]]:
    return sorted(
        tuple(row) for row in spark.sql(f"SELECT file_path, file_size_in_bytes FROM lake.{name}.data_files").collect()
    )


def _specs(spark: SparkSession) -> set[int]:
    return {row[0] for row in spark.sql(f"SELECT spec_id FROM lake.{NAME}.data_files").collect()}


def _scanned(lake: ls.Lake) -> Model:
    rows = lake.table(NAME).scan(columns=["id", "name", "city"]).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["name"], row["city"]) for row in rows}


def _check(lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, model: Model) -> None:
    """Every reader sees the model."""
    lake_snapshot.forget()
    assert _scanned(lake) == model
    answer = lake.sql(f"SELECT count(*), sum(id) FROM {NAME}").to_arrow().to_pylist()
    assert list(answer[0].values()) == [len(model), sum(model)]
    found = spark_lake.sql(f"SELECT id, name, city FROM {NAME}").collect()
    assert {row[0]: (row[1], row[2]) for row in found} == model
    assert len(found) == len(model)
    assert verify(lake.transport, NAME).problems() == []


@pytest.mark.parametrize(
    ("partitioned", "version"),
    [("", 2), ("PARTITIONED BY (city, bucket(2, id))", 2), ("PARTITIONED BY (days(at), truncate(3, name))", 3)],
)
def test_adopted_table_lives_on(
    lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, partitioned: str, version: int
) -> None:
    model = _made(spark, partitioned, version)
    files = _files(spark, SOURCE)
    stages: list[tuple[str, int, int]] = []
    table = lake.adopt(SOURCE, NAME, primary_key=["id"], tell=lambda *told: stages.append(told))
    assert {stage for stage, _, _ in stages} == {"rows", "numbers"}
    assert _files(spark, NAME) == files  # nothing is rewritten
    assert not spark.catalog.tableExists(f"lake.{SOURCE}")
    _check(lake, spark, spark_lake, model)
    assert [row["name"] for row in table.lookup([{"id": 8}, {"id": 7}]).to_pylist()] == ["n8"]

    stream_from = lake.snapshot().token
    table.upsert([{"id": 8, "name": "eight", "city": "Rom"}, {"id": 90_000, "name": "new", "city": None}])
    table.delete([{"id": 9}])
    model |= {8: ("eight", "Rom"), 90_000: ("new", None)}
    del model[9]
    _check(lake, spark, spark_lake, model)
    with lake.changes([NAME], start=stream_from, until="now", before_images=True) as stream:
        seen = [(row["__change"], row["id"], row["name"]) for batch in stream for row in batch.to_pylist()]
    assert sorted(seen) == [("+I", 90_000, "new"), ("+U", 8, "eight"), ("-D", 9, "n9"), ("-U", 8, "n8")]

    with Tierer(lake, spark) as tierer:
        [outcome] = tierer.run_once()
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == 2
        _check(lake, spark, spark_lake, model)
        table.delete([{"id": 90_000}, {"id": 10}, {"id": 1_999}])
        for gone in (90_000, 10, 1_999):
            del model[gone]
        [outcome] = tierer.run_once()
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == 3
        _check(lake, spark, spark_lake, model)
        plain = {row[0]: (row[1], row[2]) for row in spark.sql(f"SELECT id, name, city FROM lake.{NAME}").collect()}
        assert plain == model
        assert {path for path, _ in files} <= {path for path, _ in _files(spark, NAME)}
        numbers = Path(adopted_rows.place_of(files[0][0], table.definition.uuid).removeprefix("file:"))
        orphans.remove(tierer.tools, table.definition, keep_seconds=-60.0)
        assert numbers.exists()
        _compacted(lake, tierer, model)
        _check(lake, spark, spark_lake, model)
    assert not {path for path, _ in files} & {path for path, _ in _files(spark, NAME)}
    rows = spark.sql(f"SELECT count(__offset), count(__timestamp), count(*) FROM lake.{NAME}").collect()[0]
    assert set(rows) == {len(model)}


def _compacted(lake: ls.Lake, tierer: Tierer, model: Model) -> None:
    """A compaction of adopted files while adopted rows die, and one of the files that it leaves."""
    fork = compact.fork(tierer.tools, NAME, force=True)
    assert fork is not None
    assert fork.adopted
    compact.rewrite(tierer.tools, fork)
    lake.table(NAME).delete([{"id": 20}, {"id": 21}])
    del model[20], model[21]
    assert flush(tierer.tools, NAME) is not None
    landed = compact.land(tierer.tools, fork)
    assert landed is not None
    assert landed.deaths == 2
    [outcome] = tierer.run_once(compaction=True)
    assert outcome.compacted is not None


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_earlier_partitionings_are_adopted(
    lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, version: int
) -> None:
    _made(spark, "PARTITIONED BY (city)", version)
    spark.sql(f"ALTER TABLE lake.{SOURCE} ADD PARTITION FIELD bucket(2, id) AS id_bucket")
    spark.sql(f"ALTER TABLE lake.{SOURCE} DROP PARTITION FIELD city")
    spark.sql(f"INSERT INTO lake.{SOURCE} VALUES (5001, 'later', 'Rom', NULL), (5002, 'later', NULL, NULL)")
    spark.sql(f"DELETE FROM lake.{SOURCE} WHERE id % 50 = 23")
    rows = spark.sql(f"SELECT id, name, city FROM lake.{SOURCE}").collect()
    model: Model = {row[0]: (row[1], row[2]) for row in rows}
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    assert table.definition.lake.partition_by == ("bucket(2, id)",)
    _check(lake, spark, spark_lake, model)
    table.upsert([{"id": 8, "name": "eight", "city": "Rom"}, {"id": 90_000, "name": "new", "city": None}])
    table.delete([{"id": 9}])
    model |= {8: ("eight", "Rom"), 90_000: ("new", None)}
    del model[9]
    with Tierer(lake, spark) as tierer:
        assert [outcome.flushed is not None for outcome in tierer.run_once(compaction=False)] == [True]
        _check(lake, spark, spark_lake, model)
        assert _specs(spark) == {0, 2}
        _compacted(lake, tierer, model)
        _check(lake, spark, spark_lake, model)
        assert _specs(spark) == {2}
    plain = {row[0]: (row[1], row[2]) for row in spark.sql(f"SELECT id, name, city FROM lake.{NAME}").collect()}
    assert plain == model
    table.alter(drop=["city"])
    table.delete([{"id": 8}])
    with Tierer(lake, spark) as tierer:
        assert [outcome.flushed is not None for outcome in tierer.run_once(compaction=False)] == [True]
        assert compact.compact(tierer.tools, NAME, force=True) is not None
    assert spark.sql(f"SELECT id, name FROM lake.{NAME}").count() == len(model) - 1
    assert spark_lake.sql(f"SELECT id, name FROM {NAME}").count() == len(model) - 1
    assert verify(lake.transport, NAME).problems() == []


def test_other_engines_cannot_lose_the_numbers(lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake) -> None:
    model = _made(spark)
    lake.adopt(SOURCE, NAME, primary_key=["id"])
    call = f"CALL lake.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))"
    with pytest.raises(Exception, match="were adopted and have no columns for row numbers"):
        spark.sql(call).collect()
    spark.sql(f"CALL lake.system.rewrite_manifests(table => '{NAME}')").collect()
    with pytest.raises(Invalid, match="has adopted files, which have no __offset for Spark"):
        spark_lake.table(NAME, ["id", "__offset"])
    _check(lake, spark, spark_lake, model)


def test_other_engines_may_rewrite_once_no_adopted_file_is_left(
    lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    model = _made(spark)
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    call = f"CALL lake.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))"
    with Tierer(lake, spark) as tierer:
        table.delete([{"id": 8}])
        del model[8]
        tierer.run_once()
        before = spark.sql(f"SELECT max_by(snapshot_id, committed_at) FROM lake.{NAME}.snapshots").collect()[0][0]
        assert compact.compact(tierer.tools, NAME, force=True) is not None
        spark.sql(call).collect()
        _check(lake, spark, spark_lake, model)
        table.upsert([{"id": 10, "name": "ten", "city": None}])
        table.delete([{"id": 12}])
        model[10] = ("ten", None)
        del model[12]
        _check(lake, spark, spark_lake, model)
        spark.sql(f"CALL lake.system.rollback_to_snapshot('{NAME}', {before})").collect()
        with pytest.raises(Exception, match="until `lakestore tier` has compacted the last one"):
            spark.sql(call).collect()
        [outcome] = tierer.run_once()
        assert outcome.flushed is not None
        _check(lake, spark, spark_lake, model)
        with pytest.raises(Exception, match="until `lakestore tier` has compacted the last one"):
            spark.sql(call).collect()
        assert compact.compact(tierer.tools, NAME, force=True) is not None
        table.delete([{"id": 14}])
        del model[14]
        tierer.run_once()
        spark.sql(call).collect()
        _check(lake, spark, spark_lake, model)
    rows = spark.sql(f"SELECT count(__offset), count(__timestamp), count(*) FROM lake.{NAME}").collect()[0]
    assert set(rows) == {len(model)}


def test_released_table_is_plain_again(lake: ls.Lake, spark: SparkSession) -> None:
    model = _made(spark, "PARTITIONED BY (city)")
    table = lake.adopt(SOURCE, NAME, primary_key=["id"])
    table.delete([{"id": 8}])
    del model[8]
    with pytest.raises(Conflict, match="has 1 changes that are not in the lake yet"):
        lake.release(NAME)
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
    assert lake.release(NAME, to="old.plain") == []
    assert lake.tables() == []
    rows = spark.sql("SELECT * FROM lake.old.plain").collect()
    assert {row[0]: (row[1], row[2]) for row in rows} == model
    assert rows[0].asDict().keys() == {"id", "name", "city", "at"}
    names = {row[0] for row in spark.sql("SHOW TBLPROPERTIES lake.old.plain").collect()}
    assert not [name for name in names if name.startswith("lakestore.")]
    spark.sql("DELETE FROM lake.old.plain WHERE id < 100")
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'old.plain', options => map('rewrite-all', 'true'))"
    ).collect()
    again = lake.adopt("old.plain", "old.plain", primary_key=["id"])
    assert again.scan().count() == len([id for id in model if id >= 100])
    assert verify(lake.transport, "old.plain").problems() == []

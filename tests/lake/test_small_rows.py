"""Small rounds are written by Arrow without a Spark job and few loads, large ones by Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore_tiering import Tierer, flush, iceberg_java, manifest_files, small_rows
from lakestore_tiering.iceberg_java import Iceberg
from tests.lake.tiering_tables import NAME, SCHEMA, in_lake, in_table, items, keys, refs

pytestmark = pytest.mark.spark


def refused(*_: object) -> flush.StagedRows:
    """Spark's way, where nobody may go it."""
    raise AssertionError("a Spark job for a small round")


def rounds(lake: ls.Lake, spark: SparkSession, **options: Any) -> None:
    """Two rounds of a table, each compared with the lake; the second one has updates and deletes of a keyed table."""
    keyed = options.pop("keyed")
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"] if keyed else None, buckets=2, lake=options)
    write = table.upsert if keyed else table.append
    with Tierer(lake, spark) as tierer:
        for first, word in ((0, "a"), (500, "b")):
            write(items(range(first, first + 1_000), word))
            if keyed:
                table.delete(keys(range(first, first + 10)))
            (outcome,) = tierer.run_once(NAME, compaction=False)
            assert outcome.flushed is not None
            assert in_lake(spark) == in_table(table)
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == (500 if keyed else 0)
    assert refs(spark) == {"main", "lakestore-tier"}


@pytest.mark.parametrize(
    "options",
    [
        {"keyed": True, "format_version": 2},
        {"keyed": True, "format_version": 2, "partition_by": ["bucket(4, id)"]},
        {"keyed": False, "format_version": 2, "partition_by": ["truncate(1, text)"]},
        {"keyed": False, "format_version": 2},
        {"keyed": True, "format_version": 3},
        {"keyed": True, "sort_by": ["text desc", "id"], "partition_by": ["bucket(4, id)"]},
    ],
    ids=str,
)
def test_small_rounds_take_no_spark_job(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(flush, "_staged_by_spark", refused)
    rounds(lake, spark, **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "OFFSETS_MAX"),
        ({}, "BYTES_MAX"),
        ({"partition_by": ["bucket(4, id)"]}, "PARTITIONS_MAX"),
    ],
    ids=["many offsets", "many bytes", "many partitions"],
)
def test_other_rounds_are_sparks(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], name: str
) -> None:
    monkeypatch.setattr(small_rows, name, 1)
    calls, staged = [], flush._staged_by_spark

    def noted(*given: Any) -> flush.StagedRows:
        calls.append(given)
        return staged(*given)

    monkeypatch.setattr(flush, "_staged_by_spark", noted)
    rounds(lake, spark, keyed=True, **options)
    assert len(calls) == 2


def test_rows_of_a_sorted_table_are_sorted_in_each_file(lake: ls.Lake, spark: SparkSession) -> None:
    options = {"sort_by": ["text desc", "id"], "partition_by": ["bucket(4, id)"]}
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=options)
    table.upsert(pa.concat_tables([items(range(0, 100, 2), "a"), items(range(1, 100, 2), "b")]))
    with Tierer(lake, spark) as tierer:
        tierer.run_once(NAME, compaction=False)
        files = tierer.tools.main_files(table.definition, tierer.tools.standing(table.definition)[0]).files()
    assert len(files) == 4
    for file in files:
        rows = pq.read_table(file.path.removeprefix("file:"), partitioning=None).select(["text", "id"])
        assert rows.num_rows > 10
        assert rows == rows.sort_by([("text", "descending"), ("id", "ascending")])


def test_a_lake_table_is_loaded_once_and_again_when_another_engine_has_changed_it(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit leaves the table as it is after it, and the plan says whether it has moved since."""
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2)
    loads: list[str] = []
    load, refresh = iceberg_java._loaded, Iceberg.refresh

    def loaded(*given: Any) -> Any:
        loads.append("load")
        return load(*given)

    def refreshed(self: Iceberg) -> None:
        loads.append("refresh")
        refresh(self)

    monkeypatch.setattr(iceberg_java, "_loaded", loaded)
    monkeypatch.setattr(Iceberg, "refresh", refreshed)
    with Tierer(lake, spark) as tierer:
        for number, expected in enumerate((["load"], [], ["load"], [])):
            table.upsert(items(range(number, number + 10), f"v{number}-"))
            loads.clear()
            assert tierer.run_once(NAME)[0].flushed is not None
            assert loads == expected
            assert in_lake(spark) == in_table(table)
            if number == 1:
                spark.sql(f"ALTER TABLE lake.{NAME} SET TBLPROPERTIES ('note' = 'another')")
        loads.clear()
        assert tierer.run_once(NAME)[0].flushed is None
        assert loads == []


def test_rounds_of_two_tables_at_once_keep_their_files_apart(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java keeps files in memory in one map of the process. The second round runs while Java reads the first one's."""
    tables = [lake.create_table(f"shop.t{number}", SCHEMA, primary_key=["id"], buckets=2) for number in (1, 2)]
    for number, table in enumerate(tables):
        table.upsert(items(range(100 * number, 100 * number + 50)))
    read = manifest_files._read
    second: list[Any] = []

    def interrupted(*given: Any) -> list[Any]:
        if not second:
            second.append(None)
            second.extend(tierer.run_once(tables[1].name))
        return read(*given)

    monkeypatch.setattr(manifest_files, "_read", interrupted)
    with Tierer(lake, spark) as tierer:
        tierer.run_once(tables[0].name)
    assert second[1].flushed.rows == 50
    for table in tables:
        assert in_lake(spark, table.name) == in_table(table)

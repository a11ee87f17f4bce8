"""Hot rows of a round reach Spark's tasks by files: the same rows from both folders, in even splits, removed after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

import lakestore as ls
from lakestore.model.file_uri import to_path
from lakestore.union import plan
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_spark.types import schema_for_spark, spark_schema
from lakestore_tiering import Tierer
from lakestore_tiering.hot_rows import Hot
from lakestore_tiering.iceberg_java import Iceberg
from lakestore_tiering.round import version_name
from tests.lake.test_types_lake import plain, some_rows
from tests.support.all_types import SCHEMA

pytestmark = pytest.mark.spark


def opened(lake: ls.Lake, spark: SparkSession, name: str) -> tuple[Iceberg, TableScan, str]:
    answer = lake.transport.plan(pb.PlanRequest(tables=[name], lease_seconds=60))
    scan = plan.decode(answer).tables[0]
    return Iceberg(spark, version_name(scan.table)), scan, answer.lease


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("hot-*/*") if path.is_file()]


@pytest.mark.parametrize("is_local", [True, False], ids=["temporary folder", "table's folder"])
def test_hot_rows_are_the_same_from_both_folders(
    server: Server, lake: ls.Lake, spark: SparkSession, is_local: bool
) -> None:
    table = lake.create_table("kinds.keyed", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(some_rows(range(0, 40)))
    table.upsert(some_rows(range(30, 50)))
    table.delete([{"id": i} for i in range(10, 15)])
    # Structs that are null of required fields cannot be taken out of Spark otherwise.
    shape = StructType(
        [StructField(field.name, field.dataType) for field in spark_schema(table.definition, SCHEMA.names)]
    )
    expected = plain(table.scan().to_arrow(), schema_for_spark(SCHEMA))
    assert len(expected) == 45
    hot = Hot(spark, lake.transport, is_local=is_local)
    lake_table, scan, lease = opened(lake, spark, "kinds.keyed")
    rows = hot.frame(lake_table, scan, lease)
    assert rows is not None
    found: pa.Table = rows.frame.select(*SCHEMA.names).to(shape).toArrow()
    assert plain(found, schema_for_spark(SCHEMA)) == expected
    assert "Python" not in str(rows.frame._jdf.queryExecution().executedPlan())
    folder = Path(to_path(str(lake_table.table.location())) or "")
    assert len(files_below(folder)) == (0 if is_local else 4), "two buckets, a manifest and its list"
    hot.forget(lease)
    assert not list(folder.rglob("hot-*"))
    hot.close()


def sizes_of_tasks(frame: DataFrame) -> list[int]:
    return sorted(frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect())


def test_one_bucket_with_all_rows_is_split_among_the_tasks(server: Server, lake: ls.Lake, spark: SparkSession) -> None:
    """Rows of one key range lie in one of four buckets; every task still reads a share."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("noise", pa.int64())])
    table = lake.create_table("shop.skewed", schema, buckets=4)
    noise = np.random.default_rng(1).integers(0, 1 << 62, 600_000)
    table.append(pa.table({"id": np.arange(600_000), "noise": noise}, schema=schema))
    lake_table, scan, lease = opened(lake, spark, "shop.skewed")
    assert sum(part.head > part.tier_point for part in scan.buckets) == 1, "the rows of one append are in one bucket"
    hot = Hot(spark, lake.transport, is_local=False)
    rows = hot.frame(lake_table, scan, lease)
    assert rows is not None
    sizes = sizes_of_tasks(rows.frame)
    tasks = spark.sparkContext.defaultParallelism
    assert sum(sizes) == 600_000
    assert tasks <= len(sizes) <= 2 * tasks
    assert max(sizes) <= 300_000
    hot.forget(lease)
    hot.close()


def test_a_round_without_live_rows_has_no_frame(server: Server, lake: ls.Lake, spark: SparkSession) -> None:
    table = lake.create_table("shop.short", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])
    table.upsert([{"id": 1}])
    table.delete([{"id": 1}])
    lake_table, scan, lease = opened(lake, spark, "shop.short")
    hot = Hot(spark, lake.transport, is_local=False)
    assert hot.frame(lake_table, scan, lease) is None
    hot.close()


def test_a_hot_partition_is_written_by_several_tasks(server: Server, lake: ls.Lake, spark: SparkSession) -> None:
    """All rows of a round are of one day; a task for the day alone would make the round as slow as one core."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("noise", pa.binary())])
    table = lake.create_table("shop.today", schema, buckets=1, lake={"partition_by": ["day"]})
    noise = np.random.default_rng(2).bytes(100 * 300_000)
    rows = {
        "id": np.arange(300_000),
        "day": pa.array(["2026-11-28"] * 300_000),
        "noise": [noise[at : at + 100] for at in range(0, len(noise), 100)],
    }
    table.append(pa.table(rows, schema=schema))
    with Tierer(lake, spark) as tierer:
        (round_,) = tierer.run_once(compaction=False)
    assert round_.flushed is not None
    assert round_.flushed.rows == 300_000
    assert round_.flushed.files >= 2
    assert table.scan(columns=["id"]).count() == 300_000

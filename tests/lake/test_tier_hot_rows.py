"""Hot rows of a round: by files, by the driver or by tasks, the rows and types are the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

import lakestore as ls
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_spark.types import schema_for_spark, spark_schema
from lakestore_tiering.hot_rows import Hot
from tests.lake.test_types_lake import plain, some_rows
from tests.support.all_types import SCHEMA

pytestmark = pytest.mark.spark

WAYS: list[dict[str, Any]] = [{}, {"spool": False}, {"spool": False, "driver_rows_max": 0}]
"""Files beside a local Spark; on a cluster the driver, for a few rows, or tasks."""


def test_hot_rows_are_the_same_by_every_way(server: Server, lake: ls.Lake, spark: SparkSession) -> None:
    table = lake.create_table("kinds.keyed", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(some_rows(range(0, 40)))
    table.upsert(some_rows(range(30, 50)))
    table.delete([{"id": i} for i in range(10, 15)])
    declared = spark_schema(table.definition, SCHEMA.names)
    # Structs that are null of required fields cannot be taken out of Spark otherwise.
    shape = StructType([StructField(field.name, field.dataType) for field in declared])
    expected = plain(table.scan().to_arrow(), schema_for_spark(SCHEMA))
    assert len(expected) == 45
    for way in WAYS:
        answer = lake.transport.plan(pb.PlanRequest(tables=["kinds.keyed"], lease_seconds=60))
        hot = Hot(spark, lake.transport, server.about["grpc"], **way)
        frame = hot.frame(plan.decode(answer).tables[0], SCHEMA.names, answer.lease)
        found: pa.Table = frame.to(shape).toArrow()
        hot.close()
        assert plain(found, schema_for_spark(SCHEMA)) == expected, way

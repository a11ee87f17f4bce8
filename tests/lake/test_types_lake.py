"""Every type in the lake: written by Spark, read back equal by each reader, inner nulls and updates included."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, find, settings
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore.union.lake_snapshot import recast
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_spark.types import schema_for_spark, spark_schema
from lakestore_tiering import Tierer
from tests.support.all_types import FIELDS, NESTED, SCHEMA, rows
from tests.support.seeds import seeded

pytestmark = pytest.mark.spark

QUIET = settings(max_examples=1, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
FOR_SPARK = schema_for_spark(SCHEMA)


def some_rows(ids: range) -> pa.Table:
    """Random rows; in front one whose columns are null, and one whose columns are there but null inside."""
    random = find(rows(list(ids)[2:]), lambda _: True, settings=QUIET, random=seeded(f"rows {ids}"))
    nulls = pa.Table.from_pylist([{"id": ids[0]}], schema=SCHEMA)
    nested = {name: _hollow(SCHEMA.field(name).type) for name, kind in FIELDS.items() if kind in NESTED}
    hollow = pa.Table.from_pylist([{"id": ids[1], **nested}], schema=SCHEMA)
    return pa.concat_tables([nulls, hollow, random]).combine_chunks()


def _hollow(kind: pa.DataType) -> Any:
    """A value that is there, and null inside as far as it may be."""
    if pa.types.is_struct(kind):
        return {part.name: None if part.nullable else 0 for part in kind}
    if pa.types.is_list(kind):
        return [None] if kind.value_field.nullable else []
    return []


def plain(table: pa.Table, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    """Rows in the types of a schema, by id, with the entries of maps in one order."""
    columns = [recast(table.column(name).combine_chunks(), schema.field(name).type) for name in schema.names]
    found = pa.table(columns, names=schema.names).to_pylist()
    return [_sorted(row) for row in sorted(found, key=lambda row: int(row["id"]))]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(part) for name, part in value.items()}
    if isinstance(value, list):
        parts = [_sorted(part) for part in value]
        return sorted(parts, key=repr) if parts and all(isinstance(part, tuple) for part in parts) else parts
    return tuple(_sorted(part) for part in value) if isinstance(value, tuple) else value


def spark_rows(lake: ls.Lake, name: str, frame: DataFrame) -> list[dict[str, Any]]:
    """What Spark shows. Its `toArrow` cannot make structs that are null of required fields, so nothing is required."""
    declared = spark_schema(lake.table(name).definition, SCHEMA.names)
    shape = StructType([StructField(field.name, field.dataType) for field in declared])
    return plain(frame.to(shape).toArrow(), FOR_SPARK)


def check(lake: ls.Lake, spark_lake: SparkLake, name: str, expected: pa.Table) -> None:
    """Our readers, at the head."""
    table = lake.table(name)
    found = table.scan().to_arrow()
    assert found.schema.types == expected.schema.types
    assert plain(found) == plain(expected)
    assert plain(lake.sql(f"SELECT * FROM {name}").to_arrow()) == plain(expected)
    assert spark_rows(lake, name, spark_lake.table(name)) == plain(expected, FOR_SPARK)
    proof = verify(lake.transport, name)
    assert proof.same, proof.problems


def check_strangers(lake: ls.Lake, spark: SparkSession, name: str, expected: pa.Table) -> None:
    """Spark, PyIceberg and DuckDB on the lake table alone."""
    names = SCHEMA.names
    in_spark = spark.table(f"lake.{name}").select(*[f"`{each}`" for each in names])
    assert spark_rows(lake, name, in_spark) == plain(expected, FOR_SPARK)
    location = str(spark.sql(f"SELECT file FROM lake.{name}.metadata_log_entries ORDER BY timestamp").collect()[-1][0])
    iceberg = StaticTable.from_metadata(location)
    assert plain(iceberg.scan(selected_fields=tuple(names)).to_arrow(), FOR_SPARK) == plain(expected, FOR_SPARK)


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_every_type_is_the_same_for_every_reader(
    lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, server: Server, version: int
) -> None:
    options = {"format_version": version}
    keyed = lake.create_table("kinds.keyed", SCHEMA, primary_key=["id"], buckets=2, lake=options)
    log = lake.create_table("kinds.log", SCHEMA, lake=options)
    first, second = some_rows(range(0, 30)), some_rows(range(20, 45))
    keyed.upsert(first)
    log.append(first)
    for name in ("kinds.keyed", "kinds.log"):
        check(lake, spark_lake, name, first)
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
        for name in ("kinds.keyed", "kinds.log"):
            check(lake, spark_lake, name, first)
            check_strangers(lake, spark, name, first)
        keyed.upsert(second)
        keyed.delete([{"id": 0}, {"id": 44}])
        log.append(second)
        merged = pa.concat_tables([first.slice(1, 19), second.slice(0, 24)]).combine_chunks()
        appended = pa.concat_tables([first, second]).combine_chunks()
        check(lake, spark_lake, "kinds.keyed", merged)
        source = spark.read.format("lakestore").options(server=server.about["grpc"]).load("kinds.keyed")
        assert spark_rows(lake, "kinds.keyed", source) == plain(merged, FOR_SPARK)
        tierer.run_once()
        check(lake, spark_lake, "kinds.keyed", merged)
        check_strangers(lake, spark, "kinds.keyed", merged)
        assert log.scan().count() == appended.num_rows
        assert verify(lake.transport, "kinds.log").same

"""The table and rows that the tiering tests share."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore_server.catalog.gate import PIN_PREFIX

NAME = "shop.items"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def create(lake: ls.Lake, *, keyed: bool = True, version: int = 2) -> ls.Table:
    keys = ["id"] if keyed else None
    return lake.create_table(NAME, SCHEMA, primary_key=keys, buckets=2, lake={"format_version": version})


def items(ids: range, text: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text}{i}" for i in ids]}, schema=SCHEMA)


def keys(ids: range) -> list[dict[str, Any]]:
    return [{"id": i} for i in ids]


def in_lake(spark: SparkSession, name: str = NAME) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT id, text FROM lake.{name}").collect())


def in_table(table: ls.Table) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["text"]) for row in table.scan().to_arrow().to_pylist())


def refs(spark: SparkSession) -> set[str]:
    """Names of branches and tags, without those of snapshots that somebody reads: these go with their leases."""
    names = {row.name for row in spark.sql(f"SELECT name FROM lake.{NAME}.refs").collect()}
    return {name for name in names if not name.startswith(PIN_PREFIX)}


def data_files(spark: SparkSession) -> int:
    return int(spark.sql(f"SELECT * FROM lake.{NAME}.data_files").count())

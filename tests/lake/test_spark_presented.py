"""Spark with nothing of ours in it, opened by the lines that `lakestore connect` prints: reads, and refused writes.

Costs about 5 s of Spark. MERGE, UPDATE and DELETE end as INSERT does: files first, then the commit is refused.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.cli.main import cli
from lakestore_server.main import Server

pytestmark = pytest.mark.spark

WRITES = (
    "INSERT INTO {0} SELECT * FROM {0}",
    "ALTER TABLE {0} ADD COLUMN x int",
    "DROP TABLE {0}",
)


def test_printed_lines_of_spark_read_the_head_and_a_cut_and_write_nothing(
    spark: SparkSession, server: Server, lake: ls.Lake
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    orders = lake.create_table("shop.orders", schema, primary_key=["id"])
    orders.upsert(pa.table({"id": [1, 2, 3], "v": [1, 2, 3]}))
    said = CliRunner().invoke(cli, ["connect", "spark", "--server", server.about["grpc"], "--json"])
    lines = json.loads(said.output)["lines"]
    for line in lines:
        key, _, value = line.removeprefix("--conf ").partition("=")
        if line.startswith("--conf spark.sql.catalog."):
            spark.conf.set(key, value)
    queries = [line.split(";")[0] for line in lines if line.startswith("SELECT")]

    def counts() -> list[int]:
        return [spark.sql(query).collect()[0][0] for query in queries]

    orders.upsert(pa.table({"id": [3, 4], "v": [30, 4]}))
    assert counts() == [4, 3, 3, 0]
    for text in WRITES:
        with pytest.raises(Py4JJavaError, match="a presented cut is read-only"):
            spark.sql(text.format("now.shop.orders"))

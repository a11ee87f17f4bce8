"""Every merge engine is exact through changelog, lake and union read in Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore.tiering import Tierer
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.merge_cases import CASES, MergeTable, sequences, steps

NAMES = ("upsert_skipping", "partial", "first_row", "versioned", "aggregate")


def told(rows: list[dict[str, Any]]) -> list[str]:
    """Comparable: NaN as a text equals itself."""
    return sorted(repr(row) for row in rows)


def read(frame: DataFrame, made: MergeTable) -> list[str]:
    return told(frame.select(*made.table.schema.names).toArrow().to_pylist())


@pytest.mark.timeout(300)
def test_every_merge_engine_is_exact_through_lake_and_union_read(
    lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    cases = [case for case in CASES if case.name in NAMES]
    tables = [MergeTable(lake, case, buckets=2) for case in cases]
    with Tierer(lake, spark) as tierer:
        for number, step in enumerate(zip(*(steps(sequences(case, 3)) for case in cases), strict=True)):
            for made, batches in zip(tables, step, strict=True):
                answer = lake.transport.commit(pb.CommitRequest(changes=[made.message(batch) for batch in batches]))
                made.expect(answer.results, batches)
            if number == 0:
                tierer.run_once()
        for made in tables:
            assert read(spark_lake.table(made.table.name), made) == told(made.table.scan().to_arrow().to_pylist())
        tierer.run_once()
    for made in tables:
        made.check()
        expected = told(made.table.scan().to_arrow().to_pylist())
        assert read(spark.table(f"lake.{made.table.name}"), made) == expected, "the lake alone"

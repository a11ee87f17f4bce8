"""Columns change while rows are tiered: each reader, whoever wrote it, sees one version and the right values."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.evolution import AddColumn, DropColumn, MakeOptional, MoveColumn, RenameColumn, Step, WidenColumn
from lakestore.server.main import Server
from lakestore.tiering import Tierer
from lakestore.verify import verify
from tests.integration.evolving import EVENTS, ITEMS, Evolving

ROUNDS: list[list[list[Step]]] = [
    [[AddColumn("note", "string"), MoveColumn("price", first=True)]],
    [[WidenColumn("count", "int64"), WidenColumn("ratio", "float64"), WidenColumn("price", "decimal(20,2)")]],
    [[RenameColumn("text", "word"), WidenColumn("small", "int16"), MakeOptional("small")]],
    [[DropColumn("note")], [AddColumn("note", "int64")]],
    [[DropColumn("count"), RenameColumn("ratio", "count")], [RenameColumn("note", "ratio")]],
    [[DropColumn("count")]],
    [[AddColumn("count", "string", after="id")]],
]
"""Per round the changes, each followed by writes."""


@pytest.fixture(params=[2, 3])
def shop(server: Server, lake: ls.Lake, spark: SparkSession, request: pytest.FixtureRequest) -> Evolving:
    made = Evolving(server, lake, spark, request.param)
    made.create()
    return made


@pytest.mark.timeout(600)
def test_every_reader_sees_the_version_and_the_model_s_rows(shop: Evolving) -> None:
    every = [shop.by_union, shop.by_spark_union, shop.by_spark, shop.by_duckdb, shop.by_pyiceberg]
    with Tierer(shop.lake, shop.spark) as tierer:
        shop.write()
        tierer.run_once(compaction=False)
        for changes in ROUNDS:
            for steps in changes:
                shop.alter(*steps)
                shop.check(shop.by_union, shop.by_spark_union)
                shop.write()
                shop.check(shop.by_union, shop.by_spark_union)
            tierer.run_once(compaction=False)
            shop.check(*every)
        shop.alter(AddColumn("last", "bool", default=True, new_rows_only=shop.version == 2))
        shop.write()
        tierer.run_once(compaction=True)
        shop.check(*every)
    for table in (ITEMS, EVENTS):
        verified = verify(shop.lake.transport, table)
        assert verified.same, verified.problems()

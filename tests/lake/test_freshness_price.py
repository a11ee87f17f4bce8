"""`lakestore freshness price` on rounds and compactions of a real lake."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.union.past_rounds import remembered
from lakestore.union.plan import newest
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.lake.tiering_tables import NAME, SCHEMA, items

pytestmark = pytest.mark.spark


def test_the_lake_remembers_what_rounds_and_compactions_did(
    server: Server, lake: ls.Lake, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"freshness": "10s"})
    arguments = ["freshness", "price", NAME, "--server", server.about["grpc"]]
    assert run_command(arguments) == 1
    assert "has no rounds yet: let `lakestore tier` run" in capsys.readouterr().err
    flushed = []
    with Tierer(lake, spark) as tierer:
        for step in range(7):
            table.upsert(items(range(step * 4, step * 4 + 10), f"v{step}-"))
            (outcome,) = tierer.run_once(compaction=step == 4)
            assert outcome.flushed is not None
            flushed.append(outcome.flushed)
            if step == 0:
                assert run_command(arguments) == 1
                assert "remembers 1 rounds of the table, and a price needs 6" in capsys.readouterr().err
    scan = newest(lake.transport.plan, NAME)
    rounds, rewrites = remembered(scan.metadata_location)
    assert [each.changes for each in rounds] == [10] * 7
    assert [each.files for each in rounds] == [each.files for each in flushed]
    assert [each.delete_files for each in rounds] == [each.delete_files for each in flushed]
    assert all(0 < later.seconds < later.at - each.at for each, later in pairwise(rounds))
    assert len(rewrites) == 1
    assert rewrites[0].seconds > 0 < rewrites[0].bytes
    assert run_command([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rounds"], said["rewrites"], said["freshness"]) == (6, 1, 10)
    assert [each["freshness"] for each in said["prices"]] == [1, 10, 60, 300, 900, 3600]
    costs = [each["files"] for each in said["prices"]]
    assert costs == sorted(costs, reverse=True)
    assert run_command(arguments) == 0
    shown = capsys.readouterr().out
    assert f"{NAME} had" in shown
    assert "10 s (now)" in shown

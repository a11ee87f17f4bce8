"""The data source on a standalone cluster of two workers, and drivers that are killed: every change once.

The small form starts a master, two workers and one driver, which is not killed: `test_spark_source.py` restarts a
stream in one process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.table import Table
from lakestore_server.main import Server
from tests.support.seeds import seeded
from tests.support.spark_cluster import kill, process, standalone
from tests.support.spark_stream import written
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
NAME = "shop.orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    with standalone(tmp_path) as running:
        yield running.address


def driver(folder: Path, master: str, trigger: str, **options: str) -> Any:
    """A driver that streams into a folder."""
    module = (sys.executable, "-m", "tests.support.spark_stream")
    return process(folder / "driver.log", *module, master, str(folder), json.dumps(options), trigger)


def said(folder: Path) -> list[dict[str, Any]]:
    """The lines of JSON that drivers printed."""
    return [json.loads(line) for line in (folder / "driver.log").read_text().splitlines() if line.startswith("{")]


def check(table: Table, changes: list[dict[str, Any]]) -> None:
    """Every change once in each bucket, and folded they are the table."""
    for bucket in {change["__bucket"] for change in changes}:
        offsets = [change["__offset"] for change in changes if change["__bucket"] == bucket]
        assert offsets == list(range(len(offsets)))
    live: dict[int, int] = {}
    for change in changes:
        if change["__change"] == "-D":
            live.pop(change["id"], None)
        else:
            live[change["id"]] = change["v"]
    assert live == {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def fill(table: Table, commits: int, value: int) -> None:
    """Commits of some rows."""
    for commit in range(commits):
        table.upsert([{"id": commit * 7 + i, "v": value + commit} for i in range(20)])
    table.delete([{"id": 1}])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.long)])
def test_two_workers_and_a_driver_that_is_killed(
    cluster: str, server: Server, lake: ls.Lake, tmp_path: Path, kills: int
) -> None:
    """Executors fetch their own ranges; the restart goes on from the checkpoint; what is behind is told."""
    table = lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=3)
    options = {"server": server.about["grpc"], "table": NAME, "startingOffsets": "earliest"}
    fill(table, 20, 0)
    for _ in range(kills):
        with driver(tmp_path, cluster, "0", maxOffsetsPerTrigger="50", **options) as first:
            until(lambda: len(list(tmp_path.glob("batch-*.json"))) >= 2 or first.poll() is not None, "two batches", 300)
            kill(first)
    fill(table, 5, 100)
    with driver(tmp_path, cluster, "now", **options) as second:
        assert second.wait(300) == 0, (tmp_path / "driver.log").read_text()[-4_000:]
    check(table, written(tmp_path))
    lines = said(tmp_path)
    assert [line["rows"] for line in lines if "rows" in line][-1] == table.scan().count()
    assert "'behind': 0" in lines[-1]["end"]
    assert len(list(tmp_path.glob("batch-*.json"))) >= 1 + 2 * kills


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_drivers_killed_at_random(cluster: str, server: Server, lake: ls.Lake, tmp_path: Path) -> None:
    """Continuous micro-batches and AvailableNow runs, on the cluster and in one process, killed whenever."""
    chance = seeded()
    table = lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=3)
    options = {"server": server.about["grpc"], "table": NAME, "startingOffsets": "earliest"}
    for round_ in range(12):
        fill(table, chance.randrange(30), round_ * 100)
        master = chance.choice([cluster, "local[2]"])
        trigger = chance.choice(["0", "now"])
        with driver(tmp_path, master, trigger, maxOffsetsPerTrigger=str(chance.randrange(20, 200)), **options) as run:
            deadline = time.monotonic() + chance.uniform(5.0, 25.0)
            while time.monotonic() < deadline and run.poll() is None:
                time.sleep(0.2)
                if chance.random() < 0.1:
                    fill(table, 1, round_ * 100 + 50)
    with driver(tmp_path, "local[2]", "now", **options) as last:
        assert last.wait(240) == 0
    check(table, written(tmp_path))

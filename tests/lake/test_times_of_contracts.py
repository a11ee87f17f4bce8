"""Times of contracts in the lake: every door, hot and tiered partitions, and files of a closed day."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.evolution import SetContract, SetOptions
from lakestore.model.file_uri import to_path
from lakestore.spark import session
from lakestore.union import lake_snapshot
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support.spark import SPARK_CONF
from tests.support.world.clock import HandClock

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.string())])
DAY = timedelta(days=1)
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
schema:
  - name: orders
    properties: [{name: id}, {name: at}]
    customProperties:
      - {property: lakestore.eventTime, value: {from: CHOSEN, column: at, unit: iso, keep: true}}
"""
LATE = "      - {property: lakestore.lateData, value: {policy: POLICY, closedAfter: 2h}}\n"


@dataclass
class World:
    """A server with a clock that the test moves, its lake and Spark."""

    server: Server
    clock: HandClock
    lake: ls.Lake
    spark: SparkSession
    tierer: Tierer

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_us() // 1_000_000, UTC)

    def create(self, name: str, chosen: str, late: str = "", column: str = "") -> ls.Table:
        text = DOCUMENT.replace("CHOSEN", chosen) + (LATE.replace("POLICY", late) if late else "")
        table = self.lake.create_table(f"times.{name}", SCHEMA, buckets=2)
        lay = SetOptions(lake={"partition_by": [f"day({column or f'_{chosen}_time'})"]})
        table.alter(lay, SetContract(text, "orders"))
        return self.lake.table(table.name)

    def partitions(self, warehouse: str, table: str) -> list[Any]:
        """The partition of each data file."""
        catalog = RestCatalog(warehouse, uri=f"http://{self.server.about['http']}/iceberg", warehouse=warehouse)
        files = catalog.load_table(table).inspect.files().to_pylist()
        return [next(iter(each["partition"].values())) for each in files if each["content"] == 0]

    def day_files(self, table: str, day: datetime) -> dict[str, str]:
        """The data files of a partition in the lake, with a hash of their bytes."""
        rows = self.spark.sql(f"SELECT file_path, partition FROM lake.{table}.data_files").collect()
        paths = [row["file_path"] for row in rows if row["partition"][0] == day.date()]
        return {path: hashlib.sha256(Path(to_path(path) or path).read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = HandClock.real()
    server = Server(Settings(tmp_path_factory.mktemp("times") / "data ß", port=0, http_port=0), clock=clock)
    server.start()
    spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
    with ls.connect(server.about["grpc"]) as lake, Tierer(lake, spark) as tierer:
        yield World(server, clock, lake, spark, tierer)
    server.close()


def row(number: int, at: datetime | str) -> dict[str, Any]:
    return {"id": number, "at": at if isinstance(at, str) else at.isoformat()}


def test_every_door_obeys(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, began = world.create("doors", "event", "rewrite"), world.now
    old = began - 3 * DAY
    table.append(pa.Table.from_pylist([row(1, old), row(2, "no")], SCHEMA))
    file = tmp_path / "rows of ß.jsonl"
    file.write_text("\n".join(json.dumps(each) for each in (row(3, old), row(4, "no"))))
    monkeypatch.setenv("LAKESTORE_SERVER", world.server.about["grpc"])
    assert run_command(["write", table.name, str(file)]) == 0
    frame = world.spark.createDataFrame([(5, old.isoformat()), (6, "no")], "id long, at string")
    writer = frame.write.format("lakestore").mode("append").option("server", world.server.about["grpc"])
    writer.option("table", table.name).save()
    found = {each["id"]: each for each in world.lake.table(table.name).scan().to_arrow().to_pylist()}
    assert {number: each["_event_time"] for number, each in found.items()} == {1: old, 3: old, 5: old}
    assert all(began <= each["_ingest_time"] for each in found.values())
    letters = world.lake.table(f"{table.name}__dlq").scan().to_arrow().to_pylist()
    assert sorted(json.loads(each["value"])["id"] for each in letters) == [2, 4, 6]
    assert {each["code"] for each in letters} == {"event_time"}
    audit = world.lake.sql(
        "SELECT what FROM lakestore.audit WHERE \"table\" = 'times.doors' AND action = 'late_rewrite'"
    )
    whats = [json.loads(what) for what in audit.to_arrow()["what"].to_pylist()]
    assert [(each["partition"], each["rows"]) for each in whats] == [(f"{old:%Y-%m-%d}", 1)] * 3


@pytest.mark.parametrize(("chosen", "days"), [("event", 3), ("broker", 1), ("ingest", 0)])
def test_a_row_is_in_the_same_partition_hot_and_tiered(world: World, chosen: str, days: int) -> None:
    table, now = world.create(f"hot_{chosen}", chosen), world.now
    register = f"bridge/b/-/{chosen}/0"
    with world.lake.registers([register]) as registers, registers.commit({register: "1"}) as commit:
        commit.append(table.name, pa.Table.from_pylist([row(1, now - 3 * DAY) | {"_broker_time": now - DAY}]))
    wanted = [(now - days * DAY).date()]
    assert world.partitions("now", table.name) == wanted
    world.tierer.run_once(table.name)
    assert world.partitions("lake", table.name) == wanted
    assert world.lake.table(table.name).scan().count() == 1


@pytest.mark.parametrize("policy", ["land_today", "rewrite"])
def test_files_of_a_closed_day(world: World, policy: str) -> None:
    column = "_landing_time" if policy == "land_today" else "_event_time"
    table, day = world.create(f"closed_{policy}", "event", policy, column), world.now
    table.append(pa.Table.from_pylist([row(number, day) for number in range(10)], SCHEMA))
    world.tierer.run_once(table.name)
    before = world.day_files(table.name, day)
    assert before
    world.clock.us += 3 * 86_400_000_000
    table.append(pa.Table.from_pylist([row(100 + number, day) for number in range(500)], SCHEMA))
    table.append(pa.Table.from_pylist([row(1000, world.now)], SCHEMA))
    world.tierer.run_once(table.name)
    lake_snapshot.forget()
    after = world.day_files(table.name, day)
    assert (after == before) is (policy != "rewrite")
    assert before.items() <= after.items()
    assert world.lake.table(table.name).scan().count() == 511
    rows = world.spark.sql(f"SELECT partition, record_count FROM lake.{table.name}.partitions").collect()
    counts = {each["partition"][0]: each["record_count"] for each in rows}
    old = 510 if policy == "rewrite" else 10
    assert counts == {day.date(): old, world.now.date(): 511 - old}
    if policy == "land_today":
        found = world.lake.table(table.name).scan(where="id = 100").to_arrow().to_pylist()
        assert [each["_event_time"] for each in found] == [day]

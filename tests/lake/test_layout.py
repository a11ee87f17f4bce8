"""The partitioning and the sort order of a lake table change while it is read, tiered and compacted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionSpec
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.evolution import SetContract
from lakestore.spark import SparkLake
from lakestore.union import lake_snapshot
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_tiering import Tierer, compact
from lakestore_tiering.flush import flush
from tests.support.staging import sorted_by_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "shop.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("city", pa.string())])
CITIES = ["Köln am Rhein", "Oslo", None]
Model = dict[int, tuple[str, str | None]]


class World:
    """The table, its model, and the readers."""

    def __init__(self, server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, version: int) -> None:
        self.server, self.lake, self.spark, self.spark_lake = server, lake, spark, spark_lake
        layout = {"partition_by": ["city"], "format_version": version}
        self.table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=layout)
        self.model: Model = {}

    def upsert(self, ids: range, name: str) -> None:
        self.model |= {i: (f"{name} {i}", CITIES[i % 3]) for i in ids}
        self.table.upsert([{"id": i, "name": f"{name} {i}", "city": CITIES[i % 3]} for i in ids])

    def delete(self, *ids: int) -> None:
        self.table.delete([{"id": i} for i in ids])
        for i in ids:
            del self.model[i]

    def check(self) -> None:
        """Every reader sees the model, at the head."""
        lake_snapshot.forget()
        rows = self.lake.table(NAME).scan().to_arrow().to_pylist()
        assert _model(rows) == self.model
        [oslo] = self.lake.sql(f"SELECT count(*) AS n FROM {NAME} WHERE city = 'Oslo'").to_arrow().to_pylist()
        assert oslo["n"] == sum(city == "Oslo" for _, city in self.model.values())
        found = self.spark_lake.sql(f"SELECT id, name, city FROM {NAME}").collect()
        assert {row[0]: (row[1], row[2]) for row in found} == self.model
        assert len(found) == len(self.model)
        now = RestCatalog("now", uri=f"http://{self.server.about['http']}/iceberg", warehouse="now")
        assert _model(now.load_table(NAME).scan().to_arrow().to_pylist()) == self.model
        assert _model(now.load_table(NAME).scan("city = 'Oslo'").to_arrow().to_pylist()) == {
            number: row for number, row in self.model.items() if row[1] == "Oslo"
        }
        assert verify(self.lake.transport, NAME).problems() == []

    def specs(self) -> set[int]:
        """The specs of the lake's data files."""
        return {row[0] for row in self.spark.sql(f"SELECT spec_id FROM lake.{NAME}.data_files").collect()}

    def plain(self) -> Model:
        """The lake alone, as Spark reads it without Lakestore."""
        rows = self.spark.sql(f"SELECT id, name, city FROM lake.{NAME}").collect()
        assert len({row[0] for row in rows}) == len(rows)
        return {row[0]: (row[1], row[2]) for row in rows}


def _model(rows: list[dict[str, str]]) -> Model:
    assert len({row["id"] for row in rows}) == len(rows)
    return {int(row["id"]): (row["name"], row["city"]) for row in rows}


@pytest.fixture(name="world", params=[2, 3])
def one_world(
    request: pytest.FixtureRequest,
    server: Server,
    lake: ls.Lake,
    spark: SparkSession,
    spark_lake: SparkLake,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    sorted_by_spark(monkeypatch)
    return World(server, lake, spark, spark_lake, request.param)


def test_partitioning_and_sort_order_change(world: World) -> None:
    world.upsert(range(100), "a")
    with Tierer(world.lake, world.spark) as tierer:
        tierer.run_once()
        world.upsert(range(90, 120), "b")
        world.delete(5)
        fork = compact.fork(tierer.tools, NAME, force=True)
        assert fork is not None
        world.table.alter(lake={"partition_by": ["bucket(2, id)"]})
        world.check()
        compact.rewrite(tierer.tools, fork)
        assert flush(tierer.tools, NAME) is not None
        assert world.plain() == world.model
        assert world.specs() == {0, 1}
        world.check()
        assert compact.land(tierer.tools, fork) is not None
        assert world.plain() == world.model
        assert world.specs() == {0, 1}, "the compaction began under the old one"
        world.upsert(range(3, 9), "c")
        world.delete(10, 100, 119)
        world.check()
        assert flush(tierer.tools, NAME) is not None
        assert world.plain() == world.model
        world.check()

        world.table.alter(lake={"partition_by": ["bucket(4, id)"], "sort_by": ["name desc"]})
        world.upsert(range(30), "d")
        world.check()
        assert flush(tierer.tools, NAME) is not None
        assert world.specs() == {0, 1, 2}
        world.delete(0, 50, 110)
        assert flush(tierer.tools, NAME) is not None
        assert world.plain() == world.model
        assert compact.compact(tierer.tools, NAME, force=True) is not None
        assert (world.specs(), world.plain()) == ({2}, world.model)
        world.check()

        world.table.alter(lake={"partition_by": ["city"], "sort_by": []})
        world.upsert(range(40, 45), "e")
        assert flush(tierer.tools, NAME) is not None
        assert world.specs() == {0, 2}
        world.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))"
        ).collect()
        assert (world.specs(), world.plain()) == ({0}, world.model)
        world.check()
        world.table.alter(lake={"partition_by": []})
        world.upsert(range(200, 220), "f")
        world.check()
        assert flush(tierer.tools, NAME) is not None
        assert world.specs() == {0, 3}
        world.check()
    names = [part.name for spec in _specs(world) for part in spec.fields]
    assert names == ["city", "id_bucket", "id_bucket_4"]
    with pytest.raises(Invalid, match="column 'city' was in the lake's partitioning and cannot be dropped"):
        world.table.alter(drop=["city"])


def _specs(world: World) -> list[PartitionSpec]:
    catalog = RestCatalog("lake", uri=f"http://{world.server.about['http']}/iceberg")
    return list(catalog.load_table(NAME).specs().values())


CONTRACT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, logicalType: integer}
"""


def test_a_contract_changes_between_rounds_and_in_a_compaction(world: World) -> None:
    world.upsert(range(100), "a")
    with Tierer(world.lake, world.spark) as tierer:
        tierer.run_once()
        world.table.alter(SetContract(CONTRACT))
        world.upsert(range(90, 120), "b")
        world.check()
        fork = compact.fork(tierer.tools, NAME, force=True)
        assert fork is not None
        world.table.alter(SetContract(CONTRACT.replace("1.0.0", "1.1.0")))
        world.delete(5)
        world.check()
        compact.rewrite(tierer.tools, fork)
        assert flush(tierer.tools, NAME) is not None
        assert compact.land(tierer.tools, fork) is not None
        assert world.plain() == world.model
        world.table.alter(SetContract(""))
        world.upsert(range(3), "c")
        tierer.run_once()
        assert world.plain() == world.model
        world.check()

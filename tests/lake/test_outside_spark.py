"""A keyed table in an outside catalog, tiered by Spark: engines that know only that catalog read the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer, compact
from tests.lake.test_tier_crash import FLUSH_POINTS, Died, at
from tests.support.engines import DuckDb
from tests.support.outside import DatabaseCatalog, Outside, RestServer
from tests.support.postgres import Postgres
from tests.support.staging import sorted_by_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME = "shop.items"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture(name="outside", params=["rest", "database"])
def one_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outside]:
    if request.param == "rest":
        with RestServer(tmp_path) as server:
            yield server
        return
    with Postgres() as postgres, closing(DatabaseCatalog(postgres)) as catalog:
        yield catalog


@pytest.fixture
def server(tmp_path: Path, outside: Outside) -> Iterator[Server]:
    """A server whose tables live in the outside catalog."""
    settings = Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0, catalog=outside.settings())
    running = Server(settings)
    running.start()
    yield running
    running.close()


class Model:
    """The table, what it must hold, and the readers."""

    def __init__(
        self, lake: ls.Lake, spark: SparkSession, outside: Outside, version: int, table: ls.Table | None = None
    ) -> None:
        self.lake, self.spark, self.outside = lake, spark, outside
        self.table = table or lake.create_table(
            NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"sort_by": ["v"], "format_version": version}
        )
        self.rows: dict[int, int] = {}

    def upsert(self, ids: range, value: int) -> None:
        """Insert or update."""
        self.table.upsert([{"id": number, "v": value} for number in ids])
        self.rows.update(dict.fromkeys(ids, value))

    def delete(self, ids: range) -> None:
        """Delete."""
        self.table.delete([{"id": number} for number in ids])
        for number in ids:
            self.rows.pop(number)

    def check(self) -> None:
        """Every reader has the model."""
        wanted = sorted(self.rows.items())
        theirs = self.outside.catalog().load_table(NAME)
        assert pairs(theirs.scan(selected_fields=("id", "v")).to_arrow().to_pylist()) == wanted
        assert pairs(self.table.scan().to_arrow().to_pylist()) == wanted
        assert verify(self.lake.transport, NAME).same
        with closing(DuckDb("")) as duck:
            read = f"SELECT id, v FROM iceberg_scan('{theirs.metadata_location}') ORDER BY id"
            assert duck.sql(read) == wanted
        if isinstance(self.outside, RestServer):
            assert sorted(tuple(row) for row in self.theirs(f"SELECT id, v FROM theirs.{NAME}")) == wanted
            with closing(DuckDb(f"http://127.0.0.1:{self.outside.port}")) as duck:
                assert duck.sql(f"SELECT id, v FROM {duck.attach('')}.{NAME} ORDER BY id") == wanted

    def theirs(self, statement: str) -> list[Any]:
        """A statement of stock Spark on the outside catalog."""
        assert isinstance(self.outside, RestServer)
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": f"http://127.0.0.1:{self.outside.port}",
            ".cache-enabled": "false",
        }.items():
            self.spark.conf.set(f"spark.sql.catalog.theirs{key}", value)
        return self.spark.sql(statement).collect()


def pairs(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Rows as pairs, in order."""
    return sorted((row["id"], row["v"]) for row in rows)


@pytest.mark.timeout(400)
def test_engines_of_the_outside_catalog_read_the_model_after_every_round(
    server: Server, lake: ls.Lake, spark: SparkSession, outside: Outside
) -> None:
    model = Model(lake, spark, outside, 2)
    with Tierer(lake, spark) as tierer:
        for number in range(3):
            model.upsert(range(number * 10, number * 10 + 30), number)
            model.delete(range(number * 10, number * 10 + 5))
            tierer.run_once(compaction=number == 2)
            model.check()
    location = server.engine.view.pointers["shop", "items"].location
    assert outside.catalog().load_table(NAME).metadata_location == location


@pytest.mark.long  # `test_outside_points.py` has the deaths around the commit
@pytest.mark.timeout(400)
def test_a_tierer_that_dies_anywhere_is_followed_by_one_that_goes_on(
    lake: ls.Lake, spark: SparkSession, outside: Outside
) -> None:
    model = Model(lake, spark, outside, 2)
    for number, point in enumerate(FLUSH_POINTS):
        model.upsert(range(number * 10, number * 10 + 30), number)
        with pytest.raises(Died):
            Tierer(lake, spark, holder="one", crash=at(point)).run_once(compaction=False)
        model.upsert(range(number * 10, number * 10 + 3), -number)
        with Tierer(lake, spark, holder="one") as second:
            second.run_once(compaction=False)
        model.check()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("outside", ["rest"], indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_maintenance_there_is_adopted_and_rows_there_are_not(
    server: Server, lake: ls.Lake, spark: SparkSession, outside: Outside, version: int
) -> None:
    model = Model(lake, spark, outside, version)
    with Tierer(lake, spark) as tierer:
        for number in range(3):
            model.upsert(range(number * 10, number * 10 + 30), number)
            tierer.run_once(compaction=False)
        model.theirs(f"CALL theirs.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))")
        model.theirs(f"CALL theirs.system.expire_snapshots(table => '{NAME}', older_than => now(), retain_last => 1)")
        server._outside_check.run_once()
        model.check()
        model.upsert(range(5), 77)
        tierer.run_once(compaction=False)
        model.check()
        good = outside.catalog().load_table(NAME).current_snapshot()
        assert good is not None
        model.theirs(f"DELETE FROM theirs.{NAME} WHERE id = 1")
        model.upsert(range(100, 103), 5)
        with pytest.raises(ls.LakestoreError, match=r"deleted through Lakestore"):
            tierer.run_once(compaction=False)
        assert pairs(model.table.scan().to_arrow().to_pylist()) == sorted(model.rows.items()), "reads go on"
        model.theirs(f"CALL theirs.system.rollback_to_snapshot('{NAME}', {good.snapshot_id})")
        tierer.run_once(compaction=False)
        model.check()


@pytest.fixture(autouse=True)
def sorted_tables_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of staging rows are tested: by Spark for sorted tables, by Arrow for the others."""
    sorted_by_spark(monkeypatch)


@pytest.mark.timeout(400)
def test_adopted_table_is_tiered_and_compacted_in_its_catalog(
    server: Server, lake: ls.Lake, spark: SparkSession, outside: Outside
) -> None:
    catalog = outside.catalog()
    catalog.create_namespace_if_not_exists("shop")
    theirs = catalog.create_table(NAME, SCHEMA, location=f"{server.catalog.warehouse}/theirs/ïtems")
    for begin in (0, 50):
        theirs.append(pa.table({"id": [*range(begin, begin + 50)], "v": [0] * 50}, schema=SCHEMA))
    files = set(theirs.inspect.files()["file_path"].to_pylist())
    model = Model(lake, spark, outside, 2, lake.adopt(f"prod.{NAME}", NAME, primary_key=["id"]))
    model.rows.update(dict.fromkeys(range(100), 0))
    model.check()
    with Tierer(lake, spark) as tierer:
        model.upsert(range(40, 60), 1)
        model.delete(range(5))
        [outcome] = tierer.run_once()
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == 25
        model.check()
        compacted = compact.compact(tierer.tools, NAME, force=True)
        assert compacted is not None
        model.check()
    assert not files & set(catalog.load_table(NAME).inspect.files()["file_path"].to_pylist())

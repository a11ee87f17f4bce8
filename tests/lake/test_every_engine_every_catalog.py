"""The plain lake equals the model after every commit: five engines that know nothing of us, two stores, three catalogs.

`REASONS` says what an engine cannot do. `LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

import lakestore as ls
from lakestore.iceberg import places
from lakestore.spark import session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support import engines
from tests.support.engines import SUMS, ClickHouse, DuckDb, Sums
from tests.support.outside import DatabaseCatalog, Outside, RestServer
from tests.support.postgres import Postgres
from tests.support.s3proxy import S3ProxyProcess, environment_of
from tests.support.seeds import seeded
from tests.support.spark import SPARK_CONF

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
KEYED, LOG = "shop.keyed", "shop.log"
STORES, CATALOGS = ("folder", "s3"), ("own", "rest", "database")
FEW, MANY = 2, 25
IDS = 200
KEYS = {"s3.access-key-id": "nobody", "s3.secret-access-key": "nothing", "client.region": "us-east-1"}
ENGINES = ("DuckDB", "PyIceberg", "ClickHouse", "polars", "Spark")
REASONS: dict[tuple[str, str, str], str] = {
    ("*", "database", "ClickHouse"): "ClickHouse has no catalog in SQL, and finds no metadata file without a number",
    ("folder", "rest", "ClickHouse"): "Iceberg's server writes file:/ with one slash, ClickHouse takes file:/// alone",
    ("s3", "database", "Spark"): "Spark opens a metadata file by Hadoop, which has no S3 file system here",
}
"""(store, catalog, engine) to the reason why the engine does not read; `*` stands for every store."""
PLACES = [(store, catalog) for store in STORES for catalog in CATALOGS]
SHORT = {("folder", "rest"), ("s3", "rest"), ("s3", "database")}
"""Places of the short form. The other ones are long, for other tests read some of them by some engines."""
Read = Callable[[str], Sums]
"""`database.table` to what an engine says."""


def reason(store: str, catalog: str, engine: str) -> str:
    """Why the engine cannot read there; empty if it can."""
    for key, text in REASONS.items():
        if all(each in ("*", one) for each, one in zip(key, (store, catalog, engine), strict=True)):
            return text
    return ""


@dataclass
class Written:
    """A table and its model."""

    table: ls.Table
    keyed: bool
    rows: dict[int, int]


class Place:
    """A server with a log table and a keyed table on one store in one catalog, a tierer and the engines."""

    def __init__(self, folder: Path, store: str, catalog: str, opened: ExitStack) -> None:
        self.store, self.catalog, self._opened = store, catalog, opened
        self.outside = self._outside(folder)
        given: dict[str, Any] = {"catalog": self.outside.settings()} if self.outside else {}
        if store == "s3":
            given["warehouse"] = f"s3://lakestore/{catalog}"  # ClickHouse refuses a space in an S3 path
        server = Server(Settings(folder / "data", port=0, http_port=0, lease_grace_seconds=0.0, **given))
        server.start()
        opened.callback(server.close)
        lake = opened.enter_context(ls.connect(server.about["grpc"]))
        self.spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
        if store == "s3":  # the JVM may have begun before the store, so its environment names no key
            for name, value in KEYS.items():
                self.spark.conf.set(f"spark.sql.catalog.lake.{name}", value)
        self.tierer = opened.enter_context(Tierer(lake, self.spark))
        self.own = f"http://{server.about['http']}/iceberg"
        self.tables = [
            Written(lake.create_table(KEYED, SCHEMA, primary_key=["id"], buckets=2), True, {}),
            Written(lake.create_table(LOG, SCHEMA, buckets=2), False, {}),
        ]

    def _outside(self, folder: Path) -> Outside | None:
        if self.catalog == "rest":
            return self._opened.enter_context(RestServer(folder, **self._of_rest()))
        if self.catalog == "database":
            postgres = self._opened.enter_context(Postgres())
            return self._opened.enter_context(closing(DatabaseCatalog(postgres, **self._properties())))
        return None

    def _of_rest(self) -> dict[str, str]:
        if self.store != "s3":
            return {}
        return {**self._properties(), "s3.path-style-access": "true", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}

    def _properties(self) -> dict[str, str]:
        return {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], **KEYS} if self.store == "s3" else {}

    def readers(self) -> dict[str, Read]:
        """The engines that can read here."""
        made = self._by_metadata() if self.catalog == "database" else self._by_rest()
        return {name: read for name, read in made.items() if not reason(self.store, self.catalog, name)}

    def _duckdb(self, address: str) -> DuckDb:
        duckdb = self._opened.enter_context(closing(DuckDb(address)))
        if self.store == "s3":
            host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
            duckdb.sql(
                f"CREATE SECRET (TYPE s3, KEY_ID 'nobody', SECRET 'nothing', REGION 'us-east-1', ENDPOINT '{host}',"
                " URL_STYLE 'path', USE_SSL false)"
            )
        return duckdb

    def _store_of_clickhouse(self) -> dict[str, str]:
        if self.store != "s3":
            return {}
        keys = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
        return {"storage_endpoint": f"{os.environ['AWS_ENDPOINT_URL']}/lakestore", **keys}

    def _by_rest(self) -> dict[str, Read]:
        """Engines over a REST catalog: ours, or Iceberg's own."""
        address = self.own
        if isinstance(self.outside, RestServer):
            address = f"http://127.0.0.1:{self.outside.port}"
        duckdb = self._duckdb(address)
        clickhouse = self._opened.enter_context(closing(ClickHouse(address, **self._store_of_clickhouse())))
        more = self._of_rest() if self.catalog == "rest" else {}
        pyiceberg, polars = engines.pyiceberg(address, **more), engines.polars(address, **more)
        if self.catalog == "own":
            spark: Read = lambda name: self._in_spark(f"lake.{name}")  # noqa: E731
        else:
            theirs = engines.spark(self.spark, address, **more)
            spark = lambda name: theirs("", name)  # noqa: E731
        return {
            "DuckDB": lambda name: duckdb.read("", name),
            "ClickHouse": lambda name: clickhouse.read("lake", name),
            "PyIceberg": lambda name: pyiceberg("", name),
            "polars": lambda name: polars("", name),
            "Spark": spark,
        }

    def _by_metadata(self) -> dict[str, Read]:
        """Engines over a SQL catalog: PyIceberg's own, and the metadata file that it names for the others."""
        duckdb = self._duckdb("")

        def theirs(name: str) -> Table:
            assert self.outside is not None
            return self.outside.catalog().load_table(name)

        def by_duckdb(name: str) -> Sums:
            place = theirs(name).metadata_location
            return Sums.of_row(duckdb.sql(f"SELECT {SUMS} FROM iceberg_scan('{place}')")[0])

        def by_spark(name: str) -> Sums:
            rows = self.spark.read.format("iceberg").load(theirs(name).metadata_location)
            rows.createOrReplaceTempView("theirs")
            return self._in_spark("theirs")

        return {
            "DuckDB": by_duckdb,
            "PyIceberg": lambda name: Sums.of_arrow(theirs(name).scan(selected_fields=("id", "v")).to_arrow()),
            "polars": lambda name: Sums.of_arrow(pl.scan_iceberg(theirs(name)).select("id", "v").collect().to_arrow()),
            "Spark": by_spark,
        }

    def _in_spark(self, relation: str) -> Sums:
        return Sums.of_row(self.spark.sql(f"SELECT {SUMS} FROM {relation}").collect()[0])


@pytest.fixture(name="s3", scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3ProxyProcess]:
    with S3ProxyProcess(tmp_path_factory.mktemp("s3"), stores_files=True, memory="200m") as made:
        yield made


@pytest.fixture(name="place")
def one_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    store, catalog = request.param
    if store == "s3":
        for name, value in environment_of(request.getfixturevalue("s3").address).items():
            monkeypatch.setenv(name, value)
    places.forget_stores()
    with ExitStack() as opened:
        yield Place(tmp_path, store, catalog, opened)
    places.forget_stores()


def read_after_every_commit(place: Place, commits: int) -> None:
    """Changes, a round, and the sums of every engine against the model."""
    rng, readers = seeded(34), place.readers()
    for number in range(commits):
        for one in place.tables:
            if one.keyed:
                new = {key: rng.randrange(1_000) for key in rng.sample(range(IDS), 40)}
                one.table.upsert([{"id": key, "v": value} for key, value in new.items()])
                gone = rng.sample(sorted(one.rows | new), 10)
                one.table.delete([{"id": key} for key in gone])
            else:
                first = len(one.rows)
                new, gone = {key: rng.randrange(1_000) for key in range(first, first + 40)}, []
                one.table.append([{"id": key, "v": value} for key, value in new.items()])
            one.rows |= new
            for key in gone:
                del one.rows[key]
        place.tierer.run_once(compaction=number % 5 == 4)
        for one in place.tables:
            wanted = Sums.of_values(one.rows)
            for name, read in readers.items():
                assert read(one.table.name) == wanted, f"commit {number}: {name} reads {one.table.name}"


@pytest.mark.parametrize(
    "place",
    [pytest.param(each, marks=[] if each in SHORT else pytest.mark.long, id=" ".join(each)) for each in PLACES],
    indirect=True,
)
def test_every_engine_reads_the_model_after_every_commit(place: Place) -> None:
    read_after_every_commit(place, FEW)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("place", PLACES, ids=" ".join, indirect=True)
def test_every_engine_reads_the_model_after_many_commits(place: Place) -> None:
    read_after_every_commit(place, MANY)

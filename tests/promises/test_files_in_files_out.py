"""Other engines on our lake tables, without anything of ours: they read the same rows, maintain, and may not write.

Plain Iceberg in Spark, DuckDB's extension and PyIceberg see the server's REST catalog only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import SparkLake, session
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support.spark import SPARK_CONF
from tests.support.staging import sorted_by_spark

pytestmark = pytest.mark.spark

ITEMS, EVENTS = "shop.items", "shop.events"
COLUMNS = ["id", "text", "price"]
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("price", pa.decimal128(12, 2))])
REFUSED_SECONDS_MAX = 5.0

Rows = list[tuple[Any, ...]]


@dataclass
class Shop:
    """A server with a primary-key table and a log table, a model of their rows, and a Spark session."""

    server: Server
    lake: ls.Lake
    spark: SparkSession
    version: int
    items: dict[int, tuple[Any, ...]]
    events: Rows
    step: int = 0

    @property
    def endpoint(self) -> str:
        """The catalog."""
        return f"http://{self.server.about['http']}/iceberg"

    def create(self) -> None:
        """Both tables."""
        options = {"format_version": self.version, "sort_by": ["text"]}
        self.lake.create_table(ITEMS, SCHEMA, primary_key=["id"], buckets=2, lake=options)
        self.lake.create_table(EVENTS, SCHEMA, buckets=2, lake={"format_version": self.version})

    def write(self) -> None:
        """New rows, updates of old and of just written ones, deletes, and rows put back."""
        self.step += 1
        first = self.step * 10
        for ids, word in ((range(first - 10, first + 20), "a"), (range(first + 5, first + 12), "b")):
            self._upsert([self._row(i, word) for i in ids])
        gone = [first - 9, first - 3, first + 6, first + 18]
        self.lake.table(ITEMS).delete([{"id": i} for i in gone])
        for i in gone:
            del self.items[i]
        self._upsert([self._row(first + 6, "back")])
        happened = [self._row(i, "e") for i in range(first, first + 10)]
        self.lake.table(EVENTS).append(_arrow(happened))
        self.events.extend(happened)

    def _row(self, i: int, word: str) -> tuple[Any, ...]:
        return i, None if i % 7 == 3 else f"{word}{self.step}-{i}", pa.scalar(i * 25, pa.int64()).as_py()

    def _upsert(self, rows: Rows) -> None:
        self.lake.table(ITEMS).upsert(_arrow(rows))
        self.items.update((row[0], row) for row in rows)

    def model(self, table: str) -> Rows:
        """What the table holds."""
        rows = self.items.values() if table == ITEMS else self.events
        return sorted(rows, key=repr)

    def main(self, table: str) -> tuple[int | None, int, list[str], Rows]:
        """Snapshot, schema, refs and rows of the lake table as a stranger's fresh look gives them."""
        loaded = self.pyiceberg().load_table(table)
        snapshot = loaded.current_snapshot()
        number = snapshot.snapshot_id if snapshot else None
        return number, loaded.metadata.current_schema_id, sorted(loaded.metadata.refs), self.by_pyiceberg(table)

    def pyiceberg(self) -> RestCatalog:
        """PyIceberg's client of the catalog."""
        return RestCatalog("lake", uri=self.endpoint)

    def by_spark(self, table: str) -> Rows:
        """Rows by plain Iceberg in Spark."""
        return _rows(self.spark.sql(f"SELECT * FROM lake.{table}").toArrow())

    def by_duckdb(self, table: str) -> Rows:
        """Rows by DuckDB's extension."""
        with duckdb.connect() as connection:
            for name in ("avro", "httpfs", "iceberg"):
                import_extension(name, con=connection)
                connection.execute(f"LOAD {name}")
            attach = f"ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{self.endpoint}', AUTHORIZATION_TYPE 'none')"
            connection.execute(attach)
            return _rows(connection.execute(f"SELECT * FROM lake.{table}").to_arrow_table())

    def by_pyiceberg(self, table: str) -> Rows:
        """Rows by PyIceberg."""
        return _rows(self.pyiceberg().load_table(table).scan().to_arrow())

    def by_union(self, table: str) -> Rows:
        """Rows by our union read in Spark."""
        return _rows(SparkLake(self.spark, self.lake.transport).table(table).toArrow())

    def check(self, *engines: Callable[[str], Rows]) -> None:
        """Every engine gives the model's rows, and log, index and read agree."""
        for table in (ITEMS, EVENTS):
            for engine in engines:
                assert engine(table) == self.model(table), f"{engine.__name__} of {table}"
            verified = verify(self.lake.transport, table)
            assert verified.same, verified.problems()


def _arrow(rows: Rows) -> pa.Table:
    ids, texts, cents = zip(*rows, strict=True)
    prices = pa.array(cents, pa.decimal128(14, 2))
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string()), "price": prices})


def _rows(found: pa.Table) -> Rows:
    return sorted((tuple(row[name] for name in COLUMNS) for row in found.to_pylist()), key=repr)


@pytest.fixture(params=[2, 3])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0))
    server.start()
    spark = session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)
    with ls.connect(server.about["grpc"]) as lake:
        made = Shop(server, lake, spark, request.param, {}, [])
        made.create()
        yield made
    server.close()


def _call(shop: Shop, procedure: str, table: str, arguments: str = "") -> None:
    more = f", {arguments}" if arguments else ""
    shop.spark.sql(f"CALL lake.system.{procedure}(table => '{table}'{more})").collect()


def _pack(shop: Shop) -> None:
    for table in (ITEMS, EVENTS):
        _call(shop, "rewrite_data_files", table, "options => map('rewrite-all', 'true')")


def _sort(shop: Shop) -> None:
    order = "strategy => 'sort', sort_order => 'price DESC, id', options => map('rewrite-all', 'true')"
    for table in (ITEMS, EVENTS):
        _call(shop, "rewrite_data_files", table, order)


def _pack_dirty(shop: Shop) -> None:
    """Only files with deletes, and what is left dangling goes: as the documentation of Iceberg advises."""
    options = "'delete-file-threshold', '1', 'remove-dangling-deletes', 'true'"
    _call(shop, "rewrite_data_files", ITEMS, f"options => map({options})")


def _expire(shop: Shop) -> None:
    for table in (ITEMS, EVENTS):
        _call(shop, "expire_snapshots", table, "retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00'")


def _manifests(shop: Shop) -> None:
    for table in (ITEMS, EVENTS):
        _call(shop, "rewrite_manifests", table, "use_caching => false")


def _position_deletes(shop: Shop) -> None:
    _call(shop, "rewrite_position_delete_files", ITEMS, "options => map('rewrite-all', 'true')")


def _orphans(shop: Shop) -> None:
    for table in (ITEMS, EVENTS):
        _call(shop, "remove_orphan_files", table, "dry_run => false")


@pytest.mark.parametrize("shop", [pytest.param(2, marks=pytest.mark.long), 3], indirect=True)
def test_every_engine_reads_the_same_rows(shop: Shop) -> None:
    with Tierer(shop.lake, shop.spark) as tierer:
        for _ in range(3):
            shop.write()
            tierer.run_once(compaction=False)
        shop.check(shop.by_spark, shop.by_duckdb, shop.by_pyiceberg)
        tierer.run_once(compaction=True)
        shop.write()
        tierer.run_once(compaction=False)
    shop.check(shop.by_spark, shop.by_duckdb, shop.by_pyiceberg, shop.by_union)


@pytest.mark.parametrize("shop", [2, pytest.param(3, marks=pytest.mark.long)], indirect=True)
def test_stock_maintenance_between_rounds(shop: Shop) -> None:
    """Each procedure on main, then a union read over hot changes, then a round that must find the dead again."""
    steps = [_pack, _position_deletes, _sort, _pack_dirty, _expire, _manifests, _orphans, _position_deletes]
    for restart in range(0, len(steps), 3):
        with Tierer(shop.lake, shop.spark) as tierer:
            for step in steps[restart : restart + 3]:
                shop.write()
                tierer.run_once(compaction=False)
                step(shop)
                assert shop.by_spark(ITEMS) == shop.model(ITEMS), step.__name__
                shop.write()
                shop.check(shop.by_union)
    with Tierer(shop.lake, shop.spark) as tierer:
        tierer.run_once(compaction=True)
    shop.check(shop.by_spark, shop.by_duckdb, shop.by_pyiceberg, shop.by_union)


@pytest.mark.parametrize("shop", [2], indirect=True)
def test_dangling_deletes_go_after_expiry(shop: Shop) -> None:
    """A compaction leaves delete files without rows behind, its snapshot expires, and then they are cleaned."""
    with Tierer(shop.lake, shop.spark) as tierer:
        for _ in range(2):
            shop.write()
            tierer.run_once(compaction=False)
        _pack(shop)
        shop.write()
        tierer.run_once(compaction=False)
        _expire(shop)
        _pack_dirty(shop)
    shop.check(shop.by_spark)


WRITES = [
    "INSERT INTO lake.{} VALUES (1000, 'x', 1.00, 0, 1000, now())",
    "INSERT OVERWRITE lake.{} VALUES (1000, 'x', 1.00, 0, 1000, now())",
    "DELETE FROM lake.{} WHERE id >= 0",
    "DELETE FROM lake.{} WHERE id = 21",
    "UPDATE lake.{} SET text = 'x' WHERE id = 21",
    "MERGE INTO lake.{0} t USING (SELECT 21L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE lake.{}",
    "ALTER TABLE lake.{} DROP COLUMN price",
    "ALTER TABLE lake.{} ADD COLUMN more STRING",
    "ALTER TABLE lake.{} RENAME COLUMN text TO word",
    "ALTER TABLE lake.{} ADD PARTITION FIELD bucket(4, id)",
    "ALTER TABLE lake.{} WRITE ORDERED BY price",
    "ALTER TABLE lake.{} SET TBLPROPERTIES ('write.data.path' = 'file:///tmp/elsewhere')",
    "ALTER TABLE lake.{} DROP TAG `lakestore-tier`",
    "CALL lake.system.set_current_snapshot(table => '{}', ref => 'side')",
    "DROP TABLE lake.{}",
    "DROP TABLE lake.{} PURGE",
]


@pytest.mark.parametrize("shop", [2, pytest.param(3, marks=pytest.mark.long)], indirect=True)
def test_writes_by_other_engines_are_refused(shop: Shop) -> None:
    with Tierer(shop.lake, shop.spark) as tierer:
        for _ in range(2):
            shop.write()
            tierer.run_once(compaction=False)
    for table in (ITEMS, EVENTS):
        shop.spark.sql(f"ALTER TABLE lake.{table} CREATE BRANCH side")
        shop.spark.sql(f"INSERT INTO lake.{table}.branch_side VALUES (1000, 'x', 1.00, 0, 1000, now())")
        before = shop.main(table)
        for text in WRITES if table == ITEMS or shop.version == 3 else WRITES[::4]:
            _refused(shop, table, text.format(table))
            assert shop.main(table) == before, text
        shop.spark.sql(f"ALTER TABLE lake.{table} DROP BRANCH side")
    shop.write()
    with Tierer(shop.lake, shop.spark) as tierer:
        tierer.run_once(compaction=True)
    shop.check(shop.by_spark, shop.by_union)


def _refused(shop: Shop, table: str, text: str) -> None:
    with pytest.raises(Exception, match=f"Forbidden: .*{table}"):
        shop.spark.sql(text).collect()


def test_writes_by_pyiceberg_are_refused(shop: Shop) -> None:
    shop.write()
    with Tierer(shop.lake, shop.spark) as tierer:
        tierer.run_once(compaction=False)
    before = shop.main(ITEMS)
    loaded = shop.pyiceberg().load_table(ITEMS)
    rows = loaded.scan().to_arrow()
    writes: list[Callable[[], None]] = [
        lambda: loaded.append(rows),
        lambda: loaded.delete("id = 11"),
        lambda: loaded.overwrite(rows),
    ]
    for write in writes:
        with pytest.raises(Exception, match=r"(?i)lakestore|Cannot write manifest for table version: 3"):
            write()
    assert shop.main(ITEMS) == before


@pytest.fixture(autouse=True)
def sorted_tables_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of staging rows are tested: by Spark for sorted tables, by Arrow for the others."""
    sorted_by_spark(monkeypatch)

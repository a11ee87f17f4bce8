"""Lakestore with its tierer, which writes Iceberg tables by a Spark in this process.

The contestants of Iceberg have sessions of the same Spark, with the same settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lakestore
from lakestore.client.writer import COMMIT_ROWS_MAX
from lakestore.release import RELEASE
from lakestore_spark.session import session
from lakestore_tiering.service import Tierer
from tests.bench.orders import SCHEMA
from tests.bench.peers.contest import Contestant
from tests.bench.peers.contestants import spark_iceberg
from tests.bench.peers.order_changes import SUMS, Change, Sums
from tests.support.engines import DuckDb
from tests.support.process import ServerProcess

FAIRNESS = (
    "An upsert is synced to the disk before it is acknowledged. A round's files are written by Iceberg. Before the"
    " catalog names them it syncs the whole file system (`syncfs`), and each `metadata.json` by fsync."
)


class LakestoreLake:
    """A server, a connection and a tierer."""

    def __init__(self, server: ServerProcess, lake: lakestore.Lake, spark: SparkSession, tierer: Tierer) -> None:
        self.server, self.lake, self.spark, self.tierer = server, lake, spark, tierer

    def fill(self, name: str, file: Path) -> None:
        """Make a table with the key `order_id` of a file's orders."""
        table = self.lake.create_table(f"bench.{name}", SCHEMA, primary_key=["order_id"])
        with table.writer() as out:
            for batch in pq.ParquetFile(file).iter_batches(COMMIT_ROWS_MAX):
                out.upsert(batch)
        self.tierer.run_once(table.name)

    def change(self, name: str, file: Path) -> Change:
        """Upsert a file's orders and tier them."""
        table = self.lake.table(f"bench.{name}")
        began = time.perf_counter()
        table.upsert(pq.read_table(file))
        readable = time.perf_counter() - began
        self.tierer.run_once(table.name)
        return Change(readable, time.perf_counter() - began)

    def make_hot(self, name: str, file: Path) -> None:
        """Upsert a file's orders, which no round tiers."""
        self.lake.table(f"bench.{name}").upsert(pq.read_table(file))

    def read(self, name: str, engine: str) -> Sums:
        """Scan the table as it is now in Spark or DuckDB."""
        if engine == "DuckDB":
            rows = self.duckdb.sql(f"SELECT {SUMS} FROM {self.duckdb.attach('now-v3')}.bench.{name}")
        else:
            rows = self.spark.sql(f"SELECT {SUMS} FROM now.bench.{name}").collect()
        _, quantity, _, count = rows[0]
        return Sums(count, int(quantity))

    @cached_property
    def duckdb(self) -> DuckDb:
        """A DuckDB that reads the catalog."""
        return DuckDb(f"http://{self.server.host}:{self.server.http_port}/iceberg")

    def sums(self, name: str) -> Sums:
        """Scan the tiered table in Spark."""
        _, quantity, _, rows = self.spark.sql(f"SELECT {SUMS} FROM lake.bench.{name}").collect()[0]
        return Sums(rows, quantity)


@contextmanager
def _started(folder: Path) -> Iterator[LakestoreLake]:
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        spark = session(server.address, conf={one.name: one.value for one in spark_iceberg.SPARK})
        try:
            with Tierer(lake, spark) as tierer:
                yield LakestoreLake(server, lake, spark, tierer)
        finally:
            spark.stop()


CONTESTANT = Contestant("Lakestore", RELEASE, _started, FAIRNESS, spark_iceberg.SPARK)

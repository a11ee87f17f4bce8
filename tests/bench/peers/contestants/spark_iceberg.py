"""Spark with Apache Iceberg: MERGE INTO a plain table, as its users tune it.

It has a session of its own in the Spark that the contestant Lakestore has started: one JVM, one heap, the same cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import metadata
from os import cpu_count
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension
from pyspark.sql import SparkSession

from lakestore_spark.session import RUNTIME
from tests.bench.bed import CONF
from tests.bench.peers.contest import Contestant, Missing, Setting
from tests.bench.peers.order_changes import SQL_MERGE, SUMS, Change, Sums

_TUNING, _AWS = (
    "Spark's SQL performance tuning guide",
    "AWS Prescriptive Guidance, Iceberg, optimizing write performance",
)
_ISSUE = "apache/iceberg #17241"
SPARK = (
    Setting("spark.driver.memory", CONF["spark.driver.memory"], "executors and driver are one process here"),
    Setting(
        "spark.sql.shuffle.partitions", str(2 * (cpu_count() or 1)), "Spark's tuning guide: 2 to 3 tasks for each core"
    ),
    Setting("spark.log.level", "ERROR", "less to print"),
)
"""Of the one Spark. Adaptive query execution is on, as it is shipped."""
MERGE = (
    Setting("spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold", "64MB", f"{_TUNING}: hash joins, no sort"),
    Setting("spark.sql.autoBroadcastJoinThreshold", "64MB", _TUNING),
)
PROPERTIES = (
    Setting("write.merge.mode", "merge-on-read", _AWS),
    Setting("write.distribution-mode", "none", _AWS),
    Setting("write.merge.distribution-mode", "none", f"{_AWS}, of write.distribution-mode"),
)
STREAMING = (
    Setting("write.merge.mode", "merge-on-read", _ISSUE),
    Setting("write.merge.distribution-mode", "hash", _ISSUE),
    Setting("write.spark.fanout.enabled", "true", _ISSUE),
)
BUCKETS = Setting("PARTITIONED BY", "bucket(8, order_id)", f"{_ISSUE} has 64 for 48 cores")
FAIRNESS = "Files are written through Hadoop's local file system, without fsync."


class SparkIceberg:
    """A session of Spark with a catalog in a folder."""

    def __init__(self, spark: SparkSession, folder: Path, properties: Mapping[str, str], partitions: str = "") -> None:
        self.folder, self._partitions = folder, partitions
        self.spark, self._catalog, self._properties = spark, f"plain_{properties['format-version']}", properties
        key = f"spark.sql.catalog.{self._catalog}"
        for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
            spark.conf.set(key + name, value)
        spark.conf.set(f"{key}.warehouse", str(folder))
        spark.conf.set(f"{key}.cache-enabled", "false")
        spark.sql(f"CREATE NAMESPACE {self._catalog}.bench")

    def table(self, name: str) -> str:
        """Its name in Spark."""
        return f"{self._catalog}.bench.{name}"

    def fill(self, name: str, file: Path) -> None:
        """Make a table of a file's orders."""
        properties = ", ".join(f"'{key}'='{value}'" for key, value in self._properties.items())
        create = f"CREATE TABLE {self.table(name)} USING iceberg {self._partitions} TBLPROPERTIES ({properties})"
        self.spark.sql(f"{create} AS SELECT * FROM parquet.`{file}`")

    def change(self, name: str, file: Path) -> Change:
        """Merge a file's orders into the table."""
        began = time.perf_counter()
        source = f"(SELECT * FROM parquet.`{file}`) c"
        self.spark.sql(f"MERGE INTO {self.table(name)} t USING {source} ON t.order_id = c.order_id {SQL_MERGE}")
        return Change.of(time.perf_counter() - began)

    def make_hot(self, name: str, file: Path) -> None:
        """Merge a file's orders, which writes them and their deletes into the table."""
        self.change(name, file)

    def read(self, name: str, engine: str) -> Sums:
        """Scan the table in Spark or DuckDB."""
        if engine == "DuckDB":
            rows = self.duckdb.execute(f"SELECT {SUMS} FROM iceberg_scan('{self.folder}/bench/{name}')").fetchall()
            return Sums(rows[0][3], int(rows[0][1]))
        return self.sums(name)

    @cached_property
    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB with its extension for Iceberg."""
        database = duckdb.connect()
        database.execute("SET enable_external_file_cache = false")  # as for Lakestore: docs/engines.md says why
        for name in ("avro", "iceberg"):
            import_extension(name, con=database)
            database.execute(f"LOAD {name}")
        return database

    def sums(self, name: str) -> Sums:
        """Scan the table."""
        _, quantity, _, rows = self.spark.sql(f"SELECT {SUMS} FROM {self.table(name)}").collect()[0]
        return Sums(rows, quantity)


@contextmanager
def _started(folder: Path, version: int, table: Sequence[Setting], partitions: str) -> Iterator[SparkIceberg]:
    running = SparkSession.getActiveSession()
    if running is None:
        raise Missing("no Spark runs in this process: the contestant Lakestore starts it")
    spark = running.newSession()
    for setting in MERGE:
        spark.conf.set(setting.name, setting.value)
    properties = {"format-version": str(version), **{setting.name: setting.value for setting in table}}
    yield SparkIceberg(spark, folder, properties, partitions)


def spark_version() -> str:
    """The version of Spark."""
    return metadata.version("pyspark")


def contestant(version: int, *, is_streaming: bool = False) -> Contestant:
    """Spark and Iceberg with tables of a format: 2 writes position deletes, 3 deletion vectors."""
    release = f"{RUNTIME.rpartition(':')[2]} on Spark {spark_version()}"
    table, partitions = (STREAMING, f"PARTITIONED BY ({BUCKETS.value})") if is_streaming else (PROPERTIES, "")
    settings = [Setting("format-version", str(version), "the contest"), *SPARK, *MERGE, *table]
    settings += [BUCKETS] if is_streaming else []
    start = partial(_started, version=version, table=table, partitions=partitions)
    return Contestant(f"Iceberg v{version} MERGE", release, start, FAIRNESS, settings)

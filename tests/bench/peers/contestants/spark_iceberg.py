"""Spark with Apache Iceberg: MERGE INTO a plain table, as its users tune it.

It has a session of its own in the Spark that the contestant Lakestore has started: one JVM, one heap, the same cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import cpu_count
from pathlib import Path

from pyspark.sql import SparkSession

from lakestore_spark.session import RUNTIME
from tests.bench.bed import CONF
from tests.bench.peers.contest import Contestant, Missing, Setting
from tests.bench.peers.order_changes import SQL_MERGE, SUMS, Change, Sums

_TUNING, _AWS = (
    "Spark's SQL performance tuning guide",
    "AWS Prescriptive Guidance, Iceberg, optimizing write performance",
)
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
FAIRNESS = "Files are written through Hadoop's local file system, without fsync."


class SparkIceberg:
    """A session of Spark with a catalog in a folder."""

    def __init__(self, spark: SparkSession, folder: Path, properties: Mapping[str, str]) -> None:
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
        create = f"CREATE TABLE {self.table(name)} USING iceberg TBLPROPERTIES ({properties})"
        self.spark.sql(f"{create} AS SELECT * FROM parquet.`{file}`")

    def change(self, name: str, file: Path) -> Change:
        """Merge a file's orders into the table."""
        began = time.perf_counter()
        source = f"(SELECT * FROM parquet.`{file}`) c"
        self.spark.sql(f"MERGE INTO {self.table(name)} t USING {source} ON t.order_id = c.order_id {SQL_MERGE}")
        return Change.of(time.perf_counter() - began)

    def sums(self, name: str) -> Sums:
        """Scan the table."""
        _, quantity, _, rows = self.spark.sql(f"SELECT {SUMS} FROM {self.table(name)}").collect()[0]
        return Sums(rows, quantity)


@contextmanager
def _started(folder: Path, version: int) -> Iterator[SparkIceberg]:
    running = SparkSession.getActiveSession()
    if running is None:
        raise Missing("no Spark runs in this process: the contestant Lakestore starts it")
    spark = running.newSession()
    for setting in MERGE:
        spark.conf.set(setting.name, setting.value)
    properties = {"format-version": str(version), **{setting.name: setting.value for setting in PROPERTIES}}
    yield SparkIceberg(spark, folder, properties)


def contestant(version: int) -> Contestant:
    """Spark and Iceberg with tables of a format: 2 writes position deletes, 3 deletion vectors."""
    import pyspark

    release = f"{RUNTIME.rpartition(':')[2]} on Spark {pyspark.__version__}"
    settings = (Setting("format-version", str(version), "the contest"), *SPARK, *MERGE, *PROPERTIES)
    return Contestant(f"Iceberg v{version} MERGE", release, partial(_started, version=version), FAIRNESS, settings)

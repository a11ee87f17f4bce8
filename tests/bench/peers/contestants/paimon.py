"""Apache Paimon in Spark: tables with a primary key, into which an INSERT is an upsert.

Paimon 0.9.0 is the newest that could be fetched here, for Spark 3.5, so it has a Spark in a process of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lakestore_demo.ivy import fetch
from tests.bench.peers.contest import Contestant, Failed, Setting
from tests.bench.peers.contestants.spark_iceberg import SPARK
from tests.bench.peers.order_changes import SUMS, Change, Sums
from tests.support.older_spark import SPARK as SPARK_VERSION
from tests.support.older_spark import OlderSpark, Refused

VERSION = "0.9.0"
FAIRNESS = (
    "Files are written through Paimon's local file system, without fsync. Releases 1.3 and 1.4 exist; they could not be"
    " fetched here."
)
BUCKETS = Setting("bucket", "2", "Paimon's page of primary key tables: 200 MB to 1 GB in a bucket; one writer for each")
_COLUMNS = (
    "order_id BIGINT NOT NULL, customer STRING, status STRING, amount DOUBLE, quantity INT, price DOUBLE,"
    " created_at TIMESTAMP, note STRING"
)


class Paimon:
    """A process of Spark with a catalog `lake`."""

    def __init__(self, spark: OlderSpark, properties: str) -> None:
        self._spark, self._properties = spark, properties
        self._sql("CREATE DATABASE lake.bench")

    def _sql(self, statement: str) -> str:
        try:
            return self._spark.sql(statement)
        except Refused as error:
            raise Failed(f"{statement[:60]} was refused: {str(error)[:300]}") from error

    def fill(self, name: str, file: Path) -> None:
        """Make a table with the key `order_id` of a file's orders."""
        properties = f"'primary-key'='order_id', {self._properties}"
        self._sql(f"CREATE TABLE lake.bench.{name} ({_COLUMNS}) USING paimon TBLPROPERTIES ({properties})")
        self.change(name, file)

    def change(self, name: str, file: Path) -> Change:
        """Insert a file's orders."""
        began = time.perf_counter()
        self._sql(f"INSERT INTO lake.bench.{name} SELECT * FROM parquet.`{file}`")
        return Change.of(time.perf_counter() - began)

    def sums(self, name: str) -> Sums:
        """Scan the table."""
        answer = self._sql(f"SELECT {SUMS} FROM lake.bench.{name}")
        _, quantity, _, rows = re.findall(r"[-\d.E]+", answer)
        return Sums(int(rows), int(quantity))


@contextmanager
def _started(folder: Path, table: tuple[Setting, ...]) -> Iterator[Paimon]:
    folder.mkdir(parents=True, exist_ok=True)
    jars = fetch("paimon-spark", VERSION, (f"org.apache.paimon:paimon-spark-3.5:{VERSION}",), transitive=False)
    settings = {
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.lake.warehouse": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": next(one.value for one in SPARK if one.name == "spark.sql.shuffle.partitions"),
    }
    with OlderSpark(folder, jars, settings, ("-Xmx4g",)) as spark:
        yield Paimon(spark, ", ".join(f"'{one.name}'='{one.value}'" for one in table))


CONTESTANT = Contestant(
    "Paimon",
    f"{VERSION} on Spark {SPARK_VERSION}",
    partial(_started, table=(BUCKETS,)),
    FAIRNESS,
    (*SPARK[:2], BUCKETS),
)

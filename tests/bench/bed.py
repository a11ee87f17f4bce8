"""The processes that all figures of the lake share: a server, one Spark, a tierer; and loads as engines send them."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import lakestore
from lakestore.union import lake_snapshot
from lakestore.union.plan import TableScan, newest
from lakestore.v1.lakestore_pb2 import StatusRequest
from lakestore_spark.session import RUNTIME, STORE_RUNTIME, attach, session
from lakestore_spark.spark_lake import SparkLake
from lakestore_tiering.service import Tierer
from tests.support.process import ServerProcess
from tests.support.spark import store_conf

BIG = "bench.big"
"""The table that most figures are of."""
_CORES = os.cpu_count() or 1
CONF = {
    "spark.driver.memory": "4g",
    "spark.jars.packages": f"{RUNTIME},{STORE_RUNTIME}",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": str(_CORES),
    "spark.sql.adaptive.enabled": "true",
}
"""A session as its users tune it for one small machine: partitions as many as there are cores."""


@dataclass(frozen=True)
class Bed:
    """Everything that is measured on."""

    folder: Path
    server: ServerProcess
    lake: lakestore.Lake
    spark: SparkSession
    spark_lake: SparkLake
    tierer: Tierer

    @property
    def catalog(self) -> str:
        """URL of the catalog."""
        return f"http://{self.server.host}:{self.server.http_port}/iceberg"

    def tier(self, name: str) -> None:
        """One round of a table."""
        self.tierer.run_once(name, compaction=False)

    def compact(self, name: str) -> None:
        """A round, and a rewrite of all files."""
        self.tierer.run_once(name, compaction=True)

    def warehouse(self, name: str, warehouse: str) -> str:
        """The name, which is given, of a catalog in Spark that opens a warehouse as any shell does."""
        key = f"spark.sql.catalog.{name}"
        conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": self.catalog}
        for setting, value in {**conf, ".warehouse": warehouse, ".cache-enabled": "false"}.items():
            self.spark.conf.set(key + setting, value)
        return name

    def loads(self, name: str, prefix: str = "now", *, count: int = 1, etag: str = "") -> tuple[list[float], str]:
        """(seconds of so many loads of a table one after the other over one connection, the last one's ETag)."""
        namespace, table = name.split(".")
        path = f"/iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}"
        connection = http.client.HTTPConnection(self.server.host, self.server.http_port)
        connection.connect()
        took, found = [], ""
        for _ in range(count):
            began = time.perf_counter()
            connection.request("GET", path, headers={"If-None-Match": etag} if etag else {})
            answer = connection.getresponse()
            said = answer.read()
            took.append(time.perf_counter() - began)
            if answer.status != (304 if etag else 200):
                raise AssertionError(f"a load of {name} was answered by {answer.status}: {said[:500]!r}")
            found = answer.headers["ETag"]
        connection.close()
        return took, found

    def load(self, name: str, prefix: str = "now") -> float:
        """Seconds of one load."""
        return self.loads(name, prefix)[0][0]

    def plan(self, name: str) -> TableScan:
        """The plan of reading a table now."""
        return newest(self.lake.transport.plan, name)

    def files(self, name: str) -> list[lake_snapshot.LakeFile]:
        """The live files of a table's lake: data and deletes."""
        scan = self.plan(name)
        return lake_snapshot.files(scan.metadata_location, scan.snapshot_id)

    def presented(self) -> dict[str, float]:
        """The server's own figures of presenting."""
        answer = self.lake.transport.status(StatusRequest())
        found: dict[str, float] = json.loads(answer.status)["presented"]
        return found


@contextmanager
def made(folder: Path, warehouse: str = "") -> Iterator[Bed]:
    """A bed, whose processes end with the block. The variables of this process name the store of a `warehouse`.

    Several beds share one Spark, which the first one that is made starts.
    """
    arguments = ["--warehouse", warehouse] if warehouse else []
    with (
        ServerProcess(folder / "lake", arguments=arguments) as server,
        lakestore.connect(server.address) as lake,
    ):
        spark = session(server.address, conf={**CONF, **(store_conf() if warehouse else {})})
        spark_lake = attach(spark, server.address)
        with Tierer(lake, spark) as tierer:
            yield Bed(folder, server, lake, spark, spark_lake, tierer)
        spark_lake.close()
        spark.stop()


@contextmanager
def noted(name: str) -> Iterator[None]:
    """Prints on stderr how long a part of the measurement took."""
    began = time.perf_counter()
    yield
    sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")


def timed(work: Callable[[], object]) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ms(seconds: float) -> str:
    """A time as figures show it."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"

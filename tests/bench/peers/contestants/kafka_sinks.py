"""Ways from a Kafka topic of JSON into a table: Lakestore's bridge with its tierer, a job of Spark, Kafka Connect.

Each has a broker of its own. The tables of the last two are read by the Spark that the contestant Lakestore has
started, as are the files of Lakestore's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import lakestore
from jepsen.system.kafka import Topics
from lakestore.errors import NotFound
from lakestore.kafka.bridge.spec import BridgeSpec, ColumnSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.release import RELEASE
from lakestore_demo.ivy import fetch
from lakestore_spark.session import RUNTIME, session
from lakestore_tiering.service import Tierer
from tests.bench.peers.contest import Contestant, Missing, Setting
from tests.bench.peers.contestants import spark_iceberg
from tests.bench.peers.contestants.kafka import SERVER, PeerBroker
from tests.support.bridge_process import BridgeProcess
from tests.support.connect import Connect
from tests.support.process import ServerProcess

PARTITIONS, ICEBERG = 2, RUNTIME.rpartition(":")[2]
TYPES = {"order_id": "int64", "customer": "string", "amount": "float64", "quantity": "int32", "note": "string"}
SQL_TYPES = "order_id BIGINT, customer STRING, amount DOUBLE, quantity INT, note STRING"
SINK_JARS = (
    "org.apache.kafka:connect-runtime:4.3.0",
    "org.apache.kafka:connect-json:4.3.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1",
    f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG}",
    f"org.apache.iceberg:iceberg-parquet:{ICEBERG}",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
)
SPARK_KAFKA = "4.1.1"
SPARK_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_KAFKA}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Spark's source for Kafka. Maven Central has no build of it for Spark 4.1.4; this one is for an earlier 4.1."""
COMMITS = Setting("iceberg.control.commit.interval-ms", "1000", "Iceberg's page of the sink: 300,000; this is for lag")
TASKS = Setting("tasks.max", str(PARTITIONS), "as many as partitions")


class Source:
    """A broker with topics of JSON records of about 200 bytes."""

    def __init__(self, broker: PeerBroker) -> None:
        self.broker, self._topics = broker, Topics(broker.address)
        self._sent: dict[str, int] = {}

    def send(self, topic: str, count: int) -> int:
        """Send so many records; the number of all in the topic."""
        if topic not in self._sent:
            self._topics.make(topic, PARTITIONS)
        first = self._sent.get(topic, 0)
        for number in range(first, first + count):
            row = {"order_id": number, "customer": f"customer {number % 9_973}", "amount": number % 1_000 / 4}
            value = json.dumps({**row, "quantity": number % 9, "note": f"{number * 7_919 % 99_991:0100d}"})
            self._topics.put(topic, value.encode(), None, number % PARTITIONS)
            if not number % 1_000:
                self._topics.serve()
        self._topics.flush()
        self._sent[topic] = first + count
        return first + count


class Bridge(Source):
    """Lakestore's bridge in a process of its own, and the tierer in this one."""

    def __init__(
        self, broker: PeerBroker, folder: Path, server: ServerProcess, lake: lakestore.Lake, spark: SparkSession
    ) -> None:
        super().__init__(broker)
        self._folder, self._server, self._lake, self._spark = folder, server, lake, spark

    @contextmanager
    def running(self, topic: str, table: str) -> Iterator[None]:
        """Take the topic into a table in the block."""
        columns = tuple(ColumnSpec(name, kind) for name, kind in TYPES.items())
        wired = TopicSpec("", topic, target=TableSpec(f"bench.{table}", columns=columns))
        spec = BridgeSpec(table, {"": SourceSpec("", self.broker.address, table)}, (wired,))
        stop = threading.Event()
        with Tierer(self._lake, self._spark) as tierer:
            tiering = threading.Thread(target=tierer.run_forever, args=(stop,))
            tiering.start()
            try:
                with BridgeProcess(self._folder / table, spec, self._server.address):
                    yield
            finally:
                stop.set()
                tiering.join()
            tierer.run_once(f"bench.{table}")

    def rows(self, table: str) -> int:
        """The rows that a query would see, as the server counts them."""
        try:
            return self._lake.table(f"bench.{table}").scan().count()
        except NotFound:
            return 0

    def counted(self, table: str) -> int:
        """The rows that a query counts."""
        return int(self._lake.sql(f"SELECT count(order_id) FROM bench.{table}").to_arrow().column(0)[0].as_py())

    def files(self, table: str) -> int:
        """The data files in the lake."""
        return int(self._spark.sql(f"SELECT count(*) FROM lake.bench.{table}.files").collect()[0][0])


class PlainTables(Source):
    """Iceberg tables in a folder, that the running Spark reads."""

    def __init__(self, broker: PeerBroker, folder: Path, catalog: str) -> None:
        super().__init__(broker)
        running = SparkSession.getActiveSession()
        if running is None:
            raise Missing("no Spark runs in this process: the contestant Lakestore starts it")
        self.spark, self.folder, self.catalog = running.newSession(), folder, catalog
        key = f"spark.sql.catalog.{catalog}"
        for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
            self.spark.conf.set(key + name, value)
        self.spark.conf.set(f"{key}.warehouse", str(folder / "tables"))
        self.spark.conf.set(f"{key}.cache-enabled", "false")
        self.spark.sql(f"CREATE NAMESPACE {catalog}.bench")

    def make(self, table: str) -> None:
        """Make an empty table."""
        self.spark.sql(f"CREATE TABLE {self.catalog}.bench.{table} ({SQL_TYPES}) USING iceberg")

    def rows(self, table: str) -> int:
        """The rows of the newest snapshot, by its file of metadata."""
        metadata = self.folder / "tables" / "bench" / table / "metadata"
        try:
            version = (metadata / "version-hint.text").read_text().strip()
            document = json.loads((metadata / f"v{version}.metadata.json").read_text())
        except FileNotFoundError:  # the sink has not made the table yet
            return 0
        snapshots = {each["snapshot-id"]: each for each in document.get("snapshots", ())}
        newest = snapshots.get(document.get("current-snapshot-id"))
        return int(newest["summary"]["total-records"]) if newest else 0

    def counted(self, table: str) -> int:
        """The rows that a query counts."""
        return self._count(f"{self.catalog}.bench.{table}")

    def files(self, table: str) -> int:
        """The data files of the table."""
        return self._count(f"{self.catalog}.bench.{table}.files")

    def _count(self, name: str) -> int:
        return int(self.spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0])


class SparkJob(PlainTables):
    """A streaming query of Spark from the topic into an Iceberg table."""

    def __init__(self, broker: PeerBroker, folder: Path, catalog: str, jars: Path) -> None:
        """`jars` is the folder with Spark's source for Kafka, which no other session loads."""
        super().__init__(broker, folder, catalog)
        for jar in sorted(jars.glob("*.jar")):
            self.spark.sql(f"ADD JAR '{jar}'")

    @contextmanager
    def running(self, topic: str, table: str) -> Iterator[None]:
        """Take the topic into a table in the block."""
        self.make(table)
        options = {"kafka.bootstrap.servers": self.broker.address, "subscribe": topic, "startingOffsets": "earliest"}
        source = self.spark.readStream.format("kafka").options(**options).load()
        rows = source.selectExpr(f"from_json(CAST(value AS STRING), '{SQL_TYPES}') AS row").select("row.*")
        checkpoint = str(self.folder / f"checkpoint-{table}")
        writer = rows.writeStream.format("iceberg").option("checkpointLocation", checkpoint)
        query = writer.toTable(f"{self.catalog}.bench.{table}")
        try:
            yield
        finally:
            query.stop()


class ConnectSink(PlainTables):
    """Kafka Connect with Iceberg's sink."""

    def __init__(self, broker: PeerBroker, folder: Path, catalog: str, connect: Connect) -> None:
        super().__init__(broker, folder, catalog)
        self._connect = connect

    @contextmanager
    def running(self, topic: str, table: str) -> Iterator[None]:
        """Take the topic into a table in the block."""
        self.make(table)
        config = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            TASKS.name: TASKS.value,
            "topics": topic,
            "iceberg.tables": f"bench.{table}",
            "iceberg.catalog.type": "hadoop",
            "iceberg.catalog.warehouse": str(self.folder / "tables"),
            "iceberg.control.topic": f"control-{table}",
            COMMITS.name: COMMITS.value,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter.schemas.enable": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "consumer.override.auto.offset.reset": "earliest",
        }
        self._topics.make(f"control-{table}")
        self._connect.make(table, config)
        self._connect.runs(table)
        try:
            yield
        finally:
            self._connect.remove(table)


@contextmanager
def _bridge(folder: Path) -> Iterator[Bridge]:
    with (
        PeerBroker(folder / "kafka", {}) as broker,
        ServerProcess(folder / "lake") as server,
        lakestore.connect(server.address) as lake,
    ):
        spark = session(server.address, conf={one.name: one.value for one in spark_iceberg.SPARK})
        try:
            yield Bridge(broker, folder, server, lake, spark)
        finally:
            spark.stop()


@contextmanager
def _spark_job(folder: Path) -> Iterator[SparkJob]:
    jars = fetch("spark-kafka", SPARK_KAFKA, SPARK_JARS, transitive=False)
    with PeerBroker(folder / "kafka", {}) as broker:
        yield SparkJob(broker, folder, "streamed", jars)


@contextmanager
def _connect_sink(folder: Path) -> Iterator[ConnectSink]:
    jars = fetch("iceberg-sink", ICEBERG, SINK_JARS)
    with (
        PeerBroker(folder / "kafka", {}) as broker,
        Connect(folder, broker.address, jars=jars, options=("-Xms256M", "-Xmx2G", *SERVER)) as connect,
    ):
        yield ConnectSink(broker, folder, "sunk", connect)


NOT_SYNCED = "Files are written without fsync. Offsets and files are committed together: each record is there once."
LAKESTORE = Contestant(
    "Lakestore",
    RELEASE,
    _bridge,
    "A record is readable when its commit is synced to the disk. The catalog syncs a file before it names it.",
    spark_iceberg.SPARK,
)
SPARK = Contestant(
    "Spark streaming job",
    f"Iceberg {ICEBERG} on Spark {spark_iceberg.spark_version()}, source for Kafka {SPARK_KAFKA}",
    _spark_job,
    NOT_SYNCED,
    spark_iceberg.SPARK,
)
CONNECT = Contestant(
    "Kafka Connect's Iceberg sink",
    f"{ICEBERG}, Connect 4.3.0",
    _connect_sink,
    NOT_SYNCED,
    (TASKS, COMMITS, Setting("JVM", "-Xms256M -Xmx2G, G1", "bin/connect-distributed.sh and kafka-run-class.sh")),
)

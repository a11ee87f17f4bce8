"""A Kafka broker in a process of its own: jars by Maven coordinates, cached in the environment's folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

VERSION = "4.3.1"
START_SECONDS = READ_SECONDS = 60.0
_AT_END = KafkaError._PARTITION_EOF
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>lakestore</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>"""


def jars() -> Path:
    """The folder with Kafka's jars, fetched once."""
    folder = Path(sys.prefix) / "kafka" / VERSION
    if (folder / ".ready").exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("Maven is needed to fetch Kafka's jars: install it (mvn)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(VERSION))
    command = [maven, "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=300)
    (folder / ".ready").touch()
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_committed(address: str, topic: str, count: int | None = None) -> list[Message]:
    """Messages as a consumer of committed transactions sees them: all that were sent before, or the first of all.

    A broker answers a commit before its messages can be seen, and until then a consumer is told of an end before them.
    So transactions under way are waited for; one that stays open fails, as does a read that takes too long.
    """
    ends = _sent(address, topic)
    consumer = _consumer(address, "read_committed")
    found: list[Message] = []
    reached = dict.fromkeys(ends, 0)
    deadline = time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        while any(reached[each] < ends[each] for each in ends) if count is None else len(found) < count:
            assert time.monotonic() < deadline, f"{topic} was read up to {reached} of {ends}: {len(found)} messages"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == _AT_END:
                reached[message.partition() or 0] = message.offset() or 0
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def _sent(address: str, topic: str) -> dict[int, int]:
    """Per partition the offset behind all that was sent, whether it is committed or not."""
    consumer = _consumer(address, "read_uncommitted")
    try:
        partitions = consumer.list_topics(topic, START_SECONDS).topics[topic].partitions
        places = {partition: TopicPartition(topic, partition) for partition in partitions}
        return {each: consumer.get_watermark_offsets(place, START_SECONDS)[1] for each, place in places.items()}
    finally:
        consumer.close()


def _consumer(address: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )


QUIET = {"log_level": 0}
Sent = tuple[bytes | None, bytes | None]
"""Key and value."""


class Topics:
    """Topics of a broker: made, deleted, written to."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._failed: list[KafkaError] = []
        self.admin = AdminClient({"bootstrap.servers": address, **QUIET})
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": 16 << 20,
                **QUIET,
            }
        )

    def make(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic; its name, once the broker leads its partitions."""
        made = self.admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])
        made[topic].result(START_SECONDS)
        self.until(lambda: topic in self.admin.list_topics(timeout=START_SECONDS).topics)
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(START_SECONDS)
        self.until(lambda: topic not in self.admin.list_topics(timeout=START_SECONDS).topics)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let the records before an offset go, as retention does."""
        place = TopicPartition(topic, partition, offset)
        self.admin.delete_records([place])[place].result(START_SECONDS)

    def send(
        self,
        topic: str,
        messages: Iterable[Sent],
        partition: int = -1,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Write keys and values, and wait until the broker has them."""
        for key, value in messages:
            self.put(topic, value, key, partition, headers)
        self.flush()

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = -1,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Write one message, which is there after `flush`."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers, on_delivery=self._delivered)
                return
            except BufferError:
                self._producer.poll(0.1)

    def serve(self) -> None:
        """Let the library tell what became of messages."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until the broker has all messages."""
        assert self._producer.flush(READ_SECONDS) == 0
        assert not self._failed, self._failed[0]

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def transaction(self, name: str) -> Producer:
        """A producer of transactions."""
        producer = Producer({"bootstrap.servers": self._address, "transactional.id": name, **QUIET})
        producer.init_transactions(START_SECONDS)
        return producer

    @staticmethod
    def until(holds: Callable[[], bool]) -> None:
        """Wait for the broker."""
        deadline = time.monotonic() + START_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "the broker does not come to it"
            time.sleep(0.02)


class KafkaProcess:
    """One broker that is its own controller. `sync_every_message` makes each append durable before its answer."""

    def __init__(self, folder: Path, *, sync_every_message: bool = False) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port, controller = free_port(), free_port()
        self._classpath = f"{jars()}/*"
        properties = folder / "server.properties"
        properties.write_text(self._properties(controller, sync_every_message=sync_every_message))
        cluster = self._java("kafka.tools.StorageTool", "random-uuid").strip().splitlines()[-1]
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        self._log = (folder / "broker.log").open("w")
        self._command = ["java", "-Xmx1g", "-cp", self._classpath, "kafka.Kafka", str(properties)]
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)
        self._process = process
        self._wait()
        return process

    def kill_and_restart(self) -> None:
        """kill -9 of the broker, and the same one again."""
        self._process.kill()
        self._process.wait(30)
        self._started()

    @property
    def address(self) -> str:
        """For `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def _properties(self, controller: int, *, sync_every_message: bool) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "500",
            "log.retention.check.interval.ms": "500",
            "message.max.bytes": str(16 << 20),
        }
        if sync_every_message:
            settings["log.flush.interval.messages"] = "1"
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _java(self, *arguments: str) -> str:
        command = ["java", "-cp", self._classpath, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"Kafka did not start: see {self._folder / 'broker.log'}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError("Kafka did not open its port in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

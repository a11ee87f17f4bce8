"""Apache Kafka from Maven Central: one broker in KRaft mode, librdkafka as the client.

- The JVM gets the options of Kafka's own start scripts, and the heap that they give it.
- A contestant with `is_synced` syncs each append before it answers; the other leaves that to the operating system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from jepsen.system.kafka import Topics
from lakestore_demo.broker import VERSION, Broker
from tests.bench.peers.contest import Contestant, Failed, Setting

SCRIPT = "bin/kafka-server-start.sh and kafka-run-class.sh of the release"
JVM = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
SYNC = Setting("log.flush.interval.messages", "1", "Kafka's documentation of the setting: fsync of every message")
DURABLE = "Each append is synced to the disk before it is acknowledged."
SHIPPED = "An append is acknowledged when it is in the page cache of the one broker, without fsync."
THROUGHPUT = (
    Setting("linger.ms", "5", "default of Kafka's own producer since 4.0"),
    Setting("batch.size", "1048576", "batches as large as Lakestore's commits"),
    Setting("message.max.bytes", "8388608", "of broker and client, for such batches"),
    Setting("queue.buffering.max.kbytes", "262144", "so that the producer never waits for room"),
)


class PeerBroker(Broker):
    """A broker whose settings are Kafka's own but for what a contestant lists."""

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self._changes = changes
        super().__init__(folder, options=JVM)

    def properties(self) -> dict[str, str]:
        """Its settings."""
        return {**super().properties(), "message.max.bytes": str(8 << 20), **self._changes}


class Kafka:
    """A broker, and producers with the settings of a contestant."""

    def __init__(self, broker: PeerBroker, client: Sequence[Setting]) -> None:
        self.broker, self._client, self.topics = broker, client, Topics(broker.address)

    def count(self, topic: str) -> int:
        """The messages in a topic."""
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "count"})
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0))
        consumer.close()
        return int(high - low)

    def log(self, name: str, batches: Sequence[Sequence[bytes]]) -> Callable[[int], float]:
        """Make a topic and return what appends so many of the batches, in seconds until all are acknowledged."""
        self.topics.make(name)
        ready = [messages(rows) for rows in batches]
        total = 0

        def append(count: int) -> float:
            nonlocal total
            seconds = appended(self.broker.address, self._client, name, ready, count)
            total += count * len(batches[0])
            if (stored := self.count(name)) != total:
                raise Failed(f"{stored:,} messages of {total:,} are there")
            return seconds

        return append


def messages(rows: Sequence[bytes]) -> list[dict[str, bytes]]:
    """Rows as the client takes them."""
    return [{"value": value} for value in rows]


def producer(address: str, settings: Sequence[Setting]) -> Producer:
    """A producer that waits for all replicas."""
    return Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "delivery.report.only.error": True,  # else the client's thread makes a Python object of each message
            **{setting.name: setting.value for setting in settings},
        }
    )


def appended(
    address: str, settings: Sequence[Setting], topic: str, batches: Sequence[list[dict[str, bytes]]], count: int
) -> float:
    """Seconds of so many batches until the last is acknowledged. Raises `Failed` if one is refused."""
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    client = producer(address, settings)
    client.list_topics(topic)  # connects
    began = time.perf_counter()
    for number in range(count):
        rest = batches[number % len(batches)]
        while rest:
            rest = rest[client.produce_batch(topic, rest, on_delivery=note) :]
            client.poll(0.01 if rest else 0)
    client.flush()
    seconds = time.perf_counter() - began
    if failures:
        raise Failed(f"Kafka refused messages: {failures[0]}")
    return seconds


@contextmanager
def _started(folder: Path, server: Sequence[Setting], client: Sequence[Setting]) -> Iterator[Kafka]:
    with PeerBroker(folder, {setting.name: setting.value for setting in server}) as broker:
        yield Kafka(broker, client)


def contestant(client: Sequence[Setting], *, is_synced: bool) -> Contestant:
    """Kafka for a workload whose producers have these settings, with an fsync of every append or as it is shipped."""
    server = (SYNC,) if is_synced else ()
    heap = Setting("JVM", "-Xmx1G, G1", SCRIPT)
    return Contestant(
        "Apache Kafka, fsync" if is_synced else "Apache Kafka",
        VERSION,
        partial(_started, server=server, client=client),
        DURABLE if is_synced else SHIPPED,
        (heap, *server, *client),
    )

"""Apache Kafka from Maven Central: one broker in KRaft mode, librdkafka as the client.

- The JVM gets the options of Kafka's own start scripts, and the heap that they give it.
- A contestant with `is_synced` syncs each append before it answers; the other leaves that to the operating system.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from jepsen.system.kafka import Topics
from lakestore_demo.broker import VERSION, Broker
from tests.bench.peers.contest import Contestant, Failed, Setting, paced, percentiles

SCRIPT = "bin/kafka-server-start.sh and kafka-run-class.sh of the release"
SERVER = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
JVM = ("-Xmx1G", "-Xms1G", *SERVER)
SYNC = Setting(
    "log.flush.interval.messages",
    "1",
    "Kafka's documentation of flush.messages: 1 syncs after every message; it advises to rely on replicas instead",
)
_ONE_REQUEST = (
    "best of 1, 5, unbounded and linger.ms=5 in a trial: one fsync covers all rows that came meanwhile, while with"
    " more requests each row waits for an fsync of its own (p50 at 2,000 rows/s 2 ms, 4 ms and over 240 ms)"
)
"""The trial of 28 November 2026 at 2,000 rows/s with fsync. Without fsync the four settings differ by less than 1 ms,
but for linger.ms=5, which adds 3 ms."""
QUICK_SESSIONS = (
    Setting("broker.session.timeout.ms", "3000", "Kafka: 9,000; the controller refuses a killed broker until then"),
    Setting("broker.heartbeat.interval.ms", "500", "Kafka: 2,000; a sixth of the session"),
)
DURABLE = "Each append is synced to the disk before it is acknowledged."
SHIPPED = "An append is acknowledged when it is in the page cache of the one broker, without fsync."
QUICK = (
    Setting("linger.ms", "0", "librdkafka's wiki, How to decrease message latency"),
    Setting("max.in.flight", "1", _ONE_REQUEST),
    Setting("socket.nagle.disable", "true", "librdkafka's CONFIGURATION.md: TCP_NODELAY"),
)
"""The consumer keeps `fetch.min.bytes=1`, as shipped: the broker answers a waiting fetch as soon as a row is there."""
CONSUMED, CONSUME_SECONDS, POLL_SECONDS = 1_000, 0.1, 1.0
THROUGHPUT = (
    Setting("linger.ms", "100", "Confluent's tutorial on producer throughput: 10 to 100; librdkafka's default is 5"),
    Setting(
        "batch.size",
        "7340032",
        "a trial: appends with fsync were half as fast with 1 MB; Confluent's tutorial says 100,000 to 200,000",
    ),
    Setting("message.max.bytes", "8388608", "of broker and client, for such batches"),
    Setting("compression.type", "lz4", "Confluent's tutorial"),
    Setting("queue.buffering.max.kbytes", "1048576", "so that the producer never waits for room"),
    Setting("queue.buffering.max.messages", "1000000", "so that the producer never waits for room"),
)


class PeerBroker(Broker):
    """A broker whose settings are Kafka's own but for what a contestant lists."""

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        self._changes = changes
        super().__init__(folder, options=JVM)

    def properties(self) -> dict[str, str]:
        """Its settings."""
        return {**super().properties(), "message.max.bytes": str(8 << 20), **self._changes}

    def start(self) -> None:
        """Start a broker that was killed. It answers afterwards."""
        self._process = self._started()


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

    def fill_log(self, name: str, batches: Sequence[Sequence[bytes]], count: int) -> int:
        """Make a topic and append so many of the batches; the messages that it has."""
        self.log(name, batches)(count)
        return self.count(name)

    def recover_log(self, name: str, batches: Sequence[Sequence[bytes]]) -> tuple[float, float, int]:
        """Append batches and kill the broker. Seconds from its start to an append and to a count, and the count."""
        appended(self.broker.address, self._client, name, [messages(rows) for rows in batches], len(batches))
        self.broker.kill()
        began = time.perf_counter()
        self.broker.start()
        appended(self.broker.address, self._client, name, [messages(batches[0][:1])], 1)
        append = time.perf_counter() - began
        rows = self.count(name)
        return append, time.perf_counter() - began, rows

    def delay(self, name: str, rate: int, seconds: float) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds from the append of a message to a consumer that has it."""
        self.topics.make(name)
        count, took, follows = int(rate * seconds), list[float](), threading.Event()

        def follow() -> None:
            consumer = self._consumer(name, name)
            while len(took) <= count:
                message = consumer.poll(POLL_SECONDS)
                now = time.perf_counter_ns()
                if message is not None and message.error() is None:
                    took.append((now - int.from_bytes(message.value() or b"", "big")) / 1e6)
                    follows.set()
            consumer.close()

        reader = threading.Thread(target=follow)
        reader.start()
        client = producer(self.broker.address, self._client)
        client.produce(name, bytes(8))
        follows.wait()
        for _ in paced(rate, count):
            client.produce(name, time.perf_counter_ns().to_bytes(8, "big"))
        client.flush()
        reader.join()
        return percentiles(took[1:])

    def fan(self, name: str, subscribers: int, batches: Sequence[Sequence[bytes]]) -> float:
        """Seconds until each of so many consumer groups has all rows of the batches."""
        self.topics.make(name)
        count, all_follow = sum(map(len, batches)), threading.Barrier(subscribers + 1)

        def follow(group: int) -> None:
            consumer, rows = self._consumer(name, f"{name}{group}"), 0
            while not rows:
                rows = _received(consumer.consume(1, POLL_SECONDS))
            all_follow.wait()
            while rows <= count:
                rows += _received(consumer.consume(CONSUMED, CONSUME_SECONDS))
            consumer.close()

        readers = [threading.Thread(target=follow, args=(group,)) for group in range(subscribers)]
        for reader in readers:
            reader.start()
        self.topics.send(name, [(None, batches[0][0])])
        all_follow.wait()
        began = time.perf_counter()
        appended(self.broker.address, self._client, name, [messages(rows) for rows in batches], len(batches))
        for reader in readers:
            reader.join()
        return time.perf_counter() - began

    def fill_wide(self, name: str, batches: Sequence[npt.NDArray[np.float64]]) -> None:
        """Make a topic with a message of a row's doubles for each row."""
        self.topics.make(name)
        rows = [messages([row.tobytes() for row in batch]) for batch in batches]
        appended(self.broker.address, self._client, name, rows, len(rows))

    def scan_wide(self, name: str, columns: int, count: int) -> float:
        """Seconds of a read of all messages, for a broker knows no columns. No message is decoded."""
        began, rows = time.perf_counter(), 0
        consumer = self._consumer(name, f"{name}{began}")
        while rows < count:
            rows += _received(consumer.consume(CONSUMED, CONSUME_SECONDS))
        seconds = time.perf_counter() - began
        consumer.close()
        return seconds

    def _consumer(self, topic: str, group: str) -> Consumer:
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": group, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        return consumer


def _received(batch: Sequence[Message]) -> int:
    return sum(message.error() is None for message in batch)


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


def contestant(client: Sequence[Setting], *, is_synced: bool, server: Sequence[Setting] = ()) -> Contestant:
    """Kafka for a workload whose producers have these settings, with an fsync of every append or as it is shipped."""
    server = (SYNC, *server) if is_synced else server
    heap = Setting("JVM", "-Xmx1G, G1", SCRIPT)
    return Contestant(
        "Apache Kafka, fsync" if is_synced else "Apache Kafka",
        VERSION,
        partial(_started, server=server, client=client),
        DURABLE if is_synced else SHIPPED,
        (heap, *server, *client),
    )

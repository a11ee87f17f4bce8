"""A Kafka broker in a process of its own, and its topics: made, deleted, written to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.processes import Nursery
from jepsen.topics import QUIET, READ_SECONDS
from lakestore_demo.broker import START_SECONDS, Broker
from lakestore_demo.processes import Process

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


class _NurseryProcess(Process):
    """A process that ends with a nursery, and with this process, however it ends."""

    def __init__(self, nursery: Nursery, command: Sequence[str], log: Path) -> None:
        self._nursery = nursery
        super().__init__("Kafka broker", command, log)

    def _spawned(self, command: Sequence[str], out: IO[bytes], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return self._nursery.spawn(command, stdout=out, stderr=out, environment=variables)


class KafkaProcess(Broker):
    """A broker for tests: sessions end soon, retention is quick, records may be large. `sync_every_message` makes each
    append durable before its answer. With a nursery it ends with that, also if this process is killed."""

    def __init__(self, folder: Path, *, sync_every_message: bool = False, nursery: Nursery | None = None) -> None:
        self._sync_every_message, self._nursery = sync_every_message, nursery
        super().__init__(folder, options=("-Xmx1g", *SHORT_LIVED))

    def process(self, command: Sequence[str], log: Path) -> Process:
        """Start the broker's process."""
        return super().process(command, log) if self._nursery is None else _NurseryProcess(self._nursery, command, log)

    def start(self) -> None:
        """Start it again if it has ended."""
        if self.pid is None:
            self._process = self._started()

    def signal(self, sent: int) -> bool:
        """Send it a signal; whether it runs. One that is killed stays away until it is started."""
        pid = self.pid
        if pid is None:
            return False
        if sent == signal.SIGKILL:
            self.kill()
        else:
            os.kill(pid, sent)
        return True

    def properties(self) -> dict[str, str]:
        """Its settings."""
        settings = super().properties() | {
            "group.min.session.timeout.ms": "500",
            "log.retention.check.interval.ms": "500",
            "message.max.bytes": str(16 << 20),
        }
        return settings | ({"log.flush.interval.messages": "1"} if self._sync_every_message else {})

"""Three brokers of Kafka, and two Lakestore servers whose journal is a topic of theirs: the leader is killed.

The tests start the same brokers, all on one machine. A broker's session is 3 s; Kafka's default is 9 s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import lakestore
from lakestore.release import RELEASE
from lakestore_demo.broker import VERSION
from lakestore_server.journals.kafka_log import Admin, KafkaTopic
from tests.bench.peers.contest import Contestant, Failed, Setting
from tests.bench.replicas import VALUE
from tests.support.kafka_cluster import SESSION_MS, KafkaCluster
from tests.support.kafka_servers import LEASE_SECONDS, KafkaServers, role_of
from tests.support.waiting import until

PATIENCE, CALM_WRITES, TOPIC = 60.0, 20, "rows"
SESSION = Setting("broker.session.timeout.ms", str(SESSION_MS), "the tests' cluster; Kafka's default is 9,000")
LEASE = Setting("LAKESTORE_JOURNAL_LEASE_SECONDS", str(LEASE_SECONDS), "a third of the default, as of Kafka's session")
MEMORY = Setting("JVM of each broker", "-Xmx192m", "three brokers on this machine")


class Acknowledged:
    """The times of acknowledged writes, in their order."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._failure: BaseException | None = None

    def note(self) -> None:
        """A write is acknowledged now."""
        self._times.append(time.perf_counter())

    def fail(self, error: BaseException) -> None:
        """The writer ended with an error."""
        self._failure = error

    def wait(self, more: int) -> int:
        """Wait for so many further writes; the number of all. Raises `Failed` if the writer ended."""
        count = len(self._times) + more
        until(lambda: self._failure is not None or len(self._times) >= count, "acknowledged writes", PATIENCE)
        if self._failure is not None:
            raise Failed(f"a write failed: {self._failure}")
        return len(self._times)

    def longest_since(self, first: int) -> float:
        """The longest time between two acknowledgements from a write on."""
        return max(later - earlier for earlier, later in pairwise(self._times[first:]))


class LakestorePair:
    """Two servers of one journal."""

    def __init__(self, pair: KafkaServers, lake: lakestore.Lake) -> None:
        self._pair, self._lake = pair, lake
        self._table = lake.create_table("bench.rows", VALUE, buckets=1)

    def outage(self) -> float:
        """Kill the leader; the longest time between two acknowledged appends, one after the other."""
        written, is_over = Acknowledged(), threading.Event()

        def write() -> None:
            try:
                while not is_over.is_set():
                    self._table.append([{"value": b"x"}])
                    written.note()
            except Exception as error:
                written.fail(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        leader = self._pair.the("leader")
        before = written.wait(CALM_WRITES) - 1
        leader.kill()
        written.wait(CALM_WRITES)
        is_over.set()
        thread.join(PATIENCE)
        again = self._pair.start_again(leader)
        until(lambda: role_of(again) == "follower", "a follower", PATIENCE)
        return written.longest_since(before)


class KafkaBrokers:
    """Three brokers and a producer that waits for two of them."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.address})
        made = self._admin.create_topics([NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})])
        made[TOPIC].result(PATIENCE)
        until(lambda: self._leader() >= 0, "a leader", PATIENCE)

    def _leader(self) -> int:
        topic = self._admin.list_topics(TOPIC, timeout=PATIENCE).topics[TOPIC]
        return int(topic.partitions[0].leader) if topic.partitions else -1

    def outage(self) -> float:
        """Kill the leader of the partition; the longest time between two acknowledged messages, one after the other."""
        written, is_over, leader = Acknowledged(), threading.Event(), self._leader()
        client = Producer({"bootstrap.servers": self._cluster.address, "acks": "all", "linger.ms": 0})

        def note(error: KafkaError | None, _: Message) -> None:
            if error is None:
                written.note()
            else:
                written.fail(Failed(str(error)))

        def write() -> None:
            while not is_over.is_set():
                client.produce(TOPIC, b"x", on_delivery=note)
                client.flush()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        before = written.wait(CALM_WRITES) - 1
        self._cluster.kill(leader)
        written.wait(CALM_WRITES)
        is_over.set()
        thread.join(PATIENCE)
        self._cluster.start(leader)
        self._cluster.wait(leader)
        until(lambda: self._in_sync() == 3, "three replicas in sync", PATIENCE)
        return written.longest_since(before)

    def _in_sync(self) -> int:
        return len(self._admin.list_topics(TOPIC, timeout=PATIENCE).topics[TOPIC].partitions[0].isrs)


@contextmanager
def _lakestore(folder: Path) -> Iterator[LakestorePair]:
    (folder / "kafka").mkdir(parents=True)
    with KafkaCluster(folder / "kafka") as cluster:
        Admin(KafkaTopic(cluster.address, "journal")).create(replicas=3)
        with KafkaServers(f"kafka://{cluster.address}/journal", folder, patience=PATIENCE) as pair:
            pair.the("leader")
            with lakestore.connect(pair.addresses) as lake:
                yield LakestorePair(pair, lake)


@contextmanager
def _kafka(folder: Path) -> Iterator[KafkaBrokers]:
    folder.mkdir(parents=True)
    with KafkaCluster(folder) as cluster:
        yield KafkaBrokers(cluster)


LAKESTORE = Contestant(
    "Lakestore",
    RELEASE,
    _lakestore,
    "A commit is acknowledged when two of three brokers have it in their page cache, without fsync.",
    (LEASE, MEMORY),
)
KAFKA = Contestant(
    "Apache Kafka",
    VERSION,
    _kafka,
    "A message is acknowledged when all brokers in sync, at least two, have it in their page cache, without fsync.",
    (SESSION, MEMORY),
)

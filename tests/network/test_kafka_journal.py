"""A journal in a real Kafka topic: what was acknowledged stands, and one server at a time appends."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.cli.main import cli
from lakestore.errors import Invalid, NotFound
from lakestore_server.host.clock import RealClock
from lakestore_server.journals import kafka_log
from lakestore_server.journals.kafka_log import PART_BYTES, Admin, KafkaLog, KafkaTopic
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.main import Server
from lakestore_server.settings import Journal, Settings
from lakestore_server.state.commit_record import BEGINNING, Deposed, Entry, Place, Unknown
from lakestore_server.state.judge import ForeignLog
from tests.simulation.world import Killed, Process
from tests.support import journal_servers, seeds
from tests.support.journal_servers import Story, applied_of, check, counted_in
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
LEASE_SECONDS = 60.0
"""So long that no beat comes in a test that does not want one."""


@pytest.fixture(scope="module")
def topics(kafka: KafkaProcess) -> Topics:
    return Topics(kafka.address)


@pytest.fixture
def topic(kafka: KafkaProcess) -> KafkaTopic:
    made = KafkaTopic(kafka.address, seeds.serial("journal"))
    Admin(made).create(replicas=1)
    return made


def following(topic: KafkaTopic, place: Place = BEGINNING, lsn: int = 0) -> tuple[SharedJournal, list[Entry]]:
    """A journal that has read everything, and what it read."""
    journal = SharedJournal(KafkaLog(topic), RealClock(), LEASE_SECONDS)
    return journal, list(journal.read(lsn, place))


def leading(topic: KafkaTopic, place: Place = BEGINNING, lsn: int = 0) -> tuple[SharedJournal, list[Entry]]:
    journal, entries = following(topic, place, lsn)
    return journal, [*entries, *journal.lead("here:7340")]


def settle(journal: SharedJournal, lsn: int) -> None:
    """Wait until a record stands."""
    stands = 0
    while stands < lsn:
        stands = journal.settle(stands)


def followed(journal: SharedJournal, lsn: int) -> list[Entry]:
    """The entries up to an LSN, as they come."""
    entries: list[Entry] = []
    while not entries or entries[-1].lsn < lsn:
        entries += journal.follow(0.2)
    return entries


def positions(topic: KafkaTopic) -> list[int]:
    """The positions of all messages that are there."""
    consumer = Consumer({"bootstrap.servers": topic.bootstrap, "group.id": "test"})
    first, _ = consumer.get_watermark_offsets(TopicPartition(topic.topic, 0), timeout=10)
    consumer.close()
    log = KafkaLog(topic)
    found = [position for position, _ in log.read(first, 0.0, to_end=True)]
    log.close()
    return found


def test_records_come_back_in_order_however_long(topic: KafkaTopic) -> None:
    journal, read = leading(topic)
    assert read == []
    large = seeds.seeded().randbytes(3 * PART_BYTES + 5)
    for lsn, body in ((1, b"a"), (2, large), (3, b"")):
        journal.append(lsn, [b"meta", body])
    settle(journal, 3)
    journal.close()
    again, read = following(topic)
    assert [applied_of(entry) for entry in read] == [(1, b"metaa"), (2, b"meta" + large), (3, b"meta")]
    assert [bytes(entry.record[0]) for entry in read] == [b"meta"] * 3  # type: ignore[arg-type]
    again.close()
    later, rest = following(topic, read[1].place, 2)
    assert [entry.lsn for entry in rest] == [3]
    assert later.timeline() == again.timeline()
    later.close()


def test_a_deposed_server_acknowledges_nothing_more_and_follows(topic: KafkaTopic) -> None:
    first, _ = leading(topic)
    first.append(1, [b"one"])
    settle(first, 1)
    second, read = leading(topic)
    assert [entry.lsn for entry in read] == [1]
    first.append(2, [b"late"])
    with pytest.raises(Deposed, match="epoch 2"):
        first.settle(1)
    second.append(2, [b"two"])
    settle(second, 2)
    first.follow_again()
    assert [applied_of(entry) for entry in followed(first, 2)] == [(2, b"two")]
    second.leave()
    while not first.leader.has_left:
        assert list(first.follow(0.2)) == []
    assert list(first.lead("here:7340")) == []
    first.append(3, [b"three"])
    settle(first, 3)
    for journal in (first, second):
        journal.close()


def test_strangers_messages_and_transactions_depose_nobody(topic: KafkaTopic, topics: Topics) -> None:
    journal, _ = leading(topic)
    follower, _ = following(topic)
    transactions = topics.transaction(seeds.serial("stranger"))
    for lsn in range(1, 4):
        topics.send(topic.topic, [(None, b"hello"), (b"key", None)], partition=0)
        transactions.begin_transaction()
        transactions.produce(topic.topic, b"in a transaction", partition=0)
        transactions.commit_transaction()
        journal.append(lsn, [b"x"])
        settle(journal, lsn)
    transactions.begin_transaction()
    transactions.produce(topic.topic, b"in an open transaction", partition=0)
    transactions.flush()
    journal.append(4, [b"x"])
    settle(journal, 4)
    assert [entry.lsn for entry in followed(follower, 4)] == [1, 2, 3, 4]
    transactions.abort_transaction()
    assert journal.gaps == 4
    again, read = following(topic)
    assert [entry.lsn for entry in read] == [1, 2, 3, 4]
    for each in (journal, follower, again):
        each.close()


def test_a_claim_that_has_not_read_everything_is_void(topic: KafkaTopic) -> None:
    late, _ = following(topic)
    first, _ = leading(topic)
    first.append(1, [b"one"])
    settle(first, 1)
    entries: list[Entry] = []
    with pytest.raises(Deposed):
        entries.extend(late.lead("there:7340"))
    assert [entry.lsn for entry in entries] == [1]
    first.append(2, [b"two"])
    settle(first, 2)
    for journal in (late, first):
        journal.close()


def test_a_trim_keeps_the_last_claim_and_what_is_behind_the_place(topic: KafkaTopic) -> None:
    journal, _ = leading(topic)
    for lsn in (1, 2, 3):
        journal.append(lsn, [b"x"])
    settle(journal, 3)
    old = journal.roll(4)
    journal.append(4, [b"y"])
    settle(journal, 4)
    place = journal.roll(5)
    journal.append(5, [b"z"])
    settle(journal, 5)
    journal.trim(place)
    assert positions(topic) == [6, 7], "the claim of the second roll, and record 5"
    journal.trim(journal._place(journal._judge.standing))
    assert positions(topic) == [6, 7]
    journal.close()
    again, read = following(topic, place, 4)
    assert [applied_of(entry) for entry in read] == [(5, b"z")]
    again.close()
    with pytest.raises(ForeignLog, match=rf"position 4 is not in topic {topic.topic}"):
        following(topic, old, 3)
    with pytest.raises(ForeignLog, match="position 0 is not in topic"):
        following(topic)


def test_a_topic_that_was_created_again_is_another_journal(topic: KafkaTopic, topics: Topics) -> None:
    journal, _ = leading(topic)
    follower, _ = following(topic)
    journal.append(1, [b"x"])
    settle(journal, 1)
    place = journal.roll(2)
    followed(follower, 1)
    topics.delete(topic.topic)
    with pytest.raises(NotFound, match="describe the topic"):
        following(topic, place, 1)
    journal.append(2, [b"y"])
    with pytest.raises((Unknown, ForeignLog)):
        journal.settle(1)
    journal.close()
    with pytest.raises(ForeignLog, match="is gone"):
        list(follower.lead("there:7340"))
    Admin(topic).create(replicas=1)
    with pytest.raises(ForeignLog, match="created again"):
        following(topic, place, 1)
    follower.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy is compact"),
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, "retention.ms is 1000"),
        ({"retention.ms": "-1", "retention.bytes": "5000"}, "retention.bytes is 5000"),
        ({"retention.ms": "-1", "unclean.leader.election.enable": "true"}, "unclean.leader.election.enable is true"),
        ({"retention.ms": "-1", "max.message.bytes": "50000"}, "max.message.bytes is below 1,000,000"),
    ],
)
def test_a_topic_that_can_lose_commits_is_refused(
    kafka: KafkaProcess, topics: Topics, settings: dict[str, str], says: str
) -> None:
    topic = KafkaTopic(kafka.address, topics.make(seeds.serial("bad-journal"), config=settings))
    with pytest.raises(Invalid, match=says):
        following(topic)


def test_a_topic_of_several_partitions_is_refused(kafka: KafkaProcess, topics: Topics) -> None:
    name = topics.make(seeds.serial("wide-journal"), 2, kafka_log.CREATED)
    with pytest.raises(Invalid, match="it has 2 partitions"):
        following(KafkaTopic(kafka.address, name))


def test_a_topic_that_a_broker_does_not_know_yet_is_waited_for(
    topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, asked = Admin.describe, []

    def described(admin: Admin) -> kafka_log.TopicState:
        asked.append(admin)
        if len(asked) < 3:
            raise NotFound("not known yet")
        return describe(admin)

    monkeypatch.setattr(Admin, "describe", described)
    assert KafkaLog(topic).open("")


def test_options_that_the_journal_needs_cannot_be_set() -> None:
    with pytest.raises(Invalid, match="acks is set by the journal itself"):
        KafkaTopic("127.0.0.1:1", "journal", {"acks": "1"})


def test_more_than_the_producer_has_room_for_is_appended_without_waiting(
    topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "_PRODUCER", {**kafka_log._PRODUCER, "queue.buffering.max.messages": 10})
    journal, _ = leading(topic)
    for lsn in range(1, 201):
        journal.append(lsn, [b"x" * 1000])
    assert journal._unsent
    settle(journal, 200)
    journal.close()
    again, read = following(topic)
    assert [entry.lsn for entry in read] == list(range(1, 201))
    again.close()


def test_a_message_that_kafka_refuses_ends_the_leadership_and_not_the_journal(
    topic: KafkaTopic, topics: Topics
) -> None:
    journal, _ = leading(topic)

    def settled() -> str:
        asked = ConfigResource(ResourceType.TOPIC, topic.topic)
        return str(topics.admin.describe_configs([asked])[asked].result(60)["max.message.bytes"].value)

    def limit(nbytes: int) -> None:
        entry = ConfigEntry("max.message.bytes", str(nbytes), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic.topic, incremental_configs=[entry])
        topics.admin.incremental_alter_configs([resource])[resource].result(60)
        until(lambda: settled() == str(nbytes), "the broker's limit")

    journal.append(1, [b"x"])
    settle(journal, 1)
    limit(2000)
    journal.append(2, [b"y" * 100_000])
    journal.append(3, [b"z"])
    with pytest.raises(Unknown, match="Kafka may not have stored a message"):
        journal.settle(1)
    limit(1_048_588)
    journal.follow_again()
    assert list(journal.follow(1.0)) == []
    assert list(journal.lead("here:7340")) == []
    journal.append(2, [b"again"])
    settle(journal, 2)
    journal.close()


def test_a_broker_that_is_killed_and_comes_back_costs_time_only(kafka: KafkaProcess, topic: KafkaTopic) -> None:
    journal, _ = leading(topic)
    follower, _ = following(topic)
    journal.append(1, [b"x"])
    settle(journal, 1)
    kafka.kill()
    journal.append(2, [b"y"])
    kafka.start()
    settle(journal, 2)
    assert [entry.lsn for entry in followed(follower, 2)] == [1, 2]
    for each in (journal, follower):
        each.close()


class Threads:
    """Tasks of servers in threads of the machine."""

    def __init__(self) -> None:
        self.is_over = False
        self.failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    @property
    def now(self) -> float:
        return RealClock().monotonic()

    def sleep(self, seconds: float) -> None:
        self.point()
        time.sleep(seconds)

    def point(self) -> None:
        if self.is_over:
            raise Killed

    def spawn(self, name: str, process: Process, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except Killed:
                pass
            except BaseException as error:
                self.failures.append(error)

        self._threads.append(threading.Thread(target=run, name=f"{process.name} {name}", daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        self.is_over = True
        for thread in self._threads:
            thread.join()


def depose(servers: Sequence[journal_servers.Server]) -> bool:
    """Let another server claim while the leader appends nothing, so that its claim counts; false without a leader."""
    leading = [server for server in servers if server.is_leading]
    for server in servers:
        server.is_quiet, server.is_hurried = server in leading, server not in leading
    time.sleep(1.0)
    for server in servers:
        server.is_quiet = False
    return bool(leading)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_while_brokers_are_killed_and_paused(tmp_path: Path) -> None:
    chance = random.Random(seeds.seed())
    with KafkaCluster(tmp_path) as cluster:
        topic = KafkaTopic(cluster.address, "journal")
        Admin(topic).create(replicas=3)
        tasks, story = Threads(), Story()
        servers: list[journal_servers.Server] = []
        for name in ("a", "b"):
            journal_of = lambda: SharedJournal(KafkaLog(topic), RealClock(), 1.0)  # noqa: E731
            servers.append(journal_servers.Server(tasks, name, servers, story, "brokers", journal_of, trims=False))
        for server in servers:
            server.start()
        for _ in range(12):
            broker = chance.randrange(3)
            time.sleep(2.0)
            if chance.random() < 0.5:
                cluster.kill(broker)
                time.sleep(chance.random() * 5)
                cluster.start(broker)
                cluster.wait(broker)
            else:
                cluster.pause(broker)
                time.sleep(chance.random() * 8)
                cluster.resume(broker)
            for server in servers:
                server.is_hurried = True
        until(lambda: depose(servers) and story.deposed > 0, "a leader that learns of another one", 120.0)
        for server in servers:
            server.is_quiet = True
        time.sleep(40.0)
        tasks.end()
        log = KafkaLog(topic)
        counted = counted_in(log.read(0, 0.0, to_end=True))
        log.close()
    assert tasks.failures == []
    check(counted, servers, story)
    print(f"{len(story.acknowledged)} acknowledged, epoch {counted[-1].after.epoch}, {story.deposed} deposed")
    assert story.deposed > 0


def served(topic: KafkaTopic, folder: Path, name: str) -> Server:
    """A server of the topic's journal, with ports."""
    journal = Journal("kafka", topic.bootstrap, topic.topic, lease_seconds=5.0)
    running = Server(
        Settings(
            folder / name,
            port=0,
            http_port=0,
            warehouse=str(folder / "warehouse"),
            lease_grace_seconds=0.0,
            journal=journal,
        )
    )
    running.start()
    return running


def test_a_second_server_follows_and_takes_over(topic: KafkaTopic, tmp_path: Path) -> None:
    first = served(topic, tmp_path, "first")
    until(lambda: first.engine.is_leading, "the first server to lead")
    second = served(topic, tmp_path, "second")
    with ls.connect(first.about["grpc"]) as lake:
        orders = lake.create_table("shop.orders", schema=pa.schema([("id", pa.int64())]), primary_key=["id"])
        orders.upsert([{"id": id} for id in range(1000)])
    until(lambda: second.engine.view.lsn == first.engine.view.lsn, "the second server to follow")
    assert not second.engine.is_leading
    assert second.engine.loop.journal.leader.address == first.about["grpc"]
    first.close()
    until(lambda: second.engine.is_leading, "the second server to lead")
    with ls.connect(second.about["grpc"]) as lake:
        lake.table("shop.orders").upsert([{"id": 1000}])
        assert lake.table("shop.orders").scan().count() == 1001
    again = served(topic, tmp_path, "first")
    assert again.engine.view.lsn >= second.engine.view.lsn - 1
    assert not again.engine.is_leading
    until(lambda: again.engine.view.lsn == second.engine.view.lsn, "the first server to follow")
    for each in (again, second):
        each.close()


def test_settings_name_the_journal(topic: KafkaTopic, tmp_path: Path) -> None:
    lake = str(tmp_path / "warehouse")
    with pytest.raises(Invalid, match=r"journal.bootstrap is not set"):
        Server(Settings(tmp_path / "one", journal=Journal("kafka"), warehouse=lake))
    with pytest.raises(Invalid, match=r"journal\.kind is kafka and warehouse is not set: give --warehouse URI"):
        Server(Settings(tmp_path / "one", journal=Journal("kafka", topic.bootstrap, topic.topic)))
    journal = Journal("kafka", topic.bootstrap, topic.topic)
    with pytest.raises(Invalid, match="advertise is not set"):
        Server(Settings(tmp_path / "two", host="0.0.0.0", insecure=True, journal=journal, warehouse=lake))
    own = Journal("kafka", topic.bootstrap, topic.topic, options=("acks=1",))
    with pytest.raises(Invalid, match="acks is set by the journal itself"):
        Server(Settings(tmp_path / "three", journal=own, warehouse=lake))


def test_init_journal_creates_the_topic_once(kafka: KafkaProcess, topics: Topics, tmp_path: Path) -> None:
    name = seeds.serial("init-journal")
    url = f"kafka://{kafka.address}/{name}"
    run = CliRunner()
    made = run.invoke(cli, ["init-journal", "--journal", url, "--replicas", "1", "--json"])
    assert json.loads(made.stdout) == {"topic": name, "bootstrap": kafka.address, "created": True}
    state = Admin(KafkaTopic(kafka.address, name)).describe()
    assert (state.partitions, state.replicas, list(state.problems())) == (1, 1, [])
    file = tmp_path / "server.yaml"
    file.write_text(f"journal: {{kind: kafka, bootstrap: '{kafka.address}', topic: {name}}}\n")
    again = run.invoke(cli, ["init-journal", "-c", str(file), "--replicas", "1"])
    assert again.stdout.split(";")[0] == f"topic {name} exists and has the right settings"
    several = run.invoke(cli, ["init-journal", "--journal", url + "-2"])
    assert isinstance(several.exception, Invalid)
    assert "has fewer than 3 brokers" in str(several.exception)
    bad = topics.make(seeds.serial("bad-journal"), config={"retention.ms": "1000"})
    refused = run.invoke(cli, ["init-journal", "--journal", f"kafka://{kafka.address}/{bad}"])
    assert "retention.ms is 1000" in str(refused.exception)

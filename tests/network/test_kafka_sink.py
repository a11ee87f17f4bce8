"""The Kafka sink against a real broker: exactly once for who reads committed messages, whatever is killed."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from jepsen.system.server import free_port
from jepsen.topics import NotAnswered, read_committed
from lakestore.errors import Fenced, Invalid, LakestoreError, Unavailable
from lakestore.kafka.events import Encoder
from lakestore.kafka.sink import KafkaSink, SinkPosition, Transactions
from tests.support.proxied_kafka import ProxiedKafka
from tests.support.seeds import serial
from tests.support.waiting import until

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:
    with ProxiedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def orders(lake: ls.Lake) -> Any:
    return lake.create_table("shop.orders", ORDERS, primary_key=["id"])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return serial(request.node.name[:60])


def _sink(lake: ls.Lake, kafka: KafkaProcess, topic: str, *tables: str, **said: Any) -> KafkaSink:
    return KafkaSink(lake, tables or ("shop.orders",), bootstrap=kafka.address, topic=topic, **said)


def _read(kafka: KafkaProcess, topic: str, count: int | None = None) -> list[tuple[Any, Any]]:
    """Keys and values, those of one key in their order."""
    messages = read_committed(kafka.address, topic, count)
    return [(_json(message.key()), _json(message.value())) for message in messages]


def _json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def _by_key(pairs: list[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Per key its events, less the moment at which they were made."""
    found = defaultdict(list)
    for key, event in pairs:
        found[json.dumps(key)].append({name: part for name, part in (event or {}).items() if name != "ts_ms"})
    return dict(found)


def _changelog(lake: ls.Lake, table: str, *, start: str = "earliest") -> list[tuple[Any, Any]]:
    """What a sink is to write, tombstones left out."""
    encoder = Encoder(lake, "debezium", name="orders.changes")
    pairs: list[tuple[Any, Any]] = []
    for batch in lake.changes([table], start, until="now", before_images=True):
        for events in encoder.events(batch):
            assert events.keys is not None
            pairs += zip(map(_json, events.keys.to_pylist()), map(_json, events.values.to_pylist()), strict=True)
    return pairs


def test_every_change_is_written_once_under_its_key_with_tombstones(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    orders.upsert([{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    orders.upsert([{"id": 1, "note": "c"}])
    orders.delete([{"id": 2}])
    made: list[str] = []
    written = _sink(lake, kafka, topic, name="orders.changes", restart=True, noted=made.append).run(until="now")
    assert made == [f"made topic {topic} with 4 partitions"]
    found = _read(kafka, topic)
    assert (written.events, len(found)) == (4, 5)
    assert [event["op"] for key, event in found if key == {"id": 1}] == ["c", "u"]
    assert [event and event["op"] for key, event in found if key == {"id": 2}] == ["c", "d", None]
    assert _by_key([pair for pair in found if pair[1]]) == _by_key(_changelog(lake, "shop.orders"))


def test_a_sink_goes_on_where_it_stopped_and_anew_when_told(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    orders.upsert([{"id": 1, "note": "a"}])
    assert _sink(lake, kafka, topic).run(until="now").events == 1
    assert _sink(lake, kafka, topic).run(until="now").events == 0
    orders.upsert([{"id": 1, "note": "b"}])
    assert _sink(lake, kafka, topic, start="latest").run(until="now").events == 1
    written = _sink(lake, kafka, topic, start="snapshot", restart=True).run(until="now")
    assert [event["op"] for _, event in _read(kafka, topic)] == ["c", "u", "r"]
    assert [held.token for held in lake.subscriptions()] == [written.token]


def test_latest_means_the_moment_of_the_first_start(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    orders.upsert([{"id": 1, "note": "before"}])
    assert _sink(lake, kafka, topic, start="latest").run(until="now").events == 0
    orders.upsert([{"id": 1, "note": "between"}])
    assert _sink(lake, kafka, topic, start="latest").run(until="now").events == 1


class _Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_crash_right_behind_a_commit_loses_and_repeats_nothing(
    lake: ls.Lake,
    kafka: KafkaProcess,
    orders: Any,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    acknowledged: bool,
) -> None:
    """Whichever call commits a transaction: what comes behind it may never happen."""
    done = Transactions._until_done
    count = 0

    def crash(self: Transactions, call: Any, what: str) -> None:
        nonlocal count
        done(self, call, what)
        count += what.startswith("commit")
        if what.startswith("commit") and count == after:
            raise _Crash

    orders.upsert([{"id": number, "note": "a"} for number in range(10)])
    if after == 2 and not acknowledged:
        _sink(lake, kafka, topic).run(until="now")
        count = 1
        orders.upsert([{"id": number, "note": "b"} for number in range(10)])
    monkeypatch.setattr(Transactions, "_until_done", crash)
    try:
        _sink(lake, kafka, topic).run(until="now")
    except _Crash:
        pass
    monkeypatch.undo()
    orders.upsert([{"id": 3, "note": "later"}])
    _sink(lake, kafka, topic).run(until="now")
    found = _read(kafka, topic)
    assert {key: [e["source"]["offset"] for e in events] for key, events in _by_key(found).items()} == {
        key: [e["source"]["offset"] for e in events] for key, events in _by_key(_changelog(lake, "shop.orders")).items()
    }


def test_a_zombie_is_fenced_and_what_it_had_under_way_is_never_seen(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    orders.upsert([{"id": 1, "note": "a"}])
    first = Transactions(kafka.address, topic)
    first.ensure_topic(topic, 1)
    assert first.open() is None
    first.begin()
    stream = lake.changes(["shop.orders"], until="now", before_images=True)
    batch = next(stream)
    for events in Encoder(lake, "debezium").events(batch):
        first.send(topic, events, tombstones=True)
    assert _sink(lake, kafka, topic).run(until="now").events == 1
    with pytest.raises(Fenced, match="another process writes as sink"):
        first.commit(SinkPosition(batch.token, ("shop.orders",), topic))
    first.close()
    assert len(_read(kafka, topic)) == 1


def test_of_two_processes_of_one_name_the_newer_goes_on(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    ended: list[LakestoreError] = []

    def run(sink: KafkaSink) -> None:
        try:
            sink.run()
        except LakestoreError as error:
            ended.append(error)

    orders.upsert([{"id": 0, "note": "a"}])
    sinks = [_sink(lake, kafka, topic) for _ in range(2)]
    threads = [threading.Thread(target=run, args=(sink,)) for sink in sinks]
    for number, thread in enumerate(threads):
        thread.start()
        until(lambda: sinks[number].written.token != "", "the sink")  # noqa: B023
        orders.upsert([{"id": number + 1, "note": "b"}])
    threads[0].join(60)
    orders.upsert([{"id": 9, "note": "c"}])
    assert len(_read(kafka, topic, count=4)) == 4
    sinks[1].stop()
    threads[1].join(60)
    assert [type(error) for error in ended] == [Fenced], ended
    assert sorted(key["id"] for key, _ in _read(kafka, topic)) == [0, 1, 2, 9]


def test_who_takes_the_subscription_does_not_stop_the_sink(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    sink = _sink(lake, kafka, topic)
    thread = threading.Thread(target=sink.run)
    thread.start()
    orders.upsert([{"id": 0, "note": "a"}])
    until(lambda: sink.written.events == 1, "the sink")
    name = lake.subscriptions()[0].name
    orders.upsert([{"id": 1, "note": "a"}])
    next(lake.changes(["shop.orders"], subscription=name))
    orders.upsert([{"id": 2, "note": "a"}])
    until(lambda: sink.written.events == 3, "the sink")
    sink.stop()
    thread.join(60)
    assert sorted(key["id"] for key, _ in _read(kafka, topic)) == [0, 1, 2]


def test_tables_have_topics_of_their_own_and_logs_keep_the_order_of_their_buckets(
    lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str
) -> None:
    clicks = lake.create_table("shop.clicks", pa.schema([("n", pa.int64())]), buckets=3, bucket_key=["n"])
    for number in range(0, 300, 100):
        with lake.commit() as commit:
            commit.upsert("shop.orders", [{"id": number, "note": "a"}])
            commit.append("shop.clicks", pa.table({"n": range(number, number + 100)}))
    _sink(lake, kafka, topic + ".{table}", "shop.orders", "shop.clicks", partitions=2).run(until="now")
    assert sorted(key["id"] for key, _ in _read(kafka, f"{topic}.shop.orders")) == [0, 100, 200]
    found = read_committed(kafka.address, f"{topic}.shop.clicks")
    places = [(m.partition(), json.loads(m.value() or b"")["source"]) for m in found]
    assert len(found) == 300
    assert {(source["bucket"] % 2) == partition for partition, source in places} == {True}
    for bucket in range(3):
        offsets = [source["offset"] for _, source in places if source["bucket"] == bucket]
        assert offsets == list(range(len(offsets)))
    assert clicks.scan().count() == 300


def test_rows_as_json_are_told_by_their_table(lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str) -> None:
    orders.upsert([{"id": 1, "note": "a"}])
    orders.delete([{"id": 1}])
    _sink(lake, kafka, topic, format="json", tombstones=False).run(until="now")
    assert [(value["__table"], value["__change"]) for _, value in _read(kafka, topic)] == [
        ("shop.orders", "+I"),
        ("shop.orders", "-D"),
    ]


def test_a_position_is_found_behind_many_transactions_that_were_aborted(kafka: KafkaProcess, topic: str) -> None:
    position = SinkPosition("token", ("shop.orders",), topic)
    first = Transactions(kafka.address, topic)
    assert first.open() is None
    first.begin()
    first.commit(position)
    for _ in range(40):
        first.begin()
        first._send(first.identity, SinkPosition("never", (), "").encode(), b"x")
        first._producer.flush()
        first.abort()
    first.close()
    second = Transactions(kafka.address, topic)
    assert second.open() == position
    second.close()


def test_the_reader_of_these_tests_waits_for_transactions_that_are_under_way(
    kafka: KafkaProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is answered before its messages can be seen: until then a consumer is told of an end before them."""
    transactions = Transactions(kafka.address, topic)
    transactions.ensure_topic(topic, 1)
    transactions.open()
    transactions.begin()
    transactions._send(topic, b"1", b"1")
    transactions._producer.flush()

    class CommitsAtTheEnd(Consumer):
        def poll(self, timeout: float = -1) -> Message | None:
            message = super().poll(timeout)
            if message is not None and message.error() is not None and transactions._began:
                transactions.commit(SinkPosition("token", ("shop.orders",), topic))
            return message

    monkeypatch.setattr("jepsen.topics.Consumer", CommitsAtTheEnd)
    assert [message.value() for message in read_committed(kafka.address, topic)] == [b"1"]
    monkeypatch.undo()
    transactions.begin()
    transactions._send(topic, b"2", b"1")
    transactions._producer.flush()
    monkeypatch.setattr("jepsen.topics.READ_SECONDS", 1.0)
    with pytest.raises(NotAnswered, match="was read up to"):
        read_committed(kafka.address, topic)
    transactions.close()


def _written(sink: Transactions, partition: int, value: bytes) -> None:
    sink.begin()
    sink._send(f"{sink.identity}.events", value, b"key", partition)
    sink._drain()


@pytest.mark.long
def test_a_commit_that_kafka_took_and_then_forgot_is_undone_whole_before_it_is_made_again(
    kafka: ProxiedKafka, topic: str
) -> None:
    """A broker that dies between the answer to a commit and its markers may never write these."""
    one, two = (SinkPosition(token, ("shop.orders",), topic) for token in "12")
    sinks = [Transactions(kafka.address, f"{topic}.{number}") for number in range(4)]
    for sink in sinks:
        sink.ensure_topic(f"{sink.identity}.events", 2)
        assert sink.open() is None
        sink.begin()
        sink._send(sink.identity, one.encode(), b"key")
        _written(sink, 0, b"1")
    living, *killed = sinks
    kafka.forget_markers()
    for sink in killed:
        sink._producer.commit_transaction(30)

    def commit() -> None:
        with suppress(Unavailable):
            living.commit(one)

    thread = threading.Thread(target=commit)
    thread.start()
    until(lambda: not living._began, "the sink")
    kafka.restart_forgetful()
    thread.join(60)
    living.abort()  # as a sink recovers
    again = [living, *(Transactions(kafka.address, f"{topic}.{number}") for number in range(1, 4))]
    for sink in again:
        sink.ensure_topic(f"{sink.identity}.events", 2)
        if (living.position() if sink is living else sink.open()) is None:
            _written(sink, 0, b"1")
            sink.commit(one)
        _written(sink, 1, b"2")
        sink.commit(two)
        _written(sink, 0, b"3")
        sink.abort()
    for sink in again:
        found = [message.value() for message in read_committed(kafka.address, f"{sink.identity}.events")]
        assert sorted(value or b"" for value in found) == [b"1", b"2"]
        sink.close()


def test_what_cannot_work_is_one_sentence(lake: ls.Lake, kafka: KafkaProcess, orders: Any, topic: str) -> None:
    orders.upsert([{"id": 1, "note": "x" * 2_000_000}])
    with pytest.raises(Invalid, match=r"an event of 2,000,\d+ bytes is larger than topic"):
        _sink(lake, kafka, topic).run(until="now")
    assert _sink(lake, kafka, topic, start="latest").run(until="now").events == 0
    lake.create_table("shop.others", ORDERS, primary_key=["id"])
    with pytest.raises(Invalid, match="--restart"):
        _sink(lake, kafka, topic, "shop.others").run(until="now")
    with pytest.raises(Invalid, match=r"write \{table\} in its name"):
        _sink(lake, kafka, topic, "shop.orders", "shop.others")
    with pytest.raises(Invalid, match=r"refused.*no\.such\.option"):
        _sink(lake, kafka, topic, options={"no.such.option": "1"})
    with pytest.raises(Invalid, match=r"transactional\.id is set by the sink itself"):
        _sink(lake, kafka, topic, options={"transactional.id": "x"})
    with pytest.raises(Invalid, match="a sink's name has"):
        _sink(lake, kafka, topic, name="a b")
    with pytest.raises(Invalid, match="a topic's name has"):
        _sink(lake, kafka, "a b")


def test_a_broker_that_is_not_there_is_named(
    lake: ls.Lake, orders: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestore.kafka.sink.CALL_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"Kafka at {address} does not answer"):
        KafkaSink(lake, ["shop.orders"], bootstrap=address, topic=topic).run(until="now")

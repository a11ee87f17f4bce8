"""The Kafka bridge against a real broker: what is in a topic is in the lake once, whatever is killed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.errors import Conflict, Exhausted, Fenced, Invalid, LakestoreError, NotFound
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.outcome import MappedBlock
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.positions import AcceptedLoss
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, ColumnSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.operate import metrics
from tests.support.debezium_events import event, text
from tests.support.seeds import serial
from tests.support.served import Served
from tests.support.switch import World
from tests.support.waiting import joined, until

EVENTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
GROUP = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def topics(kafka: KafkaProcess) -> Topics:
    return Topics(kafka.address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return serial(request.node.name[:60].translate({91: 45, 93: None}))


@pytest.fixture
def events(lake: ls.Lake) -> ls.Table:
    return lake.create_table("shop.events", EVENTS)


def _spec(kafka: KafkaProcess, topic: str, **said: Any) -> BridgeSpec:
    table = said.pop("table", TableSpec("shop.events"))
    source = SourceSpec("", kafka.address, serial("group"), options=GROUP)
    return BridgeSpec(topic[:80], {"": source}, (TopicSpec("", topic, target=table, **said),))


def _once(lake: ls.Lake, spec: BridgeSpec, **said: Any) -> Mapping[str, Any]:
    return Bridge(spec, lake, **said).run(once=True).shown()


def _values(*numbers: int) -> list[tuple[None, bytes]]:
    return [(None, json.dumps({"id": number, "note": "a"}).encode()) for number in numbers]


def _ids(table: ls.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def test_records_come_in_once_however_often_a_bridge_runs(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic, 3)
    topics.send(topic, _values(*range(1_000)))
    spec = _spec(kafka, topic)
    assert _once(lake, spec)["records"] == 1_000
    assert _once(lake, spec)["records"] == 0
    topics.send(topic, _values(*range(1_000, 1_010)))
    assert _once(lake, spec)["records"] == 10
    assert _ids(events) == list(range(1_010))


def test_aborted_transactions_are_never_seen_and_once_ends_behind_them(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic)
    writer = topics.transaction(topic)
    for number in range(10):
        writer.begin_transaction()
        writer.produce(topic, _values(number)[0][1])
        writer.flush()
        if number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    spec = _spec(kafka, topic)
    assert _once(lake, spec)["records"] == 5
    assert _once(lake, spec)["commits"] == 0
    writer.begin_transaction()
    writer.produce(topic, _values(10)[0][1])
    writer.flush()
    assert _once(lake, spec)["records"] == 0
    writer.commit_transaction()
    assert _once(lake, spec)["records"] == 1
    assert _ids(events) == [0, 2, 4, 6, 8, 10]


def test_a_topic_made_anew_is_refused_until_told(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic)
    topics.send(topic, _values(1, 2, 3))
    spec = _spec(kafka, topic)
    _once(lake, spec)
    topics.delete(topic)
    with pytest.raises(NotFound, match="is not there"):
        _once(lake, spec)
    topics.make(topic)
    topics.send(topic, _values(4, 5, 6, 7))
    with pytest.raises(Conflict, match=f"deleted and created again .* by --accept-new-topic {topic}"):
        _once(lake, spec)
    assert _once(lake, spec, accepted=AcceptedLoss(new_topics=[topic]))["records"] == 4
    assert _once(lake, spec)["records"] == 0
    assert _ids(events) == [1, 2, 3, 4, 5, 6, 7]


def test_records_that_retention_took_are_counted_and_not_jumped_over(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic)
    topics.send(topic, _values(1, 2, 3))
    spec = _spec(kafka, topic)
    _once(lake, spec)
    topics.send(topic, _values(4, 5, 6, 7))
    topics.delete_before(topic, 0, 5)
    with pytest.raises(Conflict, match=f"at offset 5 .* stands at 3: .* up to 2 records .* --accept-loss {topic}"):
        _once(lake, spec)
    assert _once(lake, spec, accepted=AcceptedLoss(losses=[topic]))["records"] == 2
    assert _ids(events) == [1, 2, 3, 6, 7]


def test_a_restored_server_has_the_records_again_though_no_new_one_comes(
    tmp_path: Path, kafka: KafkaProcess, topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle bridge sends no commit by which it would learn of the restore; then retention passes a restored one."""
    monkeypatch.setattr("lakestore.kafka.bridge.consumer.ASK_IDLE_SECONDS", 0.1)
    topics.make(topic, 2)
    spec, stop = _spec(kafka, topic), threading.Event()
    with World(tmp_path) as world:
        lake = world.client()
        table = lake.create_table("shop.events", EVENTS)
        bridge = threading.Thread(target=lambda: Bridge(spec, lake).run(stop=stop))
        bridge.start()
        topics.send(topic, [*_values(1, 2, 3), (None, b"{")], 0)
        until(lambda: _ids(table) == [1, 2, 3], "the first records")
        backup = world.backup()
        topics.send(topic, [*_values(4, 5), (None, b"{")], 0)
        topics.send(topic, _values(6), 1)
        until(lambda: _ids(table) == [1, 2, 3, 4, 5, 6], "the records after the backup")
        world.restore(backup)
        until(lambda: _ids(table) == [1, 2, 3, 4, 5, 6], "the records again")
        until(lambda: lake.table("shop.events__dlq").scan().count() == 2, "the dead letters again")
        stop.set()
        joined(bridge)
        world.restore(backup)
        topics.delete_before(topic, 0, 5)
        with pytest.raises(Conflict, match=f"at offset 5 .* stands at 4: .* up to 1 records .* --accept-loss {topic}"):
            _once(lake, spec)
        _once(lake, spec, accepted=AcceptedLoss(losses=[topic]))
        assert _ids(table) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(("start", "found"), [("earliest", [1, 2, 3]), ("latest", [3]), ("offsets", [2, 3])])
def test_a_bridge_begins_where_it_is_told(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table, start: str, found: list[int]
) -> None:
    topics.make(topic)
    topics.send(topic, _values(1, 2))
    spec = _spec(kafka, topic, start=start, start_offsets={0: 1} if start == "offsets" else {})
    _once(lake, spec)
    topics.send(topic, _values(3))
    _once(lake, spec)
    assert _ids(events) == found


def test_patterns_find_topics_and_partitions_that_come_later(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    spec = _spec(kafka, topic)
    spec = replace(spec, topics=(TopicSpec("", pattern=f"{topic}\\.[ab]", target=TableSpec("shop.events")),))
    for number, name in enumerate("abc"):
        topics.make(f"{topic}.{name}")
        topics.send(f"{topic}.{name}", _values(number))
    _once(lake, spec)
    assert _ids(events) == [0, 1]


def test_a_pattern_that_no_topic_matches_is_told_and_once_ends(
    lake: ls.Lake, kafka: KafkaProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(_spec(kafka, topic), topics=(TopicSpec("", pattern=f"{topic}.*", target=TableSpec("shop.events")),))
    stop = threading.Event()
    late = threading.Timer(100, stop.set)
    late.start()
    assert Bridge(spec, lake).run(once=True, stop=stop).records == 0
    late.cancel()
    assert not stop.is_set()
    assert "no topic is there whose name matches" in caplog.text


@pytest.mark.parametrize("on_error", ["dlq", "skip"])
def test_a_record_that_no_message_of_the_server_holds_does_not_stop_the_bridge(
    tmp_path: Path, kafka: KafkaProcess, topics: Topics, topic: str, on_error: Any
) -> None:
    topics.make(topic, 1, {"max.message.bytes": str(4 << 20)})
    topics.send(topic, [(b"k" * 600_000, b"{" + b"x" * 900_000), (None, b"{" * (1 << 20)), *_values(1)])
    topics.send(topic, [(None, b"[" * 300_000)], headers=[(f"h{each}", b"") for each in range(40_000)])
    topics.send(topic, _values(2))
    columns = (ColumnSpec("id", "int64"), ColumnSpec("note", "string"))
    spec = _spec(kafka, topic, table=TableSpec("shop.small", columns=columns, on_error=on_error))
    limits = Limits(message_bytes=1 << 20, read_batch_bytes=1 << 19)
    with (
        Served(tmp_path / "small", limits=limits, ports=True) as served,
        ls.connect(served.server.about["grpc"]) as lake,
    ):
        assert _once(lake, spec)["records"] == 5
        assert _ids(lake.table("shop.small")) == [1, 2]
        if on_error == "dlq":
            found = lake.table("shop.small__dlq").scan(["kafka_offset", "value_bytes"]).to_arrow().to_pylist()
            assert {each["kafka_offset"]: each["value_bytes"] for each in found} == {0: 900_001, 1: 1 << 20, 3: 300_000}


def test_dead_letters_never_go_to_a_table_of_another_kind(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str
) -> None:
    lake.create_table("shop.taken__dlq", EVENTS)
    topics.make(topic)
    topics.send(topic, [(None, b"{")])
    with pytest.raises(Invalid, match="which is another kind of table"):
        _once(lake, _spec(kafka, topic, table=TableSpec("shop.taken", columns=(ColumnSpec("id", "int64"),))))


def test_every_record_of_a_fuzzed_topic_is_in_the_table_or_a_dead_letter(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str
) -> None:
    chance, count = random.Random(5), 600
    topics.make(topic, 2, {"max.message.bytes": str(8 << 20)})
    kinds: list[Any] = [
        lambda n: json.dumps({"id": n, "note": "a" * chance.randrange(50)}),
        lambda n: json.dumps({"id": n % 20, "note": None}),
        lambda n: json.dumps({"id": str(n)}),
        lambda n: json.dumps({"id": None}),
        lambda n: json.dumps({"id": 1e300, "note": [1, {"b": 2}]}),
        lambda n: json.dumps({"note": "x"}),
        lambda n: json.dumps([n]),
        lambda n: "",
        lambda n: "{",
        lambda n: "null",
        lambda n: b"\x00\x00\x00\x00\x07short",
        lambda n: b'{"id": 1, "note": "\xff\xfe"}',
        lambda n: bytes(chance.randrange(256) for _ in range(chance.randrange(40))),
        lambda n: None,
        lambda n: json.dumps({"id": n, "note": "z" * 300_000}) if n % 50 == 0 else "{}",
    ]
    for number in range(count):
        value = chance.choice(kinds)(number)
        topics.put(topic, value.encode() if isinstance(value, str) else value, None, number % 2)
    topics.flush()
    columns = (ColumnSpec("id", "int64"), ColumnSpec("note", "string"))
    spec = _spec(kafka, topic, table=TableSpec("shop.fuzzed", columns=columns, coordinates=True))
    said = _once(lake, spec)
    rows = lake.table("shop.fuzzed").scan(["kafka_partition", "kafka_offset"]).to_arrow().to_pylist()
    dead = lake.table("shop.fuzzed__dlq").scan(["partition", "kafka_offset", "value_bytes"]).to_arrow().to_pylist()
    there = [(row["kafka_partition"], row["kafka_offset"]) for row in rows]
    there += [(row["partition"], row["kafka_offset"]) for row in dead]
    assert sorted(there) == [(partition, offset) for partition in (0, 1) for offset in range(count // 2)]
    assert said["records"] == count == said["rows"]["shop.fuzzed"] + sum(said["rejected"].values())
    assert rows
    assert dead


def test_rows_that_the_server_refuses_are_found_and_the_others_come_in(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str
) -> None:
    """Rows that keep a column of a row that is not there are refused with their whole commit."""
    lake.create_table("shop.kept", EVENTS, primary_key=["id"])
    lake.table("shop.kept").upsert([{"id": number, "note": "old"} for number in range(0, 100, 2)])
    topics.make(topic)
    topics.send(topic, _values(*range(100)))
    spec = _spec(kafka, topic, table=TableSpec("shop.kept", ("id",)))

    class Keeping(Pipeline):
        def process(self, records: Records) -> MappedBlock:
            mapped = super().process(records)
            kept = {"note": pa.array([True] * len(records))}
            return replace(mapped, tables=[replace(rows, kept=kept) for rows in mapped.tables])

    def keeping(each: TopicSpec, _: str) -> Pipeline:
        return Keeping(topic=each, tables={"shop.kept": lake.table("shop.kept").definition}, decoder=JsonDecoder())

    said = _once(lake, spec, pipeline=keeping)
    assert said["rejected"] == {"shop.kept refused": 50}
    dead = lake.table("shop.kept__dlq").scan(["kafka_offset", "stage", "value"]).to_arrow()
    assert sorted(dead["kafka_offset"].to_pylist()) == list(range(1, 100, 2))
    assert set(dead["stage"].to_pylist()) == {"apply"}
    assert set(lake.table("shop.kept").scan().to_arrow()["note"].to_pylist()) == {"old"}


def test_a_topic_is_read_up_to_a_record_that_is_to_stop_it(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic)
    topics.send(topic, [*_values(1, 2), (None, b"{"), *_values(3)])
    spec = _spec(kafka, topic, table=TableSpec("shop.events", on_error="fail"))
    for _ in range(2):
        with pytest.raises(LakestoreError, match=r"partition 0, offset 2: .* \(on_error is fail"):
            _once(lake, spec)
        assert _ids(events) == [1, 2]
    skipping = replace(spec, topics=(replace(spec.topics[0], target=TableSpec("shop.events", on_error="skip")),))
    assert sum(_once(lake, skipping)["rejected"].values()) == 1
    assert _ids(events) == [1, 2, 3]
    assert "shop.events__dlq" not in [table.name for table in lake.tables()]


def test_gaps_of_a_compacted_topic_are_no_loss(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    compact = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
    }
    topics.make(topic, 1, compact)
    spec = _spec(kafka, topic)
    _once(lake, spec)
    for _ in range(4):
        topics.send(topic, [(b"k", value) for _, value in _values(*range(20))])
        time.sleep(0.15)
    said = _once(lake, spec)
    assert 20 <= said["records"] <= 80
    assert _once(lake, spec)["records"] == 0
    assert _ids(events)[-1] == 19


def test_members_come_and_go_and_each_record_comes_once(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic, 4)
    spec = replace(_spec(kafka, topic), batch=BatchBounds(rows=20, seconds=0.02))
    stops = [threading.Event() for _ in range(6)]
    failed: list[LakestoreError] = []

    def run(stop: threading.Event) -> None:
        try:
            Bridge(spec, lake).run(stop=stop)
        except LakestoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(stop,)) for stop in stops]
    for number, thread in enumerate(threads):
        thread.start()
        topics.send(topic, _values(*range(number * 300, number * 300 + 300)))
        time.sleep(0.5)
        if number >= 2:
            stops[number - 2].set()
    for stop in stops:
        stop.set()
    joined(*threads)
    assert not failed
    _once(lake, spec)
    assert _ids(events) == list(range(1_800))


def test_a_second_bridge_of_the_name_in_another_group_is_told(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestore.kafka.bridge.consumer.SETTLE_SECONDS", 0.1)
    topics.make(topic)
    spec = _spec(kafka, topic)
    other = replace(spec, sources={"": replace(spec.sources[""], group="another")})
    stop, ended = threading.Event(), list[LakestoreError]()

    def run(mine: BridgeSpec) -> None:
        try:
            Bridge(mine, lake).run(stop=stop)
        except LakestoreError as error:
            ended.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in (spec, other)]
    for thread in threads:
        thread.start()
    sent = 0
    while not ended and sent < 600:
        topics.send(topic, _values(sent))
        sent += 1
        time.sleep(0.05)
    assert [type(error) for error in ended] == [Fenced]
    assert "not in its consumer group" in ended[0].message
    stop.set()
    joined(*threads)
    _once(lake, spec)
    assert _ids(events) == list(range(sent))


def test_a_bridge_is_seen_from_outside(
    lake: ls.Lake, server: Server, kafka: KafkaProcess, topics: Topics, topic: str, events: ls.Table
) -> None:
    topics.make(topic)
    topics.send(topic, [*_values(1, 2), (None, b"{")])
    spec = _spec(kafka, topic)
    bridge = Bridge(spec, lake)
    bridge.run(once=True)
    (report,) = json.loads(lake.transport.status(pb.StatusRequest()).status)["reports"]
    assert (report["records"], report["rejected"], report["lag"]) == (3, 1, 0)
    assert report["name"].startswith(f"bridge/{spec.name}/")
    assert report["detail"]["rejected"] == {"shop.events bad-json": 1}
    name = report["name"]
    assert f'lakestore_report_records{{process="{name}"}} 3.0' in metrics.text(server.sources).decode()


def test_reports_are_bounded_and_forgotten_after_a_minute(served: Served) -> None:
    def report(name: str, detail: str = "{}") -> None:
        served.lake.transport.report(pb.ReportRequest(producer=name, detail=detail))

    for wrong in (("", "{}"), ("x" * 1_025, "{}"), ("a", "{"), ("a", "1" * 20_000)):
        with pytest.raises(Invalid, match="a report"):
            report(*wrong)
    for number in range(1_000):
        report(f"p{number}")
    report("p1")
    with pytest.raises(Exhausted, match="1000 processes report already"):
        report("another")
    served.clock.advance(61)
    report("another")
    said = json.loads(served.lake.transport.status(pb.StatusRequest()).status)["reports"]
    assert [each["name"] for each in said] == ["another"]


def test_a_bridge_that_ended_before_a_null_value_knows_the_delete_before_it(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, topic: str
) -> None:
    """Found by the kill suite of the real Debezium: its table has the names that only events tell."""
    topics.make(topic, 1)
    spec = _spec(kafka, topic, format="debezium-json", table=TableSpec("{schema}.{table}"))
    key, row = text({"id": 1}), {"id": 1, "note": "a"}
    topics.send(topic, [(key, text(event("c", None, row))), (key, text(event("d", row)))])
    assert _once(lake, spec)["rows"] == {"public.orders": 2}
    topics.send(topic, [(key, None)])
    shown = _once(lake, spec)
    assert (shown["records"], shown["passed"], shown["rejected"]) == (1, {"tombstone": 1}, {})
    topics.send(topic, [(key, text(event("c", None, row)))])
    assert _once(lake, spec)["records"] == 1
    assert _ids(lake.table("public.orders")) == [1]

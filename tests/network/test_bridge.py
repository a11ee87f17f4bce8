"""The Kafka bridge against a real broker: what is in a topic is in the lake once, whatever is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.connectors.bridge.bridge import Bridge
from lakestore.connectors.bridge.positions import Accepted
from lakestore.connectors.bridge.spec import BridgeSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.errors import Conflict, NotFound
from tests.support.kafka import KafkaProcess, Topics

EVENTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
GROUP = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    with KafkaProcess(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def topics(kafka: KafkaProcess) -> Topics:
    return Topics(kafka.address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[:60].translate({91: 45, 93: None})}.{random.randrange(10**9)}"


@pytest.fixture
def events(lake: ls.Lake) -> ls.Table:
    return lake.create_table("shop.events", EVENTS)


def _spec(kafka: KafkaProcess, topic: str, **said: Any) -> BridgeSpec:
    table = said.pop("table", TableSpec("shop.events"))
    source = SourceSpec("", kafka.address, f"g-{random.randrange(10**9)}", options=GROUP)
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
    with pytest.raises(Conflict, match=f"deleted and made anew .* by --accept-new-topic {topic}"):
        _once(lake, spec)
    assert _once(lake, spec, accepted=Accepted(new_topics=[topic]))["records"] == 4
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
    with pytest.raises(Conflict, match=f"begins at offset 5 .* stands at 3: up to 2 records .* --accept-loss {topic}"):
        _once(lake, spec)
    assert _once(lake, spec, accepted=Accepted(losses=[topic]))["records"] == 2
    assert _ids(events) == [1, 2, 3, 6, 7]


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

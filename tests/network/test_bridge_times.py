"""Times of rows and feeds of completeness by the Kafka door: a real broker, and bridges that are killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from jepsen.topics import QUIET
from lakestore.evolution import SetContract, SetOptions
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.model.times import micros_of, moment_of
from tests.support.bridge_process import BridgeProcess
from tests.support.seeds import serial
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.string())])
GROUP = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "200"}
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
schema:
  - name: orders
    properties: [{name: id}, {name: at}]
    customProperties:
      - {property: lakestore.eventTime, value: {from: CHOSEN, column: at, unit: iso, keep: true}}
      - {property: lakestore.lateData, value: {policy: POLICY, closedAfter: 4h}}
"""
Event = tuple[int, str, int, datetime]
"""Number, event time, partition, time of the broker."""


def create(lake: ls.Lake, chosen: str, policy: str = "rewrite") -> ls.Table:
    text = DOCUMENT.replace("CHOSEN", chosen).replace("POLICY", policy)
    if chosen == "ingest":
        text = "\n".join(line for line in text.splitlines() if "lateData" not in line)
    name = f"times.{serial('t').replace('.', '_')}"
    table = lake.create_table(name, SCHEMA)
    table.alter(SetOptions(lake={"partition_by": [f"hour(_{chosen}_time)"]}), SetContract(text, "orders"))
    return lake.table(name)


def produce(kafka: KafkaProcess, topic: str, events: Iterable[Event]) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, **QUIET})
    for number, at, partition, broker in events:
        value = json.dumps({"id": number, "at": at}).encode()
        producer.produce(topic, value, partition=partition, timestamp=int(broker.timestamp() * 1_000))
    assert producer.flush(30) == 0


def bridge(kafka: KafkaProcess, topic: str, table: str, rows: int = 10_000) -> BridgeSpec:
    source = SourceSpec("", kafka.address, serial("group"), options=GROUP)
    return BridgeSpec(topic, {"": source}, (TopicSpec("", topic, target=TableSpec(table)),), BatchBounds(rows=rows))


@pytest.fixture(scope="module")
def topics(kafka: KafkaProcess) -> Topics:
    return Topics(kafka.address)


@pytest.mark.parametrize("chosen", ["event", "broker", "ingest"])
def test_all_three_times_come_with_a_record(lake: ls.Lake, kafka: KafkaProcess, topics: Topics, chosen: str) -> None:
    topic, table = topics.make(serial("times"), 1), create(lake, chosen)
    ingest = datetime.now(UTC).replace(microsecond=0)
    events = [(1, (ingest - 3 * DAY).isoformat(), 0, ingest - DAY), (2, "gestern", 0, ingest - DAY)]
    produce(kafka, topic, events)
    spec = bridge(kafka, topic, table.name)
    Bridge(spec, lake).run(once=True)
    rows = {row["id"]: row for row in lake.table(table.name).scan().to_arrow().to_pylist()}
    assert (rows[1]["_event_time"], rows[1]["_broker_time"]) == (ingest - 3 * DAY, ingest - DAY)
    assert ingest <= rows[1]["_ingest_time"] <= datetime.now(UTC)
    letters = lake.sql(f"SELECT * FROM {table.name}__dlq").to_arrow().to_pylist()
    if chosen == "event":
        assert (list(rows), [(each["code"], each["kafka_offset"]) for each in letters]) == ([1], [("event_time", 1)])
    else:  # a text that is no time does no harm while another time is chosen
        assert (sorted(rows), rows[2]["_event_time"], letters) == ([1, 2], None, [])


def test_late_records_are_dropped_or_letters_and_the_bridge_goes_on(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics
) -> None:
    for policy in ("drop", "dead_letter"):
        topic, table = topics.make(serial("late"), 1), create(lake, "event", policy)
        moment = datetime.now(UTC)
        times = [moment, *[moment - 2 * DAY] * 50, moment]
        produce(kafka, topic, [(number, at.isoformat(), 0, moment) for number, at in enumerate(times)])
        Bridge(bridge(kafka, topic, table.name), lake).run(once=True)
        rows = lake.table(table.name).scan(["id"]).to_arrow()["id"].to_pylist()
        assert sorted(rows) == [0, 51]
        letters = lake.table(f"{table.name}__dlq").scan(["code", "kafka_offset"]).to_arrow().to_pylist()
        wanted = [] if policy == "drop" else [("late", number) for number in range(1, 51)]
        assert sorted((each["code"], each["kafka_offset"]) for each in letters) == wanted


def test_no_feed_passes_an_event_that_is_missing_whatever_is_killed(
    lake: ls.Lake, kafka: KafkaProcess, topics: Topics, server: Any, tmp_path: Path
) -> None:
    rng, partitions = random.Random(35), 3
    topic, table = topics.make(serial("feeds"), partitions), create(lake, "event")
    first = datetime.now(UTC) - 4 * DAY
    events: list[list[Event]] = []
    for step in range(8):  # two hours forward at a time, each event up to 3.9 hours out of order
        at = [first + step * 2 * HOUR - rng.random() * 3.9 * HOUR for _ in range(200)]
        events.append([(step * 200 + n, t.isoformat(), n % partitions, t) for n, t in enumerate(at)])
    expected = sorted(micros_of(at) or 0 for part in events for _, at, _, _ in part)
    running = BridgeProcess(tmp_path, bridge(kafka, topic, table.name, rows=50), server.about["grpc"])
    try:
        for step, part in enumerate(events):
            produce(kafka, topic, part)
            for _ in range(2):
                check(lake, table.name, expected)
                time.sleep(0.1)
            if step % 4 == 2:
                running.kill()
                running.start()
        until(lambda: lake.table(table.name).scan().count() == len(expected), "all events", 240)
        final = check(lake, table.name, expected)
        assert final is not None
        assert final > int((first + 6 * HOUR).timestamp() * 1_000_000)
    finally:
        running.stop()


def check(lake: ls.Lake, table: str, expected: list[int]) -> int | None:
    """The time through which a cut is complete. It has every event until then, also those that were sent later."""
    feeds = [feed.value for feed in lake.list_registers(f"complete/{table}/")]
    through = min((micros_of(value) or 0 for value in feeds), default=None) if all(feeds) else None
    if through is not None:
        rows = lake.table(table).scan(["_event_time"], require_complete_through=moment_of(through))
        found = sorted(rows.to_arrow()["_event_time"].cast("int64").to_pylist())
        assert [at for at in found if at <= through] == [at for at in expected if at <= through]
    return through

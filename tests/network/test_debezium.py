"""A real Debezium: each table of PostgreSQL, with every type and every kind of change, is equal to the lake's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from jepsen.topics import QUIET
from lakestore.kafka.bridge.bridge import Bridge
from tests.support.debezium_shop import COLUMN_STEPS, DDL
from tests.support.debezium_source import DebeziumSource

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
TABLES = (
    "app.kitchen",
    "app.comp",
    "app.toast",
    'app."MiXed Case"',
    "app.cleared",
    "app.keyless",
    "app.told",
    "app.fence",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaProcess) -> Iterator[DebeziumSource]:
    with DebeziumSource(tmp_path_factory.mktemp("debezium"), seed=11, kafka=kafka) as running:
        yield running


def _run(source: DebeziumSource, lake: ls.Lake, name: str) -> Bridge:
    """Run a bridge to the ends of all changes so far."""
    source.settle()
    bridge = Bridge(source.spec(name), lake)
    bridge.run(once=True)
    return bridge


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path / "lake") as opened:
        yield opened


def test_tables_are_equal_after_snapshot_and_changes(source: DebeziumSource, lake: ls.Lake) -> None:
    _run(source, lake, "equal")
    assert source.differences(lake, *TABLES) == []
    for _ in range(2):  # updates that leave values alone follow in the second round
        source.shop.change(80)
        _run(source, lake, "equal")
        assert source.differences(lake, *TABLES) == []
    assert source.dead_letters(lake) == []


def test_a_settled_source_has_sent_a_burst_of_large_events(source: DebeziumSource) -> None:
    source.settle()
    before = _ends(source)
    updates = 400
    source.shop.postgres.run("update app.kitchen set n_10_2 = 1 where id in (1, 2, 4, 5);\n" * updates)
    source.settle()
    assert [after - end for after, end in zip(_ends(source), before, strict=True)] == [4 * updates] * 2


def _ends(source: DebeziumSource) -> list[int]:
    """The number of events of the table with large rows, by connector."""
    consumer = Consumer({"bootstrap.servers": source.kafka.address, "group.id": "ends", **QUIET})
    try:
        places = [TopicPartition(f"{connector}.app.kitchen", 0) for connector in source.connectors]
        return [consumer.get_watermark_offsets(place, timeout=10.0)[1] for place in places]
    finally:
        consumer.close()


@pytest.mark.parametrize("at_once", [3, pytest.param(1, marks=pytest.mark.long)])
def test_tables_named_by_their_origin_follow_the_schema(source: DebeziumSource, lake: ls.Lake, at_once: int) -> None:
    _run(source, lake, "evolve")
    steps = range(len(DDL) + COLUMN_STEPS)
    for first in steps[::at_once]:
        for number in steps[first : first + at_once]:
            source.shop.alter(number)
        bridge = _run(source, lake, "evolve")
        assert source.differences(lake, "app.evolve") == []
        assert not bridge.counts.unread
    assert source.dead_letters(lake) == []


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_source_transactions_are_whole(
    source: DebeziumSource, lake: ls.Lake, caplog: pytest.LogCaptureFixture, rounds: int
) -> None:
    for _ in range(rounds):
        source.shop.change(40)
        source.settle()
        Bridge(source.spec("whole", transactions=True), lake).run(once=True)
        assert source.differences(lake, *TABLES) == []
    assert [record.getMessage() for record in caplog.records if "transaction" in record.getMessage()] == []
    assert source.dead_letters(lake) == []

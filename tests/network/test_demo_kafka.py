"""The demo's Kafka part by itself: its file for the bridge, its records, and its proof that both agree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.bridge import Bridge, serve_metrics
from lakestore_demo.kafka import ADDRESS_VARIABLE, BRIDGE_FILE, LETTERS, PAYMENTS, STEP_CHANGED, STEP_NEW, Kafka


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    running = Kafka(tmp_path / "kafka", free_port())
    yield running
    running.stop()


def test_the_bridge_of_the_shop_writes_what_was_sent_and_the_demo_sees_where_it_does_not(
    lake: ls.Lake, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, kafka.address)
    bridge = Bridge(spec_file.read(BRIDGE_FILE), lake)
    for _ in range(2):
        stop = threading.Event()
        threading.Timer(0.7, stop.set).start()
        kafka.stream(stop)
        assert kafka.seen() is None
    assert kafka.sent >= 4 * (STEP_NEW + 1) + 3 * STEP_CHANGED
    with serve_metrics(bridge.run(once=True), kafka.metrics_port):
        assert kafka.caught_up()
        seen = kafka.seen()
        assert seen is not None
        assert (seen.records, seen.rejected) == (kafka.sent, lake.table(LETTERS).scan().to_arrow().num_rows)
        assert 0 < seen.age_seconds
        assert f"{kafka.sent:,} records by the bridge" in kafka.line()
    assert kafka.table_is_right(lake)
    assert kafka.letters_are_right(lake)
    payments, letters = lake.table(PAYMENTS), lake.table(LETTERS)
    payments.delete([{"payment_id": 3}])
    letter = letters.scan().to_arrow().select(["kafka_source", "kafka_offset"]).slice(0, 1)
    letters.delete(letter)
    assert not kafka.table_is_right(lake)
    assert not kafka.letters_are_right(lake)

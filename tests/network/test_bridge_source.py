"""A bridge's member of a consumer group, at a broker that answers late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jepsen.system.kafka import Topics
from jepsen.system.proxy import Fault
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.source import Source
from lakestore.kafka.bridge.spec import SourceSpec
from tests.support.proxied_kafka import ProxiedKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
COUNT, FIRST = 60, 7
SMALL_ANSWERS = {"fetch.message.max.bytes": "1500", "session.timeout.ms": "10000"}
"""So that the records take several requests."""


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:
    with ProxiedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def test_no_late_answer_of_the_broker_moves_a_partition_that_is_read(kafka: ProxiedKafka) -> None:
    """The library once asked for the end of an assigned partition, and went there in the middle of its records."""
    topics, place = Topics(kafka.address), Place("t", 0)
    topics.make("t")
    for _ in range(COUNT):
        topics.send("t", [(None, b"x" * 200)])
    late = Fault(delay_seconds=0.1)
    kafka.proxy.breaks(late, late)
    source = Source(SourceSpec("", kafka.proxy.address, "g", options=SMALL_ANSWERS), lambda _: None, lambda _: None)
    found: list[int] = []

    def read(end: int) -> bool:
        found.extend(message.offset() or 0 for message in source.poll(1_000, 0.05).messages)
        return found[-1:] == [end - 1]

    def is_assigned() -> bool:
        source.poll(1, 0.01)
        return bool(source.waiting)

    try:
        source.subscribe(["t"])
        until(is_assigned, "the assignment")
        source.begin({place: FIRST})
        until(lambda: read(COUNT), "the last record")
        assert found == [*range(FIRST, COUNT)]
        found.clear()
        source.rest([place])
        assert not source.poll(1_000, 0.5).messages, "it rests"
        topics.send("t", [(None, b"x")])
        source.begin({place: FIRST})
        until(lambda: read(COUNT + 1), "the last record")
        assert found == [*range(FIRST, COUNT + 1)]
    finally:
        kafka.proxy.mend()
        source.close()

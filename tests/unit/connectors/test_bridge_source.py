"""The source of a bridge: questions without an answer, partitions that a group gives and takes, damaged records."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, TopicPartition

from lakestore.errors import Unavailable
from lakestore.kafka.bridge import source as module
from lakestore.kafka.bridge.consumer import BridgeConsumer
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.source import Source
from lakestore.kafka.bridge.spec import BatchBounds, SourceSpec


class Silent:
    """An admin client whose broker dies with every question."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {each: Future() for each in asked}

    def describe_topics(self, asked: Any, **_: Any) -> dict[str, Future[Any]]:
        return {"t": Future()}

    def poll(self, seconds: float) -> None:
        """Nothing is heard."""


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AdminClient", Silent)


def test_a_broker_that_dies_with_a_question_is_away_and_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 0.01)
    source = Source(SourceSpec("", "127.0.0.1:1", "g"), lambda _: None, lambda _: None)
    try:
        for ask in (lambda: source.ends([Place("t", 0)]), lambda: source.topic_ids(["t"])):
            with pytest.raises(Unavailable, match="does not answer"):
                ask()
    finally:
        source.close()


class Group:
    """A consumer whose assignment the test decides."""

    def __init__(self) -> None:
        self.unassigned: list[set[Place]] = []
        """The partitions of each call."""

    def subscribe(self, topics: Any, **_: Any) -> None:
        """The test gives the answer itself."""

    def incremental_assign(self, partitions: Any) -> None:
        """Nothing is read."""

    pause = resume = incremental_assign

    def incremental_unassign(self, partitions: Any) -> None:
        self.unassigned.append({Place(each.topic, each.partition) for each in partitions})


@pytest.mark.parametrize("way", ["lost", "revoke"])
def test_a_member_whose_partitions_are_gone_is_not_done(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A run to the ends took a member without partitions for one that has read all, and left records unread."""
    monkeypatch.setattr(module, "Consumer", lambda _: Group())
    committer: Any = SimpleNamespace(held={}, release=lambda _: None)
    consumer = BridgeConsumer(
        source=lambda made: Source(SourceSpec("", "127.0.0.1:1", "g"), made.revoked, made.lost),
        committer=lambda _: committer,
        topics=lambda _: ["t"],
        pipeline=Mock(),
        bounds=BatchBounds(),
        counts=Mock(),
        stop=threading.Event(),
    )
    group: Any = Group()
    partitions, place = [TopicPartition("t", 0)], Place("t", 0)

    def read(offset: int) -> None:
        consumer.source._on_assign(group, partitions)
        consumer.source.begin({place: offset})
        consumer._gathering.next[place] = committer.held[place] = offset
        consumer._until.setdefault(place, 10)

    consumer._look()
    assert not consumer._is_done(), "the group has not answered"
    read(5)
    assert not consumer._is_done()
    getattr(consumer.source, f"_on_{way}")(group, partitions)
    assert not consumer._is_done(), "five records are unread"
    read(10)
    assert consumer._is_done()
    consumer._stages.end(10)


@pytest.mark.parametrize("way", ["lost", "revoke"])
def test_partitions_are_given_up_by_one_call(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Also if the bridge lets all others rest meanwhile, and if it fails. The library takes one answer to the group."""
    monkeypatch.setattr(module, "Consumer", lambda _: Group())
    places = [Place("t", number) for number in range(4)]
    first, second, third, waiting = places

    def give_up(given: Sequence[Place]) -> None:
        assert list(given) == [first, waiting]
        source.rest(source.assigned)
        raise Unavailable("the server is away")

    source = Source(SourceSpec("", "127.0.0.1:1", "g"), give_up, give_up)
    group: Any = source._consumer
    source._on_assign(group, [TopicPartition(*each) for each in places])
    source.begin(dict.fromkeys((first, second, third), 5))
    source.rest([third])
    with pytest.raises(Unavailable):
        getattr(source, f"_on_{way}")(group, [TopicPartition(*first), TopicPartition(*waiting)])
    assert group.unassigned == [{third}, {first, second}]
    assert source.assigned == source.waiting == {second, third}
    source.begin({second: 5})
    source.rest([second])
    assert group.unassigned[2:] == [{second}]


def test_a_record_that_is_damaged_ends_the_read() -> None:
    """A bridge that went on would commit a position behind the damaged record, which then is never read."""
    source = Source(SourceSpec("", "127.0.0.1:1", "g"), lambda _: None, lambda _: None)
    damaged: Any = Mock(error=lambda: KafkaError(KafkaError._BAD_MSG), topic=lambda: "t", partition=lambda: 0)
    try:
        with pytest.raises(Unavailable, match="did not read: "):
            source._note(module.PollResult(), damaged)
    finally:
        source.close()

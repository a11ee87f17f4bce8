"""A cluster as the bridge asks it: questions that nobody answers any more."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import TopicPartition

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


def test_a_broker_that_dies_with_a_question_is_away_and_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AdminClient", Silent)
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

    def subscribe(self, topics: Any, **_: Any) -> None:
        """The test gives the answer itself."""

    def incremental_assign(self, partitions: Any) -> None:
        """Nothing is read."""

    incremental_unassign = pause = resume = incremental_assign


def test_a_member_that_the_group_lost_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run to the ends took a member without partitions for one that has read all, and left records unread."""
    monkeypatch.setattr(module, "AdminClient", Silent)
    monkeypatch.setattr(module, "Consumer", lambda _: Group())
    committer: Any = SimpleNamespace(held={})
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
    consumer.source._on_lost(group, partitions)
    assert not consumer._is_done(), "five records are unread"
    read(10)
    assert consumer._is_done()
    consumer._stages.end(10)

"""A cluster as the bridge asks it: questions that nobody answers any more."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from lakestore.errors import Unavailable
from lakestore.kafka.bridge import source as module
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.source import Source
from lakestore.kafka.bridge.spec import SourceSpec


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

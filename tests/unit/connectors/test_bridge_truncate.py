"""TRUNCATEs of a source: followed by tables with a key, whatever lies around them and however often they come."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.commit import Committer, empty
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.positions import AcceptedLoss, Ends, Place
from lakestore.kafka.bridge.source import Source, Starts
from tests.support.debezium_events import Pair, block, event

TOPIC = "topic: shop.public.orders, format: debezium-json, table: '{schema}.{table}'"
PLACE = Place("shop.public.orders", 0)
TRUNCATE: Pair = (None, event("t"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


class Brokers:
    """The answers of a cluster that has the topic."""

    def cluster(self) -> str:
        return "c"

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "AAAA")

    def ends(self, places: Sequence[Place]) -> dict[Place, Ends]:
        return {place: Ends(0, 10**6, 10**6) for place in places}


class Stage:
    """The stages of a bridge that map and commit. A new one fences the one before, as a restart does."""

    def __init__(self, lake: ls.Lake, more: str = ", truncate: follow") -> None:
        text = f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{{TOPIC}{more}}}]"
        spec = spec_file.parse(text, "bridge.yaml")
        source = cast("Source", Brokers())
        starts = Starts(source, lambda _: spec.topics[0], lambda _: False)
        self.committer = Committer(
            lake=lake,
            bridge="b",
            source_name="",
            source=source,
            starts=starts,
            accepted=AcceptedLoss(),
            table_spec=lambda *_: spec.topics[0].tables[0],
            counts=Counts(),
            is_stopped=lambda: False,
        )
        self.pipeline = Assembly(spec, lake).pipeline(spec.topics[0], PLACE.topic)
        self.next = self.committer.open([PLACE], anew=True).offsets[PLACE]

    def take(self, pairs: Sequence[Pair]) -> None:
        """Records of the next offsets, as one batch."""
        records = block(pairs)
        records = replace(records, offset=np.arange(self.next, self.next + len(pairs), dtype=np.int64))
        self.next += len(pairs)
        batch = Batch(1, [records], {PLACE: self.next}, time.monotonic(), 0)
        batch.mapped = [self.pipeline.process(records)]
        self.committer.commit(batch)


def put(key: int, value: str = "x") -> Pair:
    return {"id": key}, event("u", None, {"id": key, "v": value})


def rows_of(lake: ls.Lake) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.table("public.orders").scan(["id", "v"]).to_arrow().to_pylist()}


def test_the_rows_before_a_truncate_are_gone_and_those_behind_it_stay(lake: ls.Lake) -> None:
    stage = Stage(lake)
    stage.take([put(1), put(2), put(3)])
    stage.take([put(2, "y"), put(4), TRUNCATE, put(3, "z"), put(5)])
    assert rows_of(lake) == {3: "z", 5: "x"}
    stage.take([TRUNCATE])
    assert rows_of(lake) == {}
    stage.take([put(1, "again")])
    assert rows_of(lake) == {1: "again"}


@pytest.mark.parametrize("seed", range(3))
def test_truncates_anywhere_leave_what_the_source_has(lake: ls.Lake, seed: int) -> None:
    rng = random.Random(seed)
    source: dict[int, str] = {}
    stage = Stage(lake)
    stage.take([put(0)])
    source[0] = "x"
    for turn in range(6):
        pairs: list[Pair] = []
        for step in range(rng.randrange(1, 12)):
            key, value, kind = rng.randrange(5), f"{turn}.{step}", rng.random()
            if kind < 0.15:
                source.clear()
                pairs.append(TRUNCATE)
            elif kind < 0.35:
                source.pop(key, None)
                pairs.append(({"id": key}, event("d", {"id": key, "v": None})))
            else:
                source[key] = value
                pairs.append(put(key, value))
        stage.take(pairs)
        assert rows_of(lake) == source
        if rng.random() < 0.4:
            stage = Stage(lake)


def test_a_truncate_that_is_repeated_keeps_rows_that_came_behind_it(lake: ls.Lake) -> None:
    stage = Stage(lake)
    stage.take([put(1), TRUNCATE, put(2)])
    records = block([put(1), TRUNCATE])
    for _ in range(2):
        empty(lake, "public.orders", records, 1)
    assert rows_of(lake) == {2: "x"}


def test_a_truncate_is_a_dead_letter_or_counted_otherwise(lake: ls.Lake) -> None:
    Stage(lake, "").take([put(1), TRUNCATE])
    letters: list[dict[str, Any]] = lake.table("public.orders__dlq").scan(["code"]).to_arrow().to_pylist()
    assert letters == [{"code": "truncate"}]
    Stage(lake, ", truncate: ignore").take([TRUNCATE])
    assert rows_of(lake) == {1: "x"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (", truncate: follow, version: at", "leave out version and merge"),
        (", truncate: follow, merge: first_row", "leave out version and merge"),
        (", truncate: follow, transactions: shop.transaction", "has whole transactions: say one of them"),
    ],
)
def test_a_table_without_source_positions_follows_no_truncate(lake: ls.Lake, more: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        Stage(lake, more)

"""Whole source transactions on their way into a lake: every commit keeps the sum of what transactions only move."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import NotFound
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge import whole_transactions as whole_module
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.commit import Committer, Halt, spec_of
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.decode import decoders
from lakestore.kafka.bridge.positions import AcceptedLoss, Ends, Place
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.source import Source, Starts
from lakestore.kafka.bridge.whole_transactions import Whole
from tests.support.debezium_events import event

MARKS, A, B0, B1 = Place("s.transaction", 0), Place("s.x.a", 0), Place("s.x.b", 0), Place("s.x.b", 1)
PLACES = (MARKS, A, B0, B1)
FILE = """
name: bank
source: {bootstrap: "localhost:9"}
topics:
  - topic: s.x.a
    format: debezium-json
    table: x.a
    transactions: s.transaction
    primary_key: [id]
    columns: [{name: id, type: int64, required: true}, {name: amount, type: int64}]
  - topic: s.x.b
    format: debezium-json
    table: x.b
    transactions: s.transaction
    primary_key: [id]
    columns: [{name: id, type: int64, required: true}, {name: amount, type: int64}]
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ls.Lake]:
    with ls.open(tmp_path_factory.mktemp("lake") / "data") as opened:
        yield opened


class Brokers:
    """The answers of a cluster that has all topics."""

    def cluster(self) -> str:
        return "c"

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "i")

    def ends(self, places: Iterable[Place]) -> dict[Place, Ends]:
        return {place: Ends(0, 10**6, 10**6) for place in places}


class Lane:
    """The stages of a lane behind the one that reads, called one after the other."""

    def __init__(self, lake: ls.Lake, name: str, text: str = FILE, rows: int = 20) -> None:
        spec = spec_file.parse(
            text.replace("x.", f"{name}.") + f"batch: {{rows: {rows}}}\n", "bridge.yaml", Path(), lambda _: None
        )
        topics = {topic.topic: topic for topic in spec.topics}
        self.topics = {place: Place(place.topic.replace("x.", f"{name}."), place.partition) for place in PLACES}
        self.counts = Counts()
        source = cast("Source", Brokers())
        starts = Starts(source, lambda topic: topics.get(topic, spec.topics[0]), lambda _: False)
        self.committer = Committer(
            lake=lake,
            bridge=name,
            source_name="",
            source=source,
            starts=starts,
            accepted=AcceptedLoss(),
            table_spec=lambda topic, table: spec_of(topics[topic], table),
            counts=self.counts,
            is_stopped=lambda: False,
        )
        assembly = Assembly(spec, lake)
        self._pipelines = {topic: assembly.pipeline(entry, topic) for topic, entry in topics.items()}
        cluster = spec.sources[""]
        self.whole = Whole(MARKS.topic, lambda topic: decoders.decoder(topics[topic], cluster), None, spec.batch)
        places = list(self.topics.values())
        self.next = self.committer.open(places, anew=True).offsets
        self.whole.opened(places)

    def read(self, place: Place, values: Sequence[Any], ends: Mapping[Place, float] | None = None) -> None:
        """Take records of one partition, and commit what is whole by them."""
        place = self.topics[place]
        first = self.next[place]
        self.next[place] += len(values)
        blocks = [_records(place, first, values)] if values else []
        batch = Batch(1, blocks, {place: self.next[place]} if values else {}, time.monotonic(), 0)
        for each in self.whole.batches(batch, [self.whole.read(block) for block in blocks], ends or {}):
            each.mapped = [self._pipelines[block.topic].process(block) for block in each.blocks]
            self.committer.commit(each)


def _records(place: Place, first: int, values: Sequence[Any]) -> Records:
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    keys = [json.dumps({"id": (value.get("after") or {}).get("id", 0)}).encode() for value in values]
    count = len(values)
    offsets = np.arange(first, first + count, dtype=np.int64)
    partition = np.full(count, place.partition, np.int64)
    times = np.zeros(count, np.int64)
    return Records(
        place.topic, "i", partition, offsets, times, pa.array(keys, pa.binary()), pa.array(texts, pa.binary())
    )


def begin(name: str) -> dict[str, Any]:
    return {"status": "BEGIN", "id": name}


def end(name: str, **counts: int) -> dict[str, Any]:
    told = [{"data_collection": f"{table.replace('__', '.')}", "event_count": many} for table, many in counts.items()]
    return {"status": "END", "id": name, "data_collections": told}


def change(name: str, key: int, amount: Any, order: int = 1) -> dict[str, Any]:
    block = {"id": name, "total_order": order, "data_collection_order": order}
    return event("u", None, {"id": key, "amount": amount}, transaction=block)


def amounts(lake: ls.Lake, name: str) -> dict[tuple[str, int], int]:
    """Both tables of one snapshot."""
    found: dict[tuple[str, int], int] = {}
    snapshot = lake.snapshot()
    for table in "ab":
        try:
            rows = snapshot.scan(f"{name}.{table}", ["id", "amount"]).to_arrow()
        except NotFound:
            continue
        keys, values = rows["id"].to_pylist(), rows["amount"].to_pylist()
        found |= {(table, key): value for key, value in zip(keys, values, strict=True)}
    return found


def history(dice: random.Random, schema: str) -> tuple[dict[Place, list[Any]], dict[tuple[str, int], int]]:
    logs: dict[Place, list[Any]] = {place: [] for place in PLACES}
    now: dict[tuple[str, int], int] = {}
    for number in range(20):
        name, counts = str(number), {"a": 0, "b": 0}
        logs[MARKS].append(begin(name))
        for _ in range(dice.randrange(1, 4)):
            amount = dice.randrange(100)
            for table, moved in (("a", amount), ("b", -amount)):
                key = dice.randrange(6)
                now[table, key] = now.get((table, key), 0) + moved
                counts[table] += 1
                place = A if table == "a" else (B0, B1)[key % 2]
                logs[place].append(change(name, key, now[table, key], counts[table]))
        logs[MARKS].append(end(name, **{f"{schema}__{table}": many for table, many in counts.items()}))
    return logs, now


@pytest.mark.parametrize("seed", range(3))
def test_every_commit_has_whole_transactions_at_any_pace_and_behind_any_crash(lake: ls.Lake, seed: int) -> None:
    dice, schema = random.Random(seed), f"bank{seed}"
    logs, total = history(dice, schema)
    lane, seen, commits = Lane(lake, schema, rows=dice.choice([1, 20])), 0, 0
    for _ in range(2_000):
        if dice.random() < 0.03:
            lane = Lane(lake, schema)
        place = dice.choice(PLACES)
        first = lane.next[lane.topics[place]]
        lane.read(place, logs[place][first : first + dice.randrange(1, 9)])
        if lane.counts.commits != commits:
            commits = lane.counts.commits
            seen += 1
            assert sum(amounts(lake, schema).values()) == 0
        if all(lane.committer.held[lane.topics[place]] == len(log) for place, log in logs.items()):
            break
    assert amounts(lake, schema) == total
    assert seen > 1


def test_dead_letters_are_in_the_commit_of_their_transaction(lake: ls.Lake) -> None:
    lane = Lane(lake, "dead")
    lane.read(A, [change("1", 1, 5), change("1", 2, "what", 2)])
    lane.read(MARKS, [begin("1"), end("1", dead__a=2, dead__b=1)])
    assert list(lane.whole.waiting) == ["1"]
    assert lane.committer.held[lane.topics[A]] == lane.committer.held[lane.topics[MARKS]] == 0
    lane.read(B0, [change("1", 2, -5)])
    assert amounts(lake, "dead") == {("a", 1): 5, ("b", 2): -5}
    assert lake.table("dead.a__dlq").scan().count() == 1
    assert not lane.whole.waiting
    assert lane.committer.held[lane.topics[MARKS]] == 2


def test_a_record_that_stops_the_bridge_leaves_its_whole_transaction_out(lake: ls.Lake) -> None:
    lane = Lane(lake, "stops", FILE.replace("table: x.b", "table: x.b\n    on_error: fail"))
    lane.read(MARKS, [begin("1"), end("1", stops__a=1, stops__b=1), begin("2"), end("2", stops__a=1, stops__b=1)])
    lane.read(B0, [change("1", 2, -5), change("2", 4, "what")])
    with pytest.raises(Halt, match="offset 1"):
        lane.read(A, [change("1", 1, 5), change("2", 3, 6)])
    assert amounts(lake, "stops") == {("a", 1): 5, ("b", 2): -5}
    assert lane.committer.held[lane.topics[A]] == 1


def test_commits_without_room_are_cut_between_transactions_first(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lane = Lane(lake, "room")
    monkeypatch.setattr(Committer, "_most_bytes", lambda _: 120)
    lane.read(MARKS, [begin("1"), end("1", room__a=1, room__b=1), begin("2"), end("2", room__a=1, room__b=1)])
    lane.read(B0, [change("1", 2, -5), change("2", 4, -6)])
    lane.read(A, [change("1", 1, 5), change("2", 3, 6)])
    assert lane.counts.commits == 2
    assert not caplog.records
    monkeypatch.setattr(Committer, "_most_bytes", lambda _: 60)
    lane.read(MARKS, [begin("3"), end("3", room__a=1, room__b=1)])
    lane.read(B0, [change("3", 2, -7)])
    lane.read(A, [change("3", 1, 7)])
    assert "source transactions 3 are committed in parts" in caplog.text
    assert sum(amounts(lake, "room").values()) == 0
    assert lane.committer.held[lane.topics[MARKS]] == 6


def test_events_that_kafka_has_not_are_not_waited_for_forever(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whole_module, "LACKING_SECONDS", -1.0)
    lane = Lane(lake, "gone")
    lane.read(MARKS, [begin("1"), end("1", gone__a=1, gone__b=2), end("0", gone__a=3)])
    lane.read(A, [change("1", 1, 5)])
    assert amounts(lake, "gone") == {}
    with caplog.at_level(logging.WARNING):
        lane.read(A, [], {lane.topics[B0]: 1e12, lane.topics[B1]: 0.0})
        assert amounts(lake, "gone") == {}
        lane.read(A, [], {lane.topics[B0]: 1e12, lane.topics[B1]: 1e12})
    assert amounts(lake, "gone") == {("a", 1): 5}
    assert "it waits for 2 of gone.b" in caplog.text
    assert "its BEGIN lies before" in caplog.text


def test_partitions_of_which_much_waits_are_named(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_module, "ROWS_MAX", 160)
    lane = Lane(lake, "much", rows=10)
    lane.read(MARKS, [begin("1")])
    lane.read(A, [change("1", 1, 5, order) for order in range(11)])
    assert lane.whole.ahead == {lane.topics[A]}
    lane.read(MARKS, [end("1", much__a=11)])
    assert lane.whole.ahead == frozenset()

"""Feeds of the bridge: they move with the rows, never pass a row that is still missing, and name what holds back."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client import snapshot
from lakestore.client.local import local_transport
from lakestore.errors import Fenced, NotFresh
from lakestore.evolution import SetContract, SetOptions
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.commit import Committer
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.expressions import known_tables
from lakestore.kafka.bridge.feeds import complete_through
from lakestore.kafka.bridge.positions import AcceptedLoss, Ends, Place
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.source import Source, Starts
from lakestore.model import times
from lakestore.rows.row_times import TimeRules, partition_ends
from tests.support.served import Served
from tests.unit.model.test_event_time import applied

DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
schema:
  - name: orders
    properties: [{name: id}, {name: at}]
    customProperties:
      - {property: lakestore.eventTime, value: {from: FROM, column: at, keep: true}}
      - {property: lakestore.lateData, value: {policy: rewrite, closedAfter: 1h}}
"""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", tz="UTC"))])
FILE = """
name: "b-1"
source: {bootstrap: "h:1"}
topics: [{topic: orders, table: shop.orders, format: json}]
"""
PARTITIONS = 2
HOUR = timedelta(hours=1)


class Brokers:
    """The answers of a cluster that has the topic."""

    def cluster(self) -> str:
        return "c"

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "AAAA")

    def ends(self, places: Sequence[Place]) -> dict[Place, Ends]:
        return {place: Ends(0, 10**6, 10**6) for place in places}

    def partitions(self) -> set[Place]:
        return {Place("orders", number) for number in range(PARTITIONS)} | {Place("others", 0)}


class Stage:
    """The stages of a bridge that map and commit, for some partitions."""

    def __init__(self, lake: ls.Lake, partitions: Sequence[int] = (0, 1)) -> None:
        spec = spec_file.parse(FILE, "bridge.yaml")
        topic, source = spec.topics[0], cast("Source", Brokers())
        self.committer = Committer(
            lake=lake,
            bridge=spec.name,
            source_name="",
            source=source,
            starts=Starts(source, lambda _: topic, lambda _: False),
            accepted=AcceptedLoss(),
            table_spec=lambda *_: topic.tables[0],
            counts=Counts(),
            is_stopped=lambda: False,
            tables=lambda name: known_tables(topic, name),
        )
        self.pipeline = Assembly(spec, lake).pipeline(topic, "orders")
        self.places = [Place("orders", number) for number in partitions]
        self.next = dict(self.committer.open(self.places, anew=True).offsets)

    def take(self, rows: Sequence[tuple[int, datetime]]) -> None:
        """Records of (partition, time), as one batch. Kafka's timestamps are the same times."""
        offsets = []
        for partition, _ in rows:
            offsets.append(self.next[Place("orders", partition)])
            self.next[Place("orders", partition)] += 1
        values = [
            json.dumps({"id": partition * 1_000_000 + offset, "at": moment.isoformat()}).encode()
            for (partition, moment), offset in zip(rows, offsets, strict=True)
        ]
        records = Records(
            "orders",
            "AAAA",
            np.array([partition for partition, _ in rows], np.int64),
            np.array(offsets, np.int64),
            np.array([int(moment.timestamp() * 1_000) for _, moment in rows], np.int64),
            pa.nulls(len(rows), pa.binary()),
            pa.array(values, pa.binary()),
        )
        moves = {place: self.next[place] for place in self.places}
        batch = Batch(1, [records], moves, time.monotonic(), 0)
        batch.mapped = [self.pipeline.process(records)]
        self.committer.commit(batch)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def create(lake: ls.Lake, chosen: str = "event") -> ls.Table:
    table = lake.create_table("shop.orders", SCHEMA)
    table.alter(
        SetOptions(lake={"partition_by": [f"hour(_{chosen}_time)"]}),
        SetContract(DOCUMENT.replace("FROM", chosen), "orders"),
    )
    return lake.table("shop.orders")


def feeds(lake: ls.Lake) -> dict[str, str]:
    """The feeds of the table by partition."""
    found = lake.list_registers("complete/shop.orders/")
    assert all(each.name.startswith("complete/shop.orders/bridge/b-1/-/orders/") for each in found)
    return {each.name.rsplit("/", 1)[1]: each.value for each in found}


def hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("chosen", ["event", "broker"])
def test_a_feed_moves_with_the_rows_below_every_time_that_is_not_late(lake: ls.Lake, chosen: str) -> None:
    create(lake, chosen)
    stage = Stage(lake)
    assert feeds(lake) == {"0": "", "1": ""}
    moment = hour(datetime.now(UTC)) - 5 * HOUR + timedelta(minutes=20)
    stage.take([(0, moment), (1, moment - 3 * HOUR), (0, moment - HOUR)])
    through = {"0": moment - HOUR, "1": moment - 4 * HOUR}
    ends = {name: (hour(at) - timedelta(microseconds=1)).isoformat() for name, at in through.items()}
    assert feeds(lake) == ends
    stage.take([(0, moment - 2 * HOUR), (0, moment + timedelta(minutes=30))])  # still the same hour is closed
    assert feeds(lake) == ends


def test_an_idle_partition_holds_the_table_back_and_is_named(lake: ls.Lake) -> None:
    table = create(lake)
    stage = Stage(lake)
    moment = datetime.now(UTC) - 5 * HOUR
    stage.take([(0, moment)])
    early = (moment - 10 * HOUR).isoformat()
    for read in (lambda: table.scan(require_complete_through=early).to_arrow(), lambda: count(lake, early)):
        with (
            patch.object(snapshot, "REQUIRE_WAIT_SECONDS", 0.5),
            pytest.raises(NotFresh, match=re.escape("feed 'complete/shop.orders/bridge/b-1/-/orders/1'")),
        ):
            read()
    stage.take([(1, moment)])
    assert count(lake, early) == 2


def count(lake: ls.Lake, through: str) -> int:
    rows = lake.sql("SELECT count(*) AS n FROM shop.orders", require_complete_through=through).to_arrow()
    return int(rows["n"][0].as_py())


def test_a_partition_that_nobody_reads_has_a_feed(lake: ls.Lake) -> None:
    create(lake)
    moment = datetime.now(UTC) - 5 * HOUR
    first = Stage(lake, [0])
    first.take([(0, moment)])
    assert feeds(lake)["1"] == ""
    second = Stage(lake, [1])
    second.take([(1, moment)])
    first.take([(0, moment + HOUR)])  # nobody has fenced the first one
    assert min(feeds(lake).values()) != ""


def test_a_restart_goes_on_and_a_feed_never_goes_back(lake: ls.Lake) -> None:
    create(lake)
    moment = datetime.now(UTC) - 5 * HOUR
    first = Stage(lake)
    first.take([(0, moment), (1, moment)])
    before = feeds(lake)
    again = Stage(lake)
    again.take([(0, moment - 10 * HOUR), (1, moment - 10 * HOUR)])
    assert feeds(lake) == before
    with pytest.raises(Fenced):
        first.take([(0, moment + HOUR)])
    assert feeds(lake) == before
    again.take([(0, moment + 3 * HOUR)])
    assert feeds(lake)["0"] > before["0"]


def test_a_contract_that_comes_later_opens_the_feeds_of_an_idle_bridge(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        stage = Stage(served.lake)
        stage.committer.check_history()
        other = ls.Lake(local_transport(served.server.service), "other")
        other.create_table("shop.orders", SCHEMA)
        stage.committer.check_history()
        assert feeds(other) == {}
        other.table("shop.orders").alter(
            SetOptions(lake={"partition_by": ["day(_event_time)"]}), SetContract(DOCUMENT.replace("FROM", "event"))
        )
        stage.committer.check_history()
        assert feeds(other) == {"0": "", "1": ""}


def test_a_time_of_the_future_moves_a_feed_no_further_than_the_clock(lake: ls.Lake) -> None:
    create(lake)
    stage = Stage(lake)
    stage.take([(0, datetime.now(UTC) + timedelta(days=365))])
    assert feeds(lake)["0"] < hour(datetime.now(UTC)).isoformat()


@pytest.mark.parametrize("transform", ["hour", "day", "month"])
@pytest.mark.parametrize("seed", range(5))
def test_a_row_that_a_feed_has_passed_is_late(transform: str, seed: int) -> None:
    rng = random.Random(f"{transform} {seed}")
    table = applied(
        "from: event, column: at", "policy: drop, closedAfter: 3h", partition_by=(f"{transform}(at)",), key=False
    )
    rules = TimeRules.of(table)
    assert rules is not None
    assert rules.late is not None
    for _ in range(300):
        now = times.micros_of("2026-11-28T11:30:00Z") or 0
        now += rng.randrange(-(10**14), 10**14)
        newest = now + rng.randrange(-(10**13), 10**10)
        through = complete_through(rules, newest, now)
        assert through is not None
        missing = np.array([through - rng.choice([0, rng.randrange(10**13)])], np.int64)
        assert partition_ends(missing, transform)[0] + rules.late.closed_after_us < now
        batch: Any = pa.RecordBatch.from_pydict({"at": pa.array(missing, pa.timestamp("us", tz="UTC"))})
        assert rules.fill(batch, now).late[0]

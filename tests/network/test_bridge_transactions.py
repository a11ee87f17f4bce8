"""Source transactions against a real broker: every snapshot of the lake has whole ones, whatever is killed."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.errors import Invalid, NotFound
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, ColumnSpec, SourceSpec, TableSpec, TopicSpec
from lakestore_server.main import Server
from tests.support.bridge_process import BridgeProcess
from tests.support.debezium_events import event
from tests.support.seeds import serial

COLUMNS = (ColumnSpec("id", "int64", required=True), ColumnSpec("amount", "int64"))
IDS = 20
pytestmark = pytest.mark.kafka


@dataclass
class Bank:
    """A source of transactions that move amounts between two tables, whose sum stays 0."""

    topics: Topics
    name: str
    chance: random.Random
    amounts: dict[tuple[str, int], int] = field(default_factory=dict)
    made: int = 0

    @property
    def marks(self) -> str:
        return f"{self.name}.transaction"

    def make(self, partitions: int = 1) -> None:
        self.topics.make(self.marks, partitions)
        self.topics.make(f"{self.name}.public.a")
        self.topics.make(f"{self.name}.public.b", 2)

    def send(self, count: int, *, ended: bool = True) -> None:
        """Transactions, whose records the topics get in an order of their own."""
        logs: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
        for _ in range(count):
            self.made += 1
            name, counts = str(self.made), {"a": 0, "b": 0}
            self._mark(logs, {"status": "BEGIN", "id": name, "event_count": None, "data_collections": None})
            for _ in range(self.chance.randrange(1, 4)):
                amount = self.chance.randrange(-100, 100)
                for table, change in (("a", amount), ("b", -amount)):
                    self._change(logs, name, table, change, counts)
            if ended:
                told = [{"data_collection": f"public.{table}", "event_count": many} for table, many in counts.items()]
                self._mark(logs, {"status": "END", "id": name, "event_count": 9, "data_collections": told})
        while logs:
            place = self.chance.choice(sorted(logs))
            for key, value in logs[place][: self.chance.randrange(1, 5)]:
                self.topics.put(place[0], value, key, place[1])
                del logs[place][0]
            if not logs[place]:
                del logs[place]
        self.topics.flush()

    def _mark(self, logs: dict[tuple[str, int], list[tuple[bytes, bytes]]], value: dict[str, object]) -> None:
        logs.setdefault((self.marks, 0), []).append((str(value["id"]).encode(), json.dumps(value).encode()))

    def _change(
        self,
        logs: dict[tuple[str, int], list[tuple[bytes, bytes]]],
        name: str,
        table: str,
        change: int,
        counts: dict[str, int],
    ) -> None:
        key = self.chance.randrange(IDS)
        now = self.amounts[table, key] = self.amounts.get((table, key), 0) + change
        counts[table] += 1
        block = {"id": name, "total_order": sum(counts.values()), "data_collection_order": counts[table]}
        value = event("u", None, {"id": key, "amount": now}, transaction=block)
        place = (f"{self.name}.public.{table}", key % 2 if table == "b" else 0)
        logs.setdefault(place, []).append((json.dumps({"id": key}).encode(), json.dumps(value).encode()))


@pytest.fixture
def bank(kafka: KafkaProcess) -> Bank:
    return Bank(Topics(kafka.address), serial("bank"), random.Random(5))


def _spec(kafka: KafkaProcess, bank: Bank, rows: int = 50) -> BridgeSpec:
    options = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
    source = SourceSpec("", kafka.address, bank.name, options=options)
    entry = TopicSpec(
        "",
        pattern=rf"{bank.name}\..*",
        target=TableSpec("shop.{table}_rows", ("id",), columns=COLUMNS),
        format="debezium-json",
        transactions=bank.marks,
    )
    named = [
        TopicSpec(
            "",
            f"{bank.name}.public.{table}",
            target=TableSpec(f"shop.{table}", ("id",), columns=COLUMNS),
            format="debezium-json",
            transactions=bank.marks,
        )
        for table in "ab"
    ]
    return BridgeSpec(bank.name, {"": source}, (*named, entry), BatchBounds(rows=rows, seconds=0.02))


def _amounts(snapshot: ls.Snapshot) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for table in "ab":
        rows = snapshot.scan(f"shop.{table}", ["id", "amount"]).to_arrow()
        found |= {
            (table, key): amount for key, amount in zip(rows["id"].to_pylist(), rows["amount"].to_pylist(), strict=True)
        }
    return found


def test_every_snapshot_has_whole_transactions_while_bridges_are_killed(
    lake: ls.Lake, server: Server, kafka: KafkaProcess, bank: Bank, tmp_path: Path
) -> None:
    bank.make()
    bank.send(100)
    spec, address = _spec(kafka, bank), server.about["grpc"]
    seen = set[tuple[tuple[tuple[str, int], int], ...]]()
    with (
        BridgeProcess(tmp_path / "1", spec, address) as one,
        BridgeProcess(tmp_path / "2", spec, address) as two,
    ):
        deadline, rounds = time.monotonic() + 240, 0
        while time.monotonic() < deadline:
            try:
                amounts = _amounts(lake.snapshot())
            except (NotFound, Invalid):  # its tables are not made yet
                amounts = {}
            assert sum(amounts.values()) == 0, amounts
            seen.add(tuple(sorted(amounts.items())))
            if rounds == 2 and amounts == bank.amounts:
                break
            if amounts and rounds < 2:
                bank.send(60)
                victim = (one, two)[rounds]
                victim.kill()
                victim.start()
                rounds += 1
        assert amounts == bank.amounts
    assert len(seen) > 2


def test_once_leaves_a_transaction_that_has_no_end(
    lake: ls.Lake, kafka: KafkaProcess, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    bank.make()
    bank.send(5)
    before = dict(bank.amounts)
    bank.send(1, ended=False)
    with caplog.at_level(logging.WARNING):
        Bridge(_spec(kafka, bank), lake).run(once=True)
    assert "1 transactions have not come whole and are not committed: 6" in caplog.text
    assert _amounts(lake.snapshot()) == before
    told = [{"data_collection": f"public.{table}", "event_count": 1} for table in "ab"]
    bank.topics.send(bank.marks, [(b"6", json.dumps({"status": "END", "id": "6", "data_collections": told}).encode())])
    assert Bridge(_spec(kafka, bank), lake).run(once=True).records in (2, 4, 6)
    assert _amounts(lake.snapshot()) == bank.amounts
    assert Bridge(_spec(kafka, bank), lake).run(once=True).records == 0
    for table in "ab":
        assert pc.sum(lake.table(f"shop.{table}").scan(["amount"]).to_arrow()["amount"]).as_py() is not None


def test_a_topic_of_transactions_has_one_partition(lake: ls.Lake, kafka: KafkaProcess, bank: Bank) -> None:
    bank.make(3)
    with pytest.raises(Invalid, match="several partitions"):
        Bridge(_spec(kafka, bank), lake).run(once=True, stop=threading.Event())


def test_a_topic_of_transactions_that_comes_late_is_read_without_a_restart(
    lake: ls.Lake, kafka: KafkaProcess, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    for table in "ab":
        bank.topics.make(f"{bank.name}.public.{table}", 2 if table == "b" else 1)
    with pytest.raises(NotFound, match="is not there"):
        Bridge(_spec(kafka, bank), lake).run(once=True)
    stop = threading.Event()
    with caplog.at_level(logging.WARNING):
        reading = threading.Thread(target=Bridge(_spec(kafka, bank), lake).run, kwargs={"stop": stop})
        reading.start()
        try:
            while "is not there yet" not in caplog.text:  # the test's timeout ends it
                time.sleep(0.05)
            bank.topics.make(bank.marks)
            bank.send(20)
            while _written(lake) != bank.amounts:
                time.sleep(0.1)
        finally:
            stop.set()
            reading.join()


def _written(lake: ls.Lake) -> dict[tuple[str, int], int]:
    try:
        return _amounts(lake.snapshot())
    except (NotFound, Invalid):  # its tables are not made yet
        return {}

"""The Kafka bridge while bridges, server and broker are killed: the lake is the model of the topics in the end."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from jepsen.system.server import free_port
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, ColumnSpec, SourceSpec, TableSpec, TopicSpec
from tests.support.bridge_process import BridgeProcess
from tests.support.process import ServerProcess
from tests.support.seeds import seeded, serial

PARTITIONS, KEYS, STEP = 3, 50, 150
COLUMNS = (ColumnSpec("id", "int64", required=True), ColumnSpec("seq", "int64", required=True))
LOG = TableSpec("shop.log", columns=COLUMNS, coordinates=True)
KEY = ColumnSpec("id", "int64", "key.id")
KEYED = TableSpec("shop.keyed", ("id",), columns=(KEY, ColumnSpec("seq", "int64")))
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1_800)]


@dataclass
class Model:
    """The records that were sent, and the rows that they mean."""

    topics: Topics
    name: str
    chance: random.Random
    sent: int = 0
    good: list[int] = field(default_factory=list)
    bad: int = 0
    live: dict[int, int] = field(default_factory=dict)

    def send(self) -> None:
        """Send some more: rows, deletes, and records that nobody can read."""
        for _ in range(STEP):
            self.sent += 1
            key = self.chance.randrange(KEYS)
            value = json.dumps({"id": key, "seq": self.sent}).encode()
            dies = self.chance.random() < 0.2
            if self.chance.random() < 0.05:
                value, dies, self.bad = b'{"id": ' + value, False, self.bad + 1
            else:
                self.good.append(self.sent)
                self.live[key] = self.sent
            self.topics.put(f"{self.name}.log", value, None, key % PARTITIONS)
            if dies:
                self.live.pop(key)
            self.topics.put(
                f"{self.name}.keyed", None if dies else value, json.dumps({"id": key}).encode(), key % PARTITIONS
            )
        self.topics.flush()

    def check(self, lake: ls.Lake) -> None:
        """Compare the tables with the records."""
        log = lake.table("shop.log").scan(["seq"]).to_arrow().column("seq").to_pylist()
        assert sorted(log) == self.good
        keyed = lake.table("shop.keyed").scan(["id", "seq"]).to_arrow()
        assert dict(zip(keyed["id"].to_pylist(), keyed["seq"].to_pylist(), strict=True)) == self.live
        for table in ("shop.log__dlq", "shop.keyed__dlq"):
            assert lake.table(table).scan().count() == self.bad


def _spec(kafka: KafkaProcess, name: str) -> BridgeSpec:
    options = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
    source = SourceSpec("", kafka.address, name, options=options)
    topics = (
        TopicSpec("", f"{name}.log", target=LOG),
        TopicSpec("", f"{name}.keyed", target=KEYED, key_format="json"),
    )
    return BridgeSpec(name, {"": source}, topics, BatchBounds(rows=40, seconds=0.05))


def _victims(chance: random.Random, kills: int) -> list[str]:
    """Each kind once, then a tenth brokers, the slowest to come again."""
    victims = ["broker", "server", "paused", "bridge", "server", "bridge", "paused", "server", "bridge", "bridge"]
    victims = (victims * (kills // 10 + 1))[:kills]
    chance.shuffle(victims)
    return victims


def _killed(kafka: KafkaProcess, folder: Path, kills: int, chance: random.Random) -> None:
    name = serial("kills")
    topics = Topics(kafka.address)
    for topic in ("log", "keyed"):
        topics.make(f"{name}.{topic}", PARTITIONS)
    model, spec, port = Model(topics, name, chance), _spec(kafka, name), free_port()
    server = ServerProcess(folder / "data", port=port)
    bridges = [BridgeProcess(folder / f"bridge{number}", spec, server.address) for number in range(2)]
    try:
        for victim in _victims(chance, kills):
            model.send()
            time.sleep(chance.random())
            if victim == "broker":
                kafka.kill_and_restart()
            elif victim == "server":
                server.kill()
                server = ServerProcess(folder / "data", port=port)
            elif victim == "paused":
                paused = chance.choice(bridges)
                paused.signal(signal.SIGSTOP)
                time.sleep(chance.choice((0.1, 2.0)))
                paused.signal(signal.SIGCONT)
            else:
                killed = chance.choice(bridges)
                killed.kill()
                killed.start()
        model.send()
        for bridge in bridges:
            if not bridge.alive:  # it began while no broker was there, and whoever runs it starts it again
                assert "does not answer" in bridge.last_words, bridge.last_words
                bridge.start()
        assert {bridge.stop() for bridge in bridges} <= {0, -signal.SIGTERM}  # the latter of one that only just began
        with ls.connect(server.address) as lake:
            Bridge(spec, lake).run(once=True)
            model.check(lake)
    finally:
        for bridge in bridges:
            bridge.close()
        server.kill()


def test_nothing_is_lost_or_doubled_whatever_is_killed(kafka: KafkaProcess, tmp_path: Path) -> None:
    _killed(kafka, tmp_path, 5, seeded())


@pytest.mark.long
def test_nothing_is_lost_or_doubled_by_a_hundred_kills(kafka: KafkaProcess, tmp_path: Path) -> None:
    _killed(kafka, tmp_path, 100, seeded())

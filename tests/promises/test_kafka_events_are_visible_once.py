"""`lakestore changes --to kafka` under kill -9 of sink, server and broker: nothing is lost, nothing comes twice.

`LAKESTORE_SEED` runs one seed again; it is printed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from jepsen.system.server import free_port
from jepsen.topics import read_committed
from lakestore.kafka.events import Encoder
from tests.support import seeds
from tests.support.process import ServerProcess
from tests.support.waiting import until

TOPIC, KEYS = "orders.changes", 300
ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
Place = tuple[int, int]
Happened = dict[bytes | None, list[tuple[str, Place, Any]]]
AGAIN = 'LAKESTORE_SEED={0} make test ARGS="-k whatever_is_killed"'
AROUND = 3
"""How many events before and behind the first difference are shown."""


class _Writer(threading.Thread):
    """Inserts, updates and deletes without a pause, over the server's restarts."""

    def __init__(self, address: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._address, self._chance = address, chance
        self.done = threading.Event()
        self.commits = 0

    def run(self) -> None:
        with ls.connect(self._address) as lake:
            orders = lake.table("shop.orders")
            while not self.done.is_set():
                ids = self._chance.sample(range(KEYS), 20)
                orders.upsert([{"id": key, "note": f"note {self.commits}"} for key in ids])
                orders.delete([{"id": key} for key in ids[:3]])
                self.commits += 1
                time.sleep(0.005)


def _sink(address: str, kafka: KafkaProcess, errors: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lakestore", "changes", "shop.orders", "--server", address, "--to", "kafka"]
    with errors.open("a") as file:
        return subprocess.Popen([*command, "--bootstrap", kafka.address, "--topic", TOPIC, *more], stderr=file)


def _by_key(pairs: list[tuple[bytes | None, bytes | None]]) -> Happened:
    """Per key what happened, each named by its bucket and offset."""
    found = defaultdict(list)
    for key, value in pairs:
        if value is not None:
            event = json.loads(value)
            place = event["source"]["bucket"], event["source"]["offset"]
            found[key].append((event["op"], place, event["after"]))
    return dict(found)


def _difference(written: Happened, logged: Happened) -> str:
    """The first difference of a topic and the changelog; empty if there is none."""
    differing = [key for key in {**logged, **written} if written.get(key) != logged.get(key)]
    if not differing:
        return ""
    key = differing[0]
    topic, log = written.get(key, []), logged.get(key, [])
    same = (one == other for one, other in zip(topic, log, strict=False))
    at = next((number for number, is_same in enumerate(same) if not is_same), min(len(topic), len(log)))
    places = [[place for events in found.values() for _, place, _ in events] for found in (written, logged)]
    lost, strange = set(places[1]) - set(places[0]), set(places[0]) - set(places[1])
    shown = slice(max(at - AROUND, 0), at + AROUND + 1)
    return (
        f"{len(differing)} keys differ: {len(lost)} events lost, {len(places[0]) - len(set(places[0]))} twice,"
        f" {len(strange)} unknown. Key {key!r} from event {at} on, with those before it:\n"
        f"topic ({len(topic)}): {topic[shown]}\nchangelog ({len(log)}): {log[shown]}"
    )


def _changelog(lake: ls.Lake) -> list[tuple[bytes | None, bytes | None]]:
    encoder = Encoder(lake, "debezium")
    pairs: list[tuple[bytes | None, bytes | None]] = []
    for batch in lake.changes(["shop.orders"], until="now", before_images=True):
        for events in encoder.events(batch):
            assert events.keys is not None
            pairs += zip(events.keys.to_pylist(), events.values.to_pylist(), strict=True)
    return pairs


def _opened(address: str) -> list[datetime]:
    """The times at which sinks were last seen."""
    with ls.connect(address) as lake:
        return [subscription.acked for subscription in lake.subscriptions()]


def _reading(address: str, kafka: KafkaProcess, errors: Path) -> subprocess.Popen[bytes]:
    """A sink that has begun to read."""
    opened = _opened(address)
    sink = _sink(address, kafka, errors, "-f")
    until(lambda: _opened(address) > opened, "the sink to read")
    return sink


def _killed(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(30)


@pytest.mark.slow
@pytest.mark.kafka
def test_a_topic_holds_the_changelog_whatever_is_killed(tmp_path: Path, kafka: KafkaProcess) -> None:
    seed = seeds.seed()
    port, chance, errors = free_port(), random.Random(seed), tmp_path / "sink.log"
    server = ServerProcess(tmp_path / "data", port=port)
    with ls.connect(server.address) as lake:
        lake.create_table("shop.orders", ORDERS, primary_key=["id"])
    writer = _Writer(server.address, random.Random(seed))
    writer.start()
    for victim in ("server", "broker"):
        sink = _reading(server.address, kafka, errors)
        time.sleep(chance.random())
        if victim == "server":
            server.kill()
            server = ServerProcess(tmp_path / "data", port=port)
        else:
            kafka.kill_and_restart()
        time.sleep(chance.random())
        _killed(sink)
    writer.done.set()
    writer.join(60)
    assert not writer.is_alive(), "the writer still writes"
    sink = _reading(server.address, kafka, errors)
    time.sleep(chance.random())
    sink.send_signal(signal.SIGTERM)
    assert sink.wait(60) == 0, errors.read_text()
    assert _sink(server.address, kafka, errors, "--until", "now").wait(60) == 0, errors.read_text()
    written = [(message.key(), message.value()) for message in read_committed(kafka.address, TOPIC)]
    with ls.connect(server.address) as lake:
        difference = _difference(_by_key(written), _by_key(_changelog(lake)))
        assert not difference, f"{difference}\nsinks said:\n{errors.read_text()}\nagain: {AGAIN.format(seed)}"
        last = {key: events[-1] for key, events in _by_key(written).items()}
        live = sorted((row["id"], row["note"]) for _, _, row in last.values() if row is not None)
        rows = lake.table("shop.orders").scan().to_arrow().to_pylist()
        assert live == sorted((row["id"], row["note"]) for row in rows)
    server.stop()
    said = errors.read_text()
    assert "Traceback" not in said
    assert writer.commits > 100

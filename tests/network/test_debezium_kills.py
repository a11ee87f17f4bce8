"""A real Debezium for minutes, while bridges and the server are killed: each table is equal to PostgreSQL's in the end.

`DEBEZIUM_MINUTES` says for how long; each round ends with a comparison of every table.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.errors import Invalid, NotFound
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.spec import BridgeSpec
from tests.support.bridge_process import BridgeProcess
from tests.support.debezium_source import DebeziumSource
from tests.support.process import ServerProcess
from tests.support.seeds import seed

MINUTES = float(os.environ.get("DEBEZIUM_MINUTES", "10"))
TABLES = (
    "app.kitchen",
    "app.comp",
    "app.toast",
    'app."MiXed Case"',
    "app.debit",
    "app.credit",
    "app.evolve",
    "app.cleared",
    "app.keyless",
    "app.told",
    "app.fence",
)
WHOLE = "whole_"
"""In front of the tables of the bridge that keeps source transactions whole."""
ALTERS = 0.2
"""Share of the changes of rows behind which the schema changes too, while everything runs."""
VICTIMS = ("bridge", "bridge", "whole", "whole", "server", "paused")
pytestmark = [pytest.mark.long, pytest.mark.timeout(60 * MINUTES + 1_200)]


class Round:
    """One server and two bridges, one of which keeps source transactions whole."""

    def __init__(self, source: DebeziumSource, folder: Path, chance: random.Random) -> None:
        self.source, self.folder, self.chance = source, folder, chance
        self.specs: dict[str, BridgeSpec] = {
            "bridge": source.spec("bridge"),
            "whole": source.spec("whole", transactions=True, front=WHOLE),
        }
        self.kills = self.altered = 0

    def disturb(self, seconds: float) -> None:
        """Change rows and kill processes for a while."""
        port = free_port()
        server = ServerProcess(self.folder / "data", port=port)
        with ExitStack() as running:
            bridges = {
                name: running.enter_context(BridgeProcess(self.folder / name, spec, server.address))
                for name, spec in self.specs.items()
            }
            ends = time.monotonic() + seconds
            try:
                while time.monotonic() < ends:
                    self.source.shop.change(self.chance.randrange(5, 60))
                    time.sleep(self.chance.random())
                    if self.chance.random() < ALTERS:
                        self.source.shop.alter(self.altered)
                        self.altered += 1
                    self._check_sums(server.address)
                    server = self._kill(server, bridges, port)
            finally:
                server.kill()

    def _kill(self, server: ServerProcess, bridges: dict[str, BridgeProcess], port: int) -> ServerProcess:
        victim = self.chance.choice(VICTIMS)
        self.kills += 1
        if victim == "server":
            server.kill()
            return ServerProcess(self.folder / "data", port=port)
        if victim == "paused":
            bridge = self.chance.choice(sorted(bridges))
            bridges[bridge].signal(signal.SIGSTOP)
            time.sleep(self.chance.choice((0.1, 2.0)))
            bridges[bridge].signal(signal.SIGCONT)
        else:
            bridges[victim].kill()
            bridges[victim].start()
        return server

    def _check_sums(self, address: str) -> None:
        """Every snapshot has whole source transactions."""
        with ls.connect(address) as lake:
            snapshot = lake.snapshot()
            for front in (f"{WHOLE}app.", f"{WHOLE}plain.app_"):
                try:
                    tables = [snapshot.scan(f"{front}{name}", ["amount"]).to_arrow() for name in ("debit", "credit")]
                except (NotFound, Invalid):  # its tables are not made yet
                    continue
                assert sum(pc.sum(table["amount"]).as_py() or 0 for table in tables) == 0, front

    def check(self) -> None:
        """Let both bridges read to the ends, and compare every table."""
        self.source.settle()
        with ls.open(self.folder / "data") as lake:
            for spec in self.specs.values():
                Bridge(spec, lake).run(once=True)
            for front in ("", WHOLE):
                assert self.source.differences(lake, *TABLES, front=front) == []
            assert self.source.dead_letters(lake) == []


@contextmanager
def _source(folder: Path, number: int) -> Iterator[DebeziumSource]:
    with DebeziumSource(folder, number) as source:
        source.settle()
        yield source


def test_every_table_is_equal_whatever_is_killed(tmp_path: Path) -> None:
    number = int(seed())
    chance = random.Random(number)
    with _source(tmp_path / "source", number) as source:
        rounds = Round(source, tmp_path, chance)
        ends = time.monotonic() + 60 * MINUTES
        while time.monotonic() < ends:
            rounds.disturb(min(45.0, 15 * MINUTES))
            rounds.check()
            counts = f"{rounds.kills} kills, {rounds.altered} changes of the schema, {source.shop.fences} rounds"
            print(f"{counts}, all tables equal", flush=True)

"""Hostile bytes at the Postgres port: the server lives, its memory stays flat, other sessions are answered."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lakestore as ls
from jepsen.system.server import free_port
from tests.support import postgres_fuzz
from tests.support.postgres_session import WireSession
from tests.support.process import ServerProcess
from tests.support.seeds import seed

SHORT_CASES, SANS_IO_CASES = 50, 2_000
LONG_SECONDS = 600.0
GROWTH_BYTES = 64 << 20
WITNESS_EVERY = 10
_DEFECT = "a defect"


class Fuzzed:
    """A server in a process of its own, its tables, and a session that is asked between hostile ones."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        environment = {"LAKESTORE_POSTGRES_PORT": str(self.port), "LAKESTORE_LIMITS_SQL_START_MS": "1000"}
        self.server = ServerProcess(folder / "data", environment=environment)
        with ls.connect(f"{self.server.host}:{self.server.port}") as lake:
            orders = lake.create_table(
                "shop.orders", {"order_id": "int64", "customer": "string"}, primary_key=["order_id"]
            )
            orders.upsert([{"order_id": number, "customer": "ann"} for number in range(50)])
        self._witness = self.connected()

    def connected(self) -> psycopg.Connection[Any]:
        """An honest connection."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="ann", dbname="shop", password="any", autocommit=True
        )

    def attack(self, chance: random.Random) -> None:
        """One hostile connection; what it answers is read in part or not at all."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as attacker, suppress(OSError):
            parts = postgres_fuzz.messages(chance)
            data = postgres_fuzz.beginning(chance) + postgres_fuzz.broken(chance, parts)
            cut = chance.randrange(len(data) + 1)
            attacker.sendall(data[:cut])
            attacker.sendall(data[cut:])
            attacker.settimeout(chance.choice((0.01, 0.05, 0.2)))
            for _ in range(chance.choice((0, 1, 50))):
                if not attacker.recv(1 << 16):
                    break
            if chance.random() < 0.2:
                attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def check(self) -> None:
        """The witness's session and a new one are answered."""
        text = "SELECT count(*) FROM shop.orders"
        assert self._witness.execute(text).fetchall() == [(50,)]
        with self.connected() as connection:
            assert connection.execute("SELECT customer FROM shop.orders WHERE order_id = 7").fetchall() == [("ann",)]

    def resident(self) -> int:
        """The memory of the server's process in bytes."""
        pages = int(Path(f"/proc/{self.server._process.pid}/statm").read_text().split()[1])
        return pages * 4096

    def close(self) -> None:
        """End all."""
        self._witness.close()
        self.server.stop()
        assert _DEFECT not in self.server.errors, self.server.errors[-4000:]


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Fuzzed]:
    """A server to attack; at its end its log has no defect."""
    running = Fuzzed(tmp_path)
    yield running
    running.close()


def test_hostile_bytes_on_sockets(fuzzed: Fuzzed) -> None:
    chance = random.Random(seed(36))
    for case in range(SHORT_CASES):
        fuzzed.attack(chance)
        if case % WITNESS_EVERY == 0:
            fuzzed.check()
    fuzzed.check()


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_hostile_bytes_for_ten_minutes_leave_memory_flat(fuzzed: Fuzzed) -> None:
    base = seed()
    ends, cases = time.monotonic() + LONG_SECONDS, [0] * 4
    failures: list[BaseException] = []

    def attacks(number: int) -> None:
        chance = random.Random(f"{base} {number}")
        try:
            while time.monotonic() < ends:
                fuzzed.attack(chance)
                cases[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attacks, args=(number,)) for number in range(len(cases))]
    for thread in threads:
        thread.start()
    time.sleep(LONG_SECONDS / 5)
    settled = fuzzed.resident()
    while time.monotonic() < ends:
        fuzzed.check()
        time.sleep(1)
    for thread in threads:
        thread.join()
    fuzzed.check()
    grown = fuzzed.resident() - settled
    print(f"{sum(cases)} connections, memory {settled >> 20} MB and {grown / (1 << 20):+.0f} MB")
    assert not failures
    assert grown < GROWTH_BYTES


def test_hostile_bytes_in_a_session_without_a_socket(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed(37))
    for case in range(SANS_IO_CASES):
        session = WireSession()
        data = postgres_fuzz.beginning(chance) + postgres_fuzz.broken(chance, postgres_fuzz.messages(chance))
        while data and not session.session.is_over:
            size = chance.randint(1, len(data))
            session.raw(data[:size])
            data = data[size:]
        assert _DEFECT not in caplog.text, (case, caplog.text[-3000:])

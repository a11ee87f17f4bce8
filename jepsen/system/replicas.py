"""Servers that share a journal in Kafka, and their broker, as one system.

- Each server is a `System` with a folder, a clock and a disk of its own, so a nemesis of one server fits one of them.
- Clients reach each server through its proxy, whose address the server also gives to the others.
- Each server reaches the broker through a proxy of its own: a listener of the broker for each of them.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import lakestore as ls
from jepsen.system.clients import ClientProcesses
from jepsen.system.kafka import KafkaProcess
from jepsen.system.processes import Nursery, Stopped
from jepsen.system.proxy import Proxy
from jepsen.system.reached import Reached, Reads
from jepsen.system.server import free_port
from jepsen.system.system import System
from jepsen.workload import Client, Workload

TOPIC = "journal"
LEASES = 0.5, 1.0, 3.0
"""Seconds of silence after which followers claim. The seed chooses one."""
ASK_SECONDS = 1.0
WAY = 0
"""The number of a server's proxy: all clients go the same way."""


class JournalBroker(KafkaProcess):
    """A broker that each server reaches through a proxy."""

    def __init__(self, folder: Path, servers: int, nursery: Nursery) -> None:
        self._ports = [free_port() for _ in range(servers)]
        self.ways = [Proxy(f"127.0.0.1:{port}") for port in self._ports]
        super().__init__(folder, nursery=nursery)

    def properties(self) -> dict[str, str]:
        """Its settings."""
        settings = super().properties()
        ways = list(zip(self._ports, self.ways, strict=True))
        listeners = [f"WAY{number}://127.0.0.1:{port}" for number, (port, _) in enumerate(ways)]
        advertised = [f"WAY{number}://{way.address}" for number, (_, way) in enumerate(ways)]
        protocols = [
            f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *(f"WAY{n}" for n in range(len(ways))))
        ]
        return settings | {
            "listeners": ",".join([settings["listeners"], *listeners]),
            "advertised.listeners": ",".join([settings["advertised.listeners"], *advertised]),
            "listener.security.protocol.map": ",".join(protocols),
        }

    def mend(self) -> None:
        """It runs, and every server reaches it."""
        self.signal(signal.SIGCONT)
        self.start()
        for way in self.ways:
            way.mend()

    def stop(self) -> None:
        """End it at once."""
        self.kill()
        for way in self.ways:
            way.close()


class Replicas:
    """Servers and their broker. Ends with the block that it is used in."""

    catalog = kafka = sql = ""

    def __init__(
        self,
        folder: Path,
        parts: frozenset[str],
        environment: Mapping[str, str],
        seed: int | str,
        count: int,
        reads: Reads = "leader",
    ) -> None:
        """`parts`: `clock` and `disk`, where a nemesis needs them."""
        folder.mkdir(parents=True, exist_ok=True)
        self._reads: Reads = reads
        self.nursery, self.stopped = Nursery(), Stopped()
        self.broker = JournalBroker(folder / "kafka", count, self.nursery)
        self._turn = threading.RLock()
        self._init_journal()
        lease = random.Random(f"{seed} lease").choice(LEASES)
        shared = {
            "LAKESTORE_WAREHOUSE": str(folder / "warehouse"),
            "LAKESTORE_JOURNAL_KIND": "kafka",
            "LAKESTORE_JOURNAL_TOPIC": TOPIC,
            "LAKESTORE_JOURNAL_LEASE_SECONDS": str(lease),
            **environment,
        }
        self.servers = []
        for number, way in enumerate(self.broker.ways):
            own = {**shared, "LAKESTORE_JOURNAL_BOOTSTRAP": way.address}
            one = System(folder / "abcdefg"[number], parts, own, f"{seed} {number}")
            one.server.environment["LAKESTORE_ADVERTISE"] = one.proxy(WAY).address
            self.servers.append(one)
        self.clients = ClientProcesses(self.nursery, folder / "clients.log", seed)

    def _init_journal(self) -> None:
        journal = f"kafka://{self.broker.address}/{TOPIC}"
        command = [sys.executable, "-m", "lakestore", "init-journal", "--journal", journal, "--replicas", "1"]
        subprocess.run(command, check=True, capture_output=True)

    def __enter__(self) -> Self:
        self._all = ExitStack()
        self._all.callback(self.nursery.end)
        self._all.callback(self.broker.stop)
        with self._all:
            for each in self.servers:
                self._all.enter_context(each)
            self._all = self._all.pop_all()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stopped.go_on()
        self.mend_broker()  # a server without its journal ends late
        self._all.close()

    def reached(self) -> Reached:
        """The addresses by which all processes reach the servers."""
        return Reached(",".join(each.proxy(WAY).address for each in self.servers), reads=self._reads)

    def connect(self, process: int) -> ls.Lake:
        """A connection to all servers."""
        return self.reached().connect(process)

    def client(self, workload: Workload, process: int) -> Client:
        """A client of a process: for some, which the seed chooses, in a process of the machine of its own."""
        if self.clients.is_apart(workload, process):
            return self.clients.client(workload, self.reached(), process)
        return workload.client(self, process)

    def victim(self, chance: random.Random) -> int:
        """The number of the server that a fault befalls: in half of all cases the leader's."""
        drawn, is_leader = chance.randrange(len(self.servers)), chance.random() < 0.5
        leader = self.leader() if is_leader else None
        return drawn if leader is None else leader

    def leader(self) -> int | None:
        """The number of a server that leads; of several that say so, any."""
        for number, each in enumerate(self.servers):
            if each.server.pid is None:
                continue
            try:
                with urllib.request.urlopen(f"http://{each.server.http}/ready?role=leader", timeout=ASK_SECONDS):
                    return number
            except OSError:
                continue
        return None

    def signal_broker(self, sent: int) -> bool:
        """Send a signal to the broker; whether it runs."""
        with self._turn:
            return self.broker.signal(sent)

    def mend_broker(self) -> None:
        """It runs, and every server reaches it."""
        with self._turn:
            self.broker.mend()

    def heal(self) -> list[str]:
        """Everything runs and nothing is broken. Returns defects: what no fault explains."""
        self.stopped.go_on()
        self.mend_broker()
        self._reads = "leader"  # the last reads must show everything
        return [defect for each in self.servers for defect in each.heal()]

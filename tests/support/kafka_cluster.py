"""Three Kafka brokers, each also a controller, in processes of their own: killed, paused and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore.java import java
from lakestore_demo.broker import START_SECONDS, cluster_id, jars
from lakestore_demo.processes import Process
from tests.support.waiting import until

SESSION_MS = 3_000
"""Time after which the controllers take a silent broker for dead; Kafka's default is 9 s."""


class KafkaCluster:
    """Brokers 0 to 2. They answer when the constructor returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports, self._controllers = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        self._java = [java(), "-Xmx192m", *SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._java += ["-cp", f"{jars()}/*"]
        identity = cluster_id()
        self._processes: dict[int, Process] = {}
        for broker in range(3):
            self._format(broker, identity)
        for broker in range(3):
            self.start(broker)
        for broker in range(3):
            self.wait(broker)

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def _file(self, broker: int) -> Path:
        return self.folder / f"broker{broker}.properties"

    def _format(self, broker: int, identity: str) -> None:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(self._controllers))
        plain, controller = self._ports[broker], self._controllers[broker]
        properties = {
            "process.roles": "broker,controller",
            "node.id": broker,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / f"broker{broker}",
            "broker.session.timeout.ms": SESSION_MS,
            "broker.heartbeat.interval.ms": SESSION_MS // 6,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
        }
        self._file(broker).write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._file(broker))]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def start(self, broker: int) -> None:
        """Start a broker that does not run."""
        command = [*self._java, "kafka.Kafka", str(self._file(broker))]
        self._processes[broker] = Process(f"broker {broker}", command, self.folder / f"broker{broker}.log")

    def wait(self, broker: int) -> None:
        """Wait until a broker answers."""
        until(lambda: self._answers(broker), f"broker {broker}", START_SECONDS)

    def _answers(self, broker: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports[broker])) == 0

    def kill(self, broker: int) -> None:
        self._processes[broker].kill()

    def pause(self, broker: int) -> None:
        os.kill(self._pid(broker), signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        os.kill(self._pid(broker), signal.SIGCONT)

    def _pid(self, broker: int) -> int:
        pid = self._processes[broker].pid
        assert pid is not None
        return pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self._processes.values():
            process.kill()

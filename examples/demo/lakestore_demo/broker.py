"""A Kafka broker in a process."""

from __future__ import annotations

import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from lakestore.errors import Unavailable
from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_demo.processes import Process, free_ports

VERSION = "4.3.1"
START_SECONDS, FORMAT_SECONDS = 60.0, 60.0
_COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")


def jars() -> Path:
    """The folder with the broker's jars. Raises `Unavailable` if they cannot be fetched."""
    return fetch("kafka", VERSION, _COORDINATES)


def cluster_id() -> str:
    """A new id as Kafka writes it. It begins with a letter: Kafka takes one with a dash there for an option."""
    return "L" + urlsafe_b64encode(uuid4().bytes).decode()[1:22]


class Broker:
    """A broker with its own controller and its data in a folder. It answers when the constructor returns."""

    def __init__(self, folder: Path, *, options: Sequence[str] = ("-Xmx1g",)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.controller_port = free_ports(2)
        self._java = [java(), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars()}/*"]
        self._file = folder / "server.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        self._tool("format", "-t", cluster_id(), "-c", str(self._file))
        self._process = self._started()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def check(self) -> None:
        """Raise `Unavailable` with the last lines of the log if the broker has ended."""
        self._process.check()

    def kill(self) -> None:
        self._process.kill()

    def kill_and_restart(self) -> None:
        self.kill()
        self._process = self._started()

    def stop(self) -> None:
        self._process.stop()

    def _tool(self, *arguments: str) -> str:
        command = [*self._java, "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FORMAT_SECONDS)
        if done.returncode:
            raise Unavailable(f"Kafka cannot make its folder: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _started(self) -> Process:
        process = self.process([*self._java, "kafka.Kafka", str(self._file)], self.folder / "broker.log")
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._answers():
                process.check()
                if time.monotonic() > deadline:
                    raise Unavailable(f"the Kafka broker did not open its port in {START_SECONDS:.0f} s")
                time.sleep(0.1)
        except BaseException:
            process.kill()
            raise
        return process

    def process(self, command: Sequence[str], log: Path) -> Process:
        """Start the broker's process."""
        return Process("Kafka broker", command, log)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

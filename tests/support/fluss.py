"""Apache Fluss by its Maven coordinates: ZooKeeper, coordinator and tablet server, and a producer of its own client.

Fluss 0.9.1 is the newest server that Maven Central has. It keeps primary-key tables in RocksDB and, as it is shipped,
makes no write durable by fsync before the answer. All settings but ports, folders and memory are its own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_demo.processes import free_ports
from tests.support.java_source import compiled

SERVER_VERSION, CLIENT_VERSION = "0.9.1-incubating", "1.0.0"
START_SECONDS = 60.0
_LOGGING = ("org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-simple:1.7.36")
_SERVER = (f"org.apache.fluss:fluss-server:{SERVER_VERSION}", *_LOGGING)
_CLIENT = (f"org.apache.fluss:fluss-client:{CLIENT_VERSION}", *_LOGGING)
_ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
_COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
_TABLETS = "org.apache.fluss.server.tablet.TabletServer"
_PRODUCER = Path(__file__).with_name("FlussUpserts.java")
_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "--add-opens=java.base/java.nio=ALL-UNNAMED")


class FlussError(RuntimeError):
    """Fluss does not start, or refuses rows."""


def jars(artifacts: Sequence[str]) -> Path:
    """The folder with the jars of some artifacts."""
    return fetch("fluss", "-".join(artifacts[0].split(":")[1:]), artifacts, transitive=False)


class FlussProcess:
    """One server of all three parts, with its data in a folder. A context manager."""

    def __init__(self, folder: Path, *, memory: str = "4g") -> None:
        """`memory` is the tablet server's heap; RocksDB takes its own beside it."""
        keeper, coordinator, tablets = free_ports(3)
        self.folder, self._open = folder, ExitStack()
        self.address = f"127.0.0.1:{coordinator}"
        folder.mkdir(parents=True)
        zookeeper = {
            "dataDir": folder / "zookeeper",
            "clientPort": keeper,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
        configuration = folder / "zoo.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in zookeeper.items()))
        self._configure("coordinator", keeper, coordinator)
        self._configure("tablets", keeper, tablets, "tablet-server.id: 0\n")
        try:
            self._keeper = self._started("256m", _ZOOKEEPER, str(configuration))
            self._coordinator = self._started("512m", _COORDINATOR, "--configDir", str(folder / "coordinator"))
            self._tablets = self._started(memory, _TABLETS, "--configDir", str(folder / "tablets"))
        except BaseException:
            self._open.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes."""
        return self._keeper.pid, self._coordinator.pid, self._tablets.pid

    def _configure(self, name: str, keeper: int, port: int, more: str = "") -> None:
        place = self.folder / name
        place.mkdir()
        (place / "server.yaml").write_text(
            f"zookeeper.address: 127.0.0.1:{keeper}\nbind.listeners: FLUSS://127.0.0.1:{port}\n"
            f"data.dir: {place / 'data'}\nremote.data.dir: {self.folder / 'remote'}\n"
            f"default.replication.factor: 1\n{more}"
        )

    def _started(self, memory: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._open.enter_context((self.folder / f"{program.rpartition('.')[2]}.log").open("wb"))
        command = [java(), f"-Xmx{memory}", *_OPTIONS, "-cp", f"{jars(_SERVER)}/*", program, *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._open.callback(process.wait)
        self._open.callback(process.kill)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._open.close()


class FlussProducer:
    """A process with Fluss's client and one new table of five columns. A context manager."""

    def __init__(self, fluss: FlussProcess, buckets: int) -> None:
        command = [
            java(),
            "-Xmx1g",
            *_OPTIONS,
            "-cp",
            compiled(_PRODUCER, jars(_CLIENT)),
            _PRODUCER.stem,
            fluss.address,
        ]
        self._log = fluss.folder / "producer.log"
        deadline = time.monotonic() + START_SECONDS
        while True:  # the coordinator makes no table before it knows of the tablet server
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    [*command, str(buckets)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            assert self._process.stdout is not None
            if self._process.stdout.readline() == "ready\n":
                return
            self._process.communicate()
            if time.monotonic() > deadline:
                raise FlussError(f"Fluss does not make a table: {self._log.read_text()[-2000:]}")

    def _asked(self, line: str) -> tuple[int, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().split()
        if len(said) != 2:
            raise FlussError(f"Fluss's producer ended: {self._log.read_text()[-2000:]}")
        return int(said[0]), int(said[1]) / 1e9

    def insert(self, first: int, count: int) -> tuple[int, float]:
        """(rows, seconds) of inserts of the keys of so many numbers from one on, until all are acknowledged."""
        return self._asked(f"insert {first} {count}")

    def update(self, known: int, seconds: float) -> tuple[int, float]:
        """(rows, seconds) of updates of keys drawn evenly of the first so many."""
        return self._asked(f"update {known} {seconds}")

    def check(self, known: int, count: int) -> None:
        """`FlussError` unless so many of the keys, drawn evenly, are found."""
        found, _ = self._asked(f"check {known} {count}")
        if found != count:
            raise FlussError(f"{count - found} of {count} keys are missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

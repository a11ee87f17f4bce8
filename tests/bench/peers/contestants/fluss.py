"""Apache Fluss by its Maven coordinates: ZooKeeper, coordinator and tablet server, and a program with its own client.

Fluss 0.9.1 is the newest server that Maven Central has. It keeps primary-key tables in RocksDB and, as it is shipped,
makes no write durable by fsync before the answer. All settings but ports, folders and memory are its own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_demo.processes import free_ports
from tests.bench.peers.contest import Contestant, Failed, Missing, Setting
from tests.support.java_source import compiled

SERVER_VERSION, CLIENT_VERSION = "0.9.1-incubating", "1.0.0"
START_SECONDS = 60.0
_LOGGING = ("org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-simple:1.7.36")
_SERVER = (f"org.apache.fluss:fluss-server:{SERVER_VERSION}", *_LOGGING)
_CLIENT = (f"org.apache.fluss:fluss-client:{CLIENT_VERSION}", *_LOGGING)
_ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
_COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
_TABLETS = "org.apache.fluss.server.tablet.TabletServer"
_CLIENT_PROGRAM = Path(__file__).with_name("FlussClient.java")
_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "--add-opens=java.base/java.nio=ALL-UNNAMED")


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


class Fluss:
    """A process with Fluss's client, which does what it is asked: see `FlussClient.java`. A context manager."""

    def __init__(self, servers: FlussProcess, settings: Sequence[Setting]) -> None:
        self.servers = servers
        self._log = servers.folder / "client.log"
        command = [java(), "-Xmx2g", *_OPTIONS, "-cp", compiled(_CLIENT_PROGRAM, jars(_CLIENT)), _CLIENT_PROGRAM.stem]
        command += [servers.address, *(f"{setting.name}={setting.value}" for setting in settings)]
        deadline = time.monotonic() + START_SECONDS
        while True:  # the coordinator makes no table before it knows of the tablet server
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            assert self._process.stdout is not None
            self._process.stdout.readline()
            try:
                self.ask("make started 1 sent")
            except Failed as error:
                if time.monotonic() > deadline:
                    raise Missing(f"Fluss does not make a table: {error}") from error
            else:
                return

    def ask(self, line: str) -> list[int]:
        """The numbers that answer a command. Raises `Failed` with the client's last words if it ends instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer below is empty
        if not (answer := self._process.stdout.readline()):
            self._process.wait()
            raise Failed(f"Fluss's client ended: {' '.join(self._log.read_text().split())[-500:]}")
        return [int(word) for word in answer.split()]

    def log(self, name: str, batches: Sequence[Sequence[bytes]]) -> Callable[[int], float]:
        """Make a log and return what appends as many rows as so many of the batches have, in seconds until all are
        acknowledged. The rows are the client's own: random ones unless all batches are one."""
        self.ask(f"make {name} 1 bytes")
        kind, rows = ("random" if len(batches) > 1 else "same"), len(batches[0])
        return lambda count: self.ask(f"{kind} {name} {count * rows}")[1] / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _started(folder: Path, settings: Sequence[Setting]) -> Iterator[Fluss]:
    with FlussProcess(folder) as servers, Fluss(servers, settings) as client:
        yield client


def contestant(*settings: Setting) -> Contestant:
    """Fluss as it is shipped but for these settings of its client."""
    memory = Setting("JVM of the tablet server", "-Xmx4g", "room for 10 M keys on this machine")
    return Contestant(
        "Apache Fluss",
        f"server {SERVER_VERSION}, client {CLIENT_VERSION}",
        partial(_started, settings=settings),
        "A write is acknowledged when it is in the page cache of the one tablet server, without fsync, as shipped.",
        (memory, *settings),
    )

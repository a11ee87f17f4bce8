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

import numpy as np
import numpy.typing as npt

from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_demo.processes import free_ports
from tests.bench.peers.contest import Contestant, Failed, Missing, Setting
from tests.support.java_source import compiled

SERVER_VERSION, CLIENT_VERSION = "0.9.1-incubating", "1.0.0"
START_SECONDS, CHECKED_KEYS = 60.0, 200
QUICK_ROWS = (
    Setting("client.writer.batch-timeout", "0ms", "Fluss's ConfigOptions: the default of 100 ms delays each append"),
    Setting(
        "client.scanner.log.fetch.wait-max-time",
        "0ms",
        "Fluss's ConfigOptions: the default is 500 ms; an append does not wake a fetch that waits",
    ),
)
QUICK_SESSIONS = Setting(
    "zookeeper.client.session-timeout", "4s", "ZooKeeper's minSessionTimeout of two ticks; Fluss's default is 60 s"
)
QUICK_LOOKUPS = Setting(
    "client.lookup.batch-timeout",
    "100micro",
    "Fluss's ConfigOptions: the default of 100 ms delays each look-up; 0 hangs in client 1.0.0",
)
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

    def __init__(self, folder: Path, server: Sequence[Setting] = (), *, memory: str = "4g") -> None:
        """`memory` is the tablet server's heap; RocksDB takes its own beside it."""
        keeper, coordinator, tablets = free_ports(3)
        self.folder, self._open = folder, ExitStack()
        self._settings = "".join(f"{setting.name}: {setting.value}\n" for setting in server)
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
            self._tablets_command = memory, _TABLETS, "--configDir", str(folder / "tablets")
            self._tablets = self._started(*self._tablets_command)
        except BaseException:
            self._open.close()
            raise

    def kill_and_restart(self) -> float:
        """Kill the tablet server and start it again; the time of the start."""
        self._tablets.kill()
        self._tablets.wait()
        began = time.perf_counter()
        self._tablets = self._started(*self._tablets_command)
        return began

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
            f"default.replication.factor: 1\n{self._settings}{more}"
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

    def make_keyed(self, name: str, buckets: int, *, is_partial: bool = False) -> None:
        """Make a table of five columns with a key. Every such table takes partial updates."""
        self.ask(f"make {name} {buckets} keyed")

    def insert(self, name: str, first: int, count: int) -> float:
        """Seconds of inserts of the keys of so many numbers from the first on, until all are acknowledged."""
        return self.ask(f"insert {name} {first} {count}")[1] / 1e9

    def update(self, name: str, kind: str, keys: int, seconds: float) -> tuple[int, float]:
        """Rows and seconds of updates, until all are acknowledged."""
        return self._rows_in_seconds(f"{kind} {name} {keys} {seconds}")

    def check(self, name: str, keys: int) -> None:
        """`Failed` unless some of the keys are there."""
        [rows] = self.ask(f"check {name} {keys} {CHECKED_KEYS}")
        if rows != CHECKED_KEYS:
            raise Failed(f"{CHECKED_KEYS - rows} of {CHECKED_KEYS} keys are missing")

    def lookups(self, name: str, keys: int, seconds: float) -> tuple[int, float]:
        """Keys and seconds of look-ups, many under way."""
        return self._rows_in_seconds(f"lookups {name} {keys} {seconds}")

    def singles(self, name: str, keys: int, count: int) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds of look-ups one after the other."""
        half, tail = self.ask(f"singles {name} {keys} {count}")
        return half / 1e6, tail / 1e6

    def delay(self, name: str, rate: int, seconds: float) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds from the append of a row to a subscriber that has it."""
        self.ask(f"make {name} 1 sent")
        half, tail = self.ask(f"delay {name} {rate} {seconds}")
        return half / 1e6, tail / 1e6

    def fan(self, name: str, subscribers: int, batches: Sequence[Sequence[bytes]]) -> float:
        """Seconds until each subscriber has as many rows as the batches have; the rows are the client's own."""
        self.ask(f"make {name} 1 bytes")
        return self.ask(f"fan {name} {subscribers} {sum(map(len, batches))}")[1] / 1e9

    def fill_wide(self, name: str, batches: Sequence[npt.NDArray[np.float64]]) -> None:
        """Make a log of 20 doubles with as many rows of the client's own."""
        self.ask(f"make {name} 1 wide")
        self.ask(f"fill {name} {sum(map(len, batches))}")

    def scan_wide(self, name: str, columns: int, count: int) -> float:
        """Seconds of a read of the first columns of all rows."""
        return self.ask(f"scan {name} {columns} {count}")[1] / 1e9

    def recover(self, name: str, keys: int) -> float:
        """Seconds from the start of a tablet server that was killed to the answer to a look-up."""
        began = self.servers.kill_and_restart()
        self.singles(name, keys, 1)
        return time.perf_counter() - began

    def _rows_in_seconds(self, line: str) -> tuple[int, float]:
        rows, nanoseconds = self.ask(line)
        return rows, nanoseconds / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _started(folder: Path, settings: Sequence[Setting], server: Sequence[Setting]) -> Iterator[Fluss]:
    with FlussProcess(folder, server) as servers, Fluss(servers, settings) as client:
        yield client


def contestant(*settings: Setting, server: Sequence[Setting] = ()) -> Contestant:
    """Fluss as it is shipped but for these settings of its client and of its servers."""
    memory = Setting("JVM of the tablet server", "-Xmx4g", "room for 10 M keys on this machine")
    return Contestant(
        "Apache Fluss",
        f"server {SERVER_VERSION}, client {CLIENT_VERSION}",
        partial(_started, settings=settings, server=server),
        "A write is acknowledged when it is in the page cache of the one tablet server, without fsync, as shipped.",
        (memory, *server, *settings),
    )

"""The parts of one run, put together."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import lakestore as ls
from jepsen.schedule import LEFT_OUT
from jepsen.system import preload, settings, wire
from jepsen.system.bridges import Bridges
from jepsen.system.clients import ClientProcesses
from jepsen.system.clock import MovedClock
from jepsen.system.disk import ServerDisk
from jepsen.system.http_proxy import HttpProxy
from jepsen.system.preload import NoCompiler
from jepsen.system.processes import Nursery, Stopped
from jepsen.system.proxy import Proxy
from jepsen.system.reached import Reached
from jepsen.system.server import Server, free_port
from jepsen.system.spark import SparkCluster
from jepsen.system.store import WAREHOUSE, Store
from jepsen.system.tierer import Tierer
from jepsen.system.wire import Wire
from jepsen.workload import Client, Workload

DIRECT = -1
"""The process that makes tables reaches the server by no proxy."""
TIERER = -2
"""The tierer's way, as a number of a process."""
BRIDGES = -3
"""The bridges' way."""
_ELSEWHERE = {"LAKESTORE_INSECURE": "true", "LAKESTORE_HTTP_ALLOWED_HOSTS": "*"}
"""A server beyond this machine's own addresses wants these said."""


class System:
    """Real processes on one folder. Ends with the block that it is used in."""

    kafka = ""

    def __init__(
        self,
        folder: Path,
        parts: frozenset[str],
        environment: Mapping[str, str],
        seed: int | str | None = None,
        *,
        s3: str = "",
    ) -> None:
        """`parts`: what is needed beside the server. With a seed the server has settings that are drawn from it.

        `s3`: host and port of the S3 server that is the part `store`, instead of our store in memory.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.parts = folder, parts
        self.nursery, self.stopped = Nursery(), Stopped()
        self.missing = _missing(parts)
        """Parts that this machine or the other parts do not allow, and why."""
        drawn = settings.drawn(random.Random(f"{seed} settings")) if seed is not None else {}
        self.settings = {**drawn, **environment}
        (folder / "settings.json").write_text(json.dumps({**self.settings, **self.missing}, indent=1))
        self.clock = MovedClock(folder) if self._has("clock") else None
        self.wire = Wire(self.nursery) if self._has("namespace") else None
        self.disk = self._disk() if "disk" in parts else None
        self.store = Store(s3) if "store" in parts else None
        if self.store is not None:
            self.store.tell()
        self._sql_port = free_port() if "sql" in parts else None
        self.server = self._server()
        self.sql = f"{self.server.host}:{self._sql_port}" if self._sql_port else ""
        """Host and port of the Postgres port, to which clients come without a proxy."""
        self.catalog = self.server.catalog
        self.catalog_proxy = HttpProxy(self.server.http) if parts & {"tierer", "spark"} else None
        """The way of the tierer and of foreign engines to the catalog."""
        if self.catalog_proxy is not None:
            self.catalog = f"http://{self.catalog_proxy.address}/iceberg"
        self.clients = ClientProcesses(self.nursery, folder / "clients.log", "" if seed is None else seed)
        self._proxies: dict[int, Proxy] = {}
        self._lock = threading.Lock()
        self.bridges = Bridges(self.nursery, folder, self.proxy(BRIDGES).address) if "kafka" in parts else None
        if self.bridges is not None:
            self.kafka = self.bridges.address
        self.spark = SparkCluster(self.nursery, folder) if self._has("spark") else None
        self.tierer = self._tierer() if parts & {"tierer", "spark"} else None

    def _has(self, part: str) -> bool:
        return part in self.parts and part not in self.missing

    def _server(self) -> Server:
        environment = {**self.settings, **({"LAKESTORE_WAREHOUSE": WAREHOUSE} if self.store else {})}
        if self._sql_port is not None:
            environment |= {"LAKESTORE_POSTGRES_PORT": str(self._sql_port)}
        if self.disk is not None:
            environment |= {"LAKESTORE_LIMITS_DISK_FREE_BYTES": "4096", **self.disk.environment}
        if self.clock is not None:
            loads = [environment.get("LD_PRELOAD", ""), self.clock.environment["LD_PRELOAD"]]
            environment |= {**self.clock.environment, "LD_PRELOAD": " ".join(filter(None, loads))}
        if self.wire is None:
            return Server(self.nursery, self.folder, environment)
        return Server(
            self.nursery, self.folder, {**environment, **_ELSEWHERE}, host=self.wire.far, before=self.wire.inside
        )

    def _tierer(self) -> Tierer:
        master = self.spark.address if self.spark else "local[1]"
        way = self.catalog_proxy.address if self.catalog_proxy else ""
        return Tierer(self.nursery, self.folder, self.proxy(TIERER).address, master, by=way)

    def _disk(self) -> ServerDisk | None:
        try:
            return ServerDisk(self.folder)
        except NoCompiler as error:
            self.missing["disk"] = str(error)
            return None

    def __enter__(self) -> Self:
        try:
            self.server.start()
            if self.spark is not None:
                self.spark.start()
            if self.tierer is not None:
                self.tierer.start()
                self.tierer.wait()
            if self.bridges is not None:
                self.bridges.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def left_out(self, part: str) -> str:
        """The words of a nemesis whose part is not to be had."""
        return f"{LEFT_OUT}{self.missing[part]}"

    def proxy(self, process: int) -> Proxy:
        """The proxy by which a process reaches the server."""
        with self._lock:
            if process not in self._proxies:
                self._proxies[process] = Proxy(self.server.address)
            return self._proxies[process]

    def proxies(self) -> dict[int, Proxy]:
        """All proxies that are used, by process."""
        with self._lock:
            return dict(self._proxies)

    def reached(self, process: int) -> Reached:
        """The addresses by which a process reaches everything."""
        address = self.server.address if process == DIRECT else self.proxy(process).address
        return Reached(address, self.catalog, self.kafka, self.sql)

    def connect(self, process: int) -> ls.Lake:
        """A connection by the way of that process."""
        return self.reached(process).connect(process)

    def client(self, workload: Workload, process: int) -> Client:
        """A client of a process: for some, which the seed chooses, in a process of the machine of its own."""
        if self.clients.is_apart(workload, process):
            return self.clients.client(workload, self.reached(process), process)
        return workload.client(self, process)

    def heal(self) -> list[str]:
        """Everything runs and nothing is broken. What is found broken by no fault of ours is told: defects."""
        self.stopped.go_on()
        if self.clock is not None:
            self.clock.mend()
        if self.wire is not None:
            self.wire.weather = wire.FAIR
        for proxy in self.proxies().values():
            proxy.mend()
        if self.disk is not None:
            self._mend(self.disk)
        for way in (self.store.proxy if self.store else None, self.catalog_proxy):
            if way is not None:
                way.mend()
        self.server.start()
        if self.bridges is not None:
            self.bridges.mend()
        if self.tierer is not None:
            self.tierer.start()
        # A disk with faults is complained of.
        return self.server.defects() if self.disk is None else []

    def _mend(self, disk: ServerDisk) -> None:
        if disk.is_damaged:
            with self.server.down():
                disk.end_processes()
                disk.mend()
        disk.mend()

    def stop(self) -> None:
        """End all parts; nothing is left behind."""
        try:
            self.stopped.go_on()
            if self.bridges is not None:
                self.bridges.stop()
            if self.tierer is not None:
                self.tierer.stop()
            if self.spark is not None:
                self.spark.stop()
            for proxy in self.proxies().values():
                proxy.close()
            self.server.stop()
            if self.catalog_proxy is not None:
                self.catalog_proxy.close()
        finally:
            if self.wire is not None:
                self.wire.close()
            self.nursery.end()
            if self.store is not None:
                self.store.close()


def _missing(parts: frozenset[str]) -> dict[str, str]:
    """Parts that are asked for and cannot be had."""
    found = {}
    if "clock" in parts and not preload.compiler():
        found["clock"] = "a clock of the server's own takes Linux and a C compiler"
    if "namespace" in parts:
        found["namespace"] = "the server reaches its store by this machine's own addresses" if "store" in parts else ""
        found["namespace"] = found["namespace"] or wire.obstacle()
    missing = {name: why for name, why in found.items() if why}
    for name, why in missing.items():
        sys.stderr.write(f"left out: {name}: {why}{os.linesep}")
    return missing

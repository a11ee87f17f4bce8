"""The parts of one run, put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import lakestore as ls
from jepsen.system.bridges import Bridges
from jepsen.system.disk import ServerDisk
from jepsen.system.server import Server
from jepsen.system.shim import NoCompiler

CALL_SECONDS = 5.0
"""A client waits so long for an answer; then the outcome of a write is unknown."""


class System:
    """Real processes on one folder. Ends with the block that it is used in."""

    kafka = ""

    def __init__(self, folder: Path, parts: frozenset[str], environment: Mapping[str, str]) -> None:
        """`parts`: what is needed beside the server."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.parts = folder, parts
        self.missing: dict[str, str] = {}
        """Parts that this machine does not allow, and why."""
        self.disk = self._disk() if "disk" in parts else None
        ours = {"LAKESTORE_LIMITS_DISK_FREE_BYTES": "4096", **self.disk.environment} if self.disk else {}
        self.server = Server(folder, {**environment, **ours})
        self.catalog = self.server.catalog
        self.bridges = Bridges(folder, self.server.address) if "kafka" in parts else None
        if self.bridges is not None:
            self.kafka = self.bridges.address

    def _disk(self) -> ServerDisk | None:
        try:
            return ServerDisk(self.folder)
        except NoCompiler as error:
            self.missing["disk"] = str(error)
            return None

    def __enter__(self) -> Self:
        self.server.start()
        if self.bridges is not None:
            self.bridges.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def connect(self, process: int) -> ls.Lake:
        """A connection by the way of that process."""
        return ls.connect(self.server.address, timeout=CALL_SECONDS)

    def heal(self) -> None:
        """Everything runs and nothing is broken."""
        if self.disk is not None:
            self._mend(self.disk)
        self.server.start()
        if self.bridges is not None:
            self.bridges.mend()

    def _mend(self, disk: ServerDisk) -> None:
        if disk.is_damaged:
            with self.server.down():
                disk.end_processes()
                disk.mend()
        disk.mend()

    def stop(self) -> None:
        """End all parts."""
        if self.bridges is not None:
            self.bridges.stop()
        self.server.stop()

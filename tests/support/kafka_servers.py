"""Servers in processes of their own that share a journal, in a Kafka topic or in a bucket, and a warehouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import lakestore as ls
from tests.support.process import ServerProcess
from tests.support.waiting import WAIT_SECONDS, first_of

LEASE_SECONDS = 1


class KafkaServers:
    """One server for each name, with a folder of its own. The journal is there already. A context manager."""

    def __init__(
        self,
        journal: str,
        folder: Path,
        names: str = "ab",
        *,
        patience: float = WAIT_SECONDS,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`journal` is the URL of the topic or the bucket. `patience` is the longest wait for a role, in seconds."""
        self.journal, self._folder, self._names, self._patience = journal, folder, names, patience
        self._more, self._environment = arguments, environment or {}
        self._own: dict[str, Sequence[str]] = {}
        """Arguments of one server alone, by its name."""
        self.servers: list[ServerProcess] = []
        try:
            for name in names:
                self.servers.append(self._started(name))
        except BaseException:
            self.close()
            raise

    def _started(self, name: str, port: int = 0) -> ServerProcess:
        arguments = [*self.arguments, *self._own.get(name, ())]
        return ServerProcess(self._folder / name, port=port, arguments=arguments, environment=self.environment)

    @property
    def arguments(self) -> list[str]:
        """The options of every server, besides its folder and ports."""
        return ["--journal", self.journal, "--warehouse", str(self._folder / "warehouse"), *self._more]

    @property
    def environment(self) -> dict[str, str]:
        return {"LAKESTORE_JOURNAL_LEASE_SECONDS": str(LEASE_SECONDS), **self._environment}

    def add(self, name: str, port: int = 0, arguments: Sequence[str] = ()) -> ServerProcess:
        """A further server, once it serves."""
        self._own[name] = arguments
        made = self._started(name, port)
        self._names += name
        self.servers.append(made)
        return made

    @property
    def addresses(self) -> str:
        """The list that a client is given."""
        return ",".join(server.address for server in self.servers)

    def the(self, role: str) -> ServerProcess:
        """A server that has a role, once one has it."""
        return first_of(lambda: self._having(role), f"a {role}", self._patience)

    def _having(self, role: str) -> list[ServerProcess]:
        return [server for server in self.servers if server.alive and role_of(server) == role]

    def start_again(self, server: ServerProcess) -> ServerProcess:
        """A server in the place of one that has ended, at its address and on its folder as that is now."""
        at = self.servers.index(server)
        self.servers[at] = self._started(self._names[at], server.port)
        return self.servers[at]

    def close(self) -> None:
        """End all of them at once."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def role_of(server: ServerProcess) -> str:
    """The role that a server says it has; empty if it does not answer."""
    try:
        with ls.connect(server.address) as lake:
            return str(lake.status()["journal"]["role"])
    except ls.LakestoreError:
        return ""

"""A client's way to a server, which the test leads to another one: as after a restart or a restore behind one address.

It also loses answers: the call happens, and the client is told nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import lakestore as ls
from lakestore.client.calls import transport_of
from lakestore.client.credentials import NOTHING
from lakestore.client.lake import Lake
from lakestore.client.local import LocalWire
from lakestore.errors import LakestoreError, Stopped, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.operate.restore import restore
from tests.support.served import Served


def gone() -> Unavailable:
    """An answer that is lost."""
    return Unavailable("the connection is gone", applied="unknown")


class Switch:
    """A wire. A server that has ended is one that cannot be reached."""

    def __init__(self, served: Served) -> None:
        self.credentials, self.address = NOTHING, "switch"
        self.to(served)
        self.server = self._way.server
        """As the client was greeted first."""
        self.lost: dict[str, Callable[[], object]] = {}
        """RPCs to what happens before the next answer is lost."""

    def to(self, served: Served) -> None:
        """Lead to another server from here on."""
        self._way = LocalWire(served.server.service)

    def greet(self, seconds: float) -> None:
        """It is known."""

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        """The answer, unless it is lost."""
        with _reached():
            answer = self._way.call(method, request, seconds)
        self._lose(method)
        return answer

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The answers, up to the one that is lost; a stream breaks when another server answers."""
        way = self._way
        with _reached():
            answers = way.stream(method, request, seconds)
        while True:
            if way is not self._way:
                raise gone()
            try:
                with _reached():
                    answer = next(answers)
            except StopIteration:
                return
            self._lose(method)
            yield answer

    def _lose(self, method: rpc.Method) -> None:
        happens = self.lost.pop(method.name, None)
        if happens is not None:
            happens()
            raise gone()

    def send(self, method: rpc.Method, request: Any) -> None:
        """Nobody waits."""
        self._way.send(method, request)

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except Stopped as error:
        raise gone() from error


class World:
    """One address: a server, its backup, and the server that is restored from it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self._root, self._settings, self._folders = root, settings, 0
        self.served = Served(root / "0", **settings)
        self._switches: list[Switch] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.served.close()

    def client(self) -> Lake:
        """A lake of a process of its own."""
        switch = Switch(self.served)
        self._switches.append(switch)
        return ls.Lake(transport_of(switch), "switch")

    def backup(self) -> Path:
        """A backup now."""
        self._folders += 1
        folder = self._root / f"backup-{self._folders}"
        self.served.lake.transport.backup(pb.BackupRequest(folder=str(folder)))
        return folder

    def restore(self, backup: Path) -> None:
        """The server is lost, and a restored one answers in its place."""
        self.served.kill()
        self._folders += 1
        clock, folder = self.served.clock, self._root / str(self._folders)
        restore(backup, folder)
        self.served = Served(folder, **self._settings)
        self.served.clock.us = clock.us
        self.served.until_indexed()
        self._lead()

    def restart(self) -> None:
        """The process ends and begins again."""
        self.served.kill()
        self.served.start()
        self._lead()

    def _lead(self) -> None:
        for switch in self._switches:
            switch.to(self.served)


def ends(call: Callable[[], object]) -> LakestoreError | None:
    """The error that a call ends in, or None."""
    try:
        call()
    except LakestoreError as error:
        return error
    return None

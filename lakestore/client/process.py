"""Forked processes: a child inherits the parent's memory, and none of the threads behind its connections."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from lakestore.errors import Invalid


class Threaded(Protocol):
    """A connection that is of no use in a forked child."""

    def orphaned(self) -> None:
        """Refuse every call from now on: its threads are in another process."""


class _Process:
    """Whether connections of this process were inherited by a fork."""

    def __init__(self) -> None:
        self.has_connected = self.is_orphan = False
        self._local: WeakSet[Threaded] = WeakSet()
        os.register_at_fork(after_in_child=self._forked)

    def adopt(self, transport: Threaded) -> None:
        """Note a connection that must be told when a child has inherited it."""
        self._local.add(transport)

    def _forked(self) -> None:
        self.is_orphan = self.has_connected or bool(self._local)
        for transport in self._local:
            transport.orphaned()

    def check(self) -> None:
        """`Invalid` in a child that inherited connections: a call would wait for a thread that is not there."""
        if self.is_orphan:
            raise Invalid(
                "this process was forked from one that had connected, and connections do not survive that: start it by"
                " multiprocessing.get_context('spawn'), or connect only in the children"
            )


PROCESS = _Process()

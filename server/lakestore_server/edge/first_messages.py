"""Calls whose first message has not come: so many for so long, and where there is no room the least advanced one goes.

A call costs little until its message is there, yet thousands of silent ones, or a few that send the most part of a
large message, would take the memory of everybody. So a connection that has the most calls waiting loses its oldest.
Used by the port's thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakestore_server.edge.rpc_port import Rpc

Refuse = Callable[[Rpc, str], None]


class FirstMessages:
    """Calls that wait for their first message."""

    def __init__(self, most: int, seconds: float, refuse: Refuse) -> None:
        self._most, self._seconds, self._refuse = most, seconds, refuse
        self._since: dict[Rpc, float] = {}
        """The oldest first."""
        self._by_connection: dict[str, dict[Rpc, None]] = {}

    def __len__(self) -> int:
        return len(self._since)

    def add(self, rpc: Rpc) -> None:
        """A call begins to wait; another one may have to go for it."""
        if len(self._since) >= self._most:
            worst = max(self._by_connection.values(), key=len)
            self._drop(next(iter(worst)), "the server holds as many calls without a message as it can")
        self._since[rpc] = time.monotonic()
        self._by_connection.setdefault(rpc.peer, {})[rpc] = None

    def came(self, rpc: Rpc) -> bool:
        """Its message came, or it ended; whether it waited still."""
        if self._since.pop(rpc, None) is None:
            return False
        mine = self._by_connection[rpc.peer]
        del mine[rpc]
        if not mine:
            del self._by_connection[rpc.peer]
        return True

    def tick(self, now: float) -> None:
        """Let go of the calls whose time is over."""
        while self._since:
            rpc, since = next(iter(self._since.items()))
            if now - since < self._seconds:
                return
            self._drop(rpc, f"no whole message came within {self._seconds:g} s")

    def _drop(self, rpc: Rpc, why: str) -> None:
        self.came(rpc)
        self._refuse(rpc, why)

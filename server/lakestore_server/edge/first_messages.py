"""Calls without a first message yet: bounded in number and in time. Used by the port's thread alone.

Thousands of silent calls, or a few that send most of a large message, would take everybody's memory. If there are too
many, the connection with the most waiting calls loses its oldest.
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
        """Call to begin of its wait, oldest first."""
        self._by_connection: dict[str, dict[Rpc, None]] = {}

    def __len__(self) -> int:
        return len(self._since)

    def add(self, rpc: Rpc) -> None:
        """Note that a call waits; another call may be refused for it."""
        if len(self._since) >= self._most:
            worst = max(self._by_connection.values(), key=len)
            self._drop(next(iter(worst)), "the server is at its limit of calls without a message")
        self._since[rpc] = time.monotonic()
        self._by_connection.setdefault(rpc.peer, {})[rpc] = None

    def came(self, rpc: Rpc) -> bool:
        """Note that its message came or that it ended; True if it was still waiting."""
        if self._since.pop(rpc, None) is None:
            return False
        mine = self._by_connection[rpc.peer]
        del mine[rpc]
        if not mine:
            del self._by_connection[rpc.peer]
        return True

    def tick(self, now: float) -> None:
        while self._since:
            rpc, since = next(iter(self._since.items()))
            if now - since < self._seconds:
                return
            self._drop(rpc, f"no whole message came within {self._seconds:g} s")

    def _drop(self, rpc: Rpc, why: str) -> None:
        self.came(rpc)
        self._refuse(rpc, why)

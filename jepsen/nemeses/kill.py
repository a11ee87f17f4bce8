"""Ends of processes without a warning."""

from __future__ import annotations

import random

from jepsen.system import System


class KillServer:
    """kill -9 of the server; it is started again at the end."""

    name = "kill"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, _: random.Random) -> str:
        """Kill it."""
        system.server.kill()
        return "the server is killed"

    def end(self, system: System) -> str:
        """Start it."""
        system.server.start()
        return "the server is started"

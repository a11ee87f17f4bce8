"""Ends of processes: kill -9, and the end in order that an operator asks for."""

from __future__ import annotations

import random
import time
from typing import Any

from jepsen.nemeses.victims import VICTIMS
from jepsen.schedule import Nemesis
from jepsen.system import System, processes

WHOLE_SHARE = 0.3


class KillServer:
    """kill -9 of the server, alone or with its children; it is started again at the end."""

    name = "kill"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, chance: random.Random) -> Any:
        """Kill it."""
        children = system.server.children() if chance.random() < WHOLE_SHARE else []
        system.server.kill()
        return {"server": "killed", "children": processes.kill(children)}

    def end(self, system: System) -> str:
        """Start it."""
        return system.server.try_start()


class Restart:
    """The server's end in order, running calls and all; it is started again at the end."""

    name = "restart"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, _: random.Random) -> Any:
        """SIGTERM, and wait until it has ended."""
        began = time.monotonic()
        code = system.server.stop()
        return {"code": code, "seconds": round(time.monotonic() - began, 3)}

    def end(self, system: System) -> str:
        """Start it."""
        return system.server.try_start()


class KillTierer:
    """kill -9 of the tierer, alone or with its Spark; it is started again at the end."""

    name = "kill-tierer"
    needs = VICTIMS["tierer"].needs

    def begin(self, system: System, chance: random.Random) -> Any:
        """Kill it."""
        return system.tierer.kill(whole=chance.random() < 1 - WHOLE_SHARE) if system.tierer else []

    def end(self, system: System) -> str:
        """Start it."""
        return "started" if system.tierer and system.tierer.start() else "ran already"


class KillChild:
    """kill -9 of processes that others start again: the product its own, a run its clients."""

    def __init__(self, victim: str) -> None:
        self._victim = VICTIMS[victim]
        self.name, self.needs = f"kill-{victim}", self._victim.needs

    def begin(self, system: System, chance: random.Random) -> list[int]:
        """Kill one or all."""
        return processes.kill(self._victim.drawn(system, chance))

    def end(self, system: System) -> str:
        """Kill those that have come since."""
        return f"killed {processes.kill(self._victim.find(system))}"


_OWN = {"server", "tierer"}
KILLS: tuple[Nemesis[System], ...] = (
    KillServer(),
    Restart(),
    KillTierer(),
    *(KillChild(name) for name in VICTIMS if name not in _OWN),
)

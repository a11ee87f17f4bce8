"""SIGSTOP and SIGCONT: processes that say nothing and later go on as if nothing had been, for less and for longer than
leases, epochs and the patience of others."""

from __future__ import annotations

import random

from jepsen.nemeses.victims import TIERER, VICTIMS
from jepsen.schedule import Nemesis
from jepsen.system import System, processes

WHOLE_SHARE = 0.3


class Pause:
    """Some processes of one kind stand still."""

    def __init__(self, victim: str, name: str = "") -> None:
        self._victim = VICTIMS[victim]
        self.name, self.needs = name or f"pause-{victim}", self._victim.needs

    def begin(self, system: System, chance: random.Random) -> list[int]:
        """SIGSTOP, at times of all that they have started too."""
        drawn = self._victim.drawn(system, chance)
        if chance.random() < WHOLE_SHARE:
            drawn += [each for one in drawn for each in processes.descendants(one.pid)]
        return system.stopped.stop(self.name, drawn)

    def end(self, system: System) -> list[int]:
        """SIGCONT."""
        return system.stopped.go_on(self.name)


class PauseKill:
    """The server stands still while clients write on, and is killed before it comes to itself."""

    name = "pause-kill"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, _: random.Random) -> list[int]:
        """SIGSTOP."""
        return system.stopped.stop(self.name, system.server.found())

    def end(self, system: System) -> list[int]:
        """kill -9, and start it."""
        system.server.kill()
        system.stopped.go_on(self.name)
        system.server.try_start()
        return [each.pid for each in system.server.found()]


class ZombieChildren:
    """The server is killed while its children stand still; they come to themselves beside the next one's."""

    name = "zombie-children"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, _: random.Random) -> list[int]:
        """Stop the children, kill the server, start the next one."""
        stopped = system.stopped.stop(self.name, system.server.children())
        system.server.kill()
        system.server.try_start()
        return stopped

    def end(self, system: System) -> list[int]:
        """SIGCONT."""
        return system.stopped.go_on(self.name)


class ZombieTierer:
    """The tierer stands still while another takes over, and goes on in its old epoch."""

    name = "zombie-tierer"
    needs = TIERER

    def begin(self, system: System, _: random.Random) -> list[int]:
        """Stop it with its Spark, and start another."""
        if system.tierer is None:
            return []
        found = system.tierer.found()
        found += [each for one in found for each in processes.descendants(one.pid)]
        stopped = system.stopped.stop(self.name, found)
        system.tierer.abandon()
        return stopped

    def end(self, system: System) -> list[int]:
        """SIGCONT."""
        return system.stopped.go_on(self.name)


PAUSES: tuple[Nemesis[System], ...] = (
    Pause("server", "pause"),
    *(Pause(name) for name in VICTIMS if name != "server"),
    PauseKill(),
    ZombieChildren(),
    ZombieTierer(),
)

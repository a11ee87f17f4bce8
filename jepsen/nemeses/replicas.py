"""Nemeses of servers that share a journal: the faults of one server befall one of several, and the journal has its own.

A fault befalls the leader in half of all cases. `NAMES` are the words of the command line.
"""

from __future__ import annotations

import random
import signal
from typing import Any

from jepsen.nemeses import NEMESES
from jepsen.nemeses.network import BREAKS
from jepsen.schedule import Nemesis, is_left_out
from jepsen.system.replicas import Replicas
from jepsen.system.system import System

OF_ONE = (
    "kill", "restart", "pause", "pause-kill", "network", "clock", "clock-kill", "disk-full", "disk-slow", "power",
)  # fmt: skip
OF_CLIENTS = ("kill-client", "pause-client")
SILENCES = frozenset({"pause", "pause-kill", "network-journal", "pause-broker"})
"""Faults in which a server hears nothing; some of each kind last longer than any lease."""


class OfOne:
    """A fault of one server. Its end mends every server that it befell."""

    def __init__(self, nemesis: Nemesis[System]) -> None:
        self.name, self.needs, self._nemesis = nemesis.name, nemesis.needs, nemesis
        self._befallen: set[int] = set()

    def begin(self, system: Replicas, chance: random.Random) -> Any:
        """Break one."""
        number = system.victim(chance)
        self._befallen.add(number)
        done = self._nemesis.begin(system.servers[number], chance)
        return done if is_left_out(done) else {"server": number, "done": done}

    def end(self, system: Replicas) -> dict[int, Any]:
        """Mend it."""
        befallen, self._befallen = self._befallen, set()
        return {number: self._nemesis.end(system.servers[number]) for number in sorted(befallen)}


class CutJournal:
    """A server and the broker are parted, or the way between them is slow, deaf or broken."""

    name = "network-journal"
    needs: frozenset[str] = frozenset()

    def begin(self, system: Replicas, chance: random.Random) -> dict[str, Any]:
        """Break the way of one."""
        number, how = system.victim(chance), chance.choice(sorted(BREAKS))
        return {"server": number, how: BREAKS[how](system.broker.ways[number], chance)}

    def end(self, system: Replicas) -> str:
        """Mend all ways."""
        for way in system.broker.ways:
            way.mend()
        return "mended"


class SignalBroker:
    """The broker is killed or stands still."""

    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, sent: int) -> None:
        self.name, self._sent = name, sent

    def begin(self, system: Replicas, _: random.Random) -> dict[str, bool]:
        """Send it."""
        return {"broker": system.signal_broker(self._sent)}

    def end(self, system: Replicas) -> str:
        """It goes on, and every server reaches it."""
        system.mend_broker()
        return "goes on"


def made() -> dict[str, Nemesis[Any]]:
    """The nemeses of one run by their names: they remember what they broke."""
    journal = (
        CutJournal(),
        SignalBroker("kill-broker", signal.SIGKILL),
        SignalBroker("pause-broker", signal.SIGSTOP),
    )
    every = [*(OfOne(NEMESES[name]) for name in OF_ONE), *(NEMESES[name] for name in OF_CLIENTS), *journal]
    return {each.name: each for each in every}


NAMES = frozenset(made())

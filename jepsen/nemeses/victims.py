"""The processes that nemeses kill and stop, by their names."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jepsen.system import System
from jepsen.system.processes import Found


@dataclass(frozen=True, slots=True)
class Victim:
    """A kind of process. `find` gives those that run now."""

    name: str
    needs: frozenset[str]
    find: Callable[[System], list[Found]]

    def drawn(self, system: System, chance: random.Random) -> list[Found]:
        """All of them, or one."""
        found = sorted(self.find(system), key=lambda each: each.pid)
        return [chance.choice(found)] if found and chance.random() < ONE_SHARE else found


ONE_SHARE = 0.5
TIERER = frozenset({"tierer"})
PRESENTER = "lakestore_server.snapshots.worker"
"""A child of the server tells its purpose by the module in its command."""

VICTIMS: Mapping[str, Victim] = {
    each.name: each
    for each in (
        Victim("server", frozenset(), lambda system: system.server.found()),
        Victim("presenter", frozenset(), lambda system: system.server.children(PRESENTER)),
        Victim("tierer", TIERER, lambda system: system.tierer.found() if system.tierer else []),
        Victim("driver", TIERER, lambda system: system.tierer.driver() if system.tierer else []),
        Victim("executor", frozenset({"spark"}), lambda system: system.spark.executors() if system.spark else []),
        Victim("client", frozenset(), lambda system: system.clients.found()),
    )
}

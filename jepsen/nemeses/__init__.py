"""The nemeses, one module for what is broken.

Processes: `kill`, `pause`, with the `victims` of both. The ways between them: `network`, `namespaces`, `catalog`,
`store`, `kafka`. Several servers on one journal: `replicas`, with names of its own. The disk: `disk`, `damage`, `crash`
at the named `steps`. The time: `clock`. `NEMESES` names all of them for the command line. They break a
`jepsen.system.System` and mend it again. Several may overlap: to begin with what is broken already, and to mend what is
whole, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jepsen.nemeses.catalog import CATALOG
from jepsen.nemeses.clock import CLOCKS
from jepsen.nemeses.crash import CRASHES
from jepsen.nemeses.damage import DAMAGES
from jepsen.nemeses.disk import DISKS
from jepsen.nemeses.kafka import KAFKA
from jepsen.nemeses.kill import KILLS
from jepsen.nemeses.namespaces import NAMESPACES
from jepsen.nemeses.network import NETWORKS
from jepsen.nemeses.pause import PAUSES
from jepsen.nemeses.store import STORE
from jepsen.schedule import Nemesis

_SYSTEM = (*KILLS, *PAUSES, *NETWORKS, *NAMESPACES, *CLOCKS, *DISKS, *CRASHES, *DAMAGES)
_ALL: tuple[Nemesis[Any], ...] = (*_SYSTEM, *KAFKA, CATALOG, STORE)
NEMESES: dict[str, Nemesis[Any]] = {each.name: each for each in _ALL}
CHEAP = frozenset({"clock", "namespace", "disk"})
"""Parts that a nemesis may add to any run."""
TOGETHER = (
    ("kill", "pause"),
    ("kill-presenter", "pause-presenter", "kill"),
    ("network", "kill"),
    ("network", "pause", "kill-client"),
    ("packets", "kill"),
    ("clock", "kill"),
    ("clock", "pause"),
    ("pause-client", "kill-client", "kill"),
    ("kill-tierer", "pause-tierer", "network-tierer"),
    ("zombie-tierer", "kill"),
    ("power", "kill"),
    ("power", "crash-point"),
    ("power", "disk-sync", "disk-failing"),
    ("power", "pause", "clock"),
    ("disk-full", "kill"),
    ("disk-full", "disk-slow", "crash-point"),
    ("damage", "kill"),
    ("catalog", "kill-tierer", "zombie-tierer"),
    ("store", "kill"),
    ("store", "catalog", "kill-tierer"),
    ("kill-bridge", "pause-bridge", "kill-broker", "kill"),
    ("kill-bridge", "network-bridge"),
)
"""Faults that find more when they come in one run."""


def possible(parts: Iterable[str]) -> list[str]:
    """The nemeses of a run whose workloads have these parts."""
    there = CHEAP | frozenset(parts)
    return sorted(name for name, each in NEMESES.items() if each.needs <= there)


def combinations(parts: Iterable[str]) -> list[tuple[str, ...]]:
    """The faults that go well together in a run whose workloads have these parts."""
    names = set(possible(parts))
    return [each for each in TOGETHER if names.issuperset(each)]

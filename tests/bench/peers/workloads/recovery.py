"""From the start of a server that was killed by kill -9 to its first answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import fluss, lakestore
from tests.bench.peers.workloads.upserts import BUCKETS, Keyed

KEYS, TABLE, FIRST = 1_000_000, "whole", "start to first answer"


class Recovery(Keyed, Protocol):
    """The methods that this workload calls on a system."""

    def recover(self, name: str, keys: int) -> float:
        """Kill the server; seconds from its start to the answer to a look-up."""


class Stage(NamedTuple):
    """A filled system."""

    system: Recovery
    keys: int


def prepare(system: Recovery, scale: float) -> Stage:
    """Fill the table, and update it a little."""
    stage = Stage(system, int(KEYS * scale))
    system.make_keyed(TABLE, BUCKETS)
    system.insert(TABLE, 0, stage.keys)
    system.update(TABLE, "uniform", stage.keys, 1.0)
    return stage


def turn(stage: Stage, _: int) -> Mapping[str, float]:
    """Seconds; then all keys are there."""
    seconds = stage.system.recover(TABLE, stage.keys)
    stage.system.check(TABLE, stage.keys)
    return {FIRST: seconds}


WORKLOAD = Workload(
    title="Recovery after kill -9, 1 M keys",
    what=(
        f"The server of a table with {KEYS:,} keys in {BUCKETS} buckets is killed and started again. Time from the"
        " start of the process to the answer to a look-up. In Fluss the tablet server is killed, while"
        " ZooKeeper and the coordinator stay."
    ),
    measures=(Measure(FIRST, "s", LESS, 2),),
    contestants=(lakestore.CONTESTANT, fluss.contestant(fluss.QUICK_LOOKUPS, server=(fluss.QUICK_SESSIONS,))),
    prepare=prepare,
    turn=turn,
)

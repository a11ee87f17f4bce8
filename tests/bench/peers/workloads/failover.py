"""The leader is killed: how long no write is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import failover

OUTAGE = "longest time without an acknowledged write"


class Pair(Protocol):
    """The methods that this workload calls on a system."""

    def outage(self) -> float:
        """Kill the leader while a client writes; seconds. All servers run again afterwards."""


def prepare(system: Pair, _: float) -> Pair:
    """One kill that does not count."""
    system.outage()
    return system


def turn(system: Pair, _: int) -> Mapping[str, float]:
    """Seconds of one kill."""
    return {OUTAGE: system.outage()}


WORKLOAD = Workload(
    title="Failover",
    what=(
        "A client writes one row after the other while kill -9 ends the leader. Lakestore has two servers, and the one"
        " that commits is killed. Its journal is a topic of three brokers, and these live on. In Kafka the broker that"
        " leads the partition is killed. In KRaft mode this broker may also lead the controllers. The longest time"
        " between two acknowledged writes counts. Most of it is the time until a silent leader is given up: 1 s in"
        " Lakestore and 3 s in Kafka, each a third of what is shipped."
    ),
    measures=(Measure(OUTAGE, "s", LESS, 2),),
    contestants=(failover.LAKESTORE, failover.KAFKA),
    prepare=prepare,
    turn=turn,
)

"""Packets between everybody and the server, which lives in a network namespace of its own: late, lost, doubled, cut."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from jepsen.system import System
from jepsen.system.wire import FAIR, Weather


class Packets:
    """One kind of bad weather on the wire."""

    name = "packets"
    needs = frozenset({"namespace"})

    def begin(self, system: System, chance: random.Random) -> Any:
        """Let it begin."""
        if system.wire is None:
            return system.left_out("namespace")
        system.wire.weather = weather = drawn(chance)
        return asdict(weather)

    def end(self, system: System) -> str:
        """Fair weather."""
        if system.wire is not None:
            system.wire.weather = FAIR
        return "fair"


def drawn(chance: random.Random) -> Weather:
    """Some bad weather."""
    delay, jitter = chance.uniform(0.001, 0.15), chance.uniform(0.0, 0.1)
    return chance.choice(
        (
            Weather(delay_seconds=delay, jitter_seconds=jitter),
            Weather(lost=chance.uniform(0.01, 0.3)),
            Weather(jitter_seconds=jitter, doubled=chance.uniform(0.05, 0.5)),
            Weather(delay_seconds=delay / 5, jitter_seconds=jitter, lost=0.05, doubled=0.05),
            Weather(to_server=False, to_clients=False),
            Weather(to_server=False),
            Weather(to_clients=False),
        )
    )


NAMESPACES = (Packets(),)

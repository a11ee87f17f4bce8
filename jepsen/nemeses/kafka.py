"""Troubles around Kafka: the broker and the bridges are killed, and stand still for longer than a session."""

from __future__ import annotations

import random
import signal

from jepsen.system import System
from jepsen.system.bridges import COUNT, Bridges

NEEDS = frozenset({"kafka"})


def _of(system: System) -> Bridges:
    if system.bridges is None:
        raise RuntimeError("the system has no Kafka: a workload that needs it is not part of the run")
    return system.bridges


class _Signals:
    """A signal to some at the beginning, and another one at the end."""

    needs = NEEDS

    def __init__(self, name: str, sent: int, *, broker: bool = False) -> None:
        self.name, self._sent, self._broker = name, sent, broker

    def begin(self, system: System, chance: random.Random) -> dict[str, bool]:
        """Break the broker, one bridge or all."""
        bridges = _of(system)
        if self._broker:
            return {"broker": bridges.signal_broker(self._sent)}
        numbers = chance.choice(([0], [1], list(range(COUNT))))
        return {f"bridge{number}": bridges.signal_bridge(number, self._sent) for number in numbers}

    def end(self, system: System) -> str:
        """Everything goes on."""
        _of(system).mend()
        return "all go on"


KAFKA = (
    _Signals("kill-broker", signal.SIGKILL, broker=True),
    _Signals("pause-broker", signal.SIGSTOP, broker=True),
    _Signals("kill-bridge", signal.SIGKILL),
    _Signals("pause-bridge", signal.SIGSTOP),
)

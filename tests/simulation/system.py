"""The system under test in a world: what `jepsen.run` connects to, and what its nemeses break."""

from __future__ import annotations

import random
from pathlib import Path

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.schedule import Planned
from lakestore.client.calls import transport_of
from lakestore.limits import Limits
from tests.simulation.machine import Machine
from tests.simulation.wire import WINDOW, Life, Network, SimWire
from tests.simulation.world import World

CALL_SECONDS = 0.2, 1.0, 5.0
"""The time of a call at most, of which the seed chooses one: after a short one its outcome is often unknown."""
WINDOWS = 1, 1, WINDOW
"""Messages of a stream on their way at most, of which the seed chooses: few, and a reader that rests holds it up."""
STARTS_MAX = 3


class NoStart(Exception):
    """A server that refuses to start on what a crash has left, with nothing broken any more."""


class SimSystem:
    """A server, the network before it, and clients that are threads of the run."""

    catalog = kafka = ""

    def __init__(self, world: World, folder: Path, seed: str, limits: Limits) -> None:
        self.world = world
        self.network = Network(world)
        self.network.window = random.Random(f"{seed} window").choice(WINDOWS)
        self.machine = Machine(world, self.network, folder, seed, limits)
        self.call_seconds = random.Random(f"{seed} calls").choice(CALL_SECONDS)
        self.wires: list[SimWire] = []
        self.begun: list[Planned] = []
        self.failed_in: Life | None = None
        """The life of the server in which a checkpoint has failed last."""
        self.anomalies: list[Anomaly] = []
        """Wrong answers to a fault that no workload sees."""

    def connect(self, process: int) -> ls.Lake:
        """A connection over the simulated network."""
        wire = SimWire(self.network, self.world.outside)
        self.wires.append(wire)
        return ls.Lake(transport_of(wire, call_seconds=self.call_seconds), f"sim-{process}")

    def restart(self) -> None:
        """Start the server if it is down, as a supervisor does; what is still broken may keep it from that."""
        if not (self.machine.is_up and self.machine.server is not None):
            self.machine.start()

    def start(self) -> None:
        """Start the server, which nothing keeps from that; it may have to try again."""
        for _ in range(STARTS_MAX):
            self.restart()
            if self.machine.is_up:
                return
            self.world.sleep(0.5)
        raise NoStart(f"the server does not start any more: {self.machine.failures[-1:]}")

    def heal(self) -> None:
        """Everything runs, and nothing is broken."""
        machine, world = self.machine, self.world
        self.network.weather.calm()
        machine.disk.heal()
        machine.disk.fill_up(None)
        machine.disk.set_free(None)
        machine.speed.factor = 1.0
        machine.crash_nowhere()
        machine.act_nowhere()
        world.failing_allocations = 0
        if machine.life is not None and machine.life.process.is_paused:
            world.resume(machine.life.process)
        if machine.is_broken:
            machine.kill()
        self.start()

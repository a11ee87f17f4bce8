"""The system under test in a world: what `jepsen.run` connects to, and what its nemeses break.

It is one server, or several that share a journal: then each has a machine, a network before it and a link to the log.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import orjson

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.schedule import Planned
from lakestore.client.calls import transport_of
from lakestore.client.profiles import Reads
from lakestore.client.servers import ServersWire
from lakestore.limits import Limits
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.disk import Disk
from lakestore_server.journals.object_log import IDENTITY
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.state.judge import Kind
from tests.simulation import marks
from tests.simulation.log_link import PART_BYTES, LogLink
from tests.simulation.machine import Clock, Machine
from tests.simulation.marks import Watcher
from tests.simulation.store_link import StoreLink
from tests.simulation.wire import WINDOW, Life, Network, SimWire
from tests.simulation.world import World
from tests.support.journal_servers import truth
from tests.support.object_logs import SimulatedStore
from tests.support.shared_log import Faults, SharedLog

CALL_SECONDS = 0.2, 1.0, 5.0
"""The time of a call at most, of which the seed chooses one: after a short one its outcome is often unknown."""
WINDOWS = 1, 1, WINDOW
"""Messages of a stream on their way at most, of which the seed chooses: few, and a reader that rests holds it up."""
STARTS_MAX = 3
NAMES = "abc"
LEASES = 0.2, 0.5
"""Seconds of silence after which followers claim. The seed chooses one."""
BUCKET_TIMES = (0.005, 0.6), (0.03, 1.0), (0.1, 2.0)
"""The longest usual delay of a request of a bucket, and a lease that fits it: readers look every quarter of a second at
least, and a shorter lease would change the leader without any fault."""
BUCKET_CALL_SECONDS = 1.0, 5.0
"""A commit takes two requests after each other."""
GROUP_SECONDS, BLOCKS = (0.0, 0.02), (4, 32)
JournalKind = Literal["log", "bucket"]
"""What servers share: a log as Kafka has it, or objects in a store."""
SAME_SECONDS = 20.0
"""The longest that a follower may take to have what the leader has, while nothing is broken."""
RATES = (0.96, 1.0, 1.05)
LEADER_SECONDS = 20.0
"""The longest time without a leader while nothing is broken."""


class NoStart(Exception):
    """A server that refuses to start on what a crash has left, with nothing broken any more."""


@dataclass(frozen=True)
class Shared:
    """The log of servers that share a journal, or the store that holds it, and the way of each machine to it."""

    log: SharedLog | SimulatedStore
    links: dict[str, LogLink] | dict[str, StoreLink]
    faults: Faults
    """What happens to messages while nothing is broken."""
    lease_seconds: float
    rates: dict[str, float]
    """How fast the clock of each machine runs. They differ if reads rely on the lease."""
    reads_by_lease: bool

    @classmethod
    def of(cls, world: World, seed: str, names: str, *, reads_by_lease: bool = False) -> Shared:
        """A log as the seed makes it."""
        chance = random.Random(f"{seed} shared")
        log, part_bytes = SharedLog(world, seed), chance.choice(PART_BYTES)
        often = chance.choice((0.0, 0.0, 0.1))
        log.faults = Faults(delay=chance.choice((0.001, 0.01)), strangers=often, skips=often, somewhere=often)
        links, lease_seconds = {name: LogLink(world, log, part_bytes) for name in names}, chance.choice(LEASES)
        return cls(log, links, log.faults, lease_seconds, _rates(chance, names, reads_by_lease), reads_by_lease)

    @classmethod
    def in_bucket(cls, world: World, seed: str, names: str, *, reads_by_lease: bool = False) -> Shared:
        """A store as the seed makes it."""
        chance = random.Random(f"{seed} bucket")
        delay, lease_seconds = chance.choice(BUCKET_TIMES)
        store = SimulatedStore(world, seed, Faults(delay=delay))
        store.objects[IDENTITY] = b'{"format": 1, "id": "simulated"}'
        part_bytes = chance.choice(PART_BYTES)
        group_seconds, block = chance.choice(GROUP_SECONDS), chance.choice(BLOCKS)
        links = {name: StoreLink(world, store, part_bytes, group_seconds=group_seconds, block=block) for name in names}
        return cls(store, links, store.faults, lease_seconds, _rates(chance, names, reads_by_lease), reads_by_lease)

    def heal(self) -> None:
        """Everything arrives once, in time, with an answer."""
        self.log.faults = self.faults
        for link in self.links.values():
            link.mend()

    def journal(self, name: str, world: World) -> SharedJournal:
        """The journal of a server that starts."""
        clock = Clock(world, self.rates[name])
        return SharedJournal(self.links[name].end(), clock, self.lease_seconds, reads_by_lease=self.reads_by_lease)


def _rates(chance: random.Random, names: str, differ: bool) -> dict[str, float]:
    return {name: chance.choice(RATES) if differ else 1.0 for name in names}


class SimSystem:
    """Servers, the networks before them, and clients that are threads of the run."""

    catalog = kafka = sql = ""

    def __init__(
        self,
        world: World,
        folder: Path,
        seed: str,
        limits: Limits,
        servers: int = 1,
        reads: Reads = "leader",
        journal: JournalKind = "log",
        *,
        by_lease: bool = False,
    ) -> None:
        self.world = world
        self._reads: Reads = reads
        names = ("server",) if servers == 1 else tuple(NAMES[:servers])
        make = Shared.of if journal == "log" else Shared.in_bucket
        self.shared = make(world, seed, NAMES[:servers], reads_by_lease=by_lease) if servers > 1 else None
        window, watcher = random.Random(f"{seed} window").choice(WINDOWS), Watcher(world)
        self.machines: list[Machine] = []
        for name in names:
            network = Network(world, watcher, "sim" if self.shared is None else name)
            network.window = window
            own, own_seed = (folder, seed) if self.shared is None else (folder / name, f"{seed} {name}")
            journal_of = partial(self._journal, name)
            lake = "" if self.shared is None else str(folder / "warehouse")
            made = Machine(world, network, own, own_seed, limits, journal_of, name, lake)
            made.clock_rate = self.shared.rates[name] if self.shared else 1.0
            self.machines.append(made)
        self._seed, self._call_seconds = seed, random.Random(f"{seed} calls").choice(CALL_SECONDS)
        self.begun: list[Planned] = []
        self.failed_in: Life | None = None
        """The life of the server in which a checkpoint has failed last."""
        self.anomalies: list[Anomaly] = []
        """Wrong answers to a fault that no workload sees."""

    def _journal(self, name: str, disk: Disk, folder: Path) -> FileJournal | SharedJournal:
        return FileJournal(disk, folder) if self.shared is None else self.shared.journal(name, self.world)

    def connect(self, process: int) -> ls.Lake:
        """A connection over the simulated network. Clients of several servers wait differently long for an answer, so
        some of them find the next leader while others still ask the last one."""
        seconds = self._call_seconds
        if self.shared is not None:
            chosen = CALL_SECONDS if isinstance(self.shared.log, SharedLog) else BUCKET_CALL_SECONDS
            seconds = random.Random(f"{self._seed} calls {process}").choice(chosen)
            if process < 0 and chosen is BUCKET_CALL_SECONDS:  # the tables of a run are made once, and not again
                seconds = max(chosen)
        return self.connect_to(self.machines, f"sim-{process}", seconds)

    def connect_to(self, machines: Sequence[Machine], name: str, call_seconds: float = CALL_SECONDS[-1]) -> ls.Lake:
        """A connection to these machines alone."""
        wires = {machine.network.address: machine.network for machine in machines}

        def opened(address: str) -> SimWire:
            at_leader = self._reads == "leader" and len(wires) > 1
            return SimWire(wires[address], self.world.outside, asks_leader=at_leader)

        wire = opened(*wires) if len(wires) == 1 else ServersWire(tuple(wires), self._reads, opened)
        return ls.Lake(transport_of(wire, call_seconds=call_seconds), name)

    def leader(self) -> Machine | None:
        """The machine whose server leads; of several that say so, the one of the highest epoch."""
        leading = [machine for machine in self.machines if machine.is_leading]
        return max(leading, key=_epoch, default=None)

    def await_leader(self, besides: Machine | None = None) -> Machine:
        """The machine whose server leads, once one does; not the given one, which may not know it yet."""
        until = self.world.now + LEADER_SECONDS
        while self.world.now < until:
            leader = self.leader()
            if leader is not None and leader is not besides:
                return leader
            self.world.sleep(0.05)
        raise NoStart("nobody leads")

    def victim(self, chance: random.Random) -> Machine:
        """The machine that a fault befalls: in half of all cases the leader's, if there are several."""
        if len(self.machines) == 1:
            return self.machines[0]
        leader, drawn = self.leader(), chance.choice(self.machines)
        return leader if leader is not None and chance.random() < 0.5 else drawn

    def restart(self) -> None:
        """Start each server that is down, as a supervisor does; what is still broken may keep it from that."""
        for machine in self.machines:
            if not (machine.is_up and machine.server is not None):
                machine.start()

    def start(self) -> None:
        """Start the servers, which nothing keeps from that; they may have to try again."""
        for _ in range(STARTS_MAX):
            self.restart()
            if all(machine.is_up or self._has_told_nothing(machine) for machine in self.machines):
                break
            self.world.sleep(0.5)
        else:
            failures = [failure for machine in self.machines for failure in machine.failures[-1:]]
            raise NoStart(f"the server does not start any more: {failures}")
        if self.shared is not None:
            self.await_leader()

    def _has_told_nothing(self, machine: Machine) -> bool:
        """Whether no message names a server, because it was killed before its first report. The others may remove what
        it needs. It would copy a checkpoint then, which no run does."""
        if self.shared is None:
            return False
        name = f'"{machine.name}"'.encode()
        has_told = any(data is not None and name in data for _, data in self.shared.log.messages)
        if not has_told:
            self.world.mark(marks.TOLD_NOTHING)
        return not has_told

    def heal(self) -> None:
        """Everything runs, and nothing is broken."""
        self.world.failing_allocations = 0
        self._reads = "leader"  # the last reads must show everything
        if self.shared is not None:
            self.shared.heal()
        for machine in self.machines:
            self._mend(machine)
        self.start()

    def _mend(self, machine: Machine) -> None:
        machine.network.weather.calm()
        machine.disk.heal()
        machine.disk.fill_up(None)
        machine.disk.set_free(None)
        machine.speed.factor = 1.0
        machine.crash_nowhere()
        machine.act_nowhere()
        if machine.life is not None and machine.life.process.is_paused:
            self.world.resume(machine.life.process)
        if machine.is_broken:
            machine.kill()

    def compare(self) -> None:
        """Let every server apply what the leader has; an anomaly if their states differ then."""
        if self.shared is None:
            return
        leader = self.await_leader()
        lsn = max(machine.server.engine.view.lsn for machine in self.machines if machine.server is not None)
        states = {each.name: self._content(each, lsn) for each in self.machines if each.server is not None}
        for name, state in states.items():
            for what, value in state.items():
                if value != states[leader.name][what]:
                    told = f"{what} of {name} is {value}, of the leader {leader.name} {states[leader.name][what]}"
                    self.anomalies.append(Anomaly("replicas-differ", told))
        addresses = [
            orjson.loads(counted.record()[0].to_pybytes())[0]
            for counted in truth(self.shared.log)
            if counted.kind is Kind.CLAIM
        ]
        for former, address in pairwise(addresses):
            if former != address:
                self.world.mark(marks.FAILED_OVER)

    def _content(self, machine: Machine, lsn: int) -> dict[str, object]:
        """A server's state at an LSN or later, by the name of each part."""
        assert machine.server is not None, f"{machine.name} is down"
        engine = machine.server.engine
        until = self.world.now + SAME_SECONDS
        while engine.view.lsn < lsn and self.world.now < until:
            self.world.sleep(0.05)
        state, view = engine.loop.state, engine.view
        tables = {
            f"table {table.table.name}": [(log.head, log.at_head.live_rows, log.at_head.live_sum) for log in table.logs]
            for table in view.kept.values()
        }
        return {
            "LSN": view.lsn,
            "registers": state.registers.frozen(),
            "producers": dict(state.producers.named),
            **tables,
        }

    def stop(self) -> None:
        """An orderly end of every server."""
        for machine in self.machines:
            machine.stop()

    def close(self) -> None:
        """End every process, and let go of the disks' files."""
        for machine in self.machines:
            machine.close()


def _epoch(machine: Machine) -> int:
    return 0 if machine.server is None else machine.server.engine.loop.journal.leader.epoch

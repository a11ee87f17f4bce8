"""One run of the simulation: all that it is made from, and what came of it."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.run import Course, Run
from jepsen.schedule import Planned
from jepsen.verdict import Verdict
from jepsen.workload import Workload
from jepsen.workloads import WORKLOADS
from lakestore.client.profiles import Reads
from lakestore.limits import DEFAULT, Limits
from tests.simulation import folders, nemeses
from tests.simulation.planned_losses import scarce
from tests.simulation.scale import scaled
from tests.simulation.system import JournalKind, NoStart, SimSystem
from tests.simulation.threads import installed
from tests.simulation.world import STEPS_MAX, Stuck, World

SIMULATED = tuple(name for name, make in WORKLOADS.items() if not make(random.Random(0)).needs)
"""Names of the workloads that need nothing beside a server."""


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing is logged within the block."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Case:
    """A run. Everything that is not said follows from the seed."""

    seed: str
    workload: str
    processes: int = 3
    operations: int = 14
    seconds: float = 2.0
    servers: int = 1
    """Several ones share a journal."""
    journal: JournalKind = "log"
    """What they share."""
    reads: Reads = "leader"
    """The servers that clients of several ones read from."""
    by_lease: bool = False
    """Whether reads of the leader rely on its lease."""
    faults: tuple[str, ...] = tuple(sorted(nemeses.NEMESES.keys() - {nemeses.RESCALE}))
    """The kinds of faults that may be drawn."""
    dropped: frozenset[int] = frozenset()
    """Numbers of planned faults that are left out."""

    def planned(self) -> list[Planned]:
        """The faults."""
        names = nemeses.possible(self.faults, self.servers)
        planned = nemeses.plan(f"{self.seed} {self.workload}", self.seconds, names)
        return [each for number, each in enumerate(planned) if number not in self.dropped]


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    case: Case
    anomalies: tuple[Anomaly, ...]
    history: History
    trace: tuple[str, ...]
    marks: Counter[str]
    operations: int
    switches: int
    virtual_seconds: float
    cpu_seconds: float

    @property
    def names(self) -> list[str]:
        """The names of the anomalies, each once; the one that says the least comes last."""
        return sorted({each.name for each in self.anomalies}, key=lambda name: (name in VAGUE, name))

    def text(self) -> str:
        """History and trace, the same bytes for the same seed."""
        lines = [json.dumps(asdict(each), sort_keys=True) for each in self.history]
        return "\n".join([*lines, *self.trace]) + "\n"


def limits_of(chance: random.Random) -> Limits:
    """The limits of a server of the world: small ones, that everything happens in a short run."""
    return replace(
        DEFAULT,
        clock_confirm_seconds=chance.choice((0, 1, 5)),
        journal_checkpoint_bytes=chance.choice((2, 8, 32)) << 10,
        overlay_checkpoint_keys=chance.choice((16, 64, 1024)),
        index_cache_keys=chance.choice((1, 32, 4096)),
        disk_free_bytes=0,
        scrub_bytes=chance.choice((0, 1 << 20)),
        extent_bytes=chance.choice((1, 1, 1 << 16)),
        compressed_percent=chance.choice((0, 0, 80)),
        extent_file_percent=chance.choice((1, 10, 25, 50)),
    )


VAGUE = frozenset({"crash", "crashed", "stuck", "untested"})
"""Names of anomalies that may only say that nothing was tested."""
IDLE = frozenset({"idle"})
"""Anomalies that are none here: a run is short, and what none of its calls did others' do."""
FOREIGN = "sql"
"""The way to read that runs in threads of a library, DuckDB's, which no world can order."""


class _Without:
    """A workload without the functions that cannot be simulated."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.name, self.needs = workload.name, workload.needs
        self.setup, self.client, self.check = workload.setup, workload.client, workload.check

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """The workload's own, less those."""
        return _simulated(self._workload.operations(process, chance))

    def last(self, process: int) -> Iterator[Invocation]:
        """The workload's own, less those."""
        return _simulated(self._workload.last(process))


def _simulated(invocations: Iterator[Invocation]) -> Iterator[Invocation]:
    for each in invocations:
        via = each.value.get("via") if isinstance(each.value, dict) else None
        if FOREIGN not in (each.f, via):
            yield each


class _Watched(Run):
    """A run whose recorders can be read when it has not come to its end."""

    def history(self) -> History:
        """What is recorded so far."""
        return next(iter(self._recorders.values())).close()


def run(case: Case) -> Outcome:
    """Run it."""
    began = time.process_time()
    identity = f"{case.seed} {case.workload}"
    shape = random.Random(f"{identity} shape")
    preempt = shape.choice((0.0, 0.005, 0.02, 0.1))
    world = World(identity, preempt=preempt, steps_max=STEPS_MAX * case.servers)
    verdicts: list[Verdict] = []
    made: list[_Watched] = []
    systems: list[SimSystem] = []
    anomalies: list[Anomaly] = []
    with _silence(), folders.folder() as folder, installed(world), scaled(world, identity), scarce(world):

        def main() -> None:
            about = identity, limits_of(shape), case.servers, case.reads, case.journal
            system = SimSystem(world, folder, *about, by_lease=case.by_lease)
            workload = _Without(WORKLOADS[case.workload](random.Random(f"{identity} workload")))
            course = Course(
                identity,
                case.seconds,
                case.processes,
                case.operations,
                case.seconds / case.operations,
                reads=case.reads,
            )
            systems.append(system)
            system.start()
            made.append(_Watched(system, [workload], nemeses.NEMESES, case.planned(), course))
            verdicts.append(made[0].run())
            system.compare()
            system.stop()
            system.close()

        try:
            world.run(main)
        except Stuck as stuck:
            anomalies.append(Anomaly("stuck", str(stuck)))
        except NoStart as error:
            anomalies.append(Anomaly("unrecoverable", str(error)))
        except Exception as error:  # whatever ends a run is an anomaly of it
            anomalies.append(Anomaly("crashed", f"{type(error).__name__}: {error}"))
    history = made[0].history() if made else History([])
    anomalies += [each for system in systems for each in system.anomalies]
    anomalies += [each for verdict in verdicts for each in verdict.anomalies if each.name not in IDLE]
    return Outcome(
        case,
        tuple(anomalies),
        history,
        tuple(world.trace),
        world.marks,
        len(history),
        world.steps,
        world.now - 1_000.0,
        time.process_time() - began,
    )

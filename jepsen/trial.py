"""A trial: the choices that follow from one seed for a run against real processes, and the run itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jepsen import report, schedule
from jepsen.nemeses import NEMESES, combinations, possible
from jepsen.nemeses import replicas as of_replicas
from jepsen.run import OPERATIONS, Course, Run
from jepsen.schedule import Nemesis, Planned
from jepsen.system import System
from jepsen.system.cluster import Cluster
from jepsen.system.reached import Reads
from jepsen.system.replicas import LEASES, Replicas
from jepsen.verdict import Verdict
from jepsen.workload import Tuned, Workload
from jepsen.workloads import WORKLOADS

TOGETHER = 3
"""Workloads of one run."""
SECONDS = 12.0
SECONDS_MIN = 4.0
REPLICAS_SECONDS = 20.0
"""Failovers take their time."""
PROCESSES = 3
HUNG_SECONDS = 180.0
"""Longer than any call of a workload may wait."""
HEAVY = frozenset({"tierer", "spark", "kafka", "store", "sql"})
"""Parts of a system that take long to start, and the Postgres port, whose workload writes the tables of another."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The choices of a run. The schedule of faults and all operations follow from the seed."""

    seed: str
    workloads: tuple[str, ...]
    nemeses: tuple[str, ...]
    seconds: float = SECONDS
    processes: int = PROCESSES
    operations: int = OPERATIONS
    """The most that one client does in the main phase."""
    servers: int = 1
    """Several ones share a journal in Kafka."""
    reads: Reads = "leader"
    """Where clients of several servers read."""
    s3: str = ""
    """Host and port of an S3 server with an empty bucket `lakestore`, which has the warehouse."""

    @property
    def command(self) -> str:
        """The command that does the run again, with processes of its own."""
        return " ".join([self._shape, *(f"-n {name}" for name in self.nemeses or ("none",))])

    @property
    def _shape(self) -> str:
        shape = f"--seed {self.seed} --seconds {self.seconds:g} --processes {self.processes}"
        shape += f" --operations {self.operations}" if self.operations != OPERATIONS else ""
        shape += f" --servers {self.servers} --reads {self.reads}" if self.servers > 1 else ""
        shape += f" --s3 {self.s3}" if self.s3 else ""
        return " ".join(["python -m jepsen run", shape, *(f"-w {name}" for name in self.workloads)])

    def again(self, cluster: Cluster | None) -> str:
        """The command that does the run again where it was done."""
        return self.command if cluster is None else f"{self._shape} {cluster.options}"

    def smaller(self) -> Iterator[Trial]:
        """Trials with less in them, the biggest steps first."""
        if len(self.workloads) > 1:
            yield from (replace(self, workloads=(name,)) for name in self.workloads)
        if self.nemeses:
            yield replace(self, nemeses=())
        for name in self.nemeses if len(self.nemeses) > 1 else ():
            yield replace(self, nemeses=tuple(other for other in self.nemeses if other != name))
        if self.processes > 1:
            yield replace(self, processes=self.processes - 1)
        if self.seconds > 2 * SECONDS_MIN:
            yield replace(self, seconds=self.seconds / 2)

    def made(self) -> list[Workload]:
        """Its workloads, each in the shape that the seed gives it."""
        return [WORKLOADS[name](random.Random(f"{self.seed} {name}")) for name in self.workloads]

    def planned(self) -> list[Planned]:
        """Its faults. Every second silence of several servers outlasts their lease."""
        planned = schedule.plan(self.seed, self.seconds, self.nemeses)
        silence = 1.5 * max(LEASES)
        return schedule.lasting(planned, of_replicas.SILENCES, silence) if self.servers > 1 else planned

    def perform(self, folder: Path, cluster: Cluster | None = None) -> Verdict:
        """Do it, with all that it leaves in a folder: histories, logs, verdict, report and pictures.

        Without a cluster it starts processes of its own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        made = self.made()
        course = Course(
            self.seed,
            self.seconds,
            self.processes,
            self.operations,
            hung_seconds=HUNG_SECONDS,
            reads=self.reads,
            nemeses_apart=self.servers > 1,
        )
        if cluster is not None:
            nemeses: Mapping[str, Nemesis[Any]] = schedule.chosen(cluster.nemeses, self.nemeses)
            verdict = Run(cluster, made, nemeses, self.planned(), course, folder).run()
        else:
            known = of_replicas.made() if self.servers > 1 else NEMESES
            nemeses = schedule.chosen(known, self.nemeses)
            needs = needs_of(self.workloads).union(*(each.needs for each in nemeses.values()))
            needs |= {"store"} if self.s3 else set()
            settings = {
                name: value for each in made if isinstance(each, Tuned) for name, value in each.settings.items()
            }
            with self._system(folder, needs, settings) as system:
                verdict = Run(system, made, nemeses, self.planned(), course, folder, system.client).run()
        (folder / "verdict.json").write_text(json.dumps(verdict.to_json(), indent=1))
        report.write(folder, self.again(cluster), verdict)
        return verdict

    def _system(self, folder: Path, parts: frozenset[str], settings: Mapping[str, str]) -> System | Replicas:
        if self.servers == 1:
            return System(folder, parts, settings, self.seed, s3=self.s3)
        return Replicas(folder, parts, settings, self.seed, self.servers, self.reads)


def with_replicas(trial: Trial, servers: int) -> Trial:
    """The trial with several servers, with its light workloads alone and faults that are theirs."""
    chance = random.Random(f"{trial.seed} replicas")
    names = sorted(of_replicas.NAMES)
    light = tuple(name for name in trial.workloads if not needs_of([name]))
    nemeses = tuple(sorted(chance.sample(names, chance.randint(1, 4))))
    return replace(trial, servers=servers, workloads=light, nemeses=nemeses, seconds=REPLICAS_SECONDS)


def drawn(base: int, number: int) -> Trial:
    """The trial of one number in a suite. Each turn has every light workload once, and the next heavy one."""
    turn, place = divmod(number, len(_groups(base, 0)))
    seed, names = f"{base}.{number}", _groups(base, turn)[place]
    return Trial(seed, names, _nemeses(random.Random(f"{seed} nemeses"), needs_of(names)))


def needs_of(names: Sequence[str]) -> frozenset[str]:
    """The parts of a system that some workloads need beside the server."""
    return frozenset[str]().union(*(WORKLOADS[name](random.Random(0)).needs for name in names))


def of_same_tables(names: Sequence[str]) -> list[str]:
    """The workloads among these that cannot be in one run, because they write the same tables."""
    found = [name for name in names if name.partition("_")[0] == "bank"]
    return found if len(found) > 1 else []


def _groups(base: int, turn: int) -> list[tuple[str, ...]]:
    """The workloads of one turn: light ones in groups, and then one that needs a heavy part with a light one beside."""
    chance = random.Random(f"{base} turn {turn}")
    heavy = [name for name in sorted(WORKLOADS) if needs_of([name]) & HEAVY]
    light = [name for name in sorted(WORKLOADS) if name not in heavy]
    chance.shuffle(light)
    random.Random(f"{base} heavy").shuffle(heavy)
    one = heavy[turn % len(heavy)]
    beside = chance.choice([name for name in light if not of_same_tables([one, name])])
    groups = [light[place : place + TOGETHER] for place in range(0, len(light), TOGETHER)]
    return [tuple(sorted(group)) for group in (*groups, (one, beside))]


def _nemeses(chance: random.Random, parts: frozenset[str]) -> tuple[str, ...]:
    """One kind of fault, some that go well together, any, or now and then none. All break parts that are there."""
    names, together = possible(parts), combinations(parts)
    how = chance.random()
    if how < 0.1:
        return ()
    if how < 0.35:
        return (chance.choice(names),)
    if how < 0.6:
        return chance.choice(together)
    return tuple(sorted(chance.sample(names, min(len(names), chance.randint(2, 5)))))


def of_seed(seed: str) -> Trial:
    """The trial of a seed as a suite prints it, `base.number`. Without a number it is the first trial of the suite."""
    base, _, number = seed.partition(".")
    return drawn(int(base), int(number or 0))

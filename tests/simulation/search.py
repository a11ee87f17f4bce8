"""Runs of many seeds, in several processes if wished: the anomalies that were found, and what was reached."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from tests.simulation.case import VAGUE, Case, run

LENGTHS = {"subscription": (4, 8, 14, 40)}
"""Operations of each process of a run, of workloads whose clients take turns; of others, `SHORT`."""
SHORT = (3, 4, 6, 8, 14)
SERVERS = 3
SECONDS_MIN, SECONDS_EACH = 2.0, 0.12
"""Time of a run, and for each operation of a process."""


@dataclass(frozen=True)
class Finding:
    """A run with an anomaly."""

    case: Case
    names: tuple[str, ...]
    sentence: str
    seconds: float
    """Since the search began."""

    def to_json(self) -> dict[str, object]:
        """The finding as JSON values."""
        return {
            "workload": self.case.workload,
            "seed": self.case.seed,
            "anomaly": self.names[0],
            "anomalies": list(self.names),
            "sentence": self.sentence,
            "seconds": round(self.seconds, 2),
        }


@dataclass
class Summary:
    """What a search came to."""

    runs: int = 0
    operations: int = 0
    switches: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    """State to the number of times that it was reached, over all runs."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The summary in one line."""
        pace = self.runs / self.seconds * 60 if self.seconds else 0.0
        return (
            f"{self.runs} runs, {self.operations:,} operations, {self.virtual_seconds:,.0f} simulated seconds in"
            f" {self.seconds:.1f} s ({pace:,.0f} runs a minute, {1000 * self.cpu_seconds / max(self.runs, 1):.0f} ms"
            f" of processor each): {len(self.findings)} with an anomaly"
        )


@dataclass(frozen=True)
class _Ran:
    """A run as it is told between processes."""

    case: Case
    names: tuple[str, ...]
    sentence: str
    operations: int
    switches: int
    virtual_seconds: float
    cpu_seconds: float
    marks: Counter[str]


def _ran(case: Case) -> _Ran:
    outcome = run(case)
    sentence = outcome.anomalies[0].sentence if outcome.anomalies else ""
    figures = outcome.operations, outcome.switches, outcome.virtual_seconds, outcome.cpu_seconds
    return _Ran(case, tuple(outcome.names), sentence, *figures, outcome.marks)


def cases(seeds: Iterable[object], workloads: Sequence[str], servers: int | None = None) -> Iterator[Case]:
    """Every seed with every workload, in short runs and long ones: many states are reached by few operations. A third
    of all runs have several servers, unless their number is given."""
    for seed in seeds:
        for workload in workloads:
            length = random.Random(f"{seed} {workload} length").choice(LENGTHS.get(workload, SHORT))
            seconds = max(SECONDS_MIN, round(length * SECONDS_EACH, 2))
            count = servers or random.Random(f"{seed} {workload} servers").choice((1, 1, SERVERS))
            yield Case(str(seed), workload, operations=length, seconds=seconds, servers=count)


def search(
    wanted: Iterable[Case], *, jobs: int = 1, seconds: float = float("inf"), until_anomaly: bool = False
) -> Summary:
    """Run cases, for so long at most."""
    began, summary = time.monotonic(), Summary()
    for ran in _all(wanted, jobs):
        summary.seconds = time.monotonic() - began
        summary.runs += 1
        summary.operations += ran.operations
        summary.switches += ran.switches
        summary.virtual_seconds += ran.virtual_seconds
        summary.cpu_seconds += ran.cpu_seconds
        summary.marks += ran.marks
        if ran.names:
            summary.findings.append(Finding(ran.case, ran.names, ran.sentence, summary.seconds))
        if summary.seconds >= seconds or (until_anomaly and set(ran.names) - VAGUE):
            break
    return summary


def _all(wanted: Iterable[Case], jobs: int) -> Iterator[_Ran]:
    if jobs == 1:
        yield from map(_ran, wanted)
        return
    following = iter(wanted)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(_ran, case) for case in islice(following, 4 * jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(_ran, case) for case in islice(following, len(done))}
                yield from sorted((each.result() for each in done), key=lambda ran: ran.case.seed)
        finally:
            for each in running:
                each.cancel()

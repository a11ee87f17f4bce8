"""A smaller run that still shows an anomaly: fewer clients, operations and faults, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.case import Case, Outcome, run

TRIES_MAX = 150
NO_FAULT = "none"
"""The name by which the command line says that nothing breaks."""


def shrunk(found: Outcome, tries: int = TRIES_MAX) -> Outcome:
    """The smallest run that was found with one of the same anomalies."""
    best, names = found, set(found.names)
    is_smaller = True
    while is_smaller and tries > 0:
        is_smaller = False
        for case in _smaller(best.case):
            tries -= 1
            outcome = run(case)
            if names & set(outcome.names):
                best, is_smaller = outcome, True
                break
            if tries <= 0:
                break
    return best


def _smaller(case: Case) -> Iterator[Case]:
    """Each way to make a case smaller by one step, the largest step first."""
    for number in range(len(case.planned()) + len(case.dropped)):
        if number not in case.dropped:
            yield replace(case, dropped=case.dropped | {number})
    if case.processes > 1:
        yield replace(case, processes=1)
        yield replace(case, processes=case.processes - 1)
    for part in (2, 1.25):
        operations = int(case.operations / part)
        if 0 < operations < case.operations:
            yield replace(case, operations=operations)


def command(case: Case) -> str:
    """The command that runs a case again."""
    given = [f"--seed {case.seed}", f"--workload {case.workload}"]
    plain = Case(case.seed, case.workload)
    if case.servers != plain.servers:
        given.append(f"--servers {case.servers}")
    if case.journal != plain.journal:
        given.append(f"--journal {case.journal}")
    if case.reads != plain.reads:
        given.append(f"--reads {case.reads}")
    if case.by_lease:
        given.append("--lease")
    if case.processes != plain.processes:
        given.append(f"--processes {case.processes}")
    if case.operations != plain.operations:
        given.append(f"--operations {case.operations}")
    if case.seconds != plain.seconds:
        given.append(f"--lasts {case.seconds:g}")
    if case.faults != plain.faults:
        given += [f"--fault {name}" for name in case.faults or (NO_FAULT,)]
    if case.dropped:
        given.append(f"--without {','.join(map(str, sorted(case.dropped)))}")
    return f"python -m tests.simulation {' '.join(given)} --trace"

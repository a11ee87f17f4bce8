"""`python -m tests.simulation`: runs of many seeds, or one of them again with its history and trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import get_args

from lakestore.client.profiles import Reads
from tests.simulation.case import SIMULATED, Case, run
from tests.simulation.search import Summary, cases, search
from tests.simulation.shrink import NO_FAULT, command, shrunk
from tests.simulation.system import JournalKind


def main(given: Sequence[str]) -> int:
    """Exit code 1 if an anomaly was found."""
    options = _parser().parse_args(given)
    if options.seed is not None:
        return _one(options)
    first, _, end = (options.seeds or "0:").partition(":")
    seeds = range(int(first), int(end)) if end else count(int(first))
    workloads = [name for name in options.workload or () if name in SIMULATED] or list(SIMULATED)
    reads: Reads = options.reads or "leader"
    journal: JournalKind = options.journal or "log"
    wanted = (
        replace(case, faults=_faults(options, case), reads=reads, journal=journal, by_lease=options.lease)
        for case in cases(seeds, workloads, options.servers)
    )
    seconds = options.seconds or (float("inf") if end else 60.0)
    summary = search(wanted, jobs=options.jobs, seconds=seconds, until_anomaly=options.until_anomaly)
    _say(summary, as_json=options.json)
    return 1 if summary.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    add = parser.add_argument
    add("--seeds", help="first:end; without an end for a minute")
    add("--seed", help="one run, of one server if nothing is said; with --trace its history and trace")
    add("--workload", "-w", action="append", help="those that need more than a server are left out")
    add("--fault", "-f", action="append", help="only faults of these kinds; `none`: no faults")
    add("--jobs", type=int, default=1)
    add("--seconds", type=float, help="stop after so long")
    add("--until-anomaly", action="store_true", help="stop at the first anomaly")
    add("--json", action="store_true", help="one line of JSON for each anomaly, and nothing else")
    add("--trace", action="store_true")
    add("--shrink", action="store_true")
    add("--servers", type=int, help="several share a journal; the seed decides if nothing is said")
    add("--journal", choices=get_args(JournalKind), help="what several servers share: a log, or objects in a bucket")
    add("--reads", choices=get_args(Reads), help="where clients of several servers read")
    add("--lease", action="store_true", help="reads of the leader rely on its lease, by clocks that differ")
    add("--processes", type=int)
    add("--operations", type=int)
    add("--lasts", type=float, help="simulated seconds of the run")
    add("--without", default="", help="numbers of planned faults that are left out")
    return parser


def _faults(options: argparse.Namespace, case: Case) -> tuple[str, ...]:
    """The kinds that are chosen, each once; all of the case where nothing is said."""
    return tuple(sorted({*options.fault} - {NO_FAULT})) if options.fault else case.faults


def _one(options: argparse.Namespace) -> int:
    workload = (options.workload or ["log"])[0]
    case = Case(options.seed, workload, dropped=frozenset(int(n) for n in options.without.split(",") if n))
    case = replace(case, faults=_faults(options, case), processes=options.processes or case.processes)
    case = replace(case, reads=options.reads or case.reads, journal=options.journal or case.journal)
    case = replace(case, by_lease=options.lease)
    case = replace(case, seconds=options.lasts or case.seconds, servers=options.servers or case.servers)
    outcome = run(replace(case, operations=options.operations or case.operations))
    if options.shrink and outcome.anomalies:
        outcome = shrunk(outcome)
    if options.trace:
        print(outcome.text(), end="")
    for each in outcome.case.planned():
        print(f"planned: {each}")
    for anomaly in outcome.anomalies:
        print(f"{anomaly.name}: {anomaly.sentence}")
    verdict = "INVALID" if outcome.anomalies else "VALID"
    print(f"{verdict}: {len(outcome.anomalies)} anomalies of {outcome.operations} operations; {command(outcome.case)}")
    return 1 if outcome.anomalies else 0


def _say(summary: Summary, *, as_json: bool) -> None:
    for each in summary.findings:
        if as_json:
            print(json.dumps(each.to_json()))
        else:
            print(f"{each.case.workload} seed {each.case.seed}: {', '.join(each.names)}: {each.sentence[:500]}")
            print(f"  again: {command(each.case)}")
    if not as_json:
        for name, times in sorted(summary.marks.items()):
            print(f"{times:9} {name}")
        print(summary.line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

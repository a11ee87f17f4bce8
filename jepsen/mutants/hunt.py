"""The hunt: the suite against each mutant, first the simulation and then real processes, until something is found.

A mutant that no workload reaches is found by a test of the product, which must fail in the copy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jepsen.mutants.mutant import Mutant, copy
from jepsen.trial import needs_of

SIMULATED_SECONDS = 120.0
REAL_SECONDS = 180.0
REAL_RUN_SECONDS, HEAVY_RUN_SECONDS = 10.0, 30.0
"""A run takes longer with a tierer, Spark or Kafka beside the server: they are slow to begin, and go by rounds."""
GRACE_SECONDS = 240.0
"""The longest that a run takes beyond its time: starts, healing, reading to the end."""
NO_ANOMALY = ("crash", "crashed", "hung", "idle", "stuck", "undecided", "untested")
"""Names in a verdict that only say that nothing was tested: a mutant that does not work is not found by them."""


@dataclass(frozen=True, slots=True)
class Caught:
    """The outcome for one mutant."""

    mutant: str
    by: str
    """`simulation`, `processes` or `test`; empty if nothing was found."""
    workload: str = ""
    anomaly: str = ""
    seed: str = ""
    seconds: float = 0.0
    breaks: str = ""
    """The promise that the mutant breaks."""

    @property
    def line(self) -> str:
        """The outcome in one line of a table."""
        found = f"{self.by} | {self.workload} | {self.anomaly}" if self.by else "**missed** | |"
        after = f"{self.seconds:.0f} s" + (f" (seed {self.seed})" if self.seed else "")
        return f"| `{self.mutant}` | {self.breaks} | {found} | {after} |"


def telling(names: Iterable[str]) -> str | None:
    """The first name of an anomaly that says more than that something does not work."""
    return next((name for name in names if name not in NO_ANOMALY), None)


def hunt(mutants: Sequence[Mutant], say: Callable[[str], None], *, simulated: float, real: float) -> list[Caught]:
    """Try all mutants, and the product without any, which must pass."""
    outcomes = []
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            mutant.plant(Path(folder))
            outcomes.append(replace(_caught(mutant, Path(folder), simulated, real), breaks=mutant.breaks))
        say(outcomes[-1].line)
    return outcomes


def false_alarms(seconds: float) -> Caught:
    """The simulation's word on a copy without a bug: nothing, or the hunt proves nothing."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy(Path(folder))
        found = _simulated(Path(folder), [], seconds)
        return Caught("none", "simulation", **found) if found else Caught("none", "")


def _caught(mutant: Mutant, folder: Path, simulated: float, real: float) -> Caught:
    began = time.monotonic()
    if mutant.tests:
        failed = failing(mutant, folder)
        took = time.monotonic() - began
        return Caught(mutant.name, "test" if failed else "", anomaly=failed.replace("::", ": "), seconds=took)
    light = [name for name in mutant.workloads if not needs_of([name])]
    if simulated and mutant.simulated and light:
        chosen = [part for name in light for part in ("--workload", name)]
        chosen += [part for name in mutant.faults for part in ("--fault", name)]
        found = _simulated(folder, [*chosen, *shape_of(mutant), "--journal", mutant.journal], simulated)
        if found:
            return Caught(mutant.name, "simulation", **found)
    for found in _real(mutant, folder, real):
        return Caught(mutant.name, "processes", **{**found, "seconds": time.monotonic() - began})
    return Caught(mutant.name, "", seconds=time.monotonic() - began)


def shape_of(mutant: Mutant) -> list[str]:
    """The options of a run that say how many servers there are, and where clients of several ones read."""
    return ["--servers", str(mutant.servers), *(["--reads", mutant.reads] if mutant.servers > 1 else [])]


def failing(mutant: Mutant, folder: Path) -> str:
    """The first of its tests that fails in the copy with the bug; empty if all pass."""
    shape = ["-q", "-n", "0", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    told = _run(folder, ["-m", "pytest", *shape, *mutant.tests], GRACE_SECONDS)
    return next((test for test in mutant.tests if f"FAILED {test}" in told), "")


def _simulated(folder: Path, chosen: Sequence[str], seconds: float) -> dict[str, Any] | None:
    """The first telling anomaly of the simulation with some options, and after how many seconds."""
    command = ["-m", "tests.simulation", "--until-anomaly", "--json", "--seconds", f"{seconds:g}", *chosen]
    began = time.monotonic()
    ended = _run(folder, command, seconds + GRACE_SECONDS)
    findings = [json.loads(line) for line in ended.splitlines() if line.startswith("{")]
    found = next((each for each in findings if telling(each["anomalies"])), None)
    if found is None:
        return None
    said = {"workload": found["workload"], "anomaly": telling(found["anomalies"]), "seed": str(found["seed"])}
    return {**said, "seconds": time.monotonic() - began}


def _real(mutant: Mutant, folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """The telling anomalies of runs against real processes until the time is over."""
    ends = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends:
        workload = mutant.workloads[number % len(mutant.workloads)]
        faults = mutant.nemeses[number % len(mutant.nemeses) :][:2] if mutant.nemeses else ("none",)
        lasts = HEAVY_RUN_SECONDS if needs_of([workload]) or mutant.servers > 1 else REAL_RUN_SECONDS
        number += 1
        seed, place = f"{1000 + number}.0", folder / f"run-{number}"
        chosen = ["-w", workload, *(part for name in faults for part in ("-n", name))]
        shape = ["--seed", seed, "--seconds", f"{lasts:g}", "--folder", str(place)]
        shape += shape_of(mutant) if mutant.servers > 1 else []
        _run(folder, ["-m", "jepsen", "run", *shape, *chosen], lasts + GRACE_SECONDS)
        verdict = place / "verdict.json"
        if not verdict.exists():
            continue
        for judged in json.loads(verdict.read_text())["workloads"]:
            anomaly = telling(each["name"] for each in judged["anomalies"])
            if anomaly:
                yield {"workload": judged["workload"], "anomaly": anomaly, "seed": seed}


def _run(folder: Path, command: Sequence[str], seconds: float) -> str:
    """The output of Python in the copy; empty if it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    if ended.returncode not in (0, 1) or "\nImportError" in ended.stderr or "\nModuleNotFoundError" in ended.stderr:
        raise RuntimeError(f"{' '.join(command)} does not run: {ended.stderr[-2000:]}")
    return ended.stdout


def table(outcomes: Sequence[Caught]) -> str:
    """The table for people."""
    head = ["| mutant | promise broken | found by | workload | anomaly | after |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(each.line for each in outcomes)])


def to_json(outcomes: Sequence[Caught]) -> list[dict[str, Any]]:
    """The outcomes as JSON values."""
    return [asdict(each) for each in outcomes]

"""Suites: one trial after the other until the time is over; what fails is kept, done again, and shrunk."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jepsen.shrinking import shrunk
from jepsen.trial import HEAVY, Trial, drawn, needs_of, with_replicas
from jepsen.verdict import Judged, Verdict

SHRINK_SECONDS = 240.0
AGAIN_MAX = 2
"""Times that a smaller trial is done: threads and processes are not those of the run that failed."""


@dataclass
class Summary:
    """Figures of a suite."""

    base: int
    runs: int = 0
    seconds: float = 0.0
    operations: int = 0
    anomalies: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Calls by outcome: ok, fail, info."""
    workloads: Counter[str] = field(default_factory=Counter)
    """Runs by workload."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults that were made, by kind."""
    failed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, trial: Trial, verdict: Verdict) -> None:
        """Count a run."""
        self.runs += 1
        self.seconds += verdict.seconds
        self.operations += verdict.operations
        self.anomalies += len(verdict.anomalies)
        self.workloads.update(trial.workloads)
        self.faults.update(verdict.faults)
        for judged in verdict.judged:
            for kinds in judged.counts.values():
                self.outcomes.update(kinds)

    @property
    def line(self) -> str:
        """The summary in one line."""
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.most_common()) or "none"
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.outcomes.most_common())
        return (
            f"{self.runs} runs, {self.operations:,} operations ({kinds}) in {self.seconds / 60:.1f} min under faults"
            f" ({faults}): {self.anomalies} anomalies in {len(self.failed)} runs"
        )

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {name: dict(v) if isinstance(v, Counter) else v for name, v in vars(self).items()}


def run(
    base: int, seconds: float, folder: Path, say: Callable[[str], None], *, light: bool = False, servers: int = 1
) -> Summary:
    """A suite, or its trials that start nothing heavy. Folders of runs without an anomaly are removed; the summary is
    in `summary.json` after every run.
    """
    ends = time.monotonic() + seconds
    summary = Summary(base)
    number = 0
    longest = 0.0
    while time.monotonic() + longest < ends or not summary.runs:
        began = time.monotonic()
        trial = drawn(base, number)
        number += 1
        if servers > 1:
            trial = with_replicas(trial, servers)
        elif light and needs_of(trial.workloads) & HEAVY:
            continue
        place = folder / trial.seed
        verdict = _performed(trial, place)
        longest = max(longest, time.monotonic() - began)
        summary.add(trial, verdict)
        say(verdict.line)
        if verdict.anomalies:
            smallest = shrink(trial, place, min(SHRINK_SECONDS, seconds))
            summary.failed.append({"seed": trial.seed, "run": trial.command, "smallest": smallest.command})
            say(f"  kept in {place}\n  again:    {trial.command}\n  smallest: {smallest.command}")
        else:
            shutil.rmtree(place)
        (folder / "summary.json").write_text(json.dumps(summary.to_json(), indent=1))
    say(summary.line)
    return summary


def _performed(trial: Trial, place: Path) -> Verdict:
    """The verdict of a trial, also of one that could not be done: the suite goes on."""
    began = time.monotonic()
    try:
        return trial.perform(place)
    except Exception:  # told in the verdict
        return Verdict(trial.seed, time.monotonic() - began, (Judged.crashed(traceback.format_exc()),))


def shrink(trial: Trial, place: Path, seconds: float) -> Trial:
    """The smallest trial that was seen to fail, tried for some seconds. Its folder lies in that of the first one."""
    ends = time.monotonic() + seconds
    tried = 0

    def go_on() -> bool:
        return time.monotonic() < ends

    def fails(smaller: Trial) -> bool:
        nonlocal tried
        for _ in range(AGAIN_MAX):
            tried += 1
            folder = place / f"smaller-{tried}"
            if _performed(smaller, folder).anomalies:
                return True
            shutil.rmtree(folder)
            if not go_on():
                break
        return False

    return shrunk(trial, Trial.smaller, fails, go_on)

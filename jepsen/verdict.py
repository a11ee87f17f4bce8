"""Verdicts: what checkers say of the histories of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import EXCUSE, HEALED, NEMESIS, PAUSE, SHAPE, Kind, Operation
from jepsen.workload import TROUBLES, Measured, Pictured, Workload

DEFECTS = ("Internal:", "Corrupt:")
"""Beginnings of errors that no operation may end in, whatever is broken."""
IDLE_CALLS = 10
"""Calls of one function of which one at least succeeds; a few may all meet a fault."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One workload's history, judged."""

    workload: str
    anomalies: tuple[Anomaly, ...]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per function how many of its calls had each outcome."""
    figures: dict[str, float] = field(default_factory=dict)
    """Sizes of what was checked, by name."""
    bars: tuple[dict[str, Any], ...] = ()
    """Counterexamples, for pictures."""

    def to_json(self) -> dict[str, Any]:
        """The judgement as JSON values."""
        anomalies = [each.to_json() for each in self.anomalies]
        return {"workload": self.workload, "counts": self.counts, "figures": self.figures, "anomalies": anomalies}

    @classmethod
    def crashed(cls, text: str) -> Self:
        """A harness or a client that raised an error of its own."""
        return cls("run", (Anomaly("crash", text),))


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said of one run."""

    seed: int | str
    seconds: float
    judged: tuple[Judged, ...]
    faults: dict[str, int] = field(default_factory=dict)
    """Faults that were made, by kind: not those that this machine does not allow."""

    @property
    def anomalies(self) -> list[Anomaly]:
        """The anomalies of all workloads."""
        return [each for judged in self.judged for each in judged.anomalies]

    @property
    def operations(self) -> int:
        """The number of calls."""
        return sum(count for judged in self.judged for kinds in judged.counts.values() for count in kinds.values())

    @property
    def line(self) -> str:
        """The verdict in one line."""
        names = Counter(f"{judged.workload}:{each.name}" for judged in self.judged for each in judged.anomalies)
        found = ", ".join(f"{count} {name}" for name, count in names.items())
        said = f"INVALID: {found}" if found else "VALID: 0 anomalies"
        workloads = ", ".join(judged.workload for judged in self.judged)
        return f"seed {self.seed}: {workloads}: {self.operations:,} operations in {self.seconds:.1f} s: {said}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values."""
        workloads = [each.to_json() for each in self.judged]
        said = {"seed": self.seed, "seconds": self.seconds, "valid": not self.anomalies, "faults": self.faults}
        return {**said, "workloads": workloads}


def judge(workload: Workload, history: History) -> Judged:
    """A workload's own checks, and those of every workload: nothing stuck, no defect, something done of every sort."""
    counts: dict[str, Counter[str]] = {}
    for call in history.calls():
        counts.setdefault(call.f, Counter())[call.kind] += 1
    found = [*workload.check(history), *_stuck(history), *_defects(history)]
    asked = {f: kinds for f, kinds in counts.items() if f not in (PAUSE, SHAPE)}
    idle = [f for f, kinds in asked.items() if not kinds[Kind.OK] and kinds.total() >= IDLE_CALLS]
    if not any(kinds[Kind.OK] for kinds in asked.values()):
        found.append(Anomaly("untested", "no call at all has ever succeeded: nothing was tested"))
    elif idle:
        found.append(Anomaly("idle", f"no call of {', '.join(idle)} has ever succeeded"))
    figures = workload.figures(history) if isinstance(workload, Measured) else {}
    bars = tuple(workload.bars(history)) if isinstance(workload, Pictured) else ()
    return Judged(workload.name, tuple(found), {f: dict(kinds) for f, kinds in counts.items()}, figures, bars)


def _stuck(history: History) -> Sequence[Anomaly]:
    """After everything has healed, a call that does not succeed."""
    stuck = [each for each in history if each.process == NEMESIS and each.f == "stuck"]
    return [
        Anomaly("stuck", f"{each.value} did not succeed after everything had healed", (each.index,)) for each in stuck
    ]


def _defects(history: History) -> Sequence[Anomaly]:
    """Errors that no operation may end in, unless a fault explains them."""
    found: list[Anomaly] = []
    excused: tuple[str, ...] = ()
    invoked: dict[int | str, tuple[str, ...]] = {}
    for each in history:
        if each.process == NEMESIS:
            excused = (*excused, *each.value) if each.f == EXCUSE else () if each.f == HEALED else excused
        elif each.kind is Kind.INVOKE:
            invoked[each.process] = excused
        else:
            right = (*invoked.get(each.process, ()), *excused)
            wrong = [error for error in _errors(each) if error.startswith(DEFECTS) and not error.startswith(right)]
            found += [
                Anomaly("defect", f"{each.f} of process {each.process}: {error}", (each.index,)) for error in wrong
            ]
    return found


def _errors(each: Operation) -> list[str]:
    """The error that an operation ended in, and those that it met on the way to its answer."""
    met = each.value.get(TROUBLES, []) if isinstance(each.value, dict) else []
    return [each.error, *met]

"""The short report of a run, with its pictures, for reading."""

from __future__ import annotations

from pathlib import Path

from jepsen import others, pictures
from jepsen.history import History
from jepsen.operation import NEMESIS, Kind
from jepsen.verdict import Judged, Verdict

SHOWN = 10
"""Anomalies of a workload that are written out."""


def write(folder: Path, command: str, verdict: Verdict) -> None:
    """Write `report.md`, pictures of latencies, rates and counterexamples, and the histories as EDN."""
    lines = [f"# {verdict.line}", "", f"Again: `{command}`", ""]
    for judged in verdict.judged:
        lines += _section(judged)
        path = folder / f"{judged.workload}.jsonl"
        if path.exists():
            history = History.load(path)
            history.dump_edn(path.with_suffix(".edn"))
            if form := others.FORMS.get(judged.workload):
                form(history).dump_edn(path.with_suffix(".others.edn"))
            lines += _faults(history)
            pictures.draw(history, judged.workload, path.with_suffix(".svg"))
            lines += [f"![latency and rate]({judged.workload}.svg)", ""]
        for number, bars in enumerate(judged.bars[:SHOWN]):
            name = f"{judged.workload}-counterexample-{number}.svg"
            pictures.draw_bars(bars, folder / name)
            lines += [f"![calls of key {bars['key']} that no order explains]({name})", ""]
    (folder / "report.md").write_text("\n".join(lines))


def _section(judged: Judged) -> list[str]:
    lines = [f"## {judged.workload}", ""]
    for f, kinds in judged.counts.items():
        said = ", ".join(f"{kinds.get(kind, 0):,} {kind}" for kind in (Kind.OK, Kind.FAIL, Kind.INFO))
        lines.append(f"- `{f}`: {said}")
    lines += [f"- {name}: {figure:,}" for name, figure in judged.figures.items()]
    lines.append(f"- anomalies: {len(judged.anomalies)}")
    lines += [f"  - **{each.name}**: {each.sentence}" for each in judged.anomalies[:SHOWN]]
    return [*lines, ""]


def _faults(history: History) -> list[str]:
    faults = [each for each in history if each.process == NEMESIS]
    said = [f"- {each.time / 1e9:.2f} s `{each.f}` {each.value or ''} {each.error}".rstrip() for each in faults]
    return ["Faults:", "", *said, ""]

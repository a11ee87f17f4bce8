"""Pictures of histories as Jepsen draws them: every call's latency, the rate of calls, with the faults shaded, and the
calls of a counterexample as bars."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jepsen.history import History
from jepsen.operation import NEMESIS, Kind

matplotlib.use("svg")
COLORS = {Kind.OK: "#3b7dd8", Kind.FAIL: "#d97fb0", Kind.INFO: "#e8a33d"}
SHADES = ("#f3c6c6", "#c9e4c5", "#cfd8f6", "#f7e3b0", "#dfc9ee", "#c7ecec")
MARKS = "osv^D*Px"
BARS = {True: "#d9534f", False: "#3b7dd8", None: "#b9bfc7"}
"""By whether a call is one that cannot follow; the last is of calls outside of the longest order."""


def draw(history: History, title: str, path: Path) -> None:
    """Write both pictures, one above the other, as one file."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    latency, rate = figure.subplots(2, 1, sharex=True)
    _shade(history, (latency, rate))
    _latencies(history, latency)
    _rates(history, rate)
    latency.set_title(title)
    figure.savefig(path, format="svg")


def draw_bars(bars: dict[str, Any], path: Path) -> None:
    """Write the calls of a counterexample: each from its beginning to its end, with its place in the longest order."""
    calls = bars["bars"]
    last = max([call["begins"] for call in calls] + [call["ends"] for call in calls if call["ends"] is not None])
    figure = Figure(figsize=(10, 1.5 + 0.35 * len(calls)), layout="constrained")
    axis = figure.subplots()
    for height, call in enumerate(reversed(calls)):
        is_known, is_placed = call["ends"] is not None, call["place"] is not None
        width = max((call["ends"] if is_known else last) - call["begins"], (last - calls[0]["begins"]) / 200)
        color = BARS[call["stuck"] if is_placed or call["stuck"] else None]
        axis.barh(height, width, left=call["begins"], height=0.6, color=color, hatch=None if is_known else "//")
        place = f"{call['place'] + 1}. " if is_placed else ""
        axis.text(call["begins"], height, f" {place}{call['label']}", va="center", fontsize=7)
    axis.set_yticks(range(len(calls)), [f"process {call['process']}" for call in reversed(calls)], fontsize=7)
    axis.set_xlabel("seconds")
    axis.set_title(f"key {bars['key']}: no call can follow in the state {bars['state']}", fontsize=9)
    figure.savefig(path, format="svg")


def _spans(history: History) -> dict[str, list[tuple[float, float]]]:
    """Per kind of fault, from when to when it stood, in seconds."""
    begun: dict[str, float] = {}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    last = history.operations[-1].time / 1e9 if len(history) else 0.0
    for each in history.faults():
        name, _, end = each.f.rpartition("-")
        if end == "begin":
            begun.setdefault(name, each.time / 1e9)
        elif end == "end" and name in begun:
            spans[name].append((begun.pop(name), each.time / 1e9))
    for name, since in begun.items():
        spans[name].append((since, last))
    return spans


def _shade(history: History, axes: tuple[Axes, Axes]) -> None:
    spans = _spans(history)
    for number, (name, times) in enumerate(sorted(spans.items())):
        height, color = 1 / len(spans), SHADES[number % len(SHADES)]
        for axis in axes:
            for place, (begins, ends) in enumerate(times):
                low = number * height
                label = name if place == 0 and axis is axes[0] else None
                axis.axvspan(begins, max(ends, begins + 0.02), low, low + height, color=color, lw=0, label=label)


def _latencies(history: History, axis: Axes) -> None:
    points: dict[tuple[str, Kind], list[tuple[float, float]]] = defaultdict(list)
    for call in history.calls():
        if call.completed and call.process != NEMESIS:
            taken = (call.completed.time - call.invoked.time) / 1e6
            points[call.f, call.kind].append((call.invoked.time / 1e9, max(taken, 0.01)))
    names = sorted({f for f, _ in points})
    for (f, kind), found in sorted(points.items()):
        mark = MARKS[names.index(f) % len(MARKS)]
        times, taken = np.array(found).T
        axis.scatter(times, taken, s=6, marker=mark, color=COLORS[kind], label=f"{f} {kind}", linewidths=0)
    axis.set_yscale("log")
    axis.set_ylabel("latency, ms")
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _rates(history: History, axis: Axes) -> None:
    last = history.operations[-1].time / 1e9 if len(history) else 0.0
    edges = np.arange(0.0, last + 1.0, 0.5)
    for kind, color in COLORS.items():
        ended = [call.completed.time / 1e9 for call in history.calls() if call.completed and call.kind is kind]
        if ended and len(edges) > 1:
            counts, _ = np.histogram(ended, edges)
            axis.plot(edges[:-1], counts * 2, color=color, label=kind, drawstyle="steps-post")
    axis.set_ylabel("calls/s")
    axis.set_xlabel("seconds")
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))

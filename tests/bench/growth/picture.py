"""The plot of the store: how rates, bytes and times go with the number of keys, each with its slope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.growth.measured import Measured, slope

PATH = Path(__file__).parents[3] / "docs" / "growth.svg"
BEFORE = {1_000_000: 1_960_000.0, 10_000_000: 880_000.0, 30_000_000: 570_000.0, 50_000_000: 500_000.0}
"""Uniform upserts before the index had levels, rows a second on the same machine."""
Curve = tuple[str, Callable[[Measured], float]]
_RATES: Sequence[Curve] = (
    ("random inserts", lambda m: m.insert),
    ("uniform upserts", lambda m: m.upsert),
)
_LOOKUPS: Sequence[Curve] = (
    ("look-ups of 1,000, warm", lambda m: m.lookup),
    ("in the first second after kill -9", lambda m: m.lookup_first_second),
)
_BYTES: Sequence[Curve] = (
    ("written per byte of upserted row", lambda m: m.upsert_written),
    ("index per key at rest", lambda m: max(m.index_bytes, m.index_bytes_upserted) / m.keys),
)
_TIMES: Sequence[Curve] = (
    ("single look-up p50, ms", lambda m: m.single_p50_ms),
    ("10-row commit p99, ms", lambda m: m.commit_p99_ms),
    ("kill -9 to first look-up, s", lambda m: m.restart_seconds),
)


def draw(known: Mapping[int, Measured], path: Path = PATH) -> None:
    """Write the plot."""
    with matplotlib.rc_context({"svg.hashsalt": "lakestore", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 7), layout="constrained")
        rates, lookups, sizes, times = figure.subplots(2, 2).flat
        found = [known[keys] for keys in sorted(known)]
        _curves(rates, found, _RATES, "rows/s")
        rates.plot(list(BEFORE), list(BEFORE.values()), ":", color="#999999", label="upserts before levels")
        _curves(lookups, found, _LOOKUPS, "keys/s")
        _curves(sizes, found, _BYTES, "bytes")
        _curves(times, found, _TIMES, "ms, s")
        for axis in (rates, lookups, sizes, times):
            axis.legend(fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _curves(axis: Axes, found: Sequence[Measured], curves: Sequence[Curve], unit: str) -> None:
    for name, of in curves:
        points = [(each.keys, of(each)) for each in found if of(each) > 0]
        steep = slope(points)
        label = name if steep is None else f"{name}, slope {steep:+.2f}"
        axis.plot([keys for keys, _ in points], [value for _, value in points], "o-", label=label)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("keys")
    axis.set_ylabel(unit)

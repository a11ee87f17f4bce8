"""The table of the README and the picture "speed beside peers", both made from the files in docs/benchmarks.

- A row stands here only if its file was measured: a contest that has not run has no row.
- A contest's row shows the fastest of the other systems, and how many times better Lakestore is.
- `python -m tests.bench.report` writes both; a test compares them with the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "img" / "peers.svg"
BEGIN, END = "<!-- headlines -->", "<!-- end of headlines -->"
CONTESTS: Mapping[str, Sequence[str]] = {
    "Append to a log": ("rows of random bytes",),
    "Append to subscriber": ("200 rows/s, p50", "2,000 rows/s, p50"),
    "Fan-out": ("received by 8 subscribers together",),
    "Column pruning": ("1 of 20 columns",),
    "Upserts, 1 M keys": ("uniform updates", "updates, 90 % of them on 1 % of the keys", "updates of 2 of 5 columns"),
    "Upserts, 10 M keys": ("uniform updates",),
    "Look-ups, 1 M keys": ("look-ups of many keys at once", "one look-up, p50"),
    "Recovery after kill -9, 1 M keys": ("start to first answer",),
    "Small commits": ("one commit, p50",),
    "Changes into a lake": ("100 k rows into 10 M, readable", "100 k rows into 10 M, in the lake"),
    "Rounds of changes and the scan afterwards": ("scan afterwards",),
}
"""Title of a contest to the measures that the README shows."""
FIGURES: Mapping[str, Sequence[str]] = {
    "Growth: 50 M keys": (
        "50 M keys: uniform upserts",
        "50 M keys: single look-up",
        "50 M keys: kill -9 to first look-up",
    ),
    "Kafka bridge": ("Debezium JSON upserted",),
    "Replicas": ("leader killed, lease of 1 s: time to the next acknowledged write",),
}
"""Title of a table of Lakestore alone to the figures that the README shows."""
_HEAD = ("| work | Lakestore | the fastest other system | times better |", "|---|---|---|---|")
_LEFT, _WIDTH, _LINE, _TOP = 330, 900, 20, 60
_COLORS = ("#3182bd", "#e6550d", "#31a354", "#756bb1", "#d6a500", "#c51b8a", "#636363", "#17a2b8")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.s{fill:#777;font-size:11px}.l{stroke:#ccc}.one{stroke:#333}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.l{stroke:#555}.one{stroke:#ddd}}"
)


def readme(text: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """`text` with the part between `BEGIN` and `END` replaced by the table."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n" + "\n".join((*_HEAD, *_lines(tables))) + f"\n{END}{tail}"


def picture(tables: Sequence[Mapping[str, Any]]) -> str:
    """The picture as SVG: for each measure a dot for each other system, by how many times better Lakestore is."""
    rows = [(_label(title, row), _ratios(row)) for title, row in _rows(tables) if _ratios(row)]
    names = sorted({name for _, ratios in rows for name in ratios})
    colors = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
    return "\n".join(_svg(rows, colors)) + "\n"


def _rows(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    known = {table["title"]: table["contest"]["rows"] for table in tables if "contest" in table}
    for title, measures in CONTESTS.items():
        for row in known.get(title, ()):
            if row["name"] in measures:
                yield title, row


def _label(title: str, row: Mapping[str, Any]) -> str:
    return f"{title}: {row['name']}"


def _ratios(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value["ratio"] for name, value in row["values"].items() if value["ratio"]}


def _lines(tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for title, row in _rows(tables):
        (_, ours), ratios = next(iter(row["values"].items())), _ratios(row)
        beside, better = "", ""
        if ratios:
            name = min(ratios, key=ratios.__getitem__)
            beside, better = f"{name}: {_value(row, row['values'][name])}", f"{ratios[name]:.2f}x"
        yield f"| {_label(title, row)} | {_value(row, ours)} | {beside} | {better} |"
    known = {table["title"]: table["figures"] for table in tables if "figures" in table}
    for title, names in FIGURES.items():
        for figure in known.get(title, ()):
            if figure["name"] in names:
                yield f"| {figure['name']} | {figure['measured']} | | |"


def _value(row: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    return f"{value['median']:,.{row['digits']}f} {row['unit']}"


def _svg(rows: Sequence[tuple[str, Mapping[str, float]]], colors: Mapping[str, str]) -> Iterator[str]:
    height, span = _TOP + _LINE * len(rows) + 30, [ratio for _, ratios in rows for ratio in ratios.values()]
    low = min((math.floor(math.log10(min(span, default=1.0))), -1))
    high = max((math.ceil(math.log10(max(span, default=1.0))), 1))

    def place(ratio: float) -> float:
        return _LEFT + (math.log10(ratio) - low) / (high - low) * (_WIDTH - _LEFT - 30)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' role="img" aria-label="Speed beside peers">'
    )
    yield f"<title>Speed beside peers</title><style>{_STYLE}</style>"
    yield '<text x="10" y="20">How many times better Lakestore is: right of 1x it is ahead, left of 1x behind</text>'
    for number, (name, color) in enumerate(colors.items()):
        left = 10 + number * (_WIDTH - 20) // max(len(colors), 1)
        yield f'<circle cx="{left + 5}" cy="36" r="5" fill="{color}"/>'
        yield f'<text x="{left + 14}" y="40">{escape(name)}</text>'
    for power in range(low, high + 1):
        x, kind = place(10.0**power), "l" if power else "one"
        yield f'<path d="M{x:.1f} {_TOP - 8}V{height - 26}" class="{kind}"/>'
        yield f'<text x="{x:.1f}" y="{height - 10}" class="s" text-anchor="middle">{10.0**power:g}x</text>'
    for number, (label, ratios) in enumerate(rows):
        y = _TOP + _LINE * number + 6
        yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" class="s">{escape(label)}</text>'
        for name, ratio in ratios.items():
            yield f'<circle cx="{place(ratio):.1f}" cy="{y}" r="5" fill="{colors[name]}" fill-opacity="0.8"/>'
    yield "</svg>"

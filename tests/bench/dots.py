"""A picture of dots: a line for each work, a dot for each system, by a ratio on a logarithmic scale.

- A system has one color in the whole picture.
- The line of 1x is darker than the others.
- The picture is SVG, legible on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

Row = tuple[str, Mapping[str, float]]
"""The label of a line, and the ratio of each system."""
_LEFT, _WIDTH, _LINE, _LEGEND_COLUMNS = 360, 900, 20, 5
_COLORS = (
    *("#3182bd", "#e6550d", "#31a354", "#756bb1", "#d6a500", "#c51b8a", "#636363", "#17a2b8"),
    *("#8c564b", "#9ecae1", "#fdae6b", "#a1d99b"),
)
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.s{fill:#777;font-size:11px}.l{stroke:#ccc}.one{stroke:#333}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.l{stroke:#555}.one{stroke:#ddd}}"
)


def picture(title: str, caption: str, rows: Sequence[Row]) -> str:
    """The picture as SVG. `caption` says what the ratio means."""
    names = sorted({name for _, ratios in rows for name in ratios})
    colors = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
    return "\n".join(_lines(title, caption, rows, colors)) + "\n"


def _lines(title: str, caption: str, rows: Sequence[Row], colors: Mapping[str, str]) -> Iterator[str]:
    top = 40 + _LINE * math.ceil(len(colors) / _LEGEND_COLUMNS)
    height, span = top + _LINE * len(rows) + 30, [ratio for _, ratios in rows for ratio in ratios.values()]
    low = min(math.floor(math.log10(min(span, default=1.0))), -1)
    high = max(math.ceil(math.log10(max(span, default=1.0))), 1)

    def place(ratio: float) -> float:
        return _LEFT + (math.log10(ratio) - low) / (high - low) * (_WIDTH - _LEFT - 30)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">'
    )
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    yield f'<text x="10" y="20">{escape(caption)}</text>'
    for number, (name, color) in enumerate(colors.items()):
        line, column = divmod(number, _LEGEND_COLUMNS)
        left, y = 10 + column * (_WIDTH - 20) // _LEGEND_COLUMNS, 36 + line * _LINE
        yield f'<circle cx="{left + 5}" cy="{y}" r="5" fill="{color}"/>'
        yield f'<text x="{left + 14}" y="{y + 4}">{escape(name)}</text>'
    for power in range(low, high + 1):
        x, kind = place(10.0**power), "l" if power else "one"
        yield f'<path d="M{x:.1f} {top - 8}V{height - 26}" class="{kind}"/>'
        yield f'<text x="{x:.1f}" y="{height - 10}" class="s" text-anchor="middle">{10.0**power:g}x</text>'
    for number, (label, ratios) in enumerate(rows):
        y = top + _LINE * number + 6
        yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" class="s">{escape(label)}</text>'
        for name, ratio in ratios.items():
            yield f'<circle cx="{place(ratio):.1f}" cy="{y}" r="5" fill="{colors[name]}" fill-opacity="0.8"/>'
    yield "</svg>"

"""The README's table and its two pictures, made from the files in docs/benchmarks: speed beside peers, cost of growth.

- A row stands here only if its file was measured: a contest that has not run has no row.
- A contest's row shows the fastest of the other systems, and how many times better Lakestore is.
- Both numbers of a ratio are of one run.
- `python -m tests.bench.report` writes all; a test compares them with the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import dots, page
from tests.bench.earlier import ratios_of

ROOT = Path(__file__).parents[2]
README, IMAGES = ROOT / "README.md", ROOT / "docs" / "img"
BEGIN, END = "<!-- headlines -->", "<!-- end of headlines -->"
CONTESTS: Mapping[str, Sequence[str]] = {
    "Append to a log": ("rows of random bytes", "rows of one letter"),
    "Append to subscriber": ("200 rows/s, p50", "2,000 rows/s, p50"),
    "Fan-out": ("received by 8 subscribers together",),
    "Column pruning": ("1 of 20 columns",),
    "Upserts, 1 M keys": ("uniform updates", "updates, 90 % of them on 1 % of the keys", "updates of 2 of 5 columns"),
    "Upserts, 10 M keys": ("uniform updates",),
    "Upserts, 50 M keys": ("uniform updates",),
    "Look-ups, 1 M keys": ("look-ups of many keys at once", "one look-up, p50"),
    "Recovery after kill -9, 1 M keys": ("start to first answer",),
    "Recovery of a log after kill -9": ("start to first acknowledged append",),
    "Failover": ("longest time without an acknowledged write",),
    "Small commits": ("one commit, p50", "the last 50 over the first 50", "nine aggregates over all rows"),
    "Eight writers of one table": ("commits of all writers", "one commit, p50"),
    "Kafka to a table": ("records until readable", "lag of one record, median"),
    "Changes into a lake": ("100 k rows into 10 M, readable", "100 k rows into 10 M, in the lake"),
    "Streaming upserts into a lake": ("a batch until it is readable", "all twelve batches"),
    "Union reads": ("1 % changed, Spark", "1 % changed, DuckDB"),
    "Rounds of changes and the scan afterwards": ("all ten rounds", "scan afterwards"),
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
GROWTH: Mapping[str, tuple[str, str, str]] = {
    "the last 50 of 500 commits over the first 50": (
        "Small commits",
        "the last 50 commits, median",
        "the first 50 commits, median",
    ),
    "100 k changes into 10 M rows over into 1 M rows": (
        "Changes into a lake",
        "100 k rows into 10 M, in the lake",
        "100 k rows into 1 M, in the lake",
    ),
    "a scan after ten rounds of changes over before": (
        "Rounds of changes and the scan afterwards",
        "scan afterwards",
        "scan before",
    ),
    "the last 3 of 12 batches of upserts over all": (
        "Streaming upserts into a lake",
        "the last three batches",
        "a batch until the lake has it",
    ),
}
"""Lines of the picture of growth: title of a contest, and the two measures whose medians are divided."""


def readme(text: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """`text` with the part between `BEGIN` and `END` replaced by the table."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n" + "\n".join((*_HEAD, *_lines(tables))) + f"\n{END}{tail}"


def pictures(tables: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The pictures as SVG by the names of their files in `IMAGES`."""
    speed = [(_label(title, row), ratios_of(row)) for title, row in _rows(tables) if ratios_of(row)]
    return {
        "peers.svg": dots.picture(
            "Speed beside peers",
            "How many times better Lakestore is: right of 1x it is ahead, left of 1x behind",
            speed,
        ),
        "growth.svg": dots.picture(
            "Cost as a table grows",
            "How many times as long the later or larger work takes: 1x if the cost does not grow, right of it worse",
            [(label, ratios) for label, ratios in _growth(tables) if ratios],
        ),
    }


def _growth(tables: Sequence[Mapping[str, Any]]) -> Iterator[dots.Row]:
    known = {table["title"]: table["contest"]["rows"] for table in tables if "contest" in table}
    for label, (title, late, early) in GROWTH.items():
        rows = {row["name"]: row["values"] for row in known.get(title, ())}
        last, first = rows.get(late, {}), rows.get(early, {})
        yield label, {name: last[name]["median"] / first[name]["median"] for name in last if name in first}


def _rows(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    known = {table["title"]: table["contest"]["rows"] for table in tables if "contest" in table}
    for title, measures in CONTESTS.items():
        for row in known.get(title, ()):
            if row["name"] in measures:
                yield title, row


def _label(title: str, row: Mapping[str, Any]) -> str:
    return f"{title}: {row['name']}"


def _lines(tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for title, row in _rows(tables):
        (_, ours), ratios = next(iter(row["values"].items())), ratios_of(row)
        beside, better = "", ""
        if ratios:
            name = min(ratios, key=ratios.__getitem__)
            beside, better = f"{name}: {_value(row, row['values'][name])}", page.ratio_text(row, name)
        yield f"| {_label(title, row)} | {_value(row, ours)} | {beside} | {better} |"
    known = {table["title"]: table["figures"] for table in tables if "figures" in table}
    for title, names in FIGURES.items():
        for figure in known.get(title, ()):
            if figure["name"] in names:
                yield f"| {figure['name']} | {figure['measured']} | | |"


def _value(row: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    return f"{value['median']:,.{row['digits']}f} {row['unit']}"

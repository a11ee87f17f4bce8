"""The tables of docs/sizing.md: written of the store docs/growth.json, the calculator and the limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lakestore.cli.output import size
from lakestore.cli.sizing import value
from lakestore.limits import DEFAULT
from lakestore_server.operate import memory
from lakestore_server.operate.sizing import Constant, Sizing, Workload, sized
from tests.bench.growth import measured
from tests.bench.growth.measured import Measured, told
from tests.bench.growth.rows import KINDS

PAGE = Path(__file__).parents[3] / "docs" / "sizing.md"
NEXT = Workload(
    rows=1e9,
    rate=10e12 / (44 + Constant.KEYED_ROW.amount) / (30 * 86_400),
    retention_seconds=30 * 86_400,
    memory_bytes=24e9,
    disk_bytes=12e12,
)
"""The next factor of ten: its log of a month is 10 TB."""
NEXT_SECONDS = 30 * 86_400
_NONE = "Not measured yet: `make bench growth`.\n"


def page(text: str) -> str:
    """`text` with each marked section replaced by a table of the current figures."""
    for name, section in _SECTIONS.items():
        head, _, rest = text.partition(f"<!-- {name} -->")
        tail = rest.partition(f"<!-- end of {name} -->")[2]
        text = f"{head}<!-- {name} -->\n\n{section()}\n<!-- end of {name} -->{tail}"
    return text


def write() -> None:
    """Put the tables into the page."""
    PAGE.write_text(page(PAGE.read_text()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


Compared = tuple[str, Callable[[Measured], float], Callable[[Sizing, Measured], float], Callable[[float], str]]
_COMPARED: tuple[Compared, ...] = (
    (
        "index at rest, a key",
        lambda m: m.index_bytes / m.keys,
        lambda s, m: s.value("disk", "index at rest") / m.keys,
        lambda v: f"{v:.1f} B",
    ),
    (
        "index after the upserts, a key",
        lambda m: m.index_bytes_upserted / m.keys,
        lambda s, m: Constant.RUNS_MOST.amount * s.value("disk", "index at rest") / m.keys,
        lambda v: f"{v:.1f} B",
    ),
    (
        "segments",
        lambda m: m.segment_bytes,
        lambda s, m: s.value("disk", "segments"),
        size,
    ),
    (
        "bytes written per byte of upserted row",
        lambda m: m.upsert_written,
        lambda s, m: s.value("writes", "in all"),
        lambda v: f"{v:.1f}",
    ),
    (
        "a checkpoint",
        lambda m: m.checkpoint_seconds,
        lambda s, m: s.value("times", "a checkpoint"),
        lambda v: f"{v:.1f} s",
    ),
    (
        "kill -9 to first look-up",
        lambda m: m.restart_seconds,
        lambda s, m: s.value("times", "recovery at most"),
        lambda v: f"{v:.1f} s",
    ),
    (
        "anonymous memory",
        lambda m: m.anonymous_bytes,
        lambda s, m: s.value("memory", "in use"),
        size,
    ),
)


def workload(found: Measured) -> Workload:
    """The calculator's question for a measure."""
    kind = KINDS[found.key]
    return Workload(rows=found.keys, rate=found.upsert, row_bytes=kind.row_bytes, key_bytes=kind.key_bytes)


def _measured() -> str:
    found = [each for kind in KINDS for each in measured.known(kind).values() if each.upsert > 0]
    if not found:
        return _NONE
    calculated = {told(each): sized(workload(each), each.upsert_seconds) for each in found}
    rows = []
    for name, of, by, shown in _COMPARED:
        pairs = (
            f"{shown(of(each)) if of(each) > 0 else '–'} / {shown(by(calculated[told(each)], each))}" for each in found
        )
        rows.append([name, *pairs])
    head = ["measured / calculated", *(told(each) for each in found)]
    return f"{_table(head, rows)}\n{_speeds(found)}\n![Rates, bytes and times by the number of keys](growth.svg)\n"


def _speeds(found: Sequence[Measured]) -> str:
    kinds: tuple[tuple[str, Callable[[Measured], str]], ...] = (
        ("random inserts, the slowest tenth", lambda m: f"{m.insert:,.0f}, {min(m.insert_tenths, default=0):,} rows/s"),
        ("uniform upserts, the slowest ten seconds", lambda m: f"{m.upsert:,.0f}, {min(m.upsert_tens, default=0):,}"),
        ("look-ups of 1,000: warm, first second", lambda m: f"{m.lookup:,.0f}, {m.lookup_first_second:,.0f} keys/s"),
        ("single look-up p50, p99", lambda m: f"{m.single_p50_ms:.2f}, {m.single_p99_ms:.2f} ms"),
        ("10-row commit beside the upserts p50, p99", lambda m: f"{m.commit_p50_ms:.1f}, {m.commit_p99_ms:.1f} ms"),
    )
    rows = [[name, *(shown(each) for each in found)] for name, shown in kinds]
    return _table(["measured", *(told(each) for each in found)], rows)


@cache
def _breaking() -> str:
    found = sized(NEXT, NEXT_SECONDS)
    rows = [[each.name, f"{each.share:.0%}", each.why] for each in found.breaking]
    shown = [[each.part, each.name, value(each.value, each.unit), each.why] for each in found.figures]
    asked = f"{NEXT.rate:,.0f} updates a second, a log of 30 days.\n\n"
    return f"{asked}{_table(['figure', 'used', 'then'], rows)}\n{_table(['part', 'figure', 'value', 'why'], shown)}"


def _memory() -> str:
    bounds = memory.by_settings(DEFAULT)
    rows = [
        [bound.name, size(bound.nbytes), f"`{bound.by}`" if "_" in bound.by and " " not in bound.by else bound.by]
        for bound in bounds
    ]
    each = (
        f"A table takes about {size(memory.TABLE_BYTES)} of memory, a bucket {size(memory.BUCKET_BYTES)}, a segment"
        f" {size(memory.SEGMENT_BYTES)}, and {size(memory.NAMED_BYTES)} more while a checkpoint names it.\n"
    )
    return f"{_table(['part', 'at most', 'by'], [*rows, ['all', size(memory.total(bounds)), '']])}\n{each}"


def _crowd() -> str:
    crowds: Mapping[str, Mapping[str, Any]] = _stored().get("crowd", {})
    if not crowds:
        return _NONE
    head = ["crowd", "start", "checkpoint", "status", "metrics", "longest commit", "memory"]
    return _table(head, list(_crowd_rows(crowds)))


def _crowd_rows(crowds: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for name, found in crowds.items():
        start = f"{found['start_seconds']:.1f} s" if found["start_seconds"] else "–"
        times = [f"{found[key]:.2f} s" for key in ("checkpoint_seconds", "status_seconds", "metrics_seconds")]
        yield [name, start, *times, f"{found['commit_max_ms']:,.0f} ms", size(found["anonymous_bytes"])]


def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(measured.STORE.read_text()) if measured.STORE.exists() else {}
    return found


_SECTIONS: dict[str, Callable[[], str]] = {
    "measured": _measured,
    "breaking": _breaking,
    "memory": _memory,
    "crowd": _crowd,
}

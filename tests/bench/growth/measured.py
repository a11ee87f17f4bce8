"""The figures of one number of keys, with their bars, and their store docs/growth.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.growth.rows import KINDS, NUMBER
from tests.bench.machine import Pace
from tests.bench.report import Figure

STORE = Path(__file__).parents[3] / "docs" / "growth.json"
_MILLION = 1_000_000
_MANY = 50 * _MILLION
"""The number of keys from which on the bars hold; a bar of fewer keys is for comparison."""


@dataclass(slots=True)
class Measured:
    """One number of keys. Rates are per second, bytes written are per byte of row, -1 stands for not measured."""

    keys: int
    key: str = NUMBER
    """The kind of the keys."""
    insert: float = -1
    insert_tenths: list[int] = field(default_factory=list)
    """Rows a second over each tenth of the keys."""
    insert_written: float = -1
    upsert: float = -1
    upsert_seconds: float = -1
    upsert_tens: list[int] = field(default_factory=list)
    """Rows a second over each ten seconds."""
    upsert_beside: float = -1
    """While a second producer commits as well."""
    upsert_written: float = -1
    upsert_cancelled: float = -1
    """The part of `upsert_written` that was removed before it reached the disk."""
    checkpoints: int = -1
    checkpoint_seconds: float = -1
    """The mean of those in the time of the upserts."""
    anonymous_bytes: int = -1
    commit_p50_ms: float = -1
    commit_p99_ms: float = -1
    commit_max_ms: float = -1
    lookup: float = -1
    lookup_cached: float = -1
    """The share of the files that was in memory when the look-ups began; so of `restart_cached` and `left_cached`."""
    lookup_first_second: float = -1
    single_p50_ms: float = -1
    single_p99_ms: float = -1
    restart_seconds: float = -1
    restart_cached: float = -1
    left_restart_seconds: float = -1
    """Of a restart with the files as the machine has left them in memory; so `left_first_second`."""
    left_first_second: float = -1
    left_cached: float = -1
    index_bytes: int = -1
    """At rest after the inserts."""
    index_bytes_upserted: int = -1
    """At rest after the upserts."""
    is_settled: bool = True
    """Whether the index came to rest in time before its bytes were taken."""
    segment_bytes: int = -1
    """After the upserts, with `stored_rows` in them."""
    journal_bytes: int = -1
    stored_rows: int = -1
    paces: dict[str, Pace] = field(default_factory=dict)
    """Part to the machine's pace just before it."""


def count_of(number: int) -> str:
    """A large number as figures name it."""
    return f"{number / _MILLION:g} M" if number >= _MILLION else f"{number / 1_000:g} k"


def told(found: Measured) -> str:
    """The keys of a measure as figures name them."""
    return f"{count_of(found.keys)} {'keys' if found.key == NUMBER else f'{found.key.upper()} keys'}"


def _part(kind: str) -> str:
    """The name in the store of the measures with one kind of key."""
    return "keys" if kind == NUMBER else f"{kind}_keys"


def known(kind: str = NUMBER) -> dict[int, Measured]:
    """All numbers of keys of one kind in the store."""
    parts = json.loads(STORE.read_text()) if STORE.exists() else {}
    return {each["keys"]: Measured(**each) for each in parts.get(_part(kind), ())}


def store(found: Sequence[Measured], other: Mapping[str, Any]) -> None:
    """Put figures into the store in the place of those of as many keys of the kind; `other` has parts by name."""
    parts = {**(json.loads(STORE.read_text()) if STORE.exists() else {}), **other}
    for kind in KINDS:
        merged = known(kind) | {each.keys: each for each in found if each.key == kind}
        if merged or kind == NUMBER:
            parts[_part(kind)] = [asdict(merged[keys]) for keys in sorted(merged)]
    STORE.write_text(json.dumps(parts, indent=1) + "\n")


def slope(points: Sequence[tuple[int, float]]) -> float | None:
    """The exponent e of rate = c · keys^e by least squares: 0 is flat; None of fewer than two points."""
    logs = [(math.log(keys), math.log(rate)) for keys, rate in points if rate > 0]
    if len(logs) < 2:
        return None
    x, y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((a - x) ** 2 for a, _ in logs)
    return sum((a - x) * (b - y) for a, b in logs) / spread if spread else None


def figures(found: Measured, others: Mapping[int, Measured]) -> Iterator[Figure]:
    """The figures of one number of keys; ratios to those of other numbers, of the same kind, where these are known."""
    yield from _writes(found)
    yield from _reads(found)
    yield from _ratios(found, others)
    if found.paces:
        yield Figure(f"{told(found)}: pace of the machine", machine.told(found.paces), "", None)


def _figure(found: Measured, name: str, shown: str, bar: str, met: bool, *, of_every_key: bool = False) -> Figure:
    holds = found.keys >= _MANY if found.key == NUMBER else of_every_key
    return Figure(f"{told(found)}: {name}", shown, bar if holds else f"({bar})", met if holds else None)


def _writes(found: Measured) -> Iterator[Figure]:
    if found.insert >= 0:
        least = min(found.insert_tenths, default=0)
        shown = f"{found.insert:,.0f} rows/s, slowest tenth {least:,.0f}; {found.insert_written:.1f} bytes per byte"
        yield _figure(found, "random inserts", shown, "≥ 800,000 throughout", least >= 800_000)
    if found.upsert >= 0:
        least = min(found.upsert_tens, default=0)
        shown = f"{found.upsert:,.0f} rows/s over {found.upsert_seconds:.0f} s, slowest ten seconds {least:,.0f}"
        yield _figure(found, "uniform upserts", shown, "≥ 1,000,000", found.upsert >= 1_000_000)
        shown = f"{found.upsert_written:.1f}, {found.upsert_cancelled:.1f} of it cancelled"
        name, is_met = "bytes written per byte of upserted row", found.upsert_written <= 6
        yield _figure(found, name, shown, "≤ 6", is_met, of_every_key=True)
        shown = f"p50 {found.commit_p50_ms:.1f}, p99 {found.commit_p99_ms:.1f}, most {found.commit_max_ms:.0f} ms"
        shown += f", beside {found.upsert_beside:,.0f} rows/s"
        name = "10-row commits of a second producer beside the upserts"
        yield _figure(found, name, shown, "p99 < 30 ms", found.commit_p99_ms < 30)
        shown = (
            f"{found.checkpoints} of {found.checkpoint_seconds:.1f} s, {found.anonymous_bytes / 1e9:.2f} GB of memory"
        )
        yield Figure(f"{told(found)}: checkpoints meanwhile", shown, "", None)


def _with(share: float) -> str:
    return f" with {share:.0%} of the files in memory" if share >= 0 else ""


def _reads(found: Measured) -> Iterator[Figure]:
    if found.lookup >= 0:
        shown = f"{found.lookup:,.0f} keys/s{_with(found.lookup_cached)}"
        yield _figure(found, "look-ups of 1,000, warm", shown, "≥ 250,000", found.lookup >= 250_000)
        shown = f"p50 {found.single_p50_ms:.2f}, p99 {found.single_p99_ms:.2f} ms"
        yield Figure(f"{told(found)}: single look-up", shown, "", None)
    if found.index_bytes >= 0:
        each, after = (size / found.keys for size in (found.index_bytes, found.index_bytes_upserted))
        later = f", {after:.1f} after the upserts" if after > 0 else ""
        unsettled = "" if found.is_settled else " (not at rest in time)"
        shown = f"{each:.1f} bytes per key{later}{unsettled}"
        yield _figure(found, "index at rest", shown, "≤ 45", max(each, after) <= 45)
    if found.restart_seconds >= 0:
        yield from _restarts(found)


def _restarts(found: Measured) -> Iterator[Figure]:
    seconds, rate = found.restart_seconds, found.lookup_first_second
    shown = [f"{seconds:.2f} s{_with(found.restart_cached)}", f"{rate:,.0f} keys/s{_with(found.restart_cached)}"]
    if found.left_cached >= 0:
        shown[0] += f"; {found.left_restart_seconds:.2f} s{_with(found.left_cached)}"
        shown[1] += f"; {found.left_first_second:,.0f}{_with(found.left_cached)}"
    yield _figure(found, "kill -9 to first look-up", shown[0], "< 4 s", seconds < 4)
    name = "look-ups of 1,000 in the first second of serving"
    yield _figure(found, name, shown[1], "≥ 100,000", rate >= 100_000)


def _ratios(found: Measured, others: Mapping[int, Measured]) -> Iterator[Figure]:
    one, many = others.get(_MILLION), others.get(_MANY)
    if one is not None and found.keys > _MILLION and min(one.upsert, found.upsert) > 0:
        ratio = found.upsert / one.upsert
        yield _figure(found, "upserts over those at 1 M", f"{ratio:.2f}x", "≥ 0.5x", ratio >= 0.5)
    if one is not None and found.keys > _MILLION and min(one.single_p50_ms, found.single_p50_ms) > 0:
        ratio = found.single_p50_ms / one.single_p50_ms
        yield _figure(found, "single look-up over that at 1 M, p50", f"{ratio:.2f}x", "≤ 1.2x", ratio <= 1.2)
    if many is not None and found.keys > _MANY and min(many.upsert, found.upsert) > 0:
        ratio = found.upsert / many.upsert
        yield _figure(found, "upserts over those at 50 M", f"{ratio:.2f}x", "≥ 0.8x", ratio >= 0.8)

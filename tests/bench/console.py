"""Figures of the console with 1,000 tables: first paint, the list on the screen, and what an update costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.bench.report import Figure
from tests.console.scene import address, console_of
from tests.support.browser import Browser, find
from tests.support.served import SCHEMA, Served

TABLES, RUNS = 1_000, 5
PAINT_MS, SHOWN_MS, UPDATE_MS = 1_000.0, 1_000.0, 100.0
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, of one server and one browser on this machine."""
    with Served(folder, ports=True) as served:
        for i in range(TABLES):
            name = f"db{i % 10}.table_{i:04}"
            served.lake.create_table(name, SCHEMA, buckets=4)
            served.append(name, i)
        yield from _server(served)
        if find():
            with Browser() as page:
                yield from _page(served, page)


def _server(served: Served) -> Iterator[Figure]:
    board, looks = console_of(served)._api._board, []
    for i in range(RUNS):
        served.append("db0.table_0000", i)
        began = time.thread_time()
        board.page(1, lambda _: True)
        looks.append(1e3 * (time.thread_time() - began))
    yield _figure("a look at all tables, the server's processor", statistics.median(looks), UPDATE_MS)
    with httpx.Client(base_url=address(served), timeout=30) as http:
        whole = http.get("/console/api/status")
        served.append("db0.table_0000", 1)
        update = http.get("/console/api/status", params={"since": whole.json()["revision"]})
        again = http.get("/console/api/status", params={"since": update.json()["revision"]})
    sizes = f"{len(whole.content):,} B, {len(update.content):,} B, {len(again.content)} B"
    yield Figure("answers: all tables, one changed, none changed", sizes, "the last empty", not again.content)


def _page(served: Served, page: Browser) -> Iterator[Figure]:
    paints, shown = [], []
    for _ in range(RUNS):
        page.open(address(served))
        page.until(f"document.getElementById('found')?.textContent === '{TABLES:,} tables'")
        shown.append(page.js("performance.now()"))
        paints.append(page.until(_PAINT))
    yield _figure("first contentful paint", statistics.median(paints), PAINT_MS)
    yield _figure("the list is on the screen", statistics.median(shown), SHOWN_MS)
    draws = []
    for i in range(RUNS):
        served.append("db0.table_0000", i)
        page.js("document.dispatchEvent(new Event('visibilitychange'))")
        draws.append(
            page.js(
                "new Promise((done) => requestAnimationFrame(() => { const began = performance.now();"
                " requestAnimationFrame(() => done(performance.now() - began)); }))"
            )
        )
    yield _figure("from one frame to the next in an update", statistics.median(draws), UPDATE_MS)


def _figure(name: str, ms: float, bar: float) -> Figure:
    return Figure(name, f"{ms:.0f} ms", f"< {bar:,.0f} ms", ms < bar)

"""Figures of SQL queries, for the metrics: queries by door and outcome, waits, ends of processes.

A door is where SQL comes in: `console`, `postgres` or `flight`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from lakestore.rows.literals import short
from lakestore_server.host import event_log
from lakestore_server.host.histogram import Histogram

log = logging.getLogger("lakestore.queries")
TEXT_CHARS_MAX = 1_000
"""Characters of a text in the log and on the console."""


class QueryFigures:
    """The figures of one server. Thread-safe."""

    def __init__(self, slow_seconds: float = 0.0) -> None:
        """Queries that take longer than `slow_seconds` are logged; 0 logs none."""
        self._slow_seconds = slow_seconds
        self._lock = threading.Lock()
        self.deaths: Counter[str] = Counter()
        """Name of a signal to the number of processes that it ended."""
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """(door, outcome) to the durations of queries. An outcome is `ok`, or the kind of the error."""
        self.rows: Counter[str] = Counter()
        """Door to the rows that it has sent."""
        self.nbytes: Counter[str] = Counter()
        self.keyed: Counter[str] = Counter()
        """Door to the queries that a look-up has answered."""
        self.waits = Histogram()
        """Seconds that queries waited for a process."""
        self.processes: Callable[[], dict[str, int]] = dict
        """State to the number of query processes: `unused`, `idle` (bound to a principal), `busy`."""

    def count_death(self, signal: str) -> None:
        """Count a process that a signal ended."""
        with self._lock:
            self.deaths[signal] += 1

    def count_wait(self, seconds: float) -> None:
        """Count a query that got its process after so many seconds."""
        with self._lock:
            self.waits.add(seconds)

    def count_query(
        self,
        door: str,
        principal: str,
        text: str,
        *,
        outcome: str,
        seconds: float,
        rows: int,
        nbytes: int,
        is_keyed: bool = False,
    ) -> None:
        """Count a query that has ended; log it if it was slow."""
        with self._lock:
            durations = self.seconds.get((door, outcome))
            if durations is None:
                durations = self.seconds[door, outcome] = Histogram()
            durations.add(seconds)
            self.rows[door] += rows
            self.nbytes[door] += nbytes
            self.keyed[door] += is_keyed
        if self._slow_seconds and seconds > self._slow_seconds:
            event_log.event(
                log,
                logging.WARNING,
                "slow query",
                principal=principal,
                door=door,
                outcome=outcome,
                seconds=round(seconds, 3),
                rows=rows,
                text=shown_text(text),
            )

    def status(self) -> dict[str, Any]:
        """The figures as `lakestore status --json` shows them."""
        with self._lock:
            ended: dict[str, dict[str, int]] = {}
            for (door, outcome), seconds in sorted(self.seconds.items()):
                ended.setdefault(door, {})[outcome] = seconds.count
            keyed = dict(self.keyed)
        return {"ended": ended, "keyed": keyed, "processes": self.processes()}


def shown_text(text: str) -> str:
    """A query's text on one line, without control characters, and shortened."""
    line = " ".join(short(text, TEXT_CHARS_MAX).split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)

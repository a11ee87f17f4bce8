"""Counts and state of a running bridge, for metrics and reports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.writing import Part

LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the histograms, in seconds."""

UNREAD_MAX, OTHERS = 1_000, "…"
"""The number of unread fields counted by name, and the name that collects the others."""


@dataclass(slots=True)
class Histogram:
    """A histogram of durations with the bounds `LATENCY_BOUNDS`."""

    buckets: list[int] = field(default_factory=lambda: [0] * len(LATENCY_BOUNDS))
    count: int = 0
    total: float = 0.0

    def add(self, seconds: float) -> None:
        for number, bound in enumerate(LATENCY_BOUNDS):
            self.buckets[number] += seconds <= bound
        self.count += 1
        self.total += seconds


class Counts:
    """Counts of one bridge since its start. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.records = self.bytes = self.commits = 0
        self.rejected: Counter[tuple[str, str]] = Counter()
        self.passed: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.unread: Counter[tuple[str, str]] = Counter()
        """By table and field: values that no column stores."""
        self.latency, self.age = Histogram(), Histogram()
        """Commit durations, and ages of the oldest and newest record of each commit."""
        self.lag: dict[tuple[str, Place], int] = {}
        """By source and partition: records that the bridge has not read yet."""
        self.waiting = ""
        """The reason why the bridge is waiting; empty: it is not."""
        self.halted: dict[str, str] = {}
        """Topic to the reason why it is not read."""

    def add_commit(self, parts: Sequence[Part], seconds: float) -> None:
        now = time.time() * 1_000
        with self._lock:
            self.commits += 1
            self.latency.add(seconds)
            for part in parts:
                self._add_part(part, now)

    def _add_part(self, part: Part, now: float) -> None:
        self.records += len(part)
        for rows in part.tables():
            self.rows[rows.table] += len(rows.record)
        for table, rejects in part.rejects():
            self.rejected.update((table, each.code) for each in rejects)
        for reason, records in part.mapped.passed.items():
            low, high = np.searchsorted(records, [part.low, part.high])
            self.passed[reason] += int(high - low)
        for name, records in part.mapped.unread.items():
            low, high = np.searchsorted(records, [part.low, part.high])
            if low < high:
                is_named = name in self.unread or len(self.unread) < UNREAD_MAX
                self.unread[name if is_named else (name[0], OTHERS)] += int(high - low)
        times = part.records.timestamp_ms[part.low : part.high]
        known = times[times >= 0]
        if len(known):
            for moment in (int(known.min()), int(known.max())):
                self.age.add(max(now - moment, 0.0) / 1_000)

    def add_batch(self, batch: Batch) -> None:
        with self._lock:
            self.bytes += batch.nbytes

    def copy(self) -> Counts:
        made = Counts()
        with self._lock:
            made.records, made.bytes, made.commits = self.records, self.bytes, self.commits
            made.rejected, made.passed, made.rows = self.rejected.copy(), self.passed.copy(), self.rows.copy()
            made.unread = self.unread.copy()
            made.latency = replace(self.latency, buckets=list(self.latency.buckets))
            made.age = replace(self.age, buckets=list(self.age.buckets))
            made.lag, made.waiting, made.halted = dict(self.lag), self.waiting, dict(self.halted)
        return made

    def shown(self) -> dict[str, Any]:
        with self._lock:
            return {
                "records": self.records,
                "bytes": self.bytes,
                "commits": self.commits,
                "rows": dict(self.rows),
                "rejected": {f"{table} {code}": count for (table, code), count in self.rejected.items()},
                "passed": dict(self.passed),
                "unread": {f"{table} {field}": count for (table, field), count in self.unread.items()},
                "lag": {
                    f"{source + ' ' if source else ''}{place.topic}/{place.partition}": lag
                    for (source, place), lag in self.lag.items()
                },
                "waiting": self.waiting,
                "halted": dict(self.halted),
            }

    def set_lag(self, source: str, lag: Mapping[Place, int], before: Collection[Place]) -> None:
        """Replace the lag of one source's partitions, and drop the lag of the partitions in `before`."""
        with self._lock:
            self.lag = {key: value for key, value in self.lag.items() if key[0] != source or key[1] not in before}
            self.lag.update(((source, place), value) for place, value in lag.items())

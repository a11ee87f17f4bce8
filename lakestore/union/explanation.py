"""The explanation of a read: what existed, what was skipped and why, and what the read cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Figures:
    """Figures of one read, summed over its threads. Thread-safe."""

    files: int = 0
    """Data files that were opened."""
    files_pruned: int = 0
    """Data files that the read skipped because their statistics rule the condition out."""
    files_counted: int = 0
    """Data files that were counted unread, because all of their rows meet the condition."""
    row_groups: int = 0
    """Row groups that were read."""
    row_groups_pruned: int = 0
    """Row groups of opened files that the read skipped because their statistics rule the condition out."""
    lake_rows: int = 0
    """Rows that were read from data files, including deleted ones."""
    lake_bytes: int = 0
    """Stored bytes of the columns that were read from data files."""
    delete_files: int = 0
    """Delete files and deletion vectors that were read."""
    delete_bytes: int = 0
    """Bytes of those delete files."""
    hidden_rows: int = 0
    """Lake rows that were read and left out: deleted, superseded since the snapshot, or newer than the cut."""
    hot_offsets: int = 0
    """Offsets of the hot ranges, of live and dead rows."""
    hot_passed_over: int = 0
    """Hot offsets that the server skipped: no value there can meet the condition."""
    hot_tested: int = 0
    """Live hot rows on which the server evaluated the condition."""
    hot_rows: int = 0
    """Hot rows that the server sent."""
    hot_bytes: int = 0
    """Bytes that the server sent."""
    keys: int = 0
    """Keys that were looked up instead of a scan."""
    plan_seconds: float = 0.0
    """Seconds for the plan: the server's cut, and the list of files."""
    lake_seconds: float = 0.0
    """Seconds of reading files, summed over threads."""
    hot_seconds: float = 0.0
    """Seconds of waiting for the server."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that a block takes to a figure."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{name: time.perf_counter() - began})

    def as_dict(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One read of one table."""

    table: str
    token: str
    """The cut."""
    columns: tuple[str, ...]
    """The columns that were read."""
    condition: str
    """The condition, in SQL, that the read evaluated; empty without one."""
    rows: int
    """Rows that the read returned."""
    live_rows: int
    """Rows of the table at the cut."""
    figures: Figures

    def as_dict(self) -> dict[str, Any]:
        """All figures as a dict that JSON can encode."""
        said = {"table": self.table, "token": self.token, "columns": list(self.columns), "condition": self.condition}
        return {**said, "rows": self.rows, "live_rows": self.live_rows, **self.figures.as_dict()}

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"  {name:<8}{text}" for name, text in self._parts())])

    def _head(self) -> str:
        where = f" where {self.condition if len(self.condition) <= 200 else self.condition[:197] + '...'}"
        columns = ", ".join(self.columns) or "no columns"
        return (
            f"{self.table} at {self.token}: {self.rows:,} of {self.live_rows:,} rows"
            f"\n  {'read':<8}{columns}{where if self.condition else ''}"
        )

    def _parts(self) -> list[tuple[str, str]]:
        f = self.figures
        if f.keys:
            return [
                (
                    "keys",
                    f"{f.keys:,} looked up by the index, {f.hot_rows:,} found, {_bytes(f.hot_bytes)}; no file read",
                ),
                ("time", self._time()),
            ]
        if not (self.columns or self.condition or f.files or f.files_counted or f.hot_offsets):
            return [("counted", "by the sum of live rows that the cut has; nothing was read"), ("time", self._time())]
        counted = f", {f.files_counted:,} counted by statistics alone" if f.files_counted else ""
        parts = [
            (
                "lake",
                f"{f.files:,} files read, {f.files_pruned:,} ruled out by statistics{counted}; row groups"
                f" {f.row_groups:,} read, {f.row_groups_pruned:,} ruled out; {f.lake_rows:,} rows,"
                f" {_bytes(f.lake_bytes)}",
            )
        ]
        if f.delete_files or f.hidden_rows:
            parts.append(
                (
                    "deletes",
                    f"{f.delete_files:,} files, {_bytes(f.delete_bytes)}; {f.hidden_rows:,} rows read are hidden",
                )
            )
        parts.append(("log", self._log()))
        parts.append(("time", self._time()))
        return parts

    def _log(self) -> str:
        f = self.figures
        if not f.hot_offsets:
            return "nothing is newer than the lake"
        told = f"{f.hot_rows:,} rows came, {_bytes(f.hot_bytes)}"
        if f.hot_passed_over:
            told = f"{f.hot_passed_over:,} passed over by their ranges, {told}"
        if f.hot_tested:
            told = f"{f.hot_tested:,} live ones held against the condition by the server, {told}"
        return f"{f.hot_offsets:,} offsets behind the lake; {told}"

    def _time(self) -> str:
        f = self.figures
        lake = f"files {_ms(f.lake_seconds)} of its threads, " if f.files else ""
        return f"plan {_ms(f.plan_seconds)}, {lake}server {_ms(f.hot_seconds)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1_000:,.1f} ms"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1_000
    return f"{count:,.1f} GB"

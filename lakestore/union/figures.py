"""Figures of a read: files, row groups, rows and bytes, read and spared, and the seconds of each part."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Figures:
    """The figures of one read, added up by the threads that read. Thread-safe."""

    files: int = 0
    """Data files that were opened."""
    files_pruned: int = 0
    """Data files whose statistics rule the condition out."""
    files_counted: int = 0
    """Data files of which every row meets the condition, and was counted unread."""
    row_groups: int = 0
    """Row groups that were read."""
    row_groups_pruned: int = 0
    """Row groups of opened files whose statistics rule the condition out."""
    lake_rows: int = 0
    """Rows that were read from data files, deleted ones among them."""
    lake_bytes: int = 0
    """Bytes of the columns that were read from data files, as they are stored."""
    delete_files: int = 0
    """Delete files and vectors that were read."""
    delete_bytes: int = 0
    """Their bytes."""
    hidden_rows: int = 0
    """Rows read that are deleted, died since the snapshot, or came after the cut."""
    hot_offsets: int = 0
    """Offsets of the hot ranges, dead and alive."""
    hot_passed_over: int = 0
    """Offsets among them that the server did not read: no value there can meet the condition."""
    hot_tested: int = 0
    """Live rows that the server held against the condition."""
    hot_rows: int = 0
    """Rows that the server sent."""
    hot_bytes: int = 0
    """Bytes that it sent."""
    keys: int = 0
    """Keys that were looked up in place of a scan."""
    plan_seconds: float = 0.0
    """Seconds of the plan: the server's cut, and which files there are."""
    lake_seconds: float = 0.0
    """Seconds in which files were read, those of several threads added up."""
    hot_seconds: float = 0.0
    """Seconds in which the server was waited for."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: float) -> None:
        """Add to some of the figures."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a figure."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{name: time.perf_counter() - began})

    def as_dict(self) -> dict[str, float]:
        """Every figure by its name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")}

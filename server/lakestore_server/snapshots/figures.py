"""Figures of presenting, for status and metrics."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass

from lakestore_server.host.histogram import Histogram
from lakestore_server.snapshots.messages import BuiltFiles

TIMES_KEPT = 1_000
"""Presentings whose times are remembered for the 95th percentile."""
NEW, KEPT, SAME = "new", "kept", "not modified"


@dataclass(frozen=True, slots=True)
class PresentStatus:
    """Presented cuts in figures; times in seconds."""

    tables: int
    """Tables of which a cut is in lease."""
    cuts: int
    """Cuts in lease."""
    files: int
    """Files on disk, and their bytes, as of the last look."""
    bytes: int
    presented: int
    """Presentings since the start, and the time that they took in all."""
    seconds: float
    last_seconds: float
    p95_seconds: float
    loads_new: int
    """Loads that had a cut presented, that got an answer made before, and that were told of nothing new."""
    loads_kept: int
    loads_not_modified: int
    reports: int
    """Reports of scans that engines sent."""
    offsets_read: int
    """Offset indexes that were read from the lake's data files since the start; of many, some again and again."""
    offsets_evicted: int
    """Offset indexes that went for lack of room (`limits.lake_offsets_bytes`, `limits.lake_offsets_disk_bytes`)."""


class Figures:
    """Counts since the start. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds = Histogram()
        """Durations of presentings."""
        self.loads: Counter[str] = Counter()
        """Loads by what they got: NEW, KEPT, SAME."""
        self.reports = 0
        """Reports of engines on their scans."""
        self.written_bytes = 0
        self.offsets_read = self.offsets_evicted = 0
        """Offset indexes of the lake's data files that were read from these, and that went for lack of room."""
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def loaded(self, kind: str) -> None:
        """Note one load."""
        with self._lock:
            self.loads[kind] += 1

    def reported(self) -> None:
        """Note one report of an engine."""
        with self._lock:
            self.reports += 1

    def presented(self, seconds: float, files: BuiltFiles) -> None:
        """Note one presenting."""
        with self._lock:
            self.seconds.add(seconds)
            self.written_bytes += files.written_bytes
            self.offsets_read += files.offsets_read
            self.offsets_evicted += files.offsets_evicted
            self._times.append(seconds)

    def times(self) -> tuple[float, float]:
        """(last, 95th percentile) of the last presentings; zeros before the first."""
        with self._lock:
            times = list(self._times)
        if not times:
            return 0.0, 0.0
        return times[-1], sorted(times)[(len(times) * 95 - 1) // 100]

"""SnapshotFigures of presented cuts, for status and metrics."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass

from lakestore_server.host.histogram import Histogram
from lakestore_server.snapshots.messages import BuiltFiles

TIMES_KEPT = 1_000
"""The number of builds whose times are kept for the 95th percentile."""
NEW, KEPT, SAME = "new", "kept", "not modified"


@dataclass(frozen=True, slots=True)
class PresentStatus:
    """SnapshotFigures of presented cuts. Times are in seconds."""

    tables: int
    """Tables with a cut in lease."""
    cuts: int
    """Cuts in lease."""
    files: int
    """Files on disk and their bytes, as of the last scan."""
    bytes: int
    presented: int
    """Builds since the start, and their total time."""
    seconds: float
    last_seconds: float
    p95_seconds: float
    loads_new: int
    """Loads that needed a build, loads that got a kept answer, and loads whose client had the newest answer (304)."""
    loads_kept: int
    loads_not_modified: int
    reports: int
    """Scan reports that engines sent."""
    offsets_read: int
    """Offset indexes built from the lake's data files since the start, including repeated ones."""
    offsets_evicted: int
    """Offset indexes dropped for lack of space (`limits.lake_offsets_bytes`, `limits.lake_offsets_disk_bytes`)."""


class SnapshotFigures:
    """Counts since the start. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds = Histogram()
        """Durations of builds."""
        self.loads: Counter[str] = Counter()
        """Loads by result: NEW, KEPT, SAME."""
        self.reports = 0
        """Scan reports of engines."""
        self.written_bytes = 0
        self.offsets_read = self.offsets_evicted = 0
        """Offset indexes that were built from data files, and that were dropped for lack of space."""
        self.requests: Counter[str] = Counter()
        """Requests of the snapshot builder to the object store, by kind."""
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def loaded(self, kind: str) -> None:
        with self._lock:
            self.loads[kind] += 1

    def reported(self) -> None:
        with self._lock:
            self.reports += 1

    def presented(self, seconds: float, files: BuiltFiles) -> None:
        with self._lock:
            self.seconds.add(seconds)
            self.written_bytes += files.written_bytes
            self.offsets_read += files.offsets_read
            self.offsets_evicted += files.offsets_evicted
            self.requests.update(files.requests)
            self._times.append(seconds)

    def times(self) -> tuple[float, float]:
        """(last, 95th percentile) of recent builds; zeros before the first build."""
        with self._lock:
            times = list(self._times)
        if not times:
            return 0.0, 0.0
        return times[-1], sorted(times)[(len(times) * 95 - 1) // 100]

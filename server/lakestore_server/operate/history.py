"""History: figures of server, tables and streams over time for the console, in bounded memory.

- A sample is taken every ten seconds and kept for two hours; means of each minute are kept for two days. All series
  share the sample times.
- A series without a change takes a few numbers. A changing series takes a ring of `ring_bytes`: 115 KB for a table, 14
  KB for a stream.
- If no memory is left for a ring, the series that have been unchanged for longest (at least two hours) lose theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FIGURES = ("rows", "hot", "lag", "lake_files", "lake_delete_files", "lake_deleted_rows", "dead_rows", "segments")
"""A table's figures: live rows, offsets that the lake lacks and their age in seconds, files and deletes of the lake,
stored rows that are not live, segments."""
SERVER_FIGURES = ("commits", "rows", "bytes", "journal_bytes", "disk_free_bytes", "hot", "lag", "calls")
"""The server's figures: commits, rows and journal bytes per second, journal and free disk, hot offsets of all tables,
the greatest age of them, running calls."""
STREAM_FIGURES = ("behind",)
"""A stream's figure: unread changes or records."""
_LAG = FIGURES.index("lag")
SAMPLE_SECONDS, FINE, PER_MINUTE, MINUTES = 10.0, 720, 6, 2_880
Floats = npt.NDArray[np.float32]


class Kind(Enum):
    """The kind of a series' subject."""

    TABLE = "table"
    SUBSCRIPTION = "subscription"
    BRIDGE = "bridge"

    @property
    def figures(self) -> tuple[str, ...]:
        return FIGURES if self is Kind.TABLE else STREAM_FIGURES

    @property
    def ring_bytes(self) -> int:
        return (FINE + MINUTES) * len(self.figures) * 4


class Series(NamedTuple):
    """The name of a series: a table's uuid, or a stream's name."""

    kind: Kind
    name: str


class Ring:
    """The samples of one series and the means of each minute."""

    def __init__(self, flat: Sequence[float], first: int) -> None:
        """A series that had these values since the sample `first`."""
        self.first, self.moved = first, first
        self._flat = np.asarray(flat, np.float32)
        self._fine: Floats | None = None
        self._minutes: Floats | None = None

    @property
    def nbytes(self) -> int:
        """Memory beyond a few numbers."""
        return 0 if self._fine is None or self._minutes is None else self._fine.nbytes + self._minutes.nbytes

    @property
    def newest(self) -> float:
        return float(self._flat[0])

    def moves(self, values: Sequence[float]) -> bool:
        """Whether a sample needs a ring that the series lacks."""
        return self._fine is None and bool(np.any(np.asarray(values, np.float32) != self._flat))

    def is_still(self, number: int) -> bool:
        """Whether the ring has not changed for two hours."""
        return bool(self.nbytes) and number - self.moved >= FINE

    def grow(self) -> None:
        """Take a ring, filled with the unchanged values."""
        self._fine = np.tile(self._flat, (FINE, 1))
        self._minutes = np.tile(self._flat, (MINUTES, 1))

    def forget(self, now: int) -> None:
        """Release the ring; samples before `now` are lost."""
        self._fine = self._minutes = None
        self.first = now

    def add(self, number: int, values: Sequence[float]) -> None:
        """Add the sample `number`."""
        sample = np.asarray(values, np.float32)
        has_moved, self._flat = not np.array_equal(sample, self._flat), sample
        if has_moved:
            self.moved = number
        if self._fine is None or self._minutes is None:
            self.first = number if has_moved else self.first
            return
        self._fine[number % FINE] = sample
        if number % PER_MINUTE == PER_MINUTE - 1:
            at = (number + 1 - PER_MINUTE) % FINE
            minute = self._fine[at : at + PER_MINUTE]
            self._minutes[number // PER_MINUTE % MINUTES] = np.where(
                np.isfinite(minute).all(axis=0), minute.mean(axis=0), minute.min(axis=0)
            )

    def fine(self, numbers: range) -> Floats:
        if self._fine is None:
            return np.tile(self._flat, (len(numbers), 1))
        return self._fine[np.arange(numbers.start, numbers.stop) % FINE]

    def minutes(self, numbers: range) -> Floats:
        if self._minutes is None:
            return np.tile(self._flat, (len(numbers), 1))
        return self._minutes[np.arange(numbers.start, numbers.stop) % MINUTES]


@dataclass(frozen=True, slots=True)
class Curves:
    """A series for a page to draw."""

    figures: tuple[str, ...]
    times_us: list[int]
    values: list[list[float]]
    """One list for each figure, as long as the times."""
    next: int
    """The number to ask from next."""

    def as_dict(self) -> dict[str, Any]:
        return {"figures": self.figures, "times_us": self.times_us, "values": self.values, "next": self.next}


class History:
    """The series of one server. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._lock = bytes_max, threading.Lock()
        self._next = 0
        self._begin_us = 0
        self._times = np.zeros(FINE, np.int64)
        self._minute_times = np.zeros(MINUTES, np.int64)
        self._server = Ring([0.0] * len(SERVER_FIGURES), 0)
        self._server.grow()
        self._rings: dict[Series, Ring] = {}
        self._nbytes = 0
        self._still: list[Ring] | None = None
        """Rings that this sample may release, the longest unchanged last; None before the search for them."""

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def add(
        self,
        time_us: int,
        server: Sequence[float],
        tables: Mapping[str, Sequence[float]],
        streams: Mapping[Series, float] | None = None,
    ) -> None:
        """One sample of the server, of all tables by uuid, and of all streams. A table's age is given as the
        microsecond since which it is hot, or 0: this value is constant while nothing happens."""
        with self._lock:
            number = self._next
            self._begin_us = self._begin_us or time_us
            told = {Series(Kind.TABLE, uuid): self._since(values) for uuid, values in tables.items()}
            told |= {series: [behind] for series, behind in (streams or {}).items()}
            self._times[number % FINE] = time_us
            if number % PER_MINUTE == PER_MINUTE - 1:
                self._minute_times[number // PER_MINUTE % MINUTES] = time_us
            self._server.add(number, server)
            for series in self._rings.keys() - told.keys():
                self._nbytes -= self._rings.pop(series).nbytes
            self._still = None
            for series, values in told.items():
                ring = self._rings.get(series)
                if ring is None:
                    ring = self._rings[series] = Ring(values, number)
                elif ring.moves(values) and self._has_room(series.kind.ring_bytes, number):
                    ring.grow()
                    self._nbytes += ring.nbytes
                ring.add(number, values)
            self._next = number + 1

    def _since(self, values: Sequence[float]) -> list[float]:
        hot_us = values[_LAG]
        seconds = (hot_us - self._begin_us) / 1e6 if hot_us else np.inf
        return [*values[:_LAG], seconds, *values[_LAG + 1 :]]

    def _has_room(self, wanted: int, number: int) -> bool:
        if self._nbytes + wanted <= self._bytes_max:
            return True
        if self._still is None:
            self._still = sorted((r for r in self._rings.values() if r.is_still(number)), key=lambda r: -r.moved)
        while self._still and self._nbytes + wanted > self._bytes_max:
            stillest = self._still.pop()
            if stillest.is_still(number):
                self._nbytes -= stillest.nbytes
                stillest.forget(number)
        return self._nbytes + wanted <= self._bytes_max

    def table(self, uuid: str, since: int, *, by_minutes: bool = False) -> Curves:
        """The samples of a table from a number on; empty for an unknown table."""
        with self._lock:
            ring = self._rings.get(Series(Kind.TABLE, uuid))
            found = self._curves(ring, FIGURES, since, by_minutes=by_minutes)
        ages = ((at - self._begin_us) / 1e6 - hot for at, hot in zip(found.times_us, found.values[_LAG], strict=True))
        found.values[_LAG] = [max(age, 0.0) for age in ages]
        return found

    def server(self, since: int, *, by_minutes: bool = False) -> Curves:
        with self._lock:
            return self._curves(self._server, SERVER_FIGURES, since, by_minutes=by_minutes)

    def newest(self, kind: Kind) -> dict[str, float]:
        """The newest figure of each stream of a kind, by name."""
        with self._lock:
            return {series.name: ring.newest for series, ring in self._rings.items() if series.kind is kind}

    def streams(self, names: Sequence[Series], since: int, *, by_minutes: bool = False) -> list[Curves]:
        """The samples of some streams from a number on; empty for an unknown stream."""
        with self._lock:
            rings = [self._rings.get(series) for series in names]
            return [self._curves(ring, STREAM_FIGURES, since, by_minutes=by_minutes) for ring in rings]

    def _curves(self, ring: Ring | None, figures: tuple[str, ...], since: int, *, by_minutes: bool) -> Curves:
        most, times = (MINUTES, self._minute_times) if by_minutes else (FINE, self._times)
        end = self._next // PER_MINUTE if by_minutes else self._next
        if ring is None:
            return Curves(figures, [], [[] for _ in figures], end)
        first = -(-ring.first // PER_MINUTE) if by_minutes else ring.first
        numbers = range(min(max(first, since, end - most), end), end)
        found = ring.minutes(numbers) if by_minutes else ring.fine(numbers)
        at = np.arange(numbers.start, numbers.stop) % most
        return Curves(figures, times[at].tolist(), found.T.tolist(), end)

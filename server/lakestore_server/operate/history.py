"""History: figures of tables and server over time, kept in memory for the console's curves, in bounded bytes.

A sample is taken every ten seconds and kept for two hours; of older ones the mean of each minute is kept for two days.
All series share the times of the samples. A table in which nothing moves takes a few numbers; one that moves takes
`RING_BYTES`. Where there is no room for one more, the table that has been still for longest loses its history.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FIGURES = ("rows", "hot", "lag", "lake_files", "lake_delete_files", "lake_deleted_rows", "dead_rows", "segments")
"""A table's: live rows, offsets that the lake lacks, their age in seconds, files and deletes of the lake, rows that
the server stores beyond the live ones, and its segments."""
SERVER_FIGURES = ("commits", "rows", "bytes", "journal_bytes", "disk_free_bytes", "hot", "lag", "calls")
"""The server's: commits, rows and journal bytes a second, journal and free disk, hot offsets of all tables, the
greatest age among them, and calls that run."""
_LAG = FIGURES.index("lag")
SAMPLE_SECONDS, FINE, PER_MINUTE, MINUTES = 10.0, 720, 6, 2_880
RING_BYTES = (FINE + MINUTES) * len(FIGURES) * 4
Floats = npt.NDArray[np.float32]


class Ring:
    """The samples of one series: fine ones, and the mean of each minute."""

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

    def moves(self, values: Sequence[float]) -> bool:
        """Whether a sample needs a ring that the series does not have."""
        return self._fine is None and bool(np.any(np.asarray(values, np.float32) != self._flat))

    def grow(self) -> None:
        """Take a ring, filled with what was."""
        self._fine = np.tile(self._flat, (FINE, 1))
        self._minutes = np.tile(self._flat, (MINUTES, 1))

    def forget(self, now: int) -> None:
        """Give the ring back; what was before `now` is forgotten."""
        self._fine = self._minutes = None
        self.first = now

    def add(self, number: int, values: Sequence[float]) -> None:
        """The sample of that number."""
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
        """The samples of these numbers."""
        if self._fine is None:
            return np.tile(self._flat, (len(numbers), 1))
        return self._fine[np.arange(numbers.start, numbers.stop) % FINE]

    def minutes(self, numbers: range) -> Floats:
        """The means of these minutes."""
        if self._minutes is None:
            return np.tile(self._flat, (len(numbers), 1))
        return self._minutes[np.arange(numbers.start, numbers.stop) % MINUTES]


@dataclass(frozen=True, slots=True)
class Curves:
    """A series as a page draws it."""

    figures: tuple[str, ...]
    times_us: list[int]
    values: list[list[float]]
    """One list a figure, as long as the times."""
    next: int
    """The number to ask from next time."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
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
        self._tables: dict[str, Ring] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Memory of the rings of tables."""
        return self._nbytes

    def add(self, time_us: int, server: Sequence[float], tables: Mapping[str, Sequence[float]]) -> None:
        """One sample of the server and of all its tables, by uuid.

        In place of its age a table has the time in microseconds since which it is hot, or 0: that stands still.
        """
        with self._lock:
            number = self._next
            self._begin_us = self._begin_us or time_us
            tables = {uuid: self._since(values) for uuid, values in tables.items()}
            self._times[number % FINE] = time_us
            if number % PER_MINUTE == PER_MINUTE - 1:
                self._minute_times[number // PER_MINUTE % MINUTES] = time_us
            self._server.add(number, server)
            for uuid in self._tables.keys() - tables.keys():
                self._nbytes -= self._tables.pop(uuid).nbytes
            for uuid, values in tables.items():
                ring = self._tables.get(uuid)
                if ring is None:
                    ring = self._tables[uuid] = Ring(values, number)
                elif ring.moves(values) and self._has_room(number):
                    ring.grow()
                    self._nbytes += ring.nbytes
                ring.add(number, values)
            self._next = number + 1

    def _since(self, values: Sequence[float]) -> list[float]:
        hot_us = values[_LAG]
        seconds = (hot_us - self._begin_us) / 1e6 if hot_us else np.inf
        return [*values[:_LAG], seconds, *values[_LAG + 1 :]]

    def _has_room(self, number: int) -> bool:
        """Whether one more ring fits, if need be in place of the one that has been still for longest."""
        if self._nbytes + RING_BYTES <= self._bytes_max:
            return True
        stillest = min((ring for ring in self._tables.values() if ring.nbytes), key=lambda r: r.moved, default=None)
        if stillest is None or number - stillest.moved < FINE:
            return False
        self._nbytes -= stillest.nbytes
        stillest.forget(number)
        return True

    def table(self, uuid: str, since: int, *, by_minutes: bool = False) -> Curves:
        """The samples of a table from a number on; none of an unknown one."""
        with self._lock:
            found = self._curves(self._tables.get(uuid), FIGURES, since, by_minutes=by_minutes)
        ages = ((at - self._begin_us) / 1e6 - hot for at, hot in zip(found.times_us, found.values[_LAG], strict=True))
        found.values[_LAG] = [max(age, 0.0) for age in ages]
        return found

    def server(self, since: int, *, by_minutes: bool = False) -> Curves:
        """The samples of the server from a number on."""
        with self._lock:
            return self._curves(self._server, SERVER_FIGURES, since, by_minutes=by_minutes)

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

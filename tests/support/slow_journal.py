"""A second journal for the seam: every append takes a while, several are on their way at once, and the end may be bad.

Records lie in a file journal, so that the folder opens again with it. A record stands as soon as it is appended, or
when it is acknowledged; the one at which the journal ends may stand or be lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.disk import Disk
from lakestore_server.state.commit_record import BEGINNING, Buffer, Deposed, Entry, JournalFile, Leader, Place, Unknown


@dataclass(frozen=True)
class Fate:
    """How a journal ends."""

    error: type[Deposed] | type[Unknown]
    at: int
    """So many records stand; then it ends."""
    stands: bool
    """Whether the records that are under way then stand all the same."""


class SlowJournal:
    """`LocalJournal`: `seconds` an append, or, while it is held, until it is let go."""

    settles_in_place, is_shared, lease_seconds = False, False, 0.0
    silence_seconds = 0.0
    void = gaps = 0
    kind, leader, replicas, heard, warehouse, leaders_warehouse = "file", Leader(), (), 0.0, "", ""

    def __init__(self, disk: Disk, folder: Path, seconds: float = 0.02, fate: Fate | None = None) -> None:
        self._file = FileJournal(disk, folder)
        self._seconds, self._fate = seconds, fate
        self._changed = threading.Condition()
        self._on_way: deque[tuple[float, int, Sequence[Buffer]]] = deque()
        self._held = False
        self._durable = self._mark_durable = 0
        self.most_on_way = 0
        """Records that were on their way at once."""

    def hold(self) -> None:
        """Let nothing arrive."""
        with self._changed:
            self._held = True

    def let_go(self) -> None:
        """Let what is on its way arrive now, and go on as before."""
        with self._changed:
            self._held = False
            self._on_way = deque((0.0, lsn, record) for _, lsn, record in self._on_way)
            self._changed.notify_all()

    @property
    def on_way(self) -> int:
        """How many records are appended and not acknowledged."""
        return len(self._on_way)

    def append(self, lsn: int, record: Sequence[Buffer]) -> None:
        """Send a record on its way."""
        with self._changed:
            self._on_way.append((time.monotonic() + self._seconds, lsn, record))
            self.most_on_way = max(self.most_on_way, len(self._on_way))
            self._changed.notify_all()

    def durable(self) -> int:
        """The last record that was acknowledged."""
        if self._fate is not None and self._mark_durable >= self._fate.at:
            if self._fate.stands:
                self._arrive(len(self._on_way))
            raise self._fate.error("the journal ends")
        return self._durable

    def settle(self, beyond: int) -> int:
        """Wait for the next acknowledgement."""
        with self._changed:
            self.durable()
            while self._held or not self._on_way or (left := self._on_way[0][0] - time.monotonic()) > 0:
                self._changed.wait(None if self._held or not self._on_way else left)
            arrived = sum(due <= time.monotonic() for due, _, _ in self._on_way)
            if self._fate is not None:
                arrived = min(arrived, self._fate.at - self._mark_durable)
            self._mark_durable += arrived
            self._durable = self._arrive(arrived)
            return self._durable

    def _arrive(self, count: int) -> int:
        lsn = self._durable
        for _ in range(count):
            _, lsn, record = self._on_way.popleft()
            self._file.append(lsn, record)
        return self._file.settle(lsn - 1) if count else lsn

    def prepare(self) -> None:
        """Nothing to do."""

    def roll(self, first_lsn: int) -> Place:
        """As the file."""
        self._durable = first_lsn - 1
        return self._file.roll(first_lsn)

    def timeline(self) -> str:
        """As the file."""
        return self._file.timeline()

    def read(self, lsn: int, place: Place = BEGINNING) -> Iterator[Entry]:
        """As the file."""
        return self._file.read(lsn, place)

    def follow(self, seconds: float) -> Iterator[Entry]:
        """As the file."""
        return self._file.follow(seconds)

    def follow_again(self) -> None:
        """As the file."""

    def beat(self, address: str, http: str = "") -> None:
        """As the file."""

    def confirm(self) -> None:
        """Nobody else ever leads."""

    def leave(self) -> None:
        """As the file."""

    def lead(self, address: str, http: str = "") -> Iterator[Entry]:
        """As the file."""
        return self._file.lead(address)

    def files(self, below: Place, bytes_min: int) -> Iterator[JournalFile]:
        """As the file."""
        return self._file.files(below, bytes_min)

    def trim(self, below: Place) -> None:
        """As the file."""
        self._file.trim(below)

    @property
    def written(self) -> tuple[str, int]:
        """As the file."""
        return self._file.written

    def close(self) -> None:
        """As the file."""
        self._file.close()

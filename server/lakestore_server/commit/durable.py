"""The durable side of the commit loop: the state that readers see, and the wake-ups of waiting streams.

A commit is published once the journal confirms its record. Either the loop or the settling thread publishes, never both
at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from lakestore_server.commit.contract_rows import ViolationCounts
from lakestore_server.commit.priority import JournalSize
from lakestore_server.commit.request import IndexEntries
from lakestore_server.host.histogram import COUNTS, Histogram
from lakestore_server.index.key_index import Index
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import View

T = TypeVar("T")
EVERY = "*"
"""A key that every ring wakes; no table uuid and no subscription key."""


class Bell(threading.Event):
    """An event that calls its listener when it is set. The listener must not block."""

    listener: Callable[[], None] | None = None

    def set(self) -> None:
        super().set()
        if self.listener is not None:
            self.listener()


@dataclass(frozen=True, slots=True)
class Pause:
    """A stream has nothing to send until its bell rings or a time is over."""

    bell: Bell
    seconds: float | None = None

    def wait(self) -> None:
        self.bell.wait(self.seconds)


def waited(items: Generator[T | Pause]) -> Iterator[T]:
    """The items of a stream; the caller's thread sleeps through pauses."""
    with closing(items):
        for item in items:
            if isinstance(item, Pause):
                item.wait()
            else:
                yield item


class Wakeups:
    """Bells by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[Bell, None]] = {}
        """Key to its wakeups, in order of arrival, which is the order in which they ring."""

    @contextmanager
    def heard(self, keys: Iterable[str]) -> Iterator[Bell]:
        """A bell that rings with every one of the keys while the block runs."""
        bell, wanted = Bell(), tuple(keys)
        with self._lock:
            for key in wanted:
                self._waiting.setdefault(key, {})[bell] = None
        try:
            yield bell
        finally:
            with self._lock:
                for key in wanted:
                    self._waiting[key].pop(bell, None)
                    if not self._waiting[key]:
                        del self._waiting[key]

    @property
    def listeners(self) -> int:
        """The number of open streams; 0 once all have ended."""
        with self._lock:
            return len(set[Bell]().union(*self._waiting.values()))

    def ring(self, keys: Iterable[str]) -> None:
        if not self._waiting:
            return
        with self._lock:
            woken = {bell: None for key in sorted({*keys, EVERY}) for bell in self._waiting.get(key, ())}
        for bell in woken:
            bell.set()

    def ring_all(self) -> None:
        self.ring(list(self._waiting))


@dataclass(slots=True)
class Totals:
    """Sums over everything written since the start."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Seconds spent in waits for the journal."""
    commit_seconds: Histogram = field(default_factory=Histogram)
    """Time from the queue to the answer, per request."""
    group_requests: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    sync_seconds: Histogram = field(default_factory=Histogram)
    violations: ViolationCounts = field(default_factory=ViolationCounts)


@dataclass(slots=True)
class DurableState:
    """State, view and index as of the newest durable commit."""

    state: State
    index: Index
    size: JournalSize
    wakeups: Wakeups = field(default_factory=Wakeups)
    """Rung for table uuids and subscription names that a commit touches."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    view: View = field(init=False)
    """The newest durable state."""

    def __post_init__(self) -> None:
        self.view = self.state.view

    def publish(self, record: CommitRecord, view: View, entries: IndexEntries) -> None:
        """Publish a durable commit: its rows are in the tails before the index names them, and both become visible at
        once."""
        self.state.follow(record, view)
        self.index.make_room(entries)
        with self.index.lock:
            self.index.put_expected()
            self.view = view
        with self._changed:
            self._changed.notify_all()
        self.wakeups.ring(
            [
                *(part.table for part in record.rows),
                *record.drop,
                *(each.table for each in record.shelve),
                *(each.table for each in record.truncate),
                *(each.source for each in record.swap),
                *(change.name for change in record.subscriptions),
            ]
        )

    def exchange(self, view: View) -> None:
        """Publish the same commits in another form: rows in segments instead of memory."""
        with self.index.lock:
            self.view = view

    def wait_for(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition that `publish` or `wake_all` may bring about."""
        with self._changed:
            self._changed.wait_for(is_over, seconds)

    def wake_all(self) -> None:
        """Wake every waiter: no more commits come."""
        with self._changed:
            self._changed.notify_all()
        self.wakeups.ring_all()

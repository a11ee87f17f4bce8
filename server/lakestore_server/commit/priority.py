"""Commit priority: small commits that callers wait for go first, other work waits a moment for them.

On two processors a commit of ten rows takes a few milliseconds alone, and three times as long while large requests are
decoded or behind a large commit that began just before it. Large requests lose almost nothing by waiting, because two
threads that share the interpreter's lock are not faster. Checkpoints and merges lose as little; they wait for a bounded
share of their working time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from lakestore.limits import Limits

SECONDS_AT_FIRST = 1.0
"""The assumed seconds of a checkpoint before one was measured."""
LATE_PART = 0.75
"""A running checkpoint is assumed to need at least this part of its time so far: it may be late."""
LATE_LEFT = LATE_PART / (1 + LATE_PART)
"""The part of the room that is left when this assumption begins to hold."""
LEFT_MIN = 0.001
"""The smallest part of the room that counts as left, so that a wait ends."""


@dataclass(slots=True)
class JournalSize:
    """Bytes of records that a recovery would read."""

    since_checkpoint: int
    frozen: int = 0
    """Bytes of the records that the running checkpoint makes unnecessary."""

    @property
    def untrimmed(self) -> int:
        """Bytes of all records."""
        return self.frozen + self.since_checkpoint

    def freeze(self) -> None:
        self.frozen += self.since_checkpoint
        self.since_checkpoint = 0


class Pace:
    """The pace of large requests. The queue asks under its lock; a checkpoint's notes need no lock."""

    def __init__(self, size: JournalSize, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._size, self._limits, self._monotonic = size, limits, monotonic
        self._began: float | None = None
        self._room = 0
        """The journal's room when the checkpoint began."""
        self._last = self._seconds = SECONDS_AT_FIRST
        """Seconds of the last checkpoint, and the shorter of the last two, because one alone may have been slow."""

    def is_full(self, stretch: float = 1.0) -> bool:
        """Whether a recovery would read as much journal as the limit times `stretch`."""
        return self._size.untrimmed >= self._limits.journal_bytes * stretch

    def begin(self) -> None:
        self._size.freeze()
        self._room = self._left()
        self._began = self._monotonic()

    def end(self) -> None:
        """Note that the checkpoint's journal is not needed any more."""
        self._size.frozen = 0
        if self._began is not None:
            took = self._monotonic() - self._began
            self._last, self._seconds = took, min(took, self._last)
        self._began = None

    def give_up(self) -> None:
        """Note that the checkpoint failed: the end of the next one is unknown until it begins."""
        self._began = None

    def wait(self, coming: int) -> float:
        """Seconds until a request may go, with `coming` bytes already on their way to the journal; 0 for at once."""
        began = self._began
        if began is None:
            return 0.0
        left = max((self._left() - coming) / max(self._room, 1), LEFT_MIN)
        if left > LATE_LEFT:
            moment = self._seconds * (1 - left)
        else:
            moment = self._seconds * (1 - LATE_LEFT) * (LATE_LEFT / left) ** LATE_PART
        return max(began + moment - self._monotonic(), 0.0)

    def _left(self) -> int:
        return self._limits.journal_bytes - self._size.untrimmed


GIVEN_SECONDS_MAX = 0.03
"""The longest total wait of requests that are taken together: large requests continue however many small ones come."""
PATIENT_SHARE = 0.5
"""The share of its working time that a duty waits at most."""
PATIENT_SECONDS_MAX = 0.02
"""The longest wait of a duty at one yield point."""


class CommitPriority:
    """The small commits that callers wait for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()
        self._under_way: OrderedDict[int, None] = OrderedDict()
        """Numbers of small commits without an answer, in order of arrival."""
        self._coming = 0
        self.on_none_coming: Callable[[], None] = lambda: None
        """Called when no small commit is coming any more: some were refused, or the last one is queued."""

    @property
    def is_coming(self) -> bool:
        """Whether a small commit has come that will be queued in a moment."""
        return self._coming > 0

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Marks a small commit as coming until it is queued or refused."""
        with self._changed:
            self._coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming -= 1
                is_last = not self._coming
            if is_last:
                self.on_none_coming()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Marks a small commit as pending until it is answered."""
        with self._changed:
            number = next(self._numbers)
            self._under_way[number] = None
        try:
            yield
        finally:
            with self._changed:
                del self._under_way[number]
                self._changed.notify_all()

    def answered(self, seconds: float) -> None:
        """Wait until the present small commits are answered, at most `seconds`."""
        if not self._under_way:  # long work asks often
            return
        with self._changed:
            newest = next(reversed(self._under_way), -1)
            self._changed.wait_for(lambda: next(iter(self._under_way), newest + 1) > newest, seconds)


class ForegroundPriority:
    """The priority of a small commit that a caller waits for: it waits for nobody."""

    def __init__(self, priority: CommitPriority) -> None:
        self._priority = priority

    def give_way(self) -> None:
        """Continue at once."""

    def coming(self) -> AbstractContextManager[None]:
        """Mark the commit as coming, once it has its turn and the memory for its rows."""
        return self._priority.coming()


class BackgroundPriority:
    """The priority of other requests: one wait budget for requests that one thread takes together."""

    def __init__(self, priority: CommitPriority) -> None:
        self._priority, self._left = priority, GIVEN_SECONDS_MAX

    def give_way(self) -> None:
        """Let small commits be answered while the wait budget lasts."""
        if self._left > 0:
            began = time.monotonic()
            self._priority.answered(self._left)
            self._left -= time.monotonic() - began

    def coming(self) -> AbstractContextManager[None]:
        return nullcontext()


RequestPriority: TypeAlias = ForegroundPriority | BackgroundPriority


class DutyPriority:
    """The priority of a duty, from its begin; used by one thread."""

    def __init__(self, priority: CommitPriority, is_awaited: Callable[[], bool] = lambda: False) -> None:
        """`is_awaited`: whether small commits may wait for this duty."""
        self._priority, self._is_awaited = priority, is_awaited
        self._left, self._since = 0.0, time.monotonic()
        """Seconds that the duty may wait, and the moment at which it continued."""

    def give_way(self) -> None:
        """Let small commits be answered, within the share that the work so far has earned."""
        if self._is_awaited():
            return
        began = time.monotonic()
        self._left = min(self._left + (began - self._since) * PATIENT_SHARE, PATIENT_SECONDS_MAX)
        self._priority.answered(self._left)
        self._since = time.monotonic()
        self._left -= self._since - began

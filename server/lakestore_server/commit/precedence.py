"""Small commits on their way, to which other work gives way for a moment: a caller waits for a small one.

On two processors a commit of ten rows takes a few milliseconds by itself, and three times that beside the decoding of
large requests and behind a large commit that begins just before it is queued. Large requests lose next to nothing by
waiting for it: they are not faster while two threads take the interpreter's lock from one another. Checkpoints and
merges lose as little; they wait a bounded share of the time of their work.
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
"""A checkpoint's time before one was measured."""
LATE_PART = 0.75
"""The part of the time that a checkpoint has taken so far which it is taken to need at least: it may be late."""
LATE_LEFT = LATE_PART / (1 + LATE_PART)
"""The part of the room that is kept when that begins to hold."""
LEFT_MIN = 0.001
"""The part of the room that counts as left at least: a wait is to have an end."""


@dataclass(slots=True)
class JournalSize:
    """Bytes of records that a recovery would read."""

    since_checkpoint: int
    frozen: int = 0
    """Bytes of the records that the running checkpoint makes needless."""

    @property
    def untrimmed(self) -> int:
        """All of them."""
        return self.frozen + self.since_checkpoint

    def freeze(self) -> None:
        """Note that a checkpoint begins."""
        self.frozen += self.since_checkpoint
        self.since_checkpoint = 0


class Pace:
    """Waits of large requests, which the queue asks for under its lock; what a checkpoint notes needs none."""

    def __init__(self, size: JournalSize, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._size, self._limits, self._monotonic = size, limits, monotonic
        self._began: float | None = None
        self._room = 0
        """The room that the journal had when the checkpoint began."""
        self._last = self._seconds = SECONDS_AT_FIRST
        """The time that the last checkpoint took, and the shorter one of the last two: one alone may have been slow."""

    def is_full(self, stretch: float = 1.0) -> bool:
        """Whether a recovery would have to read as much journal as the limit, times `stretch`, allows."""
        return self._size.untrimmed >= self._limits.journal_bytes * stretch

    def begin(self) -> None:
        """Note that a checkpoint begins."""
        self._size.freeze()
        self._room = self._left()
        self._began = self._monotonic()

    def end(self) -> None:
        """Note that its journal is needed no more."""
        self._size.frozen = 0
        if self._began is not None:
            took = self._monotonic() - self._began
            self._last, self._seconds = took, min(took, self._last)
        self._began = None

    def give_up(self) -> None:
        """Note that it failed: nobody knows when the next one ends before it begins."""
        self._began = None

    def wait(self, coming: int) -> float:
        """Seconds until a request may go, beside so many bytes that are on their way to the journal; 0 for at once."""
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
"""The most that requests which are taken together wait in all: large ones go on however many small ones come."""
PATIENT_SHARE = 0.5
"""The part of the time of its own work that a duty waits at most: it goes on however many small ones come."""
PATIENT_SECONDS_MAX = 0.02
"""The longest wait of a duty at a stage."""


class Precedence:
    """The small commits that callers wait for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()
        self._under_way: OrderedDict[int, None] = OrderedDict()
        """Numbers of small commits that are not answered yet, in the order in which they came."""
        self._coming = 0
        self.on_none_coming: Callable[[], None] = lambda: None
        """Told that no small commit is coming any more: some were refused, or the last one is queued."""

    @property
    def is_coming(self) -> bool:
        """Whether a small commit has come that is to be queued in a moment."""
        return self._coming > 0

    @contextmanager
    def coming(self) -> Iterator[None]:
        """A small commit, until it is queued or refused."""
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
        """A small commit, until it is answered."""
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
        """Wait until the small commits that are under way now are answered, at most so long."""
        if not self._under_way:  # long work asks often
            return
        with self._changed:
            newest = next(reversed(self._under_way), -1)
            self._changed.wait_for(lambda: next(iter(self._under_way), newest + 1) > newest, seconds)


class Urgency:
    """The manner of a small commit that a caller waits for: it gives way to nobody, whatever its rows become."""

    def __init__(self, precedence: Precedence) -> None:
        self._precedence = precedence

    def give_way(self) -> None:
        """Go on."""

    def coming(self) -> AbstractContextManager[None]:
        """`Precedence.coming`, once it has its turn and the memory for its rows."""
        return self._precedence.coming()


class Courtesy:
    """The manner of other requests: the waits of those that are taken together, by one thread."""

    def __init__(self, precedence: Precedence) -> None:
        self._precedence, self._left = precedence, GIVEN_SECONDS_MAX

    def give_way(self) -> None:
        """Let small commits be answered, as long as there is time left for that."""
        if self._left > 0:
            began = time.monotonic()
            self._precedence.answered(self._left)
            self._left -= time.monotonic() - began

    def coming(self) -> AbstractContextManager[None]:
        """Nobody waits for it to come."""
        return nullcontext()


Manner: TypeAlias = Urgency | Courtesy


class Patience:
    """The manner of a duty, from the moment it begins; one thread does it."""

    def __init__(self, precedence: Precedence, is_awaited: Callable[[], bool] = lambda: False) -> None:
        """`is_awaited`: whether small commits may be waiting for this very duty."""
        self._precedence, self._is_awaited = precedence, is_awaited
        self._left, self._since = 0.0, time.monotonic()
        """Seconds that it may wait, and the moment at which it went on."""

    def give_way(self) -> None:
        """Let small commits be answered, as long as the work so far has earned."""
        if self._is_awaited():
            return
        began = time.monotonic()
        self._left = min(self._left + (began - self._since) * PATIENT_SHARE, PATIENT_SECONDS_MAX)
        self._precedence.answered(self._left)
        self._since = time.monotonic()
        self._left -= self._since - began

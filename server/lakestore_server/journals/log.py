"""A log of messages that several servers write: the seam between a shared journal and the technology of its log.

- The log orders messages by positions, which only grow. It may skip positions.
- A message that was stored stays until `remove_before`. A log that lost messages or was created again is refused.
- A log judges nothing: it stores and returns bytes, also messages of strangers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

SOMEWHERE = -1
"""The position of a message that is stored at a place which the log does not tell."""


class Log(Protocol):
    """One server's end of a log. One thread reads at a time, and any thread may call the rest."""

    @property
    def kind(self) -> str:
        """The technology, as `journal.kind` of the settings names it."""

    @property
    def part_bytes(self) -> int:
        """The most bytes that a message may carry behind its header."""

    def open(self, known: str) -> str:
        """Check that the log loses nothing, and return its identity. `ForeignLog` unless that is `known`, where empty
        means any; `Invalid` with the setting that could lose messages; `NotFound` without a log."""

    def confirm(self) -> None:
        """`ForeignLog` if the log that was opened is gone or was created again; nothing if it does not answer."""

    def bounds(self) -> tuple[int, int]:
        """(position of the first message that is there, position of the next one); `Unavailable` without an answer."""

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        """(position, message) of the messages from `start` on that are there; waits at most `seconds` for the first
        one. With `to_end` all messages up to the present end, however long that takes; `Unavailable` if the log does
        not answer. `ForeignLog` if `start` is not in the log any more."""

    def stop_reading(self) -> None:
        """Fetch nothing until the next `read`."""

    def prepare(self) -> None:
        """Get ready to send, without waiting."""

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        """Send a message without waiting; False if there is no room for it before the next `poll`. Messages are stored
        in this order or not at all. `stored` gets the position, or `SOMEWHERE`; only `poll` calls it, and only `poll`
        raises an error of the log."""

    def poll(self, seconds: float) -> None:
        """Call `stored` of the messages that are stored; wait at most so long for the first one. Raises `Unknown`, also
        later on, once it is unknown whether a message is or will be stored."""

    def stop_sending(self) -> None:
        """Send nothing more and call no `stored` of earlier messages. Some of them may still be stored. A later `send`
        begins again."""

    def remove_before(self, position: int) -> None:
        """Remove the messages before a position."""

    def close(self) -> None:
        """Release everything."""


class Sender(Protocol):
    """The sending end of a log, until its first failure."""

    def stop(self) -> None:
        """Send nothing more, and tell nothing of earlier messages."""


S = TypeVar("S", bound=Sender)


class SenderSlot(Generic[S]):
    """The present sender of a log. A sender that was stopped is replaced once another one is needed. Thread-safe."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make, self._lock = make, threading.Lock()
        self.present: S | None = None

    def sender(self) -> S:
        """The present sender; a new one if there is none."""
        with self._lock:
            if self.present is None:
                self.present = self._make()
            return self.present

    def stop(self) -> None:
        """Stop the present sender, if there is one."""
        with self._lock:
            sender, self.present = self.present, None
        if sender is not None:
            sender.stop()


class Rounds:
    """Runs work for several callers at once: a round that begins after a call serves it. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        self._failure: BaseException | None = None
        """The error of the round that has ended last."""

    def run(self, work: Callable[[], None]) -> None:
        """Return at the end of a round that began after this call; raises its error."""
        with self._changed:
            wanted = self._begun + 1
            self._changed.wait_for(lambda: self._begun == self._ended or self._ended >= wanted)
            if self._ended >= wanted:
                if self._failure is not None:
                    raise self._failure
                return
            self._begun += 1
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._ended, self._failure = self._begun, failure
                self._changed.notify_all()

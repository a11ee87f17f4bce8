"""Reads several sources with a few threads and merges their items in order of arrival.

- The read-ahead is bounded: a slow consumer stops the threads.
- The threads end soon after the consumer stops.
- At interpreter exit the threads get up to `LEAVE_SECONDS` to leave Arrow's code: a thread that returns from there to a
  finalised interpreter aborts the process.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")
TICK_SECONDS = 1.0
LEAVE_SECONDS = 2.0
"""The longest wait for the threads at interpreter exit. A thread may block on a pipe that nobody writes to."""
Source = Callable[[], Iterable[T]]


def merged(sources: Iterable[Source[T]], *, threads: int, ahead: int, tick: Callable[[], None]) -> Generator[T]:
    """The items of all sources. `tick` is called about once a second while no item arrives.

    At most `ahead` items wait for the consumer, plus one in each thread.
    """
    channel: _Channel[T] = _Channel(iter(sources), ahead)
    for number in range(threads):
        channel.begin(f"lakestore-read-{number}")
    try:
        while (item := channel.take(tick)) is not None:
            yield item
    finally:
        channel.close()


class _Channel(Generic[T]):
    """Passes items from the reading threads to the consumer."""

    running: ClassVar[dict[threading.Thread, _Channel[Any]]] = {}
    """The running threads of all channels."""

    def __init__(self, sources: Iterator[Source[T]], ahead: int) -> None:
        self._sources, self._ahead = sources, ahead
        # Reentrant: the garbage collector may close a channel in any thread, even in one that holds this lock.
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[T] = deque()
        self._running = 0
        self._is_closed = False
        self._failure: BaseException | None = None

    def begin(self, name: str) -> None:
        """Start one more thread."""
        self._running += 1
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.running[thread] = self
        thread.start()

    def take(self, tick: Callable[[], None]) -> T | None:
        """The next item; None at the end."""
        while True:
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                if self._items:
                    self._changed.notify_all()
                    return self._items.popleft()
                if not self._running:
                    return None
                came = self._changed.wait(TICK_SECONDS)
            if not came:
                tick()

    def close(self) -> None:
        """Make the threads end."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (source := self._next()) is not None:
                for item in source():
                    if not self._put(item):
                        return
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
            self.running.pop(threading.current_thread(), None)

    def _next(self) -> Source[T] | None:
        with self._changed:
            return None if self._is_closed or self._failure is not None else next(self._sources, None)

    def _put(self, item: T) -> bool:
        """Wait for room and put the item there. False if the consumer has stopped."""
        with self._changed:
            while len(self._items) >= self._ahead and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True


@atexit.register
def _leave() -> None:
    """At interpreter exit: make the threads end while the interpreter still runs."""
    end = time.monotonic() + LEAVE_SECONDS
    left = [(thread, channel) for thread, channel in list(_Channel.running.items()) if thread.is_alive()]
    for _, channel in left:
        channel.close()
    for thread, _ in left:
        thread.join(max(end - time.monotonic(), 0.0))

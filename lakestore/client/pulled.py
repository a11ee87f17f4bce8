"""Items of an iterator that are waited for: by any thread, for a time, until any thread ends it.

A wait without an end is done by the thread that waits. One with an end is handed to a thread of the iterator's own, for
nothing inside can be interrupted and begun again; the item that comes after that time is the next one's.
"""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Generator
from copy import copy
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from lakestore.client.retry import without_deadline
from lakestore.client.scope import SCOPE, Scope
from lakestore.errors import LakestoreError, StreamEnded

T = TypeVar("T")
WAIT_SECONDS_MAX = 86_400.0 * 31
JOIN_SECONDS = 5.0


class Pulled(Generic[T]):
    """A generator, one item at a time. Thread-safe."""

    def __init__(self, items: Generator[T], let_go: Callable[[], None], taken: Callable[[T], None]) -> None:
        """`let_go` gives back what the generator holds, which does not do so when it is merely forgotten. `taken` is
        told of each item when it is handed over, before the generator makes its next step: an item may have been made
        long before, while nobody waited for it."""
        self._items, self._let_go, self._told = items, let_go, taken
        self._scope, self._outer = Scope(), SCOPE.get()
        self._context = contextvars.copy_context()
        self._context.run(SCOPE.set, self._scope)
        self._context.run(without_deadline)
        self._turn = threading.Lock()
        self._worker: _Worker[T] | None = None
        self._failure: LakestoreError | None = None
        self._is_closed = self._is_finished = False
        if self._outer is not None:
            self._outer.add(self)

    def next(self, seconds: float | None) -> T | None:
        """The next item; None if none comes in that time. `StreamEnded` behind the last one, and once it is closed."""
        end = time.monotonic() + min(seconds or 0.0, WAIT_SECONDS_MAX)
        if not self._turn.acquire(timeout=-1 if seconds is None else max(end - time.monotonic(), 0.0)):
            return None
        try:
            if self._failure is not None:
                raise copy(self._failure)
            item = self._taken(None if seconds is None else end)
            if item is not None:
                self._told(item)
            return item
        except LakestoreError as error:
            self._failure = self._failure or error
            raise
        finally:
            self._turn.release()
            if self._is_closed:
                self._finish_if_idle()

    def _taken(self, end: float | None) -> T | None:
        if self._is_closed:
            raise _closed()
        try:
            if end is None and (self._worker is None or not self._worker.is_busy):
                return self._stepped()
            if self._worker is None:
                self._worker = _Worker()
                _OPEN.add(self)
            return self._worker.next(partial(self._context.run, next, self._items), end)
        except StopIteration as error:
            raise StreamEnded("the stream has come to its end: nothing comes any more") from error
        except LakestoreError as error:
            if self._is_closed:
                raise _closed() from error
            raise

    def _stepped(self) -> T:
        is_whole = False
        try:
            item = self._context.run(next, self._items)
            is_whole = True
        except (StopIteration, LakestoreError):
            is_whole = True
            raise
        finally:
            if not is_whole:  # a generator that was interrupted is over, which must not look like its end
                self._failure = StreamEnded("the stream was interrupted: open another one where it stands")
        return item

    def cancel(self) -> None:
        """End it, without waiting for what it holds to be given back."""
        self._is_closed = True
        self._scope.cancel()

    def close(self) -> None:
        """End it: a thread that waits is woken up, and gives back what it holds. Again is harmless."""
        self.cancel()
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if not self._turn.acquire(blocking=False):
            return  # the thread whose turn it is does it
        try:
            if not self._is_finished:
                self._is_finished = True
                self._finish()
        finally:
            self._turn.release()

    def _finish(self) -> None:
        if self._outer is not None:
            self._outer.discard(self)
        if self._worker is None:
            self._end()
        else:
            self._worker.end(self._end)

    def _end(self) -> None:
        self._context.run(self._items.close)
        self._context.run(self._let_go)

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None:
            worker.forget()


class _Worker(Generic[T]):
    """A thread that makes one step at a time. While it is idle it holds nothing of its iterator."""

    def __init__(self) -> None:
        self.is_busy = False
        """Whether a step was begun whose outcome nobody has taken."""
        self._steps: queue.SimpleQueue[Callable[[], T | None] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[T | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._steps, self._outcomes), name="lakestore-stream", daemon=True
        )
        self._thread.start()

    def next(self, step: Callable[[], T], end: float | None) -> T | None:
        """The outcome of a step, of the one that is on its way if there is one; None if it takes longer."""
        if not self.is_busy:
            self._steps.put(step)
            self.is_busy = True
        try:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            outcome = self._outcomes.get(timeout=left)
        except queue.Empty:
            return None
        self.is_busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def end(self, ending: Callable[[], None]) -> None:
        """End the iterator behind the step that is on its way, and the thread."""
        self._steps.put(ending)
        self.forget()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def forget(self) -> None:
        """Let the thread go when it has nothing to do. From anywhere: takes no lock."""
        self._steps.put(None)


def _work(
    steps: queue.SimpleQueue[Callable[[], T | None] | None], outcomes: queue.SimpleQueue[T | BaseException | None]
) -> None:
    while (step := steps.get()) is not None:
        outcomes.put(_outcome(step))
        del step


def _outcome(step: Callable[[], T | None]) -> T | BaseException | None:
    try:
        return step()
    except BaseException as error:  # the boundary of the thread: the one that waits raises it again
        return error


def _closed() -> StreamEnded:
    return StreamEnded("the stream is closed: open another one where it stands")


_OPEN: WeakSet[Pulled[Any]] = WeakSet()
"""Iterators with threads of their own."""


@atexit.register
def _leave() -> None:
    """A thread inside gRPC must not outlive the interpreter."""
    for pulled in list(_OPEN):
        pulled.close()

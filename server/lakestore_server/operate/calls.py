"""The calls that run: counted and timed for the metrics, the slow ones logged, and answered to their end by a drain.

Once a drain has begun, a new call and the next batch of a stream are refused as `Unavailable`, which a client takes
as a reason to try again here or elsewhere; calls that run already get their answers.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lakestore.errors import LakestoreError, Unavailable
from lakestore.wire import rpc, tracing
from lakestore_server.changes.stream import Listener
from lakestore_server.commit.engine import DRAINING
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.histogram import Histogram
from lakestore_server.host.rate_limited_log import RateLimitedLog

log = logging.getLogger("lakestore.calls")
RETRY_AFTER_SECONDS = 0.5
REFUSAL_LOG_SECONDS = 60.0
_DEFECTS = ("Internal", "Corrupt")


class _Follower:
    """The client of a stream that waits, woken by a drain as well as by what the stream waits for."""

    def __init__(self, listener: Listener, refuse_when_draining: Callable[[], None]) -> None:
        self._listener, self._refuse = listener, refuse_when_draining
        self._woken: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        """Whether the reader still listens; `Unavailable` once the server goes."""
        self._refuse()
        return self._listener.is_active()

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Call back when the reader listens no more, or the server goes."""
        self._woken.append(callback)
        self._refuse()
        return self._listener.add_callback(callback)

    def wake(self) -> None:
        """Wake the stream, for the server goes."""
        for callback in self._woken:
            callback()


class Calls:
    """All calls of a server. Thread-safe."""

    def __init__(self, clock: Clock, slow_seconds: float = 0.0) -> None:
        self._clock, self._slow_seconds = clock, slow_seconds
        self._changed = threading.Condition()
        self._is_draining = False
        self._running: Counter[str] = Counter()
        self._followers: set[_Follower] = set()
        self._refused = RateLimitedLog(clock, REFUSAL_LOG_SECONDS)
        self._seconds: dict[tuple[str, str], Histogram] = {}

    @property
    def is_draining(self) -> bool:
        """Whether new calls are refused."""
        return self._is_draining

    def running(self) -> dict[str, int]:
        """Method to the number of its calls that run now."""
        with self._changed:
            return {method: count for method, count in self._running.items() if count}

    def seconds(self) -> dict[tuple[str, str], Histogram]:
        """(method, `ok` or the error's kind) to how long its calls took; a stream counts as one call."""
        with self._changed:
            return dict(self._seconds)

    def drain(self, seconds: float) -> bool:
        """Refuse new calls and wait for those that run; whether all have ended."""
        with self._changed:
            self._is_draining = True
            followers = list(self._followers)
        for follower in followers:
            follower.wake()
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._running.values()), seconds)

    def watched(self, method: rpc.Method, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The verb of a method, counted, timed, and refused while the server drains."""
        if not method.streams_out:
            return lambda request: self._answered(method.name, verb, request)
        if method.name in ("Changes", "Write"):
            return lambda request, listener: self._followed(method.name, verb, request, listener)
        return lambda request: self._streamed(method.name, verb, request)

    def _answered(self, method: str, verb: Callable[[Any], Any], request: Any) -> Any:
        with self._call(method), tracing.span(method, "SERVER"):
            return verb(request)

    def _streamed(self, method: str, verb: Callable[[Any], Iterator[Any]], request: Any) -> Iterator[Any]:
        with self._call(method, is_stream=True):
            yield from verb(request)

    def _followed(
        self, method: str, verb: Callable[..., Iterator[Any]], request: Any, listener: Listener
    ) -> Iterator[Any]:
        """The messages of a stream that waits, which a drain wakes.

        It cannot wait for the end of a change stream, whose reader is told that the server goes. A stream of commits
        sees to its own end, for what it took is to be answered.
        """
        follower = _Follower(listener, self._refuse_when_draining)
        with self._call(method, is_stream=True):
            with self._changed:
                self._followers.add(follower)
            try:
                for item in verb(request, follower):
                    yield item
                    if method == "Changes":
                        self._refuse_when_draining()
            finally:
                with self._changed:
                    self._followers.discard(follower)

    def _refuse_when_draining(self) -> None:
        if self._is_draining:
            raise Unavailable(DRAINING, retry_after=RETRY_AFTER_SECONDS)

    @contextmanager
    def _call(self, method: str, *, is_stream: bool = False) -> Iterator[None]:
        began, code = self._clock.monotonic(), "ok"
        with self._changed:
            self._running[method] += 1
        try:
            self._refuse_when_draining()
            yield
        except LakestoreError as error:
            code = error.kind
            self._refuse(method, error)
            raise
        except GeneratorExit:
            code = "cancelled"
            raise
        except BaseException:
            code = "Internal"
            raise
        finally:
            self._end(method, code, self._clock.monotonic() - began, is_stream=is_stream)

    def _end(self, method: str, code: str, seconds: float, *, is_stream: bool) -> None:
        with self._changed:
            self._running[method] -= 1
            self._seconds.setdefault((method, code), Histogram()).add(seconds)
            if self._is_draining:
                self._changed.notify_all()
        if self._slow_seconds and seconds > self._slow_seconds and not is_stream:
            event_log.event(log, logging.WARNING, "slow call", method=method, code=code, seconds=round(seconds, 3))

    def _refuse(self, method: str, error: LakestoreError) -> None:
        """Log a refusal now and then with how many there were: a client in a loop must not fill the log."""
        count = self._refused.due((method, error.kind))
        if not count:
            return
        level = logging.ERROR if error.kind in _DEFECTS else logging.INFO
        event_log.event(log, level, "refused", method=method, code=error.kind, count=count, newest=error.message)

"""Running calls: counted and timed for the metrics; slow calls are logged; a drain lets them end.

During a drain a new call and the next batch of a stream are refused as `Unavailable`, so the client retries here or
elsewhere. Running calls get their answers.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
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
    """The listener of a waiting stream. A drain wakes the stream too."""

    def __init__(self, listener: Listener, refuse_when_draining: Callable[[], None]) -> None:
        self._listener, self._refuse = listener, refuse_when_draining
        self._woken: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        self._refuse()
        return self._listener.is_active()

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        self._woken.append(callback)
        self._refuse()
        return self._listener.add_callback(callback)

    def wake(self) -> None:
        for callback in self._woken:
            callback()


class Calls:
    """All calls of a server. Thread-safe."""

    def __init__(self, clock: Clock, slow_seconds: float = 0.0) -> None:
        self._clock, self._slow_seconds = clock, slow_seconds
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Its own `with` is a method in Python, so calls take the lock."""
        self._is_draining = False
        self._running: Counter[str] = Counter()
        self._followers: set[_Follower] = set()
        self._refused = RateLimitedLog(clock, REFUSAL_LOG_SECONDS)
        self._seconds: dict[tuple[str, str], Histogram] = {}

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def running(self) -> dict[str, int]:
        with self._changed:
            return {method: count for method, count in self._running.items() if count}

    def seconds(self) -> dict[tuple[str, str], Histogram]:
        """(method, `ok` or error kind) to the durations of its calls; a stream is one call."""
        with self._changed:
            return dict(self._seconds)

    def drain(self, seconds: float) -> bool:
        """Refuse new calls and wait for running ones; True if all have ended."""
        with self._changed:
            self._is_draining = True
            followers = list(self._followers)
        for follower in followers:
            follower.wake()
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._running.values()), seconds)

    def watched(self, method: rpc.Method, verb: Callable[..., Any], *, is_part: bool = False) -> Callable[..., Any]:
        """The verb of a method, counted, timed, and refused during a drain unless it is a part of a running call."""
        if not method.streams_out:
            return lambda request: self._answered(method.name, verb, request, is_part=is_part)
        if method.name in ("Changes", "Write"):
            return lambda request, listener: self._followed(method.name, verb, request, listener)
        return lambda request: self._streamed(method.name, verb, request, is_part=is_part)

    def _answered(self, method: str, verb: Callable[[Any], Any], request: Any, *, is_part: bool) -> Any:
        with self.call(method, is_part=is_part), tracing.span(method, "SERVER"):
            return verb(request)

    def _streamed(
        self, method: str, verb: Callable[[Any], Iterator[Any]], request: Any, *, is_part: bool
    ) -> Iterator[Any]:
        with self.call(method, is_stream=True, is_part=is_part):
            yield from verb(request)

    def _followed(
        self, method: str, verb: Callable[..., Iterator[Any]], request: Any, listener: Listener
    ) -> Iterator[Any]:
        """The messages of a waiting stream; a drain wakes it. A drain ends a change stream early with an error for its
        reader. A stream of commits ends by itself after the answers to its accepted commits."""
        follower = _Follower(listener, self.refuse_when_draining)
        with self.call(method, is_stream=True):
            with self._changed:
                self._followers.add(follower)
            try:
                for item in verb(request, follower):
                    yield item
                    if method == "Changes":
                        self.refuse_when_draining()
            finally:
                with self._changed:
                    self._followers.discard(follower)

    def refuse_when_draining(self) -> None:
        """Raises `Unavailable` during a drain."""
        if self._is_draining:
            raise Unavailable(DRAINING, retry_after=RETRY_AFTER_SECONDS)

    def call(self, method: str, *, is_stream: bool = False, is_part: bool = False) -> _Call:
        """Count and time the block as a call; it is refused during a drain unless it is a part of a running call."""
        return _Call(self, method, is_stream=is_stream, is_part=is_part)

    def hold(self, name: str) -> None:
        """Let a drain wait for work of several calls, until `release`. Raises `Unavailable` during a drain."""
        with self._lock:
            self.refuse_when_draining()
            self._running[name] += 1

    def release(self, name: str) -> None:
        """The work of `hold` has ended."""
        with self._lock:
            self._running[name] -= 1
            self._changed.notify_all()

    def begin(self, method: str) -> float:
        """Count a call that begins; the time of its begin."""
        began = self._clock.monotonic()
        with self._lock:
            self._running[method] += 1
        return began

    def end(self, method: str, began: float, error: BaseException | None, *, is_stream: bool) -> None:
        """Count and time a call that has ended."""
        if error is None:
            code = "ok"
        elif isinstance(error, LakestoreError):
            code = error.kind
            self._refuse(method, error)
        else:
            code = "cancelled" if isinstance(error, GeneratorExit) else "Internal"
        seconds = self._clock.monotonic() - began
        with self._lock:
            self._running[method] -= 1
            histogram = self._seconds.get((method, code))
            if histogram is None:
                histogram = self._seconds[method, code] = Histogram()
            histogram.add(seconds)
            if self._is_draining:
                self._changed.notify_all()
        if self._slow_seconds and seconds > self._slow_seconds and not is_stream:
            event_log.event(log, logging.WARNING, "slow call", method=method, code=code, seconds=round(seconds, 3))

    def _refuse(self, method: str, error: LakestoreError) -> None:
        count = self._refused.due((method, error.kind))
        if not count:
            return
        level = logging.ERROR if error.kind in _DEFECTS else logging.INFO
        event_log.event(log, level, "refused", method=method, code=error.kind, count=count, newest=error.message)


class _Call:
    """The block of a call. A class, because a generator takes three times as long."""

    __slots__ = ("_began", "_calls", "_is_part", "_is_stream", "_method")

    def __init__(self, calls: Calls, method: str, *, is_stream: bool, is_part: bool) -> None:
        self._calls, self._method, self._is_stream, self._is_part = calls, method, is_stream, is_part
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._calls.begin(self._method)
        if self._is_part:
            return
        try:
            self._calls.refuse_when_draining()
        except Unavailable as error:
            self.__exit__(None, error, None)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._calls.end(self._method, self._began, error, is_stream=self._is_stream)

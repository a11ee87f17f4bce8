"""Small calls on one open stream of a connection, which all threads share: half of the time of a call by itself.

The first call opens the stream; it ends when nobody has called for a while, so that a quiet connection has no thread at
either end, and when the token is another one. Replies are told apart by the ids of their calls.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from lakestore.client.scope import SCOPE
from lakestore.errors import Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.errors import Metadata
from lakestore.wire.grpc import grpc

IDLE_SECONDS = 10.0
"""Time without a call after which a stream ends."""


class NoReply(Exception):
    """The stream ended before the reply."""

    def __init__(self, failure: grpc.RpcError | None) -> None:
        """None: without a word."""
        super().__init__()
        self.failure = failure


class CallCancelled(Exception):
    """The caller's scope ended before the reply."""


class _Waiting:
    """One call on its way: a letter box for what becomes of it."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: SimpleQueue[pb.Reply | NoReply | CallCancelled] = SimpleQueue()

    def cancel(self) -> None:
        """Tell the caller to give up."""
        self.outcome.put(CallCancelled())


class _Stream:
    """One open stream. `waiting` and `is_over` change under the lock."""

    def __init__(self, lock: threading.Lock, shown: Metadata) -> None:
        self._lock, self.shown = lock, shown
        self.asks: SimpleQueue[pb.Ask | None] = SimpleQueue()
        self.waiting: dict[int, _Waiting] = {}
        self.is_over = False
        """Whether it takes no more calls."""

    def open(self, stub: Any) -> None:
        """Begin to talk; `ValueError` on a closed channel."""
        try:
            replies = stub(self._requests(), metadata=self.shown)
        except ValueError:
            self._end(None)
            raise
        threading.Thread(target=self._read, args=(replies,), name="small-calls", daemon=True).start()

    def retire(self) -> None:
        """Take no more calls; those under way are answered. Under the lock."""
        self.is_over = True
        self.asks.put(None)

    def _requests(self) -> Iterator[pb.Ask]:
        """The calls, for gRPC's thread that sends them; they end when nobody has called for a while."""
        while True:
            try:
                ask = self.asks.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    self.is_over = not self.waiting
                if self.is_over:
                    return
                continue
            if ask is None:
                return
            yield ask

    def _read(self, replies: Any) -> None:
        failure: grpc.RpcError | None = None
        try:
            for reply in replies:
                with self._lock:
                    waiting = self.waiting.pop(reply.id, None)
                if waiting is not None:
                    waiting.outcome.put(reply)
        except grpc.RpcError as error:
            failure = error
        self._end(failure)

    def _end(self, failure: grpc.RpcError | None) -> None:
        with self._lock:
            self.retire()
            left, self.waiting = list(self.waiting.values()), {}
        for waiting in left:
            waiting.outcome.put(NoReply(failure))


class SmallCalls:
    """The small calls of one connection. Thread-safe."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub: Any = channel.stream_stream(rpc.TALK_PATH, pb.Ask.SerializeToString, pb.Reply.FromString)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None

    def call(self, method: str, request: bytes, seconds: float, shown: Metadata) -> pb.Reply:
        """The reply to a call, on a stream that was opened with this metadata.

        `NoReply` or `CallCancelled` if none comes, `Unavailable` if none comes in time, `ValueError` on a closed
        channel.
        """
        number, waiting = next(self._numbers), _Waiting()
        ask = pb.Ask(id=number, method=method, request=request, within_ms=max(int(seconds * 1_000), 1))
        stream = self._asked(ask, waiting, shown)
        scope = SCOPE.get()
        if scope is not None:
            scope.add(waiting)
        try:
            outcome = waiting.outcome.get(timeout=max(seconds, 0.0))
        except Empty:
            raise Unavailable("the server did not answer in time: try again") from None
        finally:
            with self._lock:
                stream.waiting.pop(number, None)
            if scope is not None:
                scope.discard(waiting)
        if isinstance(outcome, pb.Reply):
            return outcome
        raise outcome

    def _asked(self, ask: pb.Ask, waiting: _Waiting, shown: Metadata) -> _Stream:
        """The stream that the call was put on."""
        with self._lock:
            stream = self._stream
            if stream is not None and not stream.is_over and stream.shown != shown:
                stream.retire()
            opens = stream is None or stream.is_over
            if stream is None or opens:
                stream = self._stream = _Stream(self._lock, shown)
            stream.waiting[ask.id] = waiting
            stream.asks.put(ask)
        if opens:
            stream.open(self._stub)
        return stream

    def close(self) -> None:
        """Take no more calls on the open stream."""
        with self._lock:
            if self._stream is not None and not self._stream.is_over:
                self._stream.retire()

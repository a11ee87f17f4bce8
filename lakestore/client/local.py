"""A server in this process: its verbs, called without a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from lakestore.client.calls import transport_of
from lakestore.client.credentials import NOTHING
from lakestore.client.scope import SCOPE
from lakestore.client.transport import PROCESS, Transport
from lakestore.errors import Invalid, LakestoreError, Stopped
from lakestore.limits import WIDEST
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.row_messages import ChangeMessage


class Verbs(Protocol):
    """A server's verbs by RPC name."""

    def verb(self, name: str, /) -> Callable[..., Any]:
        """The verb of an RPC. The verb of `Changes` takes the listener as second argument."""


class EncodedMessage(Protocol):
    """A message of a change stream, encoded once for all receivers."""

    @property
    def message(self) -> ChangeMessage: ...


class LocalWire:
    """The verbs of a server in this process. No deadline interrupts a verb."""

    def __init__(self, verbs: Verbs) -> None:
        self.credentials, self.address = NOTHING, ""
        self.server = verbs.verb("Hello")(pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL))
        self.server.message_bytes = WIDEST.message_bytes  # no message is sent over a network
        self.is_closed = self._is_orphan = False
        self._verbs = {name: verbs.verb(name) for name in rpc.METHODS}
        self._streams: dict[Generator[EncodedMessage], _Listener] = {}
        self._abandoned: deque[Generator[EncodedMessage]] = deque()
        PROCESS.adopt(self)

    def greet(self, seconds: float) -> None:
        if self._is_orphan:
            PROCESS.check()

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        if self._is_orphan:
            PROCESS.check()
        with _boundary(method):
            return self._verbs[method.name](request)

    def send(self, method: rpc.Method, request: Any) -> None:
        """Call a verb and ignore the answer. A closed server holds nothing."""
        with suppress(LakestoreError):
            self.call(method, request, 0.0)

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The answers of a streaming verb. A change stream also ends with its scope and with this wire."""
        if self._is_orphan:
            PROCESS.check()
        self._end_abandoned()
        if method.name != "Changes":
            return _guarded(self._verbs[method.name](request), method)
        listener = _Listener()
        generator = self._verbs[method.name](request, listener)
        # keeps the garbage collector from ending generators, which might happen under a lock
        self._streams[generator] = listener
        return _LocalStream(self, method, generator, listener)

    def abandoned(self, stream: Generator[EncodedMessage]) -> None:
        """Mark a stream that nobody reads. The next call ends it, because this call may come from anywhere."""
        self._abandoned.append(stream)

    def ended(self, stream: Generator[EncodedMessage]) -> None:
        self._streams.pop(stream, None)
        stream.close()

    def _end_abandoned(self) -> None:
        while self._abandoned:
            self.ended(self._abandoned.popleft())

    def orphaned(self) -> None:
        """Refuse every call: the server's threads are in another process."""
        self._is_orphan = True

    def close(self) -> None:
        self.is_closed = True
        self._end_abandoned()
        for listener in list(self._streams.values()):
            listener.cancel()


class _Listener:
    """The reader of a change stream in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._is_active = True

    def is_active(self) -> bool:
        return self._is_active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        with self._lock:
            self._callbacks.append(callback)
            return self._is_active

    def cancel(self) -> None:
        with self._lock:
            self._is_active = False
        for callback in self._callbacks:
            callback()


class _LocalStream:
    """The messages of a change stream in this process. Any thread may end it while another waits."""

    def __init__(
        self, wire: LocalWire, method: rpc.Method, stream: Generator[EncodedMessage], listener: _Listener
    ) -> None:
        self._wire, self._method, self._stream, self._listener = wire, method, stream, listener
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[ChangeMessage]:
        return self

    def __next__(self) -> ChangeMessage:
        scope = SCOPE.get()
        if scope is not None:
            scope.add(self._listener)
        try:
            with self._turn:
                return self._step()
        finally:
            if scope is not None:
                scope.discard(self._listener)

    def _step(self) -> ChangeMessage:
        with _boundary(self._method):
            found = next(self._stream, None) if self._listener.is_active() else None
        if found is not None:
            return found.message
        if self._listener.is_active():
            raise StopIteration
        self._wire.ended(self._stream)
        raise Stopped("the connection is closed: connect again") if self._wire.is_closed else Invalid("it was ended")

    def close(self) -> None:
        self._listener.cancel()
        if self._turn.acquire(blocking=False):
            try:
                self._wire.ended(self._stream)
            finally:
                self._turn.release()

    def __del__(self) -> None:
        self._wire.abandoned(self._stream)


def _guarded(answers: Iterator[Any], method: rpc.Method) -> Iterator[Any]:
    """The answers of a verb. Only the verb's own errors leave."""
    with _boundary(method):
        yield from answers


@contextmanager
def _boundary(method: rpc.Method) -> Iterator[None]:
    try:
        yield
    except LakestoreError:
        raise
    except Exception as error:
        raise errors.defect(error, "no" if method.reads else "unknown") from error


def local_transport(verbs: Verbs) -> Transport:
    """A transport to a server in this process."""
    return transport_of(LocalWire(verbs))

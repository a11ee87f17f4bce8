"""A gRPC port as events: one thread gets calls, messages and ends, and a waiting call holds no thread.

gRPC's own Python servers decide too late or cost too much. The threaded server holds a thread for each whole call and
receives a message before it can be refused. The asyncio server adds 0.13 ms to a call of 0.22 ms, measured on one
machine. This port uses the same core below them: any thread begins operations, and their ends come to one completion
queue.

Handlers run in the port's thread and must not block. A handler that raises ends its call.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lakestore.errors import Unavailable
from lakestore.limits import Limits
from lakestore.wire import rpc as wire_rpc
from lakestore.wire.rpc import grpc
from lakestore_server.edge.addresses import is_in_use
from lakestore_server.edge.arrivals import Arrivals
from lakestore_server.host import priority

USED = (
    "CompletionQueue",
    "CompletionType",
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "Server",
    "StatusCode",
    "auth_context",
)
"""The names of the core that the port uses."""
TESTED = "1.85"
"""The minor release of grpcio with which the port is tested; `pyproject.toml` pins it."""


def loaded(module: str = "grpc._cython.cygrpc") -> Any:
    """The core, or `Unavailable` if this grpcio lacks it."""
    try:
        core = importlib.import_module(module)
    except ImportError:
        core = None
    lacking = [name for name in USED if not hasattr(core, name)]
    if lacking:
        raise Unavailable(
            f"grpcio {grpc.__version__} lacks {lacking[0]}, which this server uses: install grpcio {TESTED}, with"
            " which Lakestore is tested"
        )
    return core


log = logging.getLogger("lakestore.grpc")
core = loaded()
TICK_SECONDS = 0.25
"""Granularity of the port's timers."""
_NO_FLAGS = 0
_Metadata = Sequence[tuple[str, str | bytes]]
_OK = core.StatusCode.ok
DEFECT = "a defect of the server"
STATUS_CODES = {
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "NothingToKeep": grpc.StatusCode.INVALID_ARGUMENT,
    "Violated": grpc.StatusCode.INVALID_ARGUMENT,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "PlanExpired": grpc.StatusCode.NOT_FOUND,
    "Conflict": grpc.StatusCode.ALREADY_EXISTS,
    "Fenced": grpc.StatusCode.FAILED_PRECONDITION,
    "ProducerForgotten": grpc.StatusCode.FAILED_PRECONDITION,
    "Denied": grpc.StatusCode.PERMISSION_DENIED,
    "NotAuthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "Unavailable": grpc.StatusCode.UNAVAILABLE,
    "NotLeader": grpc.StatusCode.UNAVAILABLE,
    "Exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "LimitReached": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Corrupt": grpc.StatusCode.DATA_LOSS,
    "NotFresh": grpc.StatusCode.FAILED_PRECONDITION,
    "PositionExpired": grpc.StatusCode.OUT_OF_RANGE,
    "OtherTimeline": grpc.StatusCode.OUT_OF_RANGE,
    "Internal": grpc.StatusCode.INTERNAL,
}
"""The status of each kind of error."""


def port_options(limits: Limits) -> list[tuple[str, int]]:
    """The core's options of a port that strangers reach."""
    return [
        *wire_rpc.options(limits.message_bytes),
        *wire_rpc.SERVER_KEEPALIVE,
        ("grpc.so_reuseport", 0),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.connection_streams),
    ]


class Rpc:
    """One call from its metadata to its status. Thread-safe."""

    def __init__(self, port: RpcPort, event: Any) -> None:
        self._port, self._call = port, event.call
        self.path: str = event.call_details.method.decode("latin-1")
        self.peer: str = event.call.peer().decode("latin-1")
        """The remote address and port."""
        self.metadata: _Metadata = event.invocation_metadata or ()
        self._lock = threading.Lock()
        self._begun = 0
        """Operations that have not ended."""
        self._has_spoken = self._is_finished = self._is_gone = False
        self.opening: _Metadata = ()
        """The metadata that opens the answer; set before its first message."""
        self.is_known = False
        """Whether the caller is authenticated."""
        self._is_receiving = False
        self._unsent: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._is_sending = False
        self._callbacks: list[Callable[[], None]] = []
        with self._lock:
            self._begin((core.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._closed)

    def auth_context(self) -> dict[str, list[bytes]]:
        """The client certificate's fields, checked by TLS."""
        said = core.auth_context(self._call) or {}
        return {key.decode("latin-1"): list(values) for key, values in said.items()}

    def is_active(self) -> bool:
        return not (self._is_gone or self._is_finished)

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Call back once when the client stops waiting, at once if it already has."""
        with self._lock:
            if self.is_active():
                self._callbacks.append(callback)
                return True
        callback()
        return True

    def receive(self, then: Callable[[bytes | None], None]) -> None:
        """Read the client's next message; None if there is no more or the call has ended. One at a time."""

        def came(event: Any) -> None:
            data: bytes | None = event.batch_operations[0].message()
            self._port.arrivals.ends(self, len(data or b""))
            with self._lock:
                self._is_receiving = False
                data = data if self.is_active() else None
            then(data)

        with self._lock:
            if self.is_active():
                self._is_receiving = True
                self._port.arrivals.begins(self)
                self._begin((core.ReceiveMessageOperation(_NO_FLAGS),), came)

    def send(self, data: bytes, then: Callable[[], None]) -> None:
        """Queue a message; `then` is called when the client has room for more."""
        with self._lock:
            if not self.is_active():
                return
            if self._is_sending:
                self._unsent.append((data, then))
            else:
                self._send(data, then)

    def answer(self, data: bytes) -> None:
        """Send the only message of a call together with its success."""
        self._finish(_OK, "", (), (core.SendMessageOperation(data, _NO_FLAGS),))

    def finish(
        self, code: grpc.StatusCode, details: str = "", trailing: _Metadata = (), *, if_receiving: bool = False
    ) -> None:
        """End the call; queued messages are dropped. With `if_receiving` only if no message has come since the last
        `receive`; no later message is delivered then."""
        self._finish(code.value[0], details, trailing, if_receiving=if_receiving)

    def _finish(
        self,
        code: int,
        details: str,
        trailing: _Metadata,
        before: tuple[Any, ...] = (),
        *,
        if_receiving: bool = False,
    ) -> None:
        with self._lock:
            if not self.is_active() or (if_receiving and not self._is_receiving):
                return
            self._is_finished = True
            self._unsent.clear()
            status = core.SendStatusFromServerOperation(
                tuple(trailing), code, details.encode(errors="replace"), _NO_FLAGS
            )
            self._begin((*self._opening(), *before, status), lambda _: None)
            callbacks, self._callbacks = self._callbacks, []
        _call_all(callbacks)

    def _opening(self) -> tuple[Any, ...]:
        """The operation that opens the answer, before its first message or status."""
        if self._has_spoken:
            return ()
        self._has_spoken = True
        return (core.SendInitialMetadataOperation(tuple(self.opening), _NO_FLAGS),)

    def _send(self, data: bytes, then: Callable[[], None]) -> None:
        self._is_sending = True

        def sent(_: Any) -> None:
            with self._lock:
                self._is_sending = False
                if self._unsent and self.is_active():
                    self._send(*self._unsent.popleft())
            then()

        self._begin((*self._opening(), core.SendMessageOperation(data, _NO_FLAGS)), sent)

    def _begin(self, operations: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        """Begin operations; under the lock."""

        def ended(event: Any) -> None:
            with self._lock:
                self._begun -= 1
            try:
                then(event)
            except Exception:  # the edge: this call is told, or its client would wait for ever
                log.exception("%s failed by a defect", self.path)
                self.finish(grpc.StatusCode.INTERNAL, DEFECT)
            finally:
                if not self._begun and not self.is_active():
                    # The core counts a call among its connection's while it is referenced.
                    self._call = None
                    self._port.forget(self)

        self._call.start_server_batch(operations, ended)
        self._begun += 1

    def _closed(self, event: Any) -> None:
        with self._lock:
            self._is_gone = event.batch_operations[0].cancelled() or self._is_gone
            if self.is_active():
                return
            self._unsent.clear()
            callbacks, self._callbacks = self._callbacks, []
        _call_all(callbacks)


class RpcPort:
    """A server of the core with one port and one thread."""

    def __init__(
        self,
        options: Sequence[tuple[str, int]],
        arrivals: Arrivals,
        opened: Callable[[Rpc], None],
        ticked: Callable[[float], None],
    ) -> None:
        self.arrivals = arrivals
        self._opened, self._ticked = opened, ticked
        self._queue = core.CompletionQueue()
        self._server = core.Server(tuple(options), False)
        self._server.register_completion_queue(self._queue)
        self._lock = threading.Lock()
        self._calls: set[Rpc] = set()
        self._is_stopping = self._is_shut = self._expects = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="grpc-port", daemon=True)

    def bind(self, address: str, credentials: Any = None) -> int:
        """Open the port on an address; its number, or `RuntimeError`."""
        if is_in_use(*address.rsplit(":", 1)):  # gRPC's core would print a line of its own
            raise RuntimeError(f"{address} is in use")
        keys = () if credentials is None else (credentials._credentials,)  # noqa: SLF001 (the core's own form of them)
        port: int = self._server.add_http2_port(address.encode(), *keys)
        if not port:
            raise RuntimeError(f"{address} cannot be opened")
        return port

    @property
    def calls(self) -> int:
        return len(self._calls)

    def start(self) -> None:
        self._server.start()
        self._expect()
        self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        """Accept no more calls. Running ones have the grace to end, then they are cut off."""
        with self._lock:
            begins = not self._is_stopping and self._thread.ident is not None
            self._is_stopping = True
            if begins:
                self._server.shutdown(self._queue, self._shut)
        if begins and not self._ended.wait(grace_seconds):
            with self._lock:  # gRPC's core crashes if the server is destroyed meanwhile
                if not self._ended.is_set():
                    self._server.cancel_all_calls()
            self._ended.wait()

    def forget(self, rpc: Rpc) -> None:
        """Drop the reference to a call; called by a call that has ended."""
        self._calls.discard(rpc)

    def _expect(self) -> None:
        with self._lock:
            self._expects = not self._is_stopping
            if self._expects:
                self._server.request_call(self._queue, self._queue, self._came)

    def _came(self, event: Any) -> None:
        self._expects = False
        if event.success and event.call_details.method:
            self._open(event)
        self._expect()

    def _open(self, event: Any) -> None:
        rpc = Rpc(self, event)
        self._calls.add(rpc)
        try:
            self._opened(rpc)
        except Exception:  # the edge: the next call must be requested, and this one told
            log.exception("%s failed by a defect", rpc.path)
            rpc.finish(grpc.StatusCode.INTERNAL, DEFECT)

    def _shut(self, _: Any) -> None:
        self._is_shut = True

    def _serve(self) -> None:
        priority.take_short_turns()
        due = 0.0
        while not (self._is_shut and not self._expects and not self._calls):
            # gRPC's core takes wall-clock time here; a clock jump changes the length of one tick.
            event = self._queue.poll(time.time() + TICK_SECONDS)
            if event.completion_type is not core.CompletionType.queue_timeout:
                self._guard(event.tag, event)
            # An event references its call, which must not outlive the server.
            del event
            now = time.monotonic()
            if now >= due:
                due = now + TICK_SECONDS
                self._guard(self._ticked, now)
        with self._lock:
            self._server.destroy()
            self._ended.set()

    @staticmethod
    def _guard(work: Callable[[Any], None], said: Any) -> None:
        try:
            work(said)
        except Exception:  # the edge: one call's defect must not end the thread of all
            log.exception("an event of a call failed")


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()

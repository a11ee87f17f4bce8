"""The gRPC edge: the service's verbs, health and reflection behind `Admission`. Errors become status and metadata.

The metadata alone decides about a call before a byte of its message is read: caller, right to any such request, room.
Then the first message must come in time. Only then a thread works for the call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from lakestore.errors import Applied, Exhausted, Invalid, LakestoreError, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc, tracing
from lakestore.wire.errors import BUSY_SECONDS
from lakestore.wire.rpc import grpc
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.commit.engine import DRAINING
from lakestore_server.edge.arrivals import Arrivals
from lakestore_server.edge.first_messages import FirstMessages
from lakestore_server.edge.rpc_callers import bearer_token, certificate_names, credentials_of
from lakestore_server.edge.rpc_dispatch import Dispatch, parse_commit
from lakestore_server.edge.rpc_port import STATUS_CODES, Rpc, RpcPort, port_options
from lakestore_server.edge.rpc_streams import AnswerStream, Failed, Intake
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.host.clock import Clock
from lakestore_server.host.quota import BufferPool, Quota, share_of
from lakestore_server.host.workers import Workers
from lakestore_server.operate.clients import Clients
from lakestore_server.service import Service, encoder_of

SERVICE = "grpc.health.v1.Health"
WATCHERS_MAX = 1_000
"""The most health watchers; one more ends the oldest."""
_Status = health_pb2.HealthCheckResponse


class Health:
    """The answers to health checks. Thread-safe; nothing here blocks."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._services = services
        self._status = _Status.NOT_SERVING
        self._watchers: dict[Rpc, str] = {}

    def set(self, *, serving: bool) -> None:
        with self._lock:
            self._status = _Status.SERVING if serving else _Status.NOT_SERVING
            watchers = dict(self._watchers)
        for watcher, service in watchers.items():
            watcher.send(self._of(service).SerializeToString(), _nothing)

    def asked(self, rpc: Rpc, data: bytes) -> None:
        """Answer a call with this message."""
        try:
            service = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            rpc.finish(grpc.StatusCode.INVALID_ARGUMENT, "the message is not a HealthCheckRequest")
            return
        if rpc.path == f"/{SERVICE}/Watch":
            self._watch(rpc, service)
        elif rpc.path == f"/{SERVICE}/List":
            statuses = {name: self._of(name) for name in self._services}
            rpc.answer(health_pb2.HealthListResponse(statuses=statuses).SerializeToString())
        elif service in self._services:
            rpc.answer(self._of(service).SerializeToString())
        else:
            rpc.finish(grpc.StatusCode.NOT_FOUND, f"there is no service {service!r} here"[:200])

    def _of(self, service: str) -> health_pb2.HealthCheckResponse:
        return _Status(status=self._status if service in self._services else _Status.SERVICE_UNKNOWN)

    def _watch(self, rpc: Rpc, service: str) -> None:
        with self._lock:
            oldest = next(iter(self._watchers)) if len(self._watchers) >= WATCHERS_MAX else None
            self._watchers[rpc] = service
        if oldest is not None:
            oldest.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers: use Check")
        rpc.add_callback(lambda: self._forget(rpc))
        rpc.send(self._of(service).SerializeToString(), _nothing)

    def _forget(self, rpc: Rpc) -> None:
        with self._lock:
            self._watchers.pop(rpc, None)


def _nothing() -> None: ...


CALLS_MAX = 64
"""The most running calls of one stream."""
ASK_BYTES_MAX = 2 * rpc.TALK_BYTES_MAX
"""A longer message ends its stream; a request that is only slightly too long is refused alone."""
_PATHS = {name: rpc.METHODS[name].path for name in rpc.TALKED}


class CallStream:
    """One stream of small calls. Thread-safe."""

    def __init__(self, stream: Rpc, call: RpcCall, dispatch: Dispatch, workers: Workers, failed: Failed) -> None:
        self._stream, self._call, self._dispatch = stream, call, dispatch
        self._workers, self._failed = workers, failed
        self._lock = threading.Lock()
        self._running = 0
        self._is_asking = False
        self._end: LakestoreError | None = None
        """The reason why the stream ends."""
        self._is_left = False
        """Whether the client has closed its side."""

    def begin(self) -> None:
        self._ask()

    def end(self, error: LakestoreError) -> None:
        """Receive no more calls; end the stream after the running ones are answered."""
        with self._lock:
            self._end = self._end or error
            ends = not self._running
        if ends:
            self._failed(self._stream, self._end)

    def tick(self, now: float) -> None:
        """End a stream whose caller has lost the right to it."""
        try:
            self._call.tick(now)
        except LakestoreError as error:
            self.end(error)

    def _ask(self) -> None:
        with self._lock:
            if self._is_asking or self._is_left or self._end is not None or self._running >= CALLS_MAX:
                return
            self._is_asking = True
        self._stream.receive(self._came)

    def _came(self, data: bytes | None) -> None:
        came = time.monotonic()
        with self._lock:
            self._is_asking = False
            if data is None:
                self._is_left, leaves = True, not self._running
            elif self._end is None:
                self._running += 1
            else:
                return  # the stream ends, so the call does not begin
        if data is None:
            if leaves:
                self._stream.finish(grpc.StatusCode.OK)
            return
        try:
            ask = _parsed(data)
        except Invalid as error:
            self._answered()
            self.end(error)
            return
        if self._workers.is_full:
            busy = Exhausted("the server is at its limit of calls: try again later", retry_after=BUSY_SECONDS)
            self._reply(pb.Reply(id=ask.id, error=errors.error_fields(busy)))
        else:
            self._workers.run(lambda: self._answer(ask, came))
        self._ask()

    def _answer(self, ask: pb.Ask, came: float) -> None:
        try:
            reply = pb.Reply(id=ask.id, answer=self._answer_of(ask, came))
        except LakestoreError as error:
            reply = pb.Reply(id=ask.id, error=errors.error_fields(error))
        except Exception as error:  # the edge: the client is told of any failure, and the stream continues
            reply = pb.Reply(id=ask.id, error=errors.error_fields(self._dispatch.defect(ask.method, error)))
        self._reply(reply)

    def _answer_of(self, ask: pb.Ask, came: float) -> bytes:
        path = _PATHS.get(ask.method)
        if path is None or len(ask.request) > rpc.TALK_BYTES_MAX:
            said = f"{ask.method or 'nothing'} of {len(ask.request)} bytes"
            raise Invalid(f"{said} is no small call: small ones are {', '.join(rpc.TALKED)} of {rpc.TALK_BYTES_MAX}")
        if ask.within_ms and time.monotonic() - came > ask.within_ms / 1_000:
            raise Unavailable("the call waited longer than its caller: try again", retry_after=BUSY_SECONDS)
        return self._dispatch.answer(self._call.other(path), ask.request)

    def _reply(self, reply: pb.Reply) -> None:
        self._stream.send(reply.SerializeToString(), self._answered)

    def _answered(self) -> None:
        with self._lock:
            self._running -= 1
            end, is_last = self._end, not self._running
            leaves = is_last and self._is_left
        if end is not None and is_last:
            self._failed(self._stream, end)
        elif leaves:
            self._stream.finish(grpc.StatusCode.OK)
        else:
            self._ask()


def _parsed(data: bytes) -> pb.Ask:
    """The call in the bytes, or `Invalid`."""
    if len(data) <= ASK_BYTES_MAX:
        with suppress(DecodeError):
            return pb.Ask.FromString(data)
    raise Invalid(f"{len(data)} bytes are no Ask of the protocol, of {ASK_BYTES_MAX} bytes at most")


log = logging.getLogger("lakestore.grpc")
STREAM_THREADS = 64
"""Streams that make a message at once; others wait."""
STRANGERS_MAX, STRANGER_SECONDS = 64, 2.0
"""Unauthenticated health checks without a message: the most at once, and the seconds for each."""


class GrpcServer:
    """The gRPC port of a `Service` on one address, with TLS if there are keys."""

    def __init__(
        self,
        *,
        service: Service,
        address: str,
        admission: Admission,
        clock: Clock,
        keys: TlsKeys | None = None,
        limits: Limits = DEFAULT,
        clients: Clients | None = None,
    ) -> None:
        self._service, self._admission = service, admission
        self._clients = clients or Clients(clock)
        self._asks_certificates = keys is not None and keys.client_ca is not None
        self._dispatch = Dispatch(service, clock, limits)
        self._workers = Workers(limits.threads, "grpc-call")
        # Thousands of streams may wake for one commit; calls must not queue behind them.
        self._stream_workers = Workers(min(limits.threads, STREAM_THREADS), "grpc-stream")
        refusal = "streams are open, the limit: try again later"
        self._permits = Quota(limits.streams, 0.0, f"{limits.streams} {refusal}", share_of(limits.streams, limits))
        # One per calling connection. They take no room from subscribers' streams.
        refusal = "connections have a stream of small calls, the limit"
        self._talkers = Quota(limits.streams, 0.0, f"{limits.streams} {refusal}", share_of(limits.streams, limits))
        # Messages of commit streams that come while an earlier one of the stream is processed, beyond the budget.
        self._slabs = BufferPool(limits.journal_bytes)
        self._ahead = threading.Semaphore(max(1, limits.receiving_bytes // limits.message_bytes))
        self._is_stopping = False
        self._streams: set[AnswerStream] = set()
        self._talks: set[CallStream] = set()
        self._callers = FirstMessages(limits.waiting_calls, limits.first_message_ms / 1_000, self._too_late)
        self._strangers = FirstMessages(STRANGERS_MAX, STRANGER_SECONDS, self._too_late)
        self._health = Health(("", rpc.SERVICE))
        self._reflection = reflection.ReflectionServicer((rpc.SERVICE, rpc.SMALL_CALLS, reflection.SERVICE_NAME))
        self._handlers = self._all_handlers()
        self._arrivals = Arrivals(limits.receiving_bytes, limits.message_bytes, self._too_late)
        self._port = RpcPort(port_options(limits), self._arrivals, self._opened, self._ticked)
        self.port = self._port.bind(address, None if keys is None else credentials_of(keys))

    def start(self) -> None:
        self._port.start()
        self._health.set(serving=True)

    def turn_away(self) -> None:
        """Tell health checks that this server is going down; calls are still answered."""
        self._health.set(serving=False)

    def stop(self, grace_seconds: float) -> None:
        """Accept no more calls; running ones have the grace to end."""
        self._health.set(serving=False)
        self._is_stopping = True
        for talk in list(self._talks):
            talk.end(_leaving())
        self._port.stop(grace_seconds)
        self._workers.close()
        self._stream_workers.close()

    def _all_handlers(self) -> dict[str, Callable[[Rpc, RpcCall], None]]:
        """Path to the begin of an admitted call, before its first message."""
        found: dict[str, Callable[[Rpc, RpcCall], None]] = {}
        for method in rpc.METHODS.values():
            if method.streams_in:
                found[method.path] = partial(self._write, method)
            elif method.streams_out:
                found[method.path] = partial(self._with_message, self._callers, partial(self._stream, method))
            else:
                found[method.path] = partial(self._with_message, self._callers, self._call)
        for name in ("Check", "List", "Watch"):
            path = f"/{SERVICE}/{name}"
            found[path] = partial(self._with_message, self._strangers, self._asked)
        found[rpc.TALK_PATH] = self._talk
        found[f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"] = self._reflect
        return found

    # The port's thread: nothing blocks here.

    def _opened(self, call: Rpc) -> None:
        """A new call: it is refused by its metadata, or its first message is read."""
        handler = self._handlers.get(call.path)
        if handler is None:
            call.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        try:
            names = certificate_names(call) if self._asks_certificates else ()
            at_leader = rpc.READS_AT_LEADER in call.metadata
            admitted = self._admission.rpc(call.path, bearer_token(call), names, reads_at_leader=at_leader)
            if call.path in self._dispatch and self._workers.is_full:
                raise Exhausted("the server is at its limit of calls: try again later", retry_after=BUSY_SECONDS)
        except LakestoreError as error:
            self._fail(call, error)
        else:
            call.is_known = not admitted.is_open
            if call.is_known:
                self._clients.calls("grpc", admitted.owner, call.peer, call.path.rsplit("/", 1)[-1])
            handler(call, admitted)

    def _ticked(self, now: float) -> None:
        self._callers.tick(now)
        self._strangers.tick(now)
        self._arrivals.tick(now, self._stream_workers.run)
        for stream in list(self._streams):
            if stream.is_over:
                self._streams.discard(stream)
            else:
                stream.tick(now)
        for talk in list(self._talks):
            talk.tick(now)
            if self._is_stopping or self._service.calls.is_draining:
                talk.end(_leaving())

    def _too_late(self, call: Rpc, why: str) -> None:
        """End a call whose message has not come; a stream of commits may have sent earlier messages."""
        applied: Applied = "no" if call.path in self._dispatch else "unknown"
        self._fail(call, Unavailable(f"{why}: try again", applied=applied, retry_after=BUSY_SECONDS), if_receiving=True)

    def _with_message(
        self, waiting: FirstMessages, begin: Callable[[Rpc, RpcCall, bytes], None], call: Rpc, admitted: RpcCall
    ) -> None:
        """Begin a call once its message is there."""

        def came(data: bytes | None) -> None:
            waiting.came(call)
            if data is not None:
                begin(call, admitted, data)
            elif call.is_active():
                self._fail(call, Invalid("the call has no message"))

        waiting.add(call)
        call.receive(came)

    def _asked(self, call: Rpc, _: RpcCall, data: bytes) -> None:
        self._health.asked(call, data)

    def _call(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        self._workers.run(lambda: self._answer(call, admitted, data))

    def _stream(self, method: rpc.Method, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        verb = self._service.watched(method)
        waits = method.name == "Changes"

        def items() -> Generator[Any]:
            request = admitted.request(rpc.parsed(method.request, data))
            with self._permits.taken(1, admitted.owner):
                yield from verb(request, call) if waits else verb(request)

        encode = encoder_of(method)
        self._begin(
            call,
            admitted,
            AnswerStream(
                rpc=call, call=admitted, items=items(), encode=encode, workers=self._stream_workers, failed=self._fail
            ),
        )

    def _write(self, method: rpc.Method, call: Rpc, admitted: RpcCall) -> None:
        """A stream of commits; it may be silent while its client has the right to write."""
        stream, verb = self._service.write_stream(admitted.told), self._service.watched(method)
        judged = partial(parse_commit, judged=admitted.request)
        intake = Intake(
            rpc=call, stream=stream, request=judged, workers=self._workers, ahead=self._ahead, slabs=self._slabs
        )

        def items() -> Generator[Any]:
            with self._permits.taken(1, admitted.owner):
                intake.ask()
                yield from verb(stream, call)

        encode = method.answer.SerializeToString
        self._begin(
            call,
            admitted,
            AnswerStream(
                rpc=call, call=admitted, items=items(), encode=encode, workers=self._stream_workers, failed=self._fail
            ),
        )

    def _talk(self, call: Rpc, admitted: RpcCall) -> None:
        room = ExitStack()
        try:
            room.enter_context(self._talkers.taken(1, admitted.owner))
        except Exhausted as error:
            self._fail(call, error)
            return
        talk = CallStream(call, admitted, self._dispatch, self._workers, self._fail)
        self._talks.add(talk)
        room.callback(self._talks.discard, talk)
        call.add_callback(room.close)
        self._note_stream(call, admitted)
        talk.begin()

    def _begin(self, call: Rpc, admitted: RpcCall, stream: AnswerStream) -> None:
        self._streams.add(stream)
        self._note_stream(call, admitted)
        stream.begin()

    def _note_stream(self, call: Rpc, admitted: RpcCall) -> None:
        self._clients.opens("grpc", admitted.owner, call.peer)
        call.add_callback(partial(self._clients.ends, "grpc", admitted.owner, call.peer))

    def _reflect(self, call: Rpc, admitted: RpcCall) -> None:
        def came(data: bytes | None) -> None:
            self._callers.came(call)
            if data is not None:
                self._workers.run(partial(self._told, call, admitted, data))
            elif call.is_active():
                call.finish(grpc.StatusCode.OK)

        self._callers.add(call)
        call.receive(came)

    # The workers' threads.

    def _answer(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        try:
            with tracing.joined(call.metadata):
                call.answer(self._dispatch.answer(admitted, data))
        except LakestoreError as error:
            self._fail(call, error)

    def _told(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        try:
            request = admitted.request(rpc.parsed(reflection_pb2.ServerReflectionRequest, data))
            answers: Any = self._reflection.ServerReflectionInfo
            told = next(answers(iter([request]), None))
            call.send(told.SerializeToString(), partial(self._reflect, call, admitted))
        except Exception as error:  # the edge, as for every stream
            self._fail(call, error)

    def _fail(self, call: Rpc, error: Exception, *, if_receiving: bool = False) -> None:
        if not isinstance(error, LakestoreError):
            error = self._dispatch.defect(call.path.rsplit("/", 1)[-1], error)
        code, trailing = STATUS_CODES.get(error.kind, grpc.StatusCode.INTERNAL), errors.pack_error(error)
        call.finish(code, error.message, trailing, if_receiving=if_receiving)


def _leaving() -> Unavailable:
    return Unavailable(DRAINING, retry_after=BUSY_SECONDS)

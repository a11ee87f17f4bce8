"""A server over gRPC. gRPC's threads do not survive a fork: in a child every call is refused by name."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

from lakestore.client.calls import CALL_SECONDS, transport_of
from lakestore.client.credentials import NOTHING, Credentials
from lakestore.client.diagnosis import diagnosis
from lakestore.client.process import PROCESS
from lakestore.client.retry import is_passing
from lakestore.client.scope import SCOPE, Scope
from lakestore.client.small_calls import CallCancelled, NoReply, SmallCalls
from lakestore.client.transport import Transport
from lakestore.errors import Exhausted, Invalid, LakestoreError, Stopped, Unavailable, UnknownCall
from lakestore.limits import WIDEST
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc, tracing
from lakestore.wire.commit_message import beside, encoded
from lakestore.wire.grpc import grpc

HELLO_SECONDS = 10.0
SEND_SECONDS = 5.0
METADATA_BYTES = 1 << 20
"""The room of an error in metadata: a `Fenced` may have to name every bucket of a table."""
_ADDRESS = re.compile(r"\D.*:\d+$|^unix:")
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    *rpc.CLIENT_KEEPALIVE,
]
"""A restarted server is found again within a second, whatever other channels of this process went through."""


def _error_of(error: grpc.RpcError, method: rpc.Method, release: str, address: str) -> LakestoreError:
    call: Any = error  # every error of a channel is a call too; the stubs do not say so
    code = call.code().name
    if code == "UNIMPLEMENTED":
        return UnknownCall(
            f"the server ({release or 'an older release'}) has no {method.name}, which came with protocol"
            f" {rpc.SINCE.get(method.name, 1)}: run the server with release {RELEASE} or newer"
        )
    metadata = dict(call.trailing_metadata() or ())
    return errors.unpack_error(metadata, code, call.details() or "", reads=method.reads, address=address)


class _Greeting:
    """A hello on its way; threads that come meanwhile wait for it, each no longer than it may."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: LakestoreError | None = None


class _Cancelled(Invalid):
    """The caller itself has ended the call: of no kind that is tried again."""


class GrpcWire:
    """Over gRPC. Says hello before the first call, and again after a connection was lost."""

    def __init__(self, address: str, credentials: Credentials = NOTHING) -> None:
        PROCESS.check()
        PROCESS.has_connected = True
        if not _ADDRESS.search(address) or "://" in address:
            raise Invalid(f"{address!r} is no host:port of a server, such as localhost:7340")
        self._address = address
        self.credentials = credentials
        self._channel = _channel(address, credentials)
        self._small_calls = SmallCalls(self._channel)
        self._talks = False
        """Whether the server takes small calls on an open stream."""
        self._greeted = False
        self._closed = False
        self._lock = threading.Lock()
        self._greeting: _Greeting | None = None
        self.server = pb.HelloAnswer()
        self._calls: dict[str, Any] = {method.name: self._callable(method) for method in rpc.methods()}
        self._hello = next(method for method in rpc.methods() if method.name == "Hello")

    def _callable(self, method: rpc.Method) -> Any:
        coder = encoded if method.name == "Write" else method.request.SerializeToString
        coders = (coder, method.answer.FromString)
        kinds = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }
        return kinds[method.streams_in, method.streams_out](method.path, *coders)

    def greet(self, seconds: float) -> None:
        """Say hello, unless the server was greeted on this connection."""
        self._ready(None, seconds)

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        """The answer of a unary RPC, within so many seconds."""
        if PROCESS.is_orphan or self._closed or not self._greeted:
            seconds = self._ready(method, seconds)
        self._check_known(method, request)
        scope, unary, shown = SCOPE.get(), self._calls[method.name], self.credentials.metadata()
        if tracing.is_on():
            shown = (*shown, *tracing.headers())
        try:
            if self._talks and not tracing.is_on() and (data := _small(method, request)) is not None:
                answer = self._talked(method, data, seconds, shown)
                if answer is not None:
                    return answer
            if scope is None:
                return unary(request, timeout=seconds, metadata=shown)
            running = unary.future(request, timeout=seconds, metadata=shown)
            with scope.holding(running):
                return running.result()
        except grpc.RpcError as error:
            raise self._failed(error, method) from error
        except (grpc.FutureCancelledError, ValueError) as error:  # ValueError is how grpc tells of a closed channel
            raise self._ended(method) from error

    def _talked(self, method: rpc.Method, request: bytes, seconds: float, shown: errors.Metadata) -> Any:
        """The answer of a small call on the open stream; None where the server has no such stream, or none to give."""
        try:
            reply = self._small_calls.call(method.name, request, seconds, shown)
        except Unavailable as error:
            error.applied = "no" if method.reads else "unknown"
            raise
        except CallCancelled as error:
            raise self._ended(method) from error
        except NoReply as error:
            call: Any = error.failure
            if call is None:
                raise self._ended(method) from error
            if call.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._talks = False
                return None
            told = self._failed(call, method)
            if isinstance(told, Exhausted):  # there is no room for another stream; the call was not begun
                return None
            raise told from call
        if reply.error:
            raise errors.error_of_fields(reply.error)
        return method.answer.FromString(reply.answer)

    def send(self, method: rpc.Method, request: Any) -> None:
        """Send a request whose answer nobody waits for; a connection that is gone cannot take it."""
        if not (PROCESS.is_orphan or self._closed) and self._greeted:
            with suppress(ValueError):
                self._calls[method.name].future(request, timeout=SEND_SECONDS, metadata=self.credentials.metadata())

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The answers of a streaming RPC; the stream is cancelled when its reader goes."""
        if PROCESS.is_orphan or self._closed or not self._greeted:
            left = self._ready(method, HELLO_SECONDS if seconds is None else seconds)
            seconds = None if seconds is None else left
        refusals: list[Invalid] = []
        if method.streams_in:
            request = self._known(method, request, refusals)
        else:
            self._check_known(method, request)
        try:
            answers = self._calls[method.name](request, timeout=seconds, metadata=self.credentials.metadata())
        except ValueError as error:
            raise _closed() from error
        scope = SCOPE.get() or Scope()
        try:
            with scope.holding(answers):
                yield from answers
        except grpc.RpcError as error:
            raise self._failed(error, method) from error
        finally:
            answers.cancel()
        if refusals:
            raise refusals[0]

    def _check_known(self, method: rpc.Method, request: Any) -> None:
        """Refuse what this server is too old to heed."""
        protocol = self.server.protocol or 1
        if protocol < rpc.PROTOCOL:
            rpc.check_known(method, request, protocol, self.server.release)

    def _known(self, method: rpc.Method, requests: Iterator[Any], refusals: list[Invalid]) -> Iterator[Any]:
        """The requests up to one that is refused: gRPC would only tell of an error here as `UNKNOWN`."""
        for request in requests:
            try:
                self._check_known(method, beside(request).request)
            except Invalid as refusal:
                refusals.append(refusal)
                return
            yield request

    def _failed(self, error: grpc.RpcError, method: rpc.Method) -> LakestoreError:
        scope = SCOPE.get()
        if self._closed or (scope is not None and scope.is_cancelled):
            return self._ended(method)
        told = _error_of(error, method, self.server.release, self._address)
        call: Any = error
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            self._greeted = False  # the next server to answer may be of another release
        return told

    def _ended(self, method: rpc.Method) -> LakestoreError:
        """The error of a call that this side has ended; it may have come to the server before."""
        error = _closed() if self._closed else _Cancelled("the call was cancelled")
        error.applied = "no" if method.reads else "unknown"
        return error

    def _ready(self, method: rpc.Method | None, seconds: float) -> float:
        """The seconds that are left of these once the server has been greeted."""
        PROCESS.check()
        if self._closed:
            raise _closed()
        if method is self._hello:
            return seconds
        end = time.monotonic() + seconds
        while not self._greeted:
            with self._lock:
                greeting, mine = self._greeting or _Greeting(), self._greeting is None
                self._greeting = greeting
            left = end - time.monotonic()
            if mine:
                self._greet(greeting, min(left, HELLO_SECONDS))
            elif not greeting.done.wait(max(left, 0.0)):
                raise Unavailable("the server did not answer in time: try again")
            elif greeting.failure is not None and not isinstance(greeting.failure, _Cancelled):
                raise copy(greeting.failure)
        return end - time.monotonic()

    def _greet(self, greeting: _Greeting, seconds: float) -> None:
        end = time.monotonic() + seconds
        try:
            hello = pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL)
            try:
                self.server = self.call(self._hello, hello, seconds)
            except UnknownCall:
                self.server = pb.HelloAnswer()
            if self.server.protocol_min > rpc.PROTOCOL:
                raise Invalid(
                    f"the server ({self.server.release}) speaks protocols {self.server.protocol_min} to"
                    f" {self.server.protocol}, this client ({RELEASE}) speaks {rpc.PROTOCOL}: install a newer lakestore"
                )
            self._talks = self.server.protocol >= rpc.TALK_SINCE
            self._greeted = True
        except LakestoreError as failure:
            greeting.failure = failure
            left = end - time.monotonic()
            if not is_passing(failure) or left <= 0.0:
                raise
            greeting.failure = diagnosis(self._address, self.credentials, left) or failure
            raise greeting.failure from failure
        finally:
            with self._lock:
                self._greeting = None
            greeting.done.set()

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if not PROCESS.is_orphan:
            self._small_calls.close()
            self._channel.close()


def _small(method: rpc.Method, request: Any) -> bytes | None:
    """A request's bytes if it goes on the open stream: a commit of few rows, or a look-up of one key."""
    if method.name == "Lookup":
        data: bytes = request.SerializeToString() if request.key else b""
    elif method.name == "Commit":
        few = sum(len(change.rows) for change in request.changes) <= rpc.TALK_BYTES_MAX
        is_small = few and not any(change.part for change in request.changes)
        data = request.SerializeToString() if is_small else b""
    else:
        return None
    return data if 0 < len(data) <= rpc.TALK_BYTES_MAX else None


def _channel(address: str, credentials: Credentials) -> grpc.Channel:
    options = [*rpc.options(WIDEST.message_bytes), *_CHANNEL]
    pem = credentials.pem
    if pem is None:
        return grpc.insecure_channel(address, options=options)
    keys = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.secure_channel(address, keys, options=options)


def _closed() -> LakestoreError:
    return Stopped("the connection is closed: connect again")


def connect(address: str, credentials: Credentials = NOTHING, *, call_seconds: float = CALL_SECONDS) -> Transport:
    """A transport to a server's host and port."""
    return transport_of(GrpcWire(address, credentials), call_seconds=call_seconds)

"""A server over gRPC. gRPC's threads do not survive a fork: in a child every call is refused by name."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lakestore.client.credentials import NOTHING, Credentials
from lakestore.client.process import PROCESS
from lakestore.client.retry import seconds_left, within
from lakestore.client.transport import SCOPE, Scope, Transport
from lakestore.errors import Invalid, LakestoreError, Unavailable, UnknownCall
from lakestore.limits import WIDEST
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.grpc import grpc

CALL_SECONDS = 120.0
BACKUP_SECONDS = 86_400.0
"""A backup is one call, however much there is to copy."""
HELLO_SECONDS = 10.0
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


class GrpcTransport:
    """Over gRPC. Says hello before the first call, and again after a connection was lost."""

    def __init__(self, address: str, credentials: Credentials = NOTHING, *, call_seconds: float = CALL_SECONDS) -> None:
        PROCESS.check()
        PROCESS.has_connected = True
        if not _ADDRESS.search(address) or "://" in address:
            raise Invalid(f"{address!r} is no host:port of a server, such as localhost:7340")
        self._address = address
        self._call_seconds = call_seconds
        self.credentials = credentials
        self._channel = _channel(address, credentials)
        self._greeted = False
        self._closed = False
        self._hello = threading.Lock()
        self.server = pb.HelloAnswer()
        """The server's own words about its release; empty before the first call, and of one older than `Hello`."""
        for method in rpc.methods():
            setattr(self, method.attribute, self._callable(method))

    def _callable(self, method: rpc.Method) -> Any:
        coders = (method.request.SerializeToString, method.answer.FromString)
        greets = method.name != "Hello"
        if method.streams_out:
            kind = self._channel.stream_stream if method.streams_in else self._channel.unary_stream
            stream = kind(method.path, *coders)
            return lambda request: self._stream(method, stream, request)
        longest = BACKUP_SECONDS if method.name == "Backup" else self._call_seconds
        unary = self._channel.unary_unary(method.path, *coders)

        def call(request: Any) -> Any:
            if PROCESS.is_orphan or self._closed or (greets and not self._greeted):
                self._ready(greets)
            if greets:
                self._check_known(method, request)
            try:
                scope, seconds = SCOPE.get(), seconds_left(longest)
                if scope is None:
                    return unary(request, timeout=seconds, metadata=self.credentials.metadata())
                running = unary.future(request, timeout=seconds, metadata=self.credentials.metadata())
                with scope.holding(running):
                    return running.result()
            except grpc.RpcError as error:
                raise self._failed(error, method) from error
            except (grpc.FutureCancelledError, ValueError) as error:  # ValueError is how grpc tells of a closed channel
                raise _ended(self._closed) from error

        return call

    def _stream(self, method: rpc.Method, call: Any, request: Any) -> Iterator[Any]:
        self._ready(greets=True)
        refusals: list[Invalid] = []
        if method.streams_in:
            request = self._known(method, request, refusals)
        else:
            self._check_known(method, request)
        try:
            answers = call(request, metadata=self.credentials.metadata())
        except ValueError as error:
            raise _ended(True) from error
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
                self._check_known(method, request)
            except Invalid as refusal:
                refusals.append(refusal)
                return
            yield request

    def _failed(self, error: grpc.RpcError, method: rpc.Method) -> LakestoreError:
        scope = SCOPE.get()
        if scope is not None and scope.is_cancelled:
            return _ended(False)
        told = _error_of(error, method, self.server.release, self._address)
        call: Any = error
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            self._greeted = False  # the next server to answer may be of another release
        return told

    def _ready(self, greets: bool) -> None:
        PROCESS.check()
        if self._closed:
            raise _ended(True)
        if greets and not self._greeted:
            with self._hello:
                if not self._greeted:
                    self._greet()

    def _greet(self) -> None:
        hello: Callable[[pb.HelloRequest], pb.HelloAnswer] = self.hello  # type: ignore[attr-defined]
        try:
            with within(HELLO_SECONDS):
                self.server = hello(pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL))
        except UnknownCall:
            self.server = pb.HelloAnswer()
        if self.server.protocol_min > rpc.PROTOCOL:
            raise Invalid(
                f"the server ({self.server.release}) speaks protocols {self.server.protocol_min} to"
                f" {self.server.protocol}, this client ({RELEASE}) speaks {rpc.PROTOCOL}: install a newer lakestore"
            )
        self._greeted = True

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if not PROCESS.is_orphan:
            self._channel.close()


def _channel(address: str, credentials: Credentials) -> grpc.Channel:
    options = [*rpc.options(WIDEST.message_bytes), *_CHANNEL]
    pem = credentials.pem
    if pem is None:
        return grpc.insecure_channel(address, options=options)
    keys = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.secure_channel(address, keys, options=options)


def _ended(closed: bool) -> LakestoreError:
    if closed:
        return Unavailable("the connection is closed: connect again")
    return Invalid("the call was cancelled", applied="unknown")  # of no kind that is tried again


def connect(address: str, credentials: Credentials = NOTHING, *, call_seconds: float = CALL_SECONDS) -> Transport:
    """A transport to a server's host and port."""
    transport: Any = GrpcTransport(address, credentials, call_seconds=call_seconds)
    found: Transport = transport
    return found

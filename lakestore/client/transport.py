"""The way to a server: one method per RPC, taking and giving the wire's messages.

`GrpcTransport` crosses a network, `LocalTransport` calls a service in this process; nothing above knows which.
gRPC's threads do not survive a fork: in a child of a process that has connected every call is refused by name.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from lakestore.client.credentials import NOTHING, Credentials
from lakestore.client.retry import seconds_left, within
from lakestore.errors import Invalid, LakestoreError, Unavailable
from lakestore.limits import WIDEST
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.grpc import grpc

if TYPE_CHECKING:
    from lakestore_server.changes.batch_cache import EncodedBatch
    from lakestore_server.service import Service

CALL_SECONDS = 120.0
BACKUP_SECONDS = 86_400.0
"""A backup is one call, however much there is to copy."""
HELLO_SECONDS = 10.0
METADATA_BYTES = 1 << 20
"""What an error may take: it may have to name every bucket of a table."""
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


class Transport(Protocol):
    """A server's verbs. Errors are `LakestoreError`s."""

    credentials: Credentials
    """What it shows; tasks elsewhere connect with the same."""

    def hello(self, request: pb.HelloRequest, /) -> pb.HelloAnswer: ...
    def create_table(self, request: pb.CreateTableRequest, /) -> pb.TableInfo: ...
    def drop_table(self, request: pb.TableRequest, /) -> pb.DropTableAnswer: ...
    def alter_table(self, request: pb.AlterTableRequest, /) -> pb.TableInfo: ...
    def get_table(self, request: pb.TableRequest, /) -> pb.TableInfo: ...
    def list_tables(self, request: pb.ListTablesRequest, /) -> pb.ListTablesAnswer: ...
    def open_producer(self, request: pb.OpenProducerRequest, /) -> pb.ProducerInfo: ...
    def commit(self, request: pb.CommitRequest, /) -> pb.CommitAnswer: ...
    def write(self, requests: Iterator[pb.CommitRequest], /) -> Iterator[pb.CommitAnswer]: ...
    def lookup(self, request: pb.LookupRequest, /) -> pb.RowBatch: ...
    def changes(self, request: pb.ChangesRequest, /) -> Iterator[pb.ChangeBatch]: ...
    def ack(self, request: pb.AckRequest, /) -> pb.AckAnswer: ...
    def list_subscriptions(self, request: pb.ListSubscriptionsRequest, /) -> pb.ListSubscriptionsAnswer: ...
    def drop_subscription(self, request: pb.DropSubscriptionRequest, /) -> pb.DropSubscriptionAnswer: ...
    def plan(self, request: pb.PlanRequest, /) -> pb.PlanAnswer: ...
    def fetch(self, request: pb.FetchRequest, /) -> Iterator[pb.RowBatch]: ...
    def renew_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer: ...
    def release_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer: ...
    def acquire_tierer(self, request: pb.TiererRequest, /) -> pb.TiererAnswer: ...
    def release_tierer(self, request: pb.TiererRequest, /) -> pb.TiererAnswer: ...
    def status(self, request: pb.StatusRequest, /) -> pb.StatusAnswer: ...
    def audit(self, request: pb.AuditRequest, /) -> pb.AuditAnswer: ...
    def backup(self, request: pb.BackupRequest, /) -> pb.BackupAnswer: ...
    def close(self) -> None: ...


class Scope:
    """Calls that can be cancelled together from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[Any] = set()
        self._cancelled = False

    @contextmanager
    def holding(self, call: Any) -> Iterator[None]:
        """The call, while the block runs."""
        with self._lock:
            self._calls.add(call)
            cancelled = self._cancelled
        if cancelled:
            call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for its calls any more."""
        return self._cancelled

    def cancel(self) -> None:
        """End the calls that run, and those that begin later."""
        with self._lock:
            self._cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


SCOPE: ContextVar[Scope | None] = ContextVar("lakestore_scope", default=None)
"""The scope of the calls made here."""


class _Process:
    """What this process inherited. A forked child has the parent's memory but none of its threads."""

    def __init__(self) -> None:
        self.has_connected = self.is_orphan = False
        self._local: WeakSet[LocalTransport] = WeakSet()
        os.register_at_fork(after_in_child=self._forked)

    def adopt(self, transport: LocalTransport) -> None:
        """It cannot be used in a child either."""
        self._local.add(transport)

    def _forked(self) -> None:
        self.is_orphan = self.has_connected or bool(self._local)
        for transport in self._local:
            transport.orphaned()

    def check(self) -> None:
        """Refuse what would wait for a thread that is not there."""
        if self.is_orphan:
            raise Invalid(
                "this process was forked from one that had connected, and connections do not survive that: start it by"
                " multiprocessing.get_context('spawn'), or connect only in the children"
            )


PROCESS = _Process()


def _error_of(error: grpc.RpcError, method: rpc.Method, release: str, address: str) -> LakestoreError:
    call: Any = error  # every error of a channel is a call too; the stubs do not say so
    code = call.code().name
    if code == "UNIMPLEMENTED":
        return Invalid(
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
        """What the server said of itself; empty if it is older than `Hello`."""
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
            self._greeted = False  # what answers next may be another release
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
        except Invalid:
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


class LocalTransport:
    """A service in this process."""

    def __init__(self, service: Service) -> None:
        self.credentials = NOTHING
        self._closed = False
        PROCESS.adopt(self)
        for method in rpc.methods():
            if method.name != "Changes":
                setattr(self, method.attribute, service.verb(method.name))
        self._follow = service.verb("Changes")
        self._streams: set[Generator[EncodedBatch]] = set()
        self._abandoned: deque[Generator[EncodedBatch]] = deque()

    def changes(self, request: pb.ChangesRequest) -> Iterator[pb.ChangeBatch]:
        """A change stream; it ends when this transport is closed."""
        self._end_abandoned()
        return _LocalStream(self, self._follow(request, self))

    def begun(self, stream: Generator[EncodedBatch]) -> None:
        """Keep a stream from being ended by the garbage collector, which runs in any thread and under any lock."""
        self._streams.add(stream)

    def abandoned(self, stream: Generator[EncodedBatch]) -> None:
        """Nobody listens to a stream any more: it is ended by the next call, for this one may come from anywhere."""
        self._abandoned.append(stream)

    def ended(self, stream: Generator[EncodedBatch]) -> None:
        """End a stream now."""
        self._streams.discard(stream)
        stream.close()

    def _end_abandoned(self) -> None:
        while self._abandoned:
            self.ended(self._abandoned.popleft())

    def is_active(self) -> bool:
        """Whether somebody still listens to the streams."""
        return not self._closed

    def add_callback(self, _: Callable[[], None]) -> bool:
        """Nobody is called back: streams look now and then."""
        return False

    def orphaned(self) -> None:
        """The service's threads are in another process: refuse every call."""
        for method in rpc.methods():
            setattr(self, method.attribute, lambda _: PROCESS.check())

    def close(self) -> None:
        """End streams."""
        self._closed = True
        self._end_abandoned()


class _LocalStream:
    """The messages of a change stream of this process."""

    def __init__(self, transport: LocalTransport, stream: Generator[EncodedBatch]) -> None:
        self._transport, self._stream = transport, stream
        transport.begun(stream)

    def __iter__(self) -> Iterator[pb.ChangeBatch]:
        return self

    def __next__(self) -> pb.ChangeBatch:
        return next(self._stream).message

    def close(self) -> None:
        """End the stream."""
        self._transport.ended(self._stream)

    def __del__(self) -> None:
        self._transport.abandoned(self._stream)


def connect(address: str, credentials: Credentials = NOTHING, *, call_seconds: float = CALL_SECONDS) -> Transport:
    """A transport to a server's host and port."""
    transport: Any = GrpcTransport(address, credentials, call_seconds=call_seconds)
    found: Transport = transport
    return found

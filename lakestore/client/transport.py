"""The way to a server: one method per RPC, taking and giving the wire's messages.

`GrpcTransport` crosses a network, `LocalTransport` calls a service in this process; nothing above knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from lakestore import rpc
from lakestore.client.credentials import NOTHING, Credentials
from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import WIDEST
from lakestore.v1 import lakestore_pb2 as pb

if TYPE_CHECKING:
    from lakestore.server.service import Service

CALL_SECONDS = 120.0
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
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


def _error_of(error: grpc.RpcError) -> LakestoreError:
    call: Any = error  # every error of a channel is a call too; the stubs do not say so
    return rpc.unpack_error(dict(call.trailing_metadata() or ()), call.code().name, call.details() or "")


class GrpcTransport:
    """Over gRPC."""

    def __init__(self, address: str, credentials: Credentials = NOTHING) -> None:
        self.credentials = credentials
        self._channel = _channel(address, credentials)
        for method in rpc.methods():
            setattr(self, method.attribute, self._callable(method))

    def _callable(self, method: rpc.Method) -> Any:
        coders = (method.request.SerializeToString, method.answer.FromString)
        if method.streams_in:
            streaming = self._channel.stream_stream(method.path, *coders)
            return lambda requests: _stream(streaming, requests, self.credentials)
        if method.streams_out:
            stream = self._channel.unary_stream(method.path, *coders)
            return lambda request: _stream(stream, request, self.credentials)
        unary = self._channel.unary_unary(method.path, *coders)

        def call(request: Any) -> Any:
            try:
                return unary(request, timeout=CALL_SECONDS, metadata=self.credentials.metadata())
            except grpc.RpcError as error:
                raise _error_of(error) from error
            except ValueError as error:  # how grpc says that the channel was closed
                raise Unavailable("the connection is closed: connect again") from error

        return call

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _channel(address: str, credentials: Credentials) -> grpc.Channel:
    options = [*rpc.options(WIDEST.message_bytes), *_RECONNECT]
    pem = credentials.pem
    if pem is None:
        return grpc.insecure_channel(address, options=options)
    keys = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.secure_channel(address, keys, options=options)


def _stream(call: Any, request: Any, credentials: Credentials) -> Iterator[Any]:
    try:
        answers = call(request, metadata=credentials.metadata())
    except ValueError as error:
        raise Unavailable("the connection is closed: connect again") from error
    try:
        yield from answers
    except grpc.RpcError as error:
        raise _error_of(error) from error
    finally:
        answers.cancel()


class LocalTransport:
    """A service in this process."""

    def __init__(self, service: Service) -> None:
        self.credentials = NOTHING
        self._closed = False
        for method in rpc.methods():
            if service.has(method.attribute) and method.attribute != "changes":
                setattr(self, method.attribute, service.verb(method.attribute))
        self._follow = service.verb("changes")

    def changes(self, request: pb.ChangesRequest) -> Iterator[pb.ChangeBatch]:
        """A change stream; it ends when this transport is closed."""
        with closing(self._follow(request, self)) as follow:
            for prepared in follow:
                yield prepared.message

    def is_active(self) -> bool:
        """Whether somebody still listens to the streams."""
        return not self._closed

    def add_callback(self, _: Callable[[], None]) -> bool:
        """Nobody is called back: streams look now and then."""
        return False

    def close(self) -> None:
        """End streams."""
        self._closed = True


def connect(address: str, credentials: Credentials = NOTHING) -> Transport:
    """A transport to a server's host and port."""
    transport: Any = GrpcTransport(address, credentials)
    found: Transport = transport
    return found

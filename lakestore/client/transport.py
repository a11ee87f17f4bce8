"""The way to a server: one method per RPC, taking and giving the wire's messages.

`lakestore.client.grpc` crosses a network, `lakestore.client.local` calls verbs in this process; nothing above asks
which of them a transport is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from lakestore.client.credentials import Credentials
from lakestore.v1 import lakestore_pb2 as pb


class Transport(Protocol):
    """A server's verbs. Errors are `LakestoreError`s."""

    credentials: Credentials
    """The token and the keys that are shown to the server; tasks elsewhere connect with the same."""
    server: pb.HelloAnswer
    """The server's own words about its release; empty before the first call, and of a server older than `Hello`."""

    def hello(self, request: pb.HelloRequest, /) -> pb.HelloAnswer: ...
    def head(self, request: pb.HeadRequest, /) -> pb.HeadAnswer: ...
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
        """End the calls that run, and every later one."""
        with self._lock:
            self._cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


SCOPE: ContextVar[Scope | None] = ContextVar("lakestore_scope", default=None)
"""The scope of the calls made here."""

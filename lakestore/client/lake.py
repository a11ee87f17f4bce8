"""A lake: all tables of one server, over the network or inside this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from lakestore import evolution
from lakestore.client import credentials
from lakestore.client import transport as transports
from lakestore.client.alter import fitting_parts
from lakestore.client.changes import ChangeStream, Start, Until, member_name, request
from lakestore.client.group_commit import Combiner
from lakestore.client.producer import ProducerPool
from lakestore.client.retry import within
from lakestore.client.table import Table
from lakestore.client.transport import Transport
from lakestore.client.writer import change
from lakestore.errors import Invalid
from lakestore.evolution import Step
from lakestore.limits import DEFAULT, WIDEST, Limits
from lakestore.model import times
from lakestore.model.merge_engines import Merge
from lakestore.model.table import Table as Definition
from lakestore.model.table import define
from lakestore.model.times import At, position_text
from lakestore.model.token import Token, position_of
from lakestore.model.ttl import TOMBSTONE_SECONDS
from lakestore.union import sql as union_sql
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb

if TYPE_CHECKING:
    from lakestore_server.host.clock import Clock
    from lakestore_server.host.disk import Disk


class Commit:
    """Changes to several tables that happen together."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._changes: list[pb.Change] = []
        self.token = ""
        """Known once the commit is done."""
        self.results: list[pb.ChangeResult] = []

    def upsert(self, table: str, data: Any) -> None:
        """Insert or update by key."""
        self._add(table, pb.UPSERT, data)

    def insert_if_absent(self, table: str, data: Any) -> None:
        """Insert the rows whose keys are not there; `results` tells how many were ignored."""
        self._add(table, pb.INSERT, data)

    def delete(self, table: str, data: Any) -> None:
        """Delete by key."""
        self._add(table, pb.DELETE, data)

    def append(self, table: str, data: Any) -> None:
        """Append to a log table."""
        self._add(table, pb.APPEND, data)

    def _add(self, table: str, kind: pb.ChangeKind.ValueType, data: Any) -> None:
        for version, batch in fitting_parts(self._lake, self._lake.definition_of(table), data):
            self._changes.append(change(table, kind, [batch], version.schema_id))

    def send(self) -> None:
        """Commit what was added."""
        if self._changes:
            answer = self._lake.producers.commit(self._changes)
            self.token, self.results = self._lake.seen(answer.token), list(answer.results)


class Snapshot:
    """All tables at one cut."""

    def __init__(self, lake: Lake, token: str) -> None:
        self._lake = lake
        self.token = token

    def scan(self, table: str, columns: Sequence[str] | None = None, where: str | None = None) -> Scan:
        """A union read at the cut."""
        return Scan(self._lake, table, columns=columns, where=where, at=self.token)

    def sql(self, text: str) -> union_sql.SqlResult:
        """DuckDB over union reads at the cut."""
        return union_sql.run(self._lake, text, at=self.token)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the consumers of a shared subscription."""

    name: str
    buckets: tuple[tuple[str, int], ...]
    """Table and number of those that it reads now."""
    behind: int
    """Changes of them before it."""
    away: bool
    """Whether its connection has ended; it is waited for a moment."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A named subscription as the server keeps it."""

    name: str
    tables: tuple[str, ...]
    token: str
    """Its position: behind the last batch that was acknowledged."""
    acked: datetime
    """When it was last opened, acknowledged or seen with a consumer."""
    behind: int
    """Changes before it."""
    snapshot: bool
    """Whether it still reads its snapshot."""
    shared: bool = False
    """Whether several consumers share its buckets."""
    members: tuple[Member, ...] = ()
    """Those that share it now."""


def _member(info: pb.MemberInfo) -> Member:
    behind = sum(bucket.behind for bucket in info.buckets)
    return Member(info.name, tuple((bucket.table, bucket.bucket) for bucket in info.buckets), behind, info.away)


class Lake:
    """Tables, and queries over them. A context manager."""

    def __init__(self, transport: Transport, address: str, on_close: Callable[[], None] | None = None) -> None:
        self.transport = transport
        self.address = address
        self.producers = ProducerPool(transport)
        self.single_writes = Combiner(self.producers)
        self._on_close = on_close
        self._lock = threading.Lock()
        self._last: Token | None = None
        self._definitions: dict[str, Definition] = {}

    def __repr__(self) -> str:
        return f"<lakestore lake at {self.address}>"

    @property
    def last_token(self) -> str:
        """The newest position that this lake has written: its plain reads never fall behind it."""
        return str(self._last) if self._last else ""

    def seen(self, token: str) -> str:
        """Remember a commit of ours."""
        parsed = position_of(token)
        with self._lock:
            if self._last is None or parsed.timeline != self._last.timeline or parsed.lsn > self._last.lsn:
                self._last = parsed
        return token

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: list[str] | None = None,
        buckets: int = 4,
        bucket_key: list[str] | None = None,
        merge: str | dict[str, Any] | Merge = "upsert",
        lake: dict[str, Any] | None = None,
        retention: str | dict[str, Any] | None = None,
        deletes: str = "allow",
        skip_unchanged: bool = False,
        ttl: dict[str, Any] | None = None,
        tombstone_ttl: str | int = TOMBSTONE_SECONDS,
    ) -> Table:
        """Create a table; without a primary key it is a log table. docs/tables.md tells of every option.

        `merge` says what a row means whose key is there: `upsert`, `partial`, `first_row`, `ls.versioned("column")` or
        `ls.aggregate({"column": "function"})`. `retention="7d"` or `{"age": "7d", "bytes": "10GB"}` gives up old log
        that is tiered; `ttl={"column": "created_at", "after": "30d"}` deletes rows whose time is over.
        """
        if not isinstance(schema, pa.Schema):
            raise Invalid("schema= is a pyarrow schema")
        definition = define(
            name,
            schema,
            primary_key=primary_key,
            buckets=buckets,
            bucket_key=bucket_key,
            merge=merge,
            lake=lake,
            limits=WIDEST,
            retention=retention,
            deletes=deletes,
            skip_unchanged=skip_unchanged,
            ttl=ttl,
            tombstone_ttl=tombstone_ttl,
        )
        return self.create(definition)

    def create(self, definition: Definition, *, check_only: bool = False) -> Table:
        """Create a table as its definition says; with `check_only` only ask whether it could be."""
        request = pb.CreateTableRequest(definition=definition.to_json(), check_only=check_only)
        info = self.transport.create_table(request)
        return Table(self, Definition.from_json(info.definition)) if check_only else self._table(info)

    def table(self, name: str) -> Table:
        """A table by name."""
        return self._table(self.transport.get_table(pb.TableRequest(table=name)))

    def definition_of(self, name: str) -> Definition:
        """A table's definition, as it was when this lake last saw the table."""
        return self._definitions[name] if name in self._definitions else self.table(name).definition

    def alter(self, definition: Definition, steps: Sequence[Step], *, check_only: bool = False) -> Definition:
        """The definition after the steps, which are one commit; `Conflict` if it is no longer the current one.

        With `check_only` nothing is changed.
        """
        request = pb.AlterTableRequest(
            table=definition.name,
            alteration=evolution.to_json(steps),
            schema_id=definition.schema_id,
            check_only=check_only,
        )
        info = self.transport.alter_table(request)
        return Definition.from_json(info.definition) if check_only else self._table(info).definition

    def _table(self, info: pb.TableInfo) -> Table:
        table = Table(self, Definition.from_json(info.definition))
        self._definitions[table.name] = table.definition
        return table

    def tables(self) -> list[Table]:
        """All tables, by name."""
        return [self._table(info) for info in self.transport.list_tables(pb.ListTablesRequest()).tables]

    def drop_table(self, name: str) -> str:
        """Drop a table with its rows and its lake table; the commit's token."""
        return self.seen(self.transport.drop_table(pb.TableRequest(table=name)).token)

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """Changes to several tables, committed together at the end of the block; an error discards them."""
        commit = Commit(self)
        yield commit
        commit.send()

    def snapshot(self) -> Snapshot:
        """One cut over all tables."""
        return Snapshot(self, json.loads(self.transport.status(pb.StatusRequest()).status)["token"])

    def at(self, position: At) -> Snapshot:
        """All tables exactly at a token, or as of a time (UTC where it names no zone)."""
        return Snapshot(self, position_text(position))

    def changes(
        self,
        tables: Sequence[str],
        start: Start = "earliest",
        *,
        until: Until | None = None,
        before_images: bool = False,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        subscription: str | None = None,
        shared: bool = False,
        member: str | None = None,
        progress: bool = False,
    ) -> ChangeStream:
        """The changelogs of several tables in one stream, as `Table.changes`: whole commits, in their order."""
        name = member_name(subscription, member, shared=shared)
        asked = request(
            tables, start, until, columns, subscription, before_images=before_images, where=where, member=name
        )
        return ChangeStream(self.transport, asked, progress=progress)

    def subscriptions(self) -> list[Subscription]:
        """The named subscriptions that the server keeps."""
        answer = self.transport.list_subscriptions(pb.ListSubscriptionsRequest())
        return [
            Subscription(
                s.name,
                tuple(s.tables),
                s.token,
                times.moment_of(s.acked_us),
                s.behind,
                s.snapshot,
                s.shared,
                tuple(map(_member, s.members)),
            )
            for s in answer.subscriptions
        ]

    def drop_subscription(self, name: str) -> None:
        """Forget a subscription; what it held of the log may go."""
        self.transport.drop_subscription(pb.DropSubscriptionRequest(subscription=name))

    def sql(self, text: str) -> union_sql.SqlResult:
        """DuckDB over union reads, all tables of the query at one cut."""
        return union_sql.run(self, text)

    def plan(self, request: pb.PlanRequest, /) -> pb.PlanAnswer:
        """For union reads."""
        return self.transport.plan(request)

    def fetch(self, request: pb.FetchRequest, /) -> Iterator[pb.RowBatch]:
        """For union reads."""
        return self.transport.fetch(request)

    def renew_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer:
        """For union reads."""
        return self.transport.renew_lease(request)

    def release_lease(self, request: pb.LeaseRequest, /) -> pb.LeaseAnswer:
        """For union reads."""
        return self.transport.release_lease(request)

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """`with lake.within(0.5): …`: every call inside ends by then, tries included; in `Unavailable` if need be."""
        return within(seconds)

    def close(self) -> None:
        """Close the connection, or the server inside this process."""
        self.transport.close()
        if self._on_close:
            self._on_close()
            self._on_close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def connect(
    address: str = "localhost:7340",
    *,
    token: credentials.Token | None = None,
    tls: credentials.TLS | bool | None = None,
    timeout: float = transports.CALL_SECONDS,
) -> Lake:
    """A server's lake. A token, also a callable that gives it, or `LAKESTORE_TOKEN` says who you are.

    A call without an answer after `timeout` seconds ends in `Unavailable`.
    """
    shown = credentials.credentials_for(address, token, tls)
    return Lake(transports.connect(address, shown, call_seconds=timeout), address)


def open(
    folder: str | Path,
    *,
    warehouse: str | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
    limits: Limits = DEFAULT,
) -> Lake:
    """The whole server inside this process, without a network."""
    from lakestore_server.main import Server
    from lakestore_server.settings import Settings

    server = Server(Settings(data=Path(folder), warehouse=warehouse or "", limits=limits), disk=disk, clock=clock)
    transport: Any = transports.LocalTransport(server.service)
    return Lake(transport, str(folder), server.close)

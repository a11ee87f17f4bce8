"""A lake: all tables of one server, over the network or in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakestore.client import administration, adoption, credentials, erasure, profiles, proposals, servers
from lakestore.client.administration import DroppedTable
from lakestore.client.calls import CALL_SECONDS
from lakestore.client.changes import ChangeStream, Start, Until, member_name, request
from lakestore.client.commit import Commit
from lakestore.client.connection import Connection
from lakestore.client.erasure import ErasedCheck
from lakestore.client.named_writes import NamedWrites
from lakestore.client.producer import NamedProducer
from lakestore.client.proposals import OwnerReport
from lakestore.client.registers import Register, Registers, drop_registers, every_register
from lakestore.client.retry import within
from lakestore.client.snapshot import Snapshot, requirement
from lakestore.client.subscription import Subscription
from lakestore.client.table import Table
from lakestore.client.transport import Transport
from lakestore.errors import Conflict, NeedsApproval
from lakestore.evolution import Step
from lakestore.limits import LEASE_SECONDS_DEFAULT, WIDEST
from lakestore.model import times
from lakestore.model.alteration import Freshness, Through, difference
from lakestore.model.merge_engines import Merge
from lakestore.model.table import Table as Definition
from lakestore.model.table import define
from lakestore.model.table_changes import TableChange, check_drops, contract_changes
from lakestore.model.times import At, position_text
from lakestore.model.ttl import TOMBSTONE_SECONDS
from lakestore.model.types import schema_of
from lakestore.union import sql as union_sql
from lakestore.v1 import lakestore_pb2 as pb


class Lake:
    """Tables, and queries over them. A context manager."""

    def __init__(self, transport: Transport, address: str, on_close: Callable[[], None] | None = None) -> None:
        self.transport = transport
        self.address = address
        self._connection = Connection(transport)
        self._on_close = on_close

    def __repr__(self) -> str:
        return f"<lakestore lake at {self.address}>"

    @property
    def last_token(self) -> str:
        """The newest position that this lake has written. Plain reads are at least as new."""
        return self._connection.last_token

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Mapping[str, pa.DataType | pa.Field | str],
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
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table; without a primary key it is a log table. docs/tables.md describes every option.

        `schema` is a pyarrow schema or a dict of name to type, such as `{"id": "int64", "tags": "list<string>"}`. With
        `if_not_exists=True` an existing table of this definition is returned; a different one is an error that names
        the first difference.

        `merge` decides about rows whose key exists: `upsert`, `partial`, `first_row`, `ls.versioned("column")` or
        `ls.aggregate({"column": "function"})`. `retention="7d"` or `{"age": "7d", "bytes": "10GB"}` drops old tiered
        log; `ttl={"column": "created_at", "after": "30d"}` deletes expired rows.
        """
        definition = define(
            name,
            schema_of(schema),
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
        try:
            return self.create(definition)
        except Conflict:
            if not if_not_exists:
                raise
        found = self.table(name)
        if told := difference(found.definition, definition):
            raise Conflict(f"table {name} is there already, and {told}: alter it, or take it as it is by lake.table()")
        return found

    def create(self, definition: Definition, *, check_only: bool = False) -> Table:
        """Create a table from its definition. With `check_only` the server only checks it."""
        return self._table(self._connection.create_table(definition, check_only=check_only))

    def table(self, name: str) -> Table:
        """A table by name."""
        return self._table(self._connection.newest(name))

    def definition_of(self, name: str) -> Definition:
        """A table's cached definition."""
        return self._connection.definition_of(name)

    def alter(
        self,
        definition: Definition,
        steps: Sequence[Step],
        *,
        check_only: bool = False,
        proposal: Mapping[str, str] | None = None,
        why: str = "",
    ) -> Definition:
        """Apply the steps as one commit and return the definition. Raises `Conflict` if the definition is not
        current, and `NeedsApproval` if the steps became a proposal; `proposal` has its `bridge`, `topic` and `change`.

        With `check_only` nothing is changed. `why` is the reason, for the audit of a table with a contract.
        """
        said = proposals.described(proposal) if proposal else None
        return self._connection.alter_table(definition, steps, check_only=check_only, proposal=said, why=why)

    def proposals(self, table: str = "") -> list[dict[str, Any]]:
        """The changes of a table that wait for an approver, and the decided ones, oldest first; default: all tables."""
        return proposals.list_proposals(self._connection, table)

    def propose(self, definition: Definition, steps: Sequence[Step], proposal: Mapping[str, str]) -> NeedsApproval:
        """Store steps as a proposal unless it is there; `proposal` is as in `alter`. Returns the error that names the
        proposal and its state."""
        return proposals.propose(self._connection, definition, steps, proposals.described(proposal))

    def approve(self, proposal: str, *, why: str = "") -> dict[str, Any]:
        """Change the table by a proposal. Returns the proposal afterwards; a second approval changes nothing."""
        return proposals.decide(self._connection, proposal, approve=True, why=why)

    def reject(self, proposal: str, *, why: str = "") -> dict[str, Any]:
        """Reject a proposal. It is not made again, and can be approved later. Returns the proposal afterwards."""
        return proposals.decide(self._connection, proposal, approve=False, why=why)

    def who(self, table: str) -> OwnerReport:
        """Owner, delegates, approvers, contract version and the last ten decisions about a table."""
        return proposals.owner_report(self, table)

    def make_change(self, change: TableChange, *, check_only: bool = False) -> None:
        """Create or alter one table. With `check_only` the server only checks it."""
        if change.before is None:
            self.create(change.after, check_only=check_only)
        elif change.steps:
            self.alter(change.before, change.steps, check_only=check_only)

    def apply_contract(
        self,
        text: str,
        *,
        tables: Sequence[str] = (),
        database: str = "",
        why: str = "",
        allow_drop: Sequence[str] = (),
        check_only: bool = False,
    ) -> list[TableChange]:
        """Create or alter the tables of an ODCS contract, each in one commit with its contract.

        `tables` selects tables of the contract. `database` is for a contract that names none. `why` is stored with the
        contract. `allow_drop` has columns that may be dropped, as `shop.orders.note`. With `check_only` the server
        checks everything and changes nothing. Raises `Invalid` with the lines that cannot be honoured.
        """
        there = {table.name: table.definition for table in self.tables()}
        changes = contract_changes(text, there, names=tables, database=database, why=why)
        for change in changes:
            self.make_change(change, check_only=True)
        if not check_only:
            check_drops(changes, allow_drop)
            for change in changes:
                self.make_change(change)
        return changes

    def _table(self, definition: Definition) -> Table:
        return Table(self._connection, definition)

    def tables(self) -> list[Table]:
        """All tables, by name."""
        return [self._table(definition) for definition in self._connection.all()]

    def drop_table(self, name: str, *, purge: bool = False, uuid: str = "") -> str:
        """Drop a table with its rows and its lake table. Returns the commit's token.

        `undrop` restores it for `limits.drop_grace_seconds` (a day by default). `purge=True` removes it at once, also
        if it was dropped before. `uuid` selects between tables of one name.
        """
        request = pb.TableRequest(table=name, table_uuid=uuid, purge=purge)
        return self._connection.remember(self.transport.drop_table(request).token)

    def adopt(
        self,
        source: str,
        name: str,
        *,
        primary_key: Sequence[str] = (),
        buckets: int = 4,
        tell: adoption.Tell = lambda stage, done, total: None,
    ) -> Table:
        """Make the Iceberg table `source` the lake of a new table, without rewriting its data.

        `source` is `database.table` in the server's catalog, or `catalog.database.table` in an outside one. Without a
        primary key it becomes a log table. The key is checked. A call that was killed is repeated with the same
        arguments and continues. docs/adopting.md describes it.
        """
        found = adoption.adopt(self._connection, source, name, primary_key=primary_key, buckets=buckets, tell=tell)
        return self._table(found.definition)

    def release(self, name: str, *, to: str = "") -> list[str]:
        """End a table without hot rows: its lake becomes the plain Iceberg table `to` (default: the same name).

        Returns our columns that stay, because the lake is partitioned or sorted by them.
        """
        return list(adoption.release(self._connection, name, new_name=to).columns)

    def verify_erased(self, certificate: dict[str, Any]) -> ErasedCheck:
        """Scan every file again for the rows of an erasure's certificate."""
        return erasure.verify(self._connection, certificate)

    def undrop(self, name: str, *, uuid: str = "", as_name: str = "") -> Table:
        """Restore a dropped table with rows, offsets, lake and subscriptions.

        `as_name` gives it another name if its own is taken; `uuid` selects between dropped tables of one name.
        """
        definition = administration.undrop_table(self._connection, name, uuid, as_name)
        self._connection.forget_definitions([definition.name])
        return self._table(definition)

    def dropped_tables(self) -> list[DroppedTable]:
        """The dropped tables that `undrop` can restore, newest first."""
        return administration.dropped_tables(self._connection)

    def databases(self) -> dict[str, int]:
        """The databases with their numbers of tables."""
        answer = self.transport.list_databases(pb.ListDatabasesRequest())
        return {entry.name: entry.tables for entry in answer.databases}

    def create_database(self, name: str) -> None:
        """Create an empty database. Creating a table creates its database."""
        self.transport.create_database(pb.DatabaseRequest(database=name))

    def drop_database(self, name: str) -> None:
        """Remove a database without tables."""
        self.transport.drop_database(pb.DatabaseRequest(database=name))

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """Changes to several tables, committed together at the end of the block. An error discards them.

        Rows beyond one message are uploaded while they are added. The server's `limits.commit_rows` and `commit_bytes`
        bound a commit.
        """
        with Commit(self._connection) as commit:
            yield commit
            commit.send()

    def snapshot(
        self,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
        lease_seconds: int = LEASE_SECONDS_DEFAULT,
    ) -> Snapshot:
        """One cut over all tables: the current head, kept by the server until the snapshot ends.

        Its cost does not depend on the number of tables: each is planned at its first read. Requirements apply to the
        tables that are read, as in `Table.scan`.
        """
        return Snapshot.of_head(self.transport, require_freshness, require_complete_through, lease_seconds)

    def at(
        self,
        position: At,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> Snapshot:
        """All tables at a token or time (UTC without a zone). The cut is not leased."""
        require = requirement(require_freshness, require_complete_through)
        return Snapshot(self.transport, position_text(position), require=require)

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
        """The changelogs of several tables in one stream, as in `Table.changes`: whole commits in order."""
        name = member_name(subscription, member, shared=shared)
        asked = request(
            tables, start, until, columns, subscription, before_images=before_images, where=where, member=name
        )
        return ChangeStream(self.transport, asked, progress=progress)

    def subscriptions(self) -> list[Subscription]:
        """The named subscriptions of the server."""
        answer = self.transport.list_subscriptions(pb.ListSubscriptionsRequest())
        return [Subscription.of(info) for info in answer.subscriptions]

    def drop_subscription(self, name: str) -> None:
        """Forget a subscription; the log that it kept may go."""
        self.transport.drop_subscription(pb.DropSubscriptionRequest(subscription=name))

    def reset_subscription(self, name: str, to: Start) -> str:
        """Set a subscription's position to `earliest`, `latest`, `snapshot`, a time or a token. Returns the
        position.

        The current reader is fenced and continues there when it opens the subscription again.
        """
        request = pb.ResetSubscriptionRequest(subscription=name, to=times.start_text(to))
        return self.transport.reset_subscription(request).token

    def producer(self, name: str) -> NamedWrites:
        """Open a named producer. This fences the previous owner and returns its progress.

        `with p.commit(progress="file=7") as c: c.upsert("shop.orders", rows)` commits rows and progress together.
        """
        return NamedWrites(self._connection, name)

    def producers(self) -> list[NamedProducer]:
        """The named producers of the server, with their progress."""
        answer = self.transport.list_producers(pb.ListProducersRequest())
        return [NamedProducer.of(entry) for entry in answer.producers]

    def drop_producer(self, name: str) -> None:
        """Forget a named producer and its progress. A process that still writes under the name gets an error."""
        self.transport.drop_producer(pb.DropProducerRequest(producer=name))

    def registers(self, names: Iterable[str]) -> Registers:
        """Open registers, named positions in other systems, and read their values. Earlier owners are fenced.

        `with r.commit({"orders/0": "1500"}) as c: c.upsert("shop.orders", rows)` commits rows and positions together.
        """
        return Registers(self._connection, names)

    def list_registers(self, prefix: str = "") -> list[Register]:
        """The registers of the server whose names begin with `prefix`."""
        return every_register(self.transport, prefix)

    def drop_registers(self, names: Iterable[str]) -> int:
        """Forget registers and their values. A process that still moves one gets an error. Returns their number."""
        return drop_registers(self.transport, names)

    def sql(
        self,
        text: str,
        params: union_sql.Params = None,
        *,
        at: At | None = None,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
        external_access: bool = False,
    ) -> union_sql.SqlResult:
        """DuckDB over union reads, all tables at one cut: the newest, or a token or time.

        `params` are the values of `?` and `$1` in a list, or of `$name` in a dict (docs/sql.md).

        `require_freshness="60s"` or `require_complete_through` (a time) applies to all tables; otherwise `NotFresh` is
        raised (docs/time.md).

        The query reads nothing else on this machine. `external_access=True` lets it read files and addresses and load
        extensions: only for queries that you wrote.
        """
        position = None if at is None else position_text(at)
        require = requirement(require_freshness, require_complete_through)
        query = union_sql.Query(text, params, position, require, external_access=external_access)
        return union_sql.run(self.transport, query, self._connection.all)

    def status(self) -> dict[str, Any]:
        """The server's status as `lakestore status --json` shows it."""
        found: dict[str, Any] = json.loads(self.transport.status(pb.StatusRequest()).status)
        return found

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """`with lake.within(0.5): …`: every call inside ends by then, retries included."""
        return within(seconds)

    def close(self) -> None:
        """Close the connection, or the server in this process."""
        self.transport.close()
        if self._on_close:
            self._on_close()
            self._on_close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def connect(
    address: str | None = None,
    *,
    profile: str | None = None,
    token: credentials.Token | None = None,
    tls: credentials.TLS | bool | None = None,
    timeout: float = CALL_SECONDS,
    reads: profiles.Reads | None = None,
) -> Lake:
    """Open a server's lake. The token, a text or a callable, or `LAKESTORE_TOKEN` says who you are.

    The default address comes from `profile`, `LAKESTORE_SERVER` or the default profile (docs/profiles.md); otherwise it
    is port 7340 of this machine.

    A call without an answer after `timeout` seconds raises `Unavailable`.

    `"a:7340,b:7340,c:7340"` names servers that share a journal. Writes and subscriptions go to their leader, also after
    another server has become it. Reads go there too, or with `reads="follower"` to a follower, or with `"nearest"` to
    the server that answers first; they see the writes of this lake. Without `reads` the profile says where.
    """
    asked = profiles.target(address, profile, token, tls)
    transport = servers.connect(
        asked.server, asked.credentials(), call_seconds=timeout, reads=reads or asked.reads or "leader"
    )
    return Lake(transport, asked.server)

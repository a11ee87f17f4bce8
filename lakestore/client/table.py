"""A handle of one table."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from lakestore.client import administration, contract_measures, erasure
from lakestore.client import lookup as lookups
from lakestore.client.administration import RescaleProgress, Truncated, steps_of
from lakestore.client.changes import ChangeStream, Start, Until, member_name, request
from lakestore.client.commit import CommitToken, WriteResult, fit_rows, parts_with_marks, result_of
from lakestore.client.connection import Connection
from lakestore.client.contract_measures import Measure
from lakestore.client.erasure import Erasure, OnErasure
from lakestore.client.group_commit import Write
from lakestore.client.producer import Producer
from lakestore.client.snapshot import Snapshot, requirement
from lakestore.client.writer import Keep, Writer, change_to
from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound
from lakestore.evolution import Step
from lakestore.model.alteration import Freshness, Through
from lakestore.model.contract import file as contract_file
from lakestore.model.contract.contract import Contract
from lakestore.model.table import Table as Definition
from lakestore.model.times import At, position_text
from lakestore.rows import user
from lakestore.union.difference import Difference, difference
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb


class Table:
    """Append, upsert, delete; look up, scan, follow."""

    def __init__(self, connection: Connection, definition: Definition) -> None:
        self._connection = connection
        self.definition = definition
        self._last = threading.local()

    @property
    def last_result(self) -> WriteResult | None:
        """Result of this thread's last write by this handle. A token has its own: `token.result`."""
        return getattr(self._last, "result", None)

    @property
    def name(self) -> str:
        """`database.table`."""
        return self.definition.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of reads."""
        return self.definition.schema

    @property
    def contract(self) -> Contract | None:
        """The contract in force, with version, principal, time and reason; None without one. `Snapshot.definition` has
        the contract at a cut, `Lake.who` who changed it."""
        return self.definition.contract

    @property
    def contract_text(self) -> str:
        """The table's contract as it was applied, or else an ODCS contract of its definition."""
        contract = self.definition.contract
        return contract.document if contract else contract_file.exported([self.definition])

    def test_contract(self, text: str = "") -> list[Measure]:
        """The checks of the table's contract, or of the contract `text`, measured on the newest rows.

        A check that needs SQL runs in DuckDB. Raises `Invalid` if there is no contract.
        """
        with Snapshot.of_head(self._connection.transport, None, None) as cut:
            table = cut.definition(self.name)
            contract = contract_measures.contract_of(text, table) if text else table.contract
            if contract is None:
                raise Invalid(f"table {self.name} has no contract: apply one, or name a file")
            return contract_measures.measures(cut, table, contract)

    def __repr__(self) -> str:
        kind = f"key {', '.join(self.definition.primary_key)}" if self.definition.keyed else "log"
        return f"<lakestore table {self.name}, {kind}, {self.definition.buckets} buckets>"

    def alter(self, *steps: Step, why: str = "", **changes: Any) -> Self:
        """Change the table's definition in one commit. Existing rows are not rewritten.

        `drop=["a"]`, `rename={"a": "b"}`, `add={"c": pa.string()}` (a `pa.field` with `nullable=False` is required),
        `widen={"n": "int64"}` (types of pyarrow or by name), `optional=["d"]`, `default={"c": "x"}` (with
        `new_rows_only=True` older rows stay null), `order=["id", "c"]` (these first), `lake={"freshness": "10s"}`,
        `retention="7d"` (None: keep all), `deletes="ignore"`, `skip_unchanged=True`, `ttl={"column": "created_at",
        "after": "30d"}` (None: rows stay), `tombstone_ttl="7d"`; or steps of `lakestore.evolution`. This handle then
        has the new definition. `why` is the reason, for the audit. Raises `Conflict` if the table was altered since it
        was loaded.
        """
        self.definition = self._connection.alter_table(self.definition, [*steps, *steps_of(**changes)], why=why)
        return self

    def append(self, data: Any) -> CommitToken:
        """Add rows to a log table. Returns the commit's token."""
        return self._write(pb.APPEND, data)

    def upsert(self, data: Any, *, keep: Keep = ()) -> CommitToken:
        """Insert or update rows by key. Returns the commit's token.

        The merge engine decides about rows whose key exists. In a `partial` or `aggregate` table columns that a row
        does not name keep their values; dicts in a list may name different columns.

        `keep=["photo"]` leaves that column unchanged in all rows, in an `upsert` or `versioned` table; `keep={"photo":
        flags}` in the rows whose flag is true. Rows of one key apply in order. A row whose key has no row makes the
        commit fail: `NothingToKeep` lists all of them.
        """
        return self._written(pb.UPSERT, data, keep=keep)[0]

    def delete(
        self,
        data: Any = None,
        *,
        where: str | None = None,
        dry_run: bool = False,
        on_progress: administration.OnProgress | None = None,
    ) -> CommitToken:
        """Delete keys. Returns the commit's token; `token.result.not_found` counts the absent keys.

        `where="created_at < '2020-01-01'"` instead of keys deletes the rows that match at the current cut, in commits
        of bounded size. A row that is rewritten meanwhile stays. `token.result.deleted` counts the rows, with
        `dry_run=True` those that would go. An error says how many rows were deleted before it; repeat the call to
        delete the rest.

        In a `partial` table, other columns that rows name are set to null. In a `versioned` table, rows that name the
        version delete only older or equal rows.
        """
        if where is None:
            if data is None or dry_run:
                raise Invalid("delete takes keys, or where= with a condition; dry_run= goes with a condition")
            return self._write(pb.DELETE, data)
        if data is not None:
            raise Invalid("delete takes keys or a condition in where=, not both")
        about = self._connection, self.definition, where
        token = administration.delete_where(*about, dry_run=dry_run, on_progress=on_progress)
        self._last.result = token.result
        return token

    def erase(
        self,
        *,
        where: str,
        wait: bool = False,
        within: str | int | None = None,
        why: str = "",
        backups: Sequence[str] = (),
        on_progress: OnErasure | None = None,
    ) -> Erasure:
        """Remove the bytes of every version of the keys that match, or matched at a version that is still kept.

        The rows are deleted first, so consumers read the deletes. A log table loses each row that matches, without a
        change for consumers. Then their bytes leave log, index, lake, dead
        letters, presented files and caches, and the server writes a certificate. With `wait=True` the call returns at
        the end. `within` is the deadline, by default the contract's or 30 days; then readers and subscriptions from
        before are cut off. `backups` are folders on the server's machine, which the certificate names.
        """
        asked = erasure.ask(self._connection, self.definition, where, within, why, backups)
        if not wait:
            return asked
        return erasure.await_end(self._connection, self.definition, asked.id, on_progress)

    def erasures(self) -> list[Erasure]:
        """The erasures of this table, newest first."""
        return erasure.listed(self._connection, self.definition)

    def truncate(self, *, check_only: bool = False) -> Truncated:
        """Remove all rows from log, index and lake in one commit. With `check_only` return only the cost.

        New rows get the next offsets. A position from before raises `PositionExpired`. A subscription at such a
        position raises it too, until it is `reset`.
        """
        return administration.truncate_table(self._connection, self.definition, check_only=check_only)

    def rescale(self, buckets: int, *, wait: bool = True, on_progress: administration.OnRescale | None = None) -> Self:
        """Give the table another number of buckets while reads and writes go on.

        The server fills a copy, follows the table's changes, and swaps the copy in one commit. This handle then has the
        new definition. With `wait=False` the call returns once the copy has begun; `rescale_progress` and the status
        show its progress. Tokens from before the swap can be read until the drop grace of the old table is over.
        """
        administration.begin_rescale(self._connection, self.definition, buckets)
        if wait:
            about = self._connection, self.definition, buckets
            self.definition = administration.await_rescale(*about, on_progress)
        return self

    @property
    def rescale_progress(self) -> RescaleProgress | None:
        """The progress of the running rescale; None if there is none."""
        return administration.rescale_progress(self._connection, self.definition)

    def stop_rescale(self) -> None:
        """Stop the running rescale and remove its copy. The table stays as it is."""
        administration.stop_rescale(self._connection, self.definition)

    def replay(
        self,
        into: str,
        *,
        at: At | None = None,
        buckets: int = 0,
        wait: bool = True,
        on_progress: administration.OnRescale | None = None,
    ) -> Table:
        """Fill a branch: a table of the name `into` with the rows of this one. Returns the branch's handle.

        With `at`, a token or time, the branch has the rows of that cut. Without it, the branch follows this table.
        Rows can be written to the branch once it is filled; `replay_difference` compares, `swap_replay` puts the branch
        into this table's place, `drop_replay` removes it. With `wait=False` the call returns once the branch has begun.
        """
        connection = self._connection
        administration.begin_replay(connection, self.definition, into, "" if at is None else position_text(at), buckets)
        if wait:
            administration.await_branch(connection, self.definition, into, on_progress)
        made = connection.transport.get_table(pb.TableRequest(table=into))
        return Table(connection, Definition.from_json(made.definition))

    def replay_difference(self, *, sample: int = 10) -> Difference:
        """The rows that a swap of the branch would change, remove and add, with up to `sample` rows of each kind."""
        progress = self.rescale_progress
        if progress is None or not progress.kind:
            raise NotFound(f"table {self.name} has no branch: make one with `lakestore replay {self.name} --into NAME`")
        if progress.waits != "user":
            raise Conflict(f"branch {progress.copy} of table {self.name} is not filled yet: try again")
        return difference(self._connection.transport, self.name, progress.copy, sample=sample)

    def swap_replay(self, reviewed: str | None = None) -> str:
        """Put the branch into the place of this table, in one commit. Returns the commit's token.

        `reviewed` is the token of a `replay_difference`: if table or branch were written since, the swap raises
        `Conflict`. A branch made with `at=` needs it. Reads at tokens from before the swap get the old rows until the
        drop grace of the old table is over. Change streams from before the swap get `PositionExpired`.
        """
        token = administration.swap_replay(self._connection, self.definition, reviewed or "")
        made = self._connection.transport.get_table(pb.TableRequest(table=self.name))
        self.definition = Definition.from_json(made.definition)
        return token

    def drop_replay(self) -> None:
        """Remove the branch of this table."""
        administration.drop_replay(self._connection, self.definition)

    def rename(self, name: str) -> Self:
        """Give the table another name, also in another database. This handle then has the new name.

        Rows, offsets, lake, streams and subscriptions continue. Rights follow names. Other handles are told the new
        name.
        """
        self.definition = administration.rename_table(self._connection, self.definition, name)
        return self

    def insert_if_absent(self, data: Any) -> pa.Table:
        """Insert the rows whose keys do not exist. Returns the then live row of every key, in the order of the rows.

        If several clients insert one key at once, one succeeds and all get its row. `last_result` counts inserted and
        ignored rows. The rows come with the commit's answer. If they do not fit and cannot be read afterwards, the
        error has `applied="unknown"`.
        """
        data = user.readable_again(data)
        version, batch = fit_rows(self._connection, self.definition, data)
        token, answered = self._written(pb.INSERT, data, wants_rows=True)
        if answered is not None:
            return lookups.join_answers([answered], version)
        try:
            return lookups.lookup(self._connection, version, batch, at=token)
        except LakestoreError as error:
            error.applied = "unknown"
            error.message = f"the rows are written as {token}, but could not be read back: {error.message}"
            error.args = (error.message,)
            raise

    def _write(self, kind: pb.ChangeKind.ValueType, data: Any) -> CommitToken:
        return self._written(kind, data)[0]

    def _written(
        self, kind: pb.ChangeKind.ValueType, data: Any, *, wants_rows: bool = False, keep: Keep = ()
    ) -> tuple[CommitToken, pb.RowBatch | None]:
        """Commit once. Returns the token, and the rows of the keys if the answer has them."""
        parts = parts_with_marks(self._connection, self.definition, data, keep)
        if len(parts) > 1:
            changes = [change_to(version, kind, [batch]) for version, batch, _ in parts]
            answer = self._connection.producers.commit(changes)
            return self._noted(answer.token, answer.results), None
        version, batch, marks = parts[0]
        written = self._connection.single_writes.commit(Write(version, kind, batch, wants_rows, marks))
        rows = written.result.rows if written.result.HasField("rows") else None
        return self._noted(written.token, [written.result]), rows

    def _noted(self, token: str, results: Sequence[pb.ChangeResult]) -> CommitToken:
        self._last.result = result_of(results)
        return CommitToken(self._connection.remember(token), self._last.result)

    def writer(self, *, producer: str | None = None) -> Writer:
        """A pipelined writer. A named producer fences its predecessor and gets its progress."""
        connection = self._connection
        if producer is None:
            taken = Producer.drawn(connection.history.point)
        else:
            info = connection.transport.open_producer(pb.OpenProducerRequest(producer=producer))
            taken = Producer.opened(producer, info)
        return Writer(connection.transport, self.definition, taken, history=connection.history)

    def lookup(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        at: At | None = None,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> pa.Table:
        """The rows of these keys, in order, at one moment. An absent key has no row.

        Keys may name only the first columns of the primary key, if they include the bucket key: then all matching rows
        are returned in key order. `at`, a token or time, reads the rows and the schema version of that cut.
        Requirements are as in `scan`.
        """
        require = requirement(require_freshness, require_complete_through)
        return lookups.lookup(self._connection, self.definition, keys, columns, at, require)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        *,
        require_freshness: Freshness | None = None,
        require_complete_through: Through | None = None,
    ) -> Scan:
        """A union read of the newest state, or at a token or time (UTC without a zone).

        `require_complete_through="2026-11-20T10:00Z"` requires that all commits and feeds of the table have reached
        that time; `require_freshness="60s"` requires the server's time minus this. A read of the newest state waits for
        a while and then raises `NotFresh` (docs/time.md).
        """
        position = None if at is None else position_text(at)
        require = requirement(require_freshness, require_complete_through)
        return Scan(
            self._connection.transport,
            self.name,
            columns=columns,
            where=where,
            at=position,
            uuid=self.definition.uuid,
            former=self.definition.former,
            require=require,
        )

    def changes(
        self,
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
        """The changelog from `earliest`, `latest`, `snapshot`, a token or a time; endless without `until`.

        `where="amount > 10"` gives the changes of matching rows, so their fold equals a scan with the same condition: a
        row that begins to match is +I, one that ceases is -D with its old values. With `subscription="name"` the server
        keeps the position, which `batch.ack()` moves; `start` applies to a new subscription. `progress=True` adds
        batches without rows that report the stream's position.

        With `shared=True` any number of consumers share the subscription: the changes of a bucket go to one consumer at
        a time, and to another when it is gone. `member` names this consumer in `lake.subscriptions()`; a later consumer
        of the same name replaces the earlier one.
        """
        name = member_name(subscription, member, shared=shared)
        asked = request(
            [self.name],
            start,
            until,
            columns,
            subscription,
            before_images=before_images,
            where=where,
            member=name,
            uuids=[self.definition.uuid],
        )
        return ChangeStream(self._connection.transport, asked, progress=progress)

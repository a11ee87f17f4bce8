"""One table, as a user holds it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from lakestore.client import administration
from lakestore.client import lookup as lookups
from lakestore.client.administration import Truncated, steps_of
from lakestore.client.changes import ChangeStream, Start, Until, member_name, request
from lakestore.client.commit import CommitToken, WriteResult, fitting, marked_parts, result_of
from lakestore.client.connection import Connection
from lakestore.client.group_commit import Write
from lakestore.client.producer import Producer
from lakestore.client.snapshot import requirement
from lakestore.client.writer import Keep, Writer, change_to
from lakestore.errors import Invalid, LakestoreError
from lakestore.evolution import Step
from lakestore.model.altered import Freshness, Through
from lakestore.model.table import Table as Definition
from lakestore.model.times import At, position_text
from lakestore.rows import user
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb


class Table:
    """Append, upsert, delete; look up, scan, follow."""

    def __init__(self, connection: Connection, definition: Definition) -> None:
        self._connection = connection
        self.definition = definition
        """Columns, key, buckets and lake options."""
        self._last = threading.local()

    @property
    def last_result(self) -> WriteResult | None:
        """The result of this thread's last write by this handle; a token carries its own: `token.result`."""
        return getattr(self._last, "result", None)

    @property
    def name(self) -> str:
        """`database.table`."""
        return self.definition.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema that reads give."""
        return self.definition.schema

    def __repr__(self) -> str:
        kind = f"key {', '.join(self.definition.primary_key)}" if self.definition.keyed else "log"
        return f"<lakestore table {self.name}, {kind}, {self.definition.buckets} buckets>"

    def alter(self, *steps: Step, **changes: Any) -> Self:
        """Change the table's definition, in one commit: all of it or nothing. Rows that are there are not rewritten.

        `drop=["a"]`, `rename={"a": "b"}`, `add={"c": pa.string()}` (a `pa.field` with `nullable=False` is required),
        `widen={"n": "int64"}` (types of pyarrow or by name), `optional=["d"]`, `default={"c": "x"}` (with
        `new_rows_only=True` older rows stay null), `order=["id", "c"]` (these first), `lake={"freshness": "10s"}`,
        `retention="7d"` (None: keep all), `deletes="ignore"`, `skip_unchanged=True`,
        `ttl={"column": "created_at", "after": "30d"}` (None: rows stay), `tombstone_ttl="7d"`; or steps of
        `lakestore.evolution`.
        This handle then has the new definition. `Conflict` if the table was altered since it was loaded.
        """
        self.definition = self._connection.altered(self.definition, [*steps, *steps_of(**changes)])
        return self

    def append(self, data: Any) -> CommitToken:
        """Add rows to a log table; the commit's token."""
        return self._write(pb.APPEND, data)

    def upsert(self, data: Any, *, keep: Keep = ()) -> CommitToken:
        """Insert or update rows by key; the commit's token.

        The merge engine says what becomes of a row whose key is there. In a `partial` or `aggregate` table columns that
        a row does not name are left as they are: a list of dicts may name others in each row.

        With `keep=["photo"]` the rows leave that column as it is, of an `upsert` or `versioned` table, whatever they
        say of it; with `keep={"photo": flags}`, those whose flag is true. Rows of one key follow one another. A row
        whose key has no row refuses the commit: `NothingToKeep` has the numbers of all of them.
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
        """Delete keys; the commit's token. `token.result.not_found` counts the absent ones.

        With `where="created_at < '2020-01-01'"` in place of keys, the rows that meet the condition at the cut of this
        moment, in commits of bounded size: a row that is rewritten meanwhile stays. `token.result.deleted` counts
        them, with `dry_run=True` those that would go. An error tells the rows deleted before; the same call again
        deletes what is left.

        Rows of a `partial` table that name other columns than the key have those set to null; rows of a `versioned`
        table that name the version delete only what is not newer.
        """
        if where is None:
            if data is None or dry_run:
                raise Invalid("delete takes keys, or where= with a condition; dry_run= goes with a condition")
            return self._write(pb.DELETE, data)
        if data is not None:
            raise Invalid("delete takes keys or a condition in where=, not both")
        about = self._connection, self.definition, where
        token = administration.deleted(*about, dry_run=dry_run, on_progress=on_progress)
        self._last.result = token.result
        return token

    def truncate(self, *, check_only: bool = False) -> Truncated:
        """Take all rows away in one commit, of log, index and lake; with `check_only` say what it would cost.

        Offsets go on. Positions from before are `PositionExpired`, also those of subscriptions: `reset` them.
        """
        return administration.truncated(self._connection, self.definition, check_only=check_only)

    def rename(self, name: str) -> Self:
        """Give the table another name, also in another database; this handle then has it.

        Rows, offsets, lake, streams and subscriptions go on; rights go by name. Other handles are told the new name.
        """
        self.definition = administration.renamed(self._connection, self.definition, name)
        return self

    def insert_if_absent(self, data: Any) -> pa.Table:
        """Insert the rows whose keys are not there; of every key the row that is there then, in the order of the rows.

        If several clients insert one key at once, exactly one does, and all are given its row. `last_result` counts
        inserted and ignored rows. The rows come with the commit's answer; if they have no room there and cannot be read
        afterwards, the error says `applied="unknown"`.
        """
        data = user.readable_again(data)
        version, batch = fitting(self._connection, self.definition, data)
        token, answered = self._written(pb.INSERT, data, wants_rows=True)
        if answered is not None:
            return lookups.joined([answered], version)
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
        """The token of one commit, and the rows of its keys where the answer has them."""
        parts = marked_parts(self._connection, self.definition, data, keep)
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
        return CommitToken(self._connection.seen(token), self._last.result)

    def writer(self, *, producer: str | None = None) -> Writer:
        """Pipelined writing. A named producer fences its predecessor and is handed its progress back."""
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
        """The rows of these keys, in their order, all at one moment; absent keys give no row.

        Where the keys name only the first columns of the primary key, with the bucket key among them, each gives all
        its rows, in key order. With `at`, a token or a time, the rows as they were there, in that schema version. What
        is required of the table is as in `scan`.
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
        """A union read of the newest state, or exactly at a token or a time (UTC where it names no zone).

        `require_complete_through="2026-11-20T10:00Z"`: all commits and feeds of the table have come to that time in
        what is read; `require_freshness="60s"`: to the server's time less so much. A read of the newest state waits for
        it a while, and is refused with `NotFresh` rather than given less (docs/time.md).
        """
        position = None if at is None else position_text(at)
        transport, uuid = self._connection.transport, self.definition.uuid
        require = requirement(require_freshness, require_complete_through)
        return Scan(transport, self.name, columns=columns, where=where, at=position, uuid=uuid, require=require)

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

        With `where="amount > 10"` they are the changes of the rows that match, so that their fold is the scan with the
        same condition: a row that comes to match is +I, one that ceases to is -D with what it was. With
        `subscription="name"` the server keeps the position, which `batch.ack()` moves; `start` is where a new
        subscription begins. `progress=True` also gives batches without rows that say how far the stream has come.

        With `shared=True` as well, any number of consumers read the subscription together: each bucket's changes go to
        one of them at a time, and to another one when that is gone. `member` names this consumer in
        `lake.subscriptions()`; of two with one name the later takes the earlier one's place.
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

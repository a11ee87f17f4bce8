"""Change streams as a user iterates them."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa

from lakestore.client.pulled import Pulled
from lakestore.client.reconnecting import Resumed
from lakestore.client.retry import has_deadline, seconds_left
from lakestore.client.shared_position import Share
from lakestore.client.transport import Transport
from lakestore.errors import Fenced, Internal, Invalid, StreamEnded, Unavailable
from lakestore.model import times
from lakestore.model.columns import LAKE_BUCKET, LAKE_COLUMNS, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.token import (
    LogPosition,
    Place,
    SharedPosition,
    SnapshotPosition,
    StreamPosition,
    Token,
    parts_of,
    position_of,
    stream_position,
)
from lakestore.rows import clock_words, condition_text
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.v1 import lakestore_pb2 as pb

_NEVER = np.iinfo(np.int64).max
Start = str | datetime | Token
"""`earliest`, `latest`, `snapshot`, a token, or a time: UTC where it names no zone."""

Until = str | datetime | Token
"""`now`, a token, or a time that has been: the last commit at or before it."""


class ChangeBatch:
    """Whole commits of one table."""

    def __init__(
        self, message: pb.ChangeBatch, rows: pa.Table | None = None, stream: ChangeStream | None = None, token: str = ""
    ) -> None:
        self._stream = stream
        self.name = message.table
        """`database.table`."""
        self.token = token or message.token
        """Go on from here: `changes(start=batch.token)`."""
        self.whole = not message.goes_on and not (message.read_the_lake and self.token == message.token)
        """Whether the token lies behind these rows. If not, the token lies before the rows, whose
        commits go on in the next batch: to apply commits whole, apply all batches up to a whole one together."""
        self.schema_id = message.schema_id
        """The version of the table that these rows are in; all of a batch are in one."""
        self.snapshot = message.snapshot
        """Whether this is part of the snapshot that comes first."""
        self.progress = message.progress
        """Whether this has no rows and only says that the stream has come to its token."""
        self.table: pa.Table = _decoded(message) if rows is None else rows
        """The changes: `__change`, `__bucket`, `__offset`, `__timestamp`, then the row."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def ack(self) -> None:
        """Everything up to and with this batch is done: the named subscription goes on behind it, durably.

        A batch that is not `whole` has only a part of a commit, and its own rows do not count yet: they do with the
        batch that ends the commit, and until that one is acknowledged all of the commit comes again.

        In a shared subscription the buckets in the batch are moved, past rows of theirs that were given before, too.
        The `buckets` of a `Fenced` are read by another consumer by now, which gets these changes again; the other
        buckets count, and the stream goes on. If the error's `applied` is "unknown", an answer was lost before (the
        server was restarted, say) and the buckets that are named may have counted: undo nothing of them.
        """
        if self._stream is None or not self._stream.subscription:
            raise Invalid("only batches of a named subscription are acknowledged: changes(subscription='name')")
        self._stream.ack(self.token)

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.table

    def to_pandas(self) -> Any:
        """The rows as a pandas frame."""
        return self.table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts, for looking at."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


class ChangeStream:
    """An iterator of `ChangeBatch`; `next` waits for a time, `close` ends it, from any thread."""

    def __init__(self, transport: Transport, request: pb.ChangesRequest, *, progress: bool = False) -> None:
        self._transport, self._request, self._shows_progress = transport, request, progress
        self._epoch = 0
        self.token = ""
        """The position that the stream has come to: nothing between the last batch and here is for it. Empty before the
        start."""
        self._handed = ("", "")  # the last batch's token, and the newest progress behind it
        self._acked = ""
        self._share = Share()
        self._messages = Resumed(transport, request, self._opened, self._share)
        self._batches = Pulled(self._read(), self._messages.close, self._given)

    @property
    def subscription(self) -> str:
        """The name under which the server keeps the position; empty without one."""
        return self._request.subscription

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChangeBatch]:
        return self

    def __next__(self) -> ChangeBatch:
        try:
            batch = self.next()
        except StreamEnded:
            raise StopIteration from None
        assert batch is not None
        return batch

    def next(self, timeout: float | None = None) -> ChangeBatch | None:
        """The next batch, or None if none comes within `timeout` seconds.

        `Unavailable` when the caller's `lake.within` is over first: the batch comes next time. `StreamEnded` behind the
        last batch of a stream with an end, and once the stream is closed.
        """
        left = seconds_left(float("inf")) if has_deadline() else None
        if left is not None and left <= 0.0:
            raise Unavailable("the time that the caller gave was over before the stream was asked: nothing was sent")
        seconds = timeout if left is None else left if timeout is None else min(timeout, left)
        batch = self._batches.next(seconds)
        if batch is None and left is not None and (timeout is None or left < timeout):
            quiet = Unavailable("no change came within the time that the caller gave: wait again")
            raise copy(self._messages.trouble or quiet)
        return batch

    def ack(self, token: str) -> None:
        """Move the subscription's position, behind the last batch as far as the stream has come; tried again while the
        server cannot be reached, as that moves it once.
        """
        last, progress = self._handed
        self._move(progress if token == last and progress else token)
        self._acked = token

    def _move(self, token: str) -> None:
        member = self._request.member
        if member and not parts_of(position_of(token)):
            return
        asked = pb.AckRequest(subscription=self.subscription, epoch=self._epoch, token=token)
        asked.member, asked.session = member, self._request.session
        try:
            self._transport.ack(asked)
        except Fenced as error:
            if error.buckets:
                self._share.acked(token, {bucket for _, bucket in error.buckets})
            raise
        self._share.acked(token)

    def _opened(self, epoch: int) -> None:
        """Each connection is the subscription's next consumer; batches of an earlier one are still this stream's."""
        self._epoch = epoch

    def close(self) -> None:
        """End the stream, from any thread: one that waits for a batch is woken up. What it held is free then.

        Its batches can still be acknowledged.
        """
        self._batches.close()

    def _read(self) -> Generator[ChangeBatch]:
        for message in self._messages:
            if message.progress and not self._shows_progress:
                self._progressed(message.token)
                continue
            batches = (
                self._lake_snapshot(message) if message.read_the_lake else iter([ChangeBatch(message, stream=self)])
            )
            yield from batches

    def _given(self, batch: ChangeBatch) -> None:
        """A batch is with the caller, and the stream has come to its token: not before, for nobody may ever take it."""
        self.token, self._handed = batch.token, (batch.token, "")

    def _progressed(self, token: str) -> None:
        """Nothing lies between the last batch and here: with that done, so is all before the token."""
        last = self._handed[0]
        self.token, self._handed = token, (last, token)
        if self.subscription and self._acked == last:
            self._move(token)

    def _lake_snapshot(self, message: pb.ChangeBatch) -> Iterator[ChangeBatch]:
        """The snapshot of a table whose old rows are only in the lake: a union read at its cut.

        The rows come in no order, so every batch but the last carries the position of the first: a stream that goes on
        from there reads the table's snapshot again.
        """
        token = position_of(message.token)
        if isinstance(token, LogPosition):
            raise Internal(f"the server names no place in the snapshot of table {message.table}")
        first, last = _ends_of_lake(token)
        with Cut(self._transport, [message.table], at=LogPosition(token.timeline, token.lsn)) as cut:
            scan = cut.plan.scan(message.table)
            asked = self._request.columns
            named = [name for name in asked if name not in SYSTEM_TYPES]
            names = [*LAKE_COLUMNS, *(scan.table.selected(named) if named or not asked else [])]
            condition = condition_text.parse(self._request.where, scan.table) if self._request.where else None
            held: pa.RecordBatch | None = None
            for batch in arrow.execute(cut, scan, names, condition):
                rows = _behind(batch, token)
                if rows.num_rows and held is not None:
                    yield ChangeBatch(message, _inserts(held), self, first)
                held = rows if rows.num_rows else held
            if held is not None:
                yield ChangeBatch(message, _inserts(held), self, last)
            elif parts_of(token):
                with suppress(Fenced):  # who reads these buckets now finds out for itself
                    self.ack(last)


def member_name(subscription: str | None, member: str | None, *, shared: bool) -> str:
    """The name of a consumer that shares a subscription; empty for one that does not."""
    if not shared:
        if member:
            raise Invalid(f"the member name {member!r} is for a shared subscription: say shared=True as well")
        return ""
    if not subscription:
        raise Invalid("shared=True shares a named subscription: say subscription='name' as well")
    return member or f"consumer-{secrets.token_hex(4)}"


def request(
    tables: Sequence[str],
    start: Start,
    until: Until | None,
    columns: Sequence[str] | None,
    subscription: str | None,
    *,
    before_images: bool,
    where: str | None = None,
    member: str = "",
    uuids: Sequence[str] = (),
) -> pb.ChangesRequest:
    """The request of a change stream."""
    return pb.ChangesRequest(
        member=member,
        session=secrets.randbits(63) | 1 if member else 0,
        tables=tables,
        table_uuids=uuids,
        start=times.start_text(start),
        until=times.until_text(until),
        before_images=before_images,
        columns=list(columns or ()),
        subscription=subscription or "",
        lake_snapshot=True,
        where=clock_words.fixed(where or ""),
        progress=True,
    )


def _ends_of_lake(token: SnapshotPosition | SharedPosition) -> tuple[str, str]:
    """The tokens of all batches of a snapshot read from the lake but the last, and of the last."""
    if isinstance(token, SharedPosition):
        return str(replace(token, parts=())), str(token)
    return str(token), str(_after_table(token))


def _after_table(token: SnapshotPosition) -> StreamPosition:
    """The position behind the snapshot of the table that a token's place is in."""
    later = token.tables[token.tables.index(token.place.table) + 1 :]
    place = Place(later[0], 0, 0) if later else None
    return stream_position(token.timeline, token.lsn, token.tables, place)


def _decoded(message: pb.ChangeBatch) -> pa.Table:
    if message.progress:
        return pa.table({})
    with pa.ipc.open_stream(message.rows) as reader:
        return reader.read_all()


def _behind(batch: pa.RecordBatch, token: SnapshotPosition | SharedPosition) -> pa.RecordBatch:
    """The rows from a place on, in the order of buckets and offsets, or those of the buckets that a member reads."""
    buckets, offsets = batch.column(LAKE_BUCKET).to_numpy(), batch.column(LAKE_OFFSET).to_numpy()
    if isinstance(token, SharedPosition):
        begins = np.full(max([*(part.bucket for part in token.parts), int(buckets.max(initial=0))]) + 1, _NEVER)
        for part in token.parts:
            begins[part.bucket] = part.begin
        wanted = offsets >= begins[buckets]
    else:
        bucket, offset = token.place.bucket, token.place.offset
        wanted = (buckets > bucket) | ((buckets == bucket) & (offsets >= offset))
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def _inserts(batch: pa.RecordBatch) -> pa.Table:
    changes = pa.array(np.full(batch.num_rows, "+I"), SYSTEM_TYPES["__change"])
    return pa.Table.from_batches([batch]).add_column(0, "__change", changes)

"""Change streams for users."""

from __future__ import annotations

import atexit
import contextvars
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.client.retry import Backoff, has_deadline, seconds_to_deadline, without_deadline
from lakestore.client.scope import SCOPE, Scope
from lakestore.client.snapshot import head
from lakestore.client.transport import Transport
from lakestore.errors import Fenced, Internal, Invalid, LakestoreError, OtherTimeline, StreamEnded, Unavailable
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
from lakestore.rows import condition_text, ipc, literals
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import ChangeMessage

Bucket = tuple[str, int]


class Share:
    """Where a consumer's buckets begin, and how far it has acknowledged them."""

    def __init__(self) -> None:
        self._begun: dict[Bucket, int] = {}
        self._left: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()
        self._runs: dict[Bucket, int] = {}

    def begun(self, text: str) -> list[int]:
        """The buckets of a message that another consumer has read since. A message is of one table."""
        token = position_of(text)
        lost: list[int] = []
        for part in parts_of(token):
            key = token.tables[part.table], part.bucket
            same = self._begun.get(key, part.begin) == part.begin
            in_between = part.run > self._runs.get(key, part.run)
            if key in self._refused or in_between or not (same or self._left[key] == part.begin):
                lost.append(part.bucket)
            self._runs[key] = max(part.run, self._runs.get(key, 0))
            if self._begun.get(key) != part.begin:
                self._begun[key] = self._left[key] = part.begin
        return lost

    def acked(self, text: str, refused: Collection[int] = ()) -> None:
        """Record that a batch of one table was acknowledged, except for these buckets."""
        token = position_of(text)
        for part in parts_of(token):
            key = token.tables[part.table], part.bucket
            if part.bucket in refused:
                self._refused.add(key)
                continue
            self._refused.discard(key)
            self._left[key] = max(self._left.get(key, 0), part.end)


T = TypeVar("T")
WAIT_SECONDS_MAX = 86_400.0 * 31
JOIN_SECONDS = 5.0


class BackgroundIterator(Generic[T]):
    """Runs a generator one item at a time. Thread-safe."""

    def __init__(self, items: Generator[T], let_go: Callable[[], None], on_item: Callable[[T], None]) -> None:
        """`let_go` releases what the generator holds; garbage collection alone does not. `on_item` is called with each
        item when the caller gets it, before the generator's next step. The item may have been produced long
        before.
        """
        self._items, self._let_go, self._told = items, let_go, on_item
        self._scope, self._outer = Scope(), SCOPE.get()
        self._context = contextvars.copy_context()
        self._context.run(SCOPE.set, self._scope)
        self._context.run(without_deadline)
        self._turn = threading.Lock()
        self._worker: _Worker[T] | None = None
        self._failure: LakestoreError | None = None
        self._is_closed = self._is_finished = False
        if self._outer is not None:
            self._outer.add(self)

    def next(self, seconds: float | None) -> T | None:
        """The next item; None if none comes in time. Raises `StreamEnded` after the last one and after `close`."""
        end = time.monotonic() + min(seconds or 0.0, WAIT_SECONDS_MAX)
        if not self._turn.acquire(timeout=-1 if seconds is None else max(end - time.monotonic(), 0.0)):
            return None
        try:
            if self._failure is not None:
                raise copy(self._failure)
            item = self._taken(None if seconds is None else end)
            if item is not None:
                self._told(item)
            return item
        except LakestoreError as error:
            self._failure = self._failure or error
            raise
        finally:
            self._turn.release()
            if self._is_closed:
                self._finish_if_idle()

    def _taken(self, end: float | None) -> T | None:
        if self._is_closed:
            raise _closed()
        try:
            if end is None and (self._worker is None or not self._worker.is_busy):
                return self._stepped()
            if self._worker is None:
                self._worker = _Worker()
                _OPEN.add(self)
            return self._worker.next(partial(self._context.run, next, self._items), end)
        except StopIteration as error:
            raise StreamEnded("the stream has ended") from error
        except LakestoreError as error:
            if self._is_closed:
                raise _closed() from error
            raise

    def _stepped(self) -> T:
        is_whole = False
        try:
            item = self._context.run(next, self._items)
            is_whole = True
        except (StopIteration, LakestoreError):
            is_whole = True
            raise
        finally:
            if not is_whole:  # an interrupted generator is finished, which must not look like its end
                self._failure = StreamEnded("the stream was interrupted: open another one where it stands")
        return item

    def cancel(self) -> None:
        """End it without waiting for the release."""
        self._is_closed = True
        self._scope.cancel()

    def close(self) -> None:
        """End it. A waiting thread wakes up and releases. Idempotent."""
        self.cancel()
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if not self._turn.acquire(blocking=False):
            return  # the thread that runs the generator does it
        try:
            if not self._is_finished:
                self._is_finished = True
                self._finish()
        finally:
            self._turn.release()

    def _finish(self) -> None:
        if self._outer is not None:
            self._outer.discard(self)
        if self._worker is None:
            self._end()
        else:
            self._worker.end(self._end)

    def _end(self) -> None:
        self._context.run(self._items.close)
        self._context.run(self._let_go)

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None:
            worker.forget()


class _Worker(Generic[T]):
    """A thread that runs one step at a time. An idle thread holds nothing of its iterator."""

    def __init__(self) -> None:
        self.is_busy = False
        """True while the outcome of a step waits for its caller."""
        self._steps: queue.SimpleQueue[Callable[[], T | None] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[T | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._steps, self._outcomes), name="lakestore-stream", daemon=True
        )
        self._thread.start()

    def next(self, step: Callable[[], T], end: float | None) -> T | None:
        if not self.is_busy:
            self._steps.put(step)
            self.is_busy = True
        try:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            outcome = self._outcomes.get(timeout=left)
        except queue.Empty:
            return None
        self.is_busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def end(self, ending: Callable[[], None]) -> None:
        self._steps.put(ending)
        self.forget()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def forget(self) -> None:
        """Let an idle thread end. Takes no lock, so any thread may call it."""
        self._steps.put(None)


def _work(
    steps: queue.SimpleQueue[Callable[[], T | None] | None], outcomes: queue.SimpleQueue[T | BaseException | None]
) -> None:
    while (step := steps.get()) is not None:
        outcomes.put(_outcome(step))
        del step


def _outcome(step: Callable[[], T | None]) -> T | BaseException | None:
    try:
        return step()
    except BaseException as error:  # boundary of the thread: the waiting thread raises it
        return error


def _closed() -> StreamEnded:
    return StreamEnded("the stream is closed: open another one where it stands")


_OPEN: WeakSet[BackgroundIterator[Any]] = WeakSet()


@atexit.register
def _leave() -> None:
    """A thread inside gRPC must not outlive the interpreter."""
    for pulled in list(_OPEN):
        pulled.close()


Ints = npt.NDArray[np.int64]


class DeliveredRows:
    """By table and bucket: the last delivered offset and its number of rows. An update may have two."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._again: dict[tuple[str, int], int] = {}  # rows of the last offset that this connection has repeated

    def reconnected(self) -> None:
        """From now on rows may be repeated."""
        self._again = {}

    def forget(self, table: str, bucket: int) -> None:
        """From now on rows of a bucket may be repeated."""
        self._last.pop((table, bucket), None)
        self._again.pop((table, bucket), None)

    def add(self, table: str, buckets: Ints, offsets: Ints) -> None:
        for bucket in np.unique(buckets).tolist():
            here = offsets[buckets == bucket]
            last = int(here[-1])
            before, count = self._last.get((table, bucket), (-1, 0))
            handed = (count if before == last else 0) + int((here == last).sum())
            self._last[table, bucket] = last, handed
            self._again[table, bucket] = handed  # this connection has sent all of them

    def fresh(self, table: str, buckets: Ints, offsets: Ints) -> npt.NDArray[np.bool_]:
        """True for each row that was not delivered yet."""
        mask = np.ones(len(offsets), dtype=np.bool_)
        for bucket in np.unique(buckets).tolist():
            key = (table, bucket)
            last, count = self._last.get(key, (-1, 0))
            here = np.flatnonzero(buckets == bucket)
            mask[here[offsets[here] < last]] = False
            repeated = here[offsets[here] == last][: count - self._again.get(key, 0)]
            mask[repeated] = False
            self._again[key] = self._again.get(key, 0) + len(repeated)
        return mask


class ResumingStream:
    """The messages of a request over any number of connections. `opened` gets a subscription's epoch."""

    def __init__(
        self,
        transport: Transport,
        request: pb.ChangesRequest,
        on_open: Callable[[int], None] = lambda _: None,
        share: Share | None = None,
    ) -> None:
        fixed = pb.ChangesRequest()
        fixed.CopyFrom(request)
        if request.start == "latest" and not request.subscription:
            fixed.start = head(transport)
        if request.until == "now":
            fixed.until = head(transport)
        self._transport, self._request, self._opened = transport, fixed, on_open
        self._handed, self._backoff = _Handed(fixed, share or Share()), Backoff()
        self._messages: Iterator[ChangeMessage] | None = None
        self._ended, self._begins = False, True
        self.trouble: LakestoreError | None = None
        """The failure that made the stream reconnect; None while it runs."""

    def __iter__(self) -> Iterator[ChangeMessage]:
        return self

    def __next__(self) -> ChangeMessage:
        while not self._ended:
            if self._messages is None:
                self._messages, self._begins = self._transport.changes(self._request), True
            try:
                message = next(self._messages)
            except StopIteration:
                self._ended = True
                break
            except LakestoreError as error:
                self._messages, self.trouble = None, error
                if not self._backoff.wait(error):
                    self._ended = True
                    raise
                self._handed.broken()
                continue
            self._backoff.reset()
            self.trouble = None
            if self._begins and message.token:
                self._bind(position_of(message.token))
            self._opened(message.subscription_epoch)
            fresh = self._handed.fresh(message)
            if fresh is not None:
                return fresh
        raise StopIteration

    def _bind(self, token: Token) -> None:
        self._begins, request = False, self._request
        if request.timeline not in ("", token.timeline):  # a server that is too old to refuse it
            self._ended = True
            raise OtherTimeline("what this stream has handed out belongs to another history: the server was restored")
        request.timeline, request.table_uuids[:] = token.timeline, token.tables

    def close(self) -> None:
        self._ended = True
        messages, self._messages = self._messages, None
        close = getattr(messages, "close", None)
        if close:
            close()


class _Handed:
    """The rows that the caller has received over all connections."""

    def __init__(self, request: pb.ChangesRequest, share: Share) -> None:
        self._request, self._share = request, share
        self._seen = DeliveredRows()
        self._since: list[ChangeMessage] = []  # not in `_seen` yet; messages after the newest token are forgotten
        self._lakes: set[tuple[str, str]] = set()
        self._again = False

    def fresh(self, message: ChangeMessage) -> ChangeMessage | None:
        if self._request.member:
            for bucket in self._share.begun(message.token):
                self._seen.forget(_table(message), bucket)
        left: ChangeMessage | None = _fresh(message, self._seen) if self._again else message
        if message.read_the_lake:  # the caller reads that snapshot itself, once
            left = None if (message.table, message.token) in self._lakes else message
            self._lakes.add((message.table, message.token))
        if message.token != self._request.start and not self._request.subscription:
            self._since.clear()
        if left is not None:
            self._since.append(left)
        if self._request.subscription:
            _remember(self._since, self._seen)
        if not self._request.member:  # tokens of a shared subscription only acknowledge
            self._request.start = message.token or self._request.start
        return left

    def broken(self) -> None:
        _remember(self._since, self._seen)
        self._seen.reconnected()
        self._again = True


def _remember(since: list[ChangeMessage], delivered: DeliveredRows) -> None:
    for message in since:
        if message.rows:
            with pa.ipc.open_stream(message.rows) as reader:
                for batch in reader:
                    delivered.add(_table(message), *_places(batch))
    since.clear()


def _fresh(message: ChangeMessage, delivered: DeliveredRows) -> ChangeMessage | None:
    if not message.rows:
        return message
    with pa.ipc.open_stream(message.rows) as reader:
        schema, batches = reader.schema, list(reader)
    kept = []
    for batch in batches:
        mask = delivered.fresh(_table(message), *_places(batch))
        kept.append(batch if mask.all() else batch.filter(pa.array(mask)))
    if all(left is batch for left, batch in zip(kept, batches, strict=True)):
        return message
    if not sum(batch.num_rows for batch in kept):
        return None
    return replace(message, rows=ipc.encode(schema, kept))


def _table(message: ChangeMessage) -> str:
    return message.table_uuid or message.table


def _places(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    names = batch.schema.names
    buckets = batch.column(names.index("__bucket")).to_numpy().astype(np.int64)
    return buckets, batch.column(names.index("__offset")).to_numpy()


_NEVER = np.iinfo(np.int64).max
Start = str | datetime | Token
"""`earliest`, `latest`, `snapshot`, a token, or a time (UTC without a zone)."""

Until = str | datetime | Token
"""`now`, a token, or a past time: the last commit at or before it."""


class ChangeBatch:
    """Whole commits of one table."""

    def __init__(
        self, message: ChangeMessage, rows: pa.Table | None = None, stream: ChangeStream | None = None, token: str = ""
    ) -> None:
        self._stream = stream
        self.name = message.table
        self.token = token or message.token
        """Start here to continue: `changes(start=batch.token)`."""
        self.whole = not message.goes_on and not (message.read_the_lake and self.token == message.token)
        """True if the token is after these rows. Otherwise the token is before them and their commits continue in
        the next batch: to apply commits whole, apply all batches up to a whole one together.
        """
        self.schema_id = message.schema_id
        """The table version of these rows; a batch has one version."""
        self.snapshot = message.snapshot
        self.progress = message.progress
        """True for a batch without rows that only reports the stream's position."""
        self.table: pa.Table = _decoded(message) if rows is None else rows
        """The changes: `__change`, `__bucket`, `__offset`, `__timestamp`, then the row."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def ack(self) -> None:
        """Acknowledge everything up to and including this batch. The named subscription continues after it, durably.

        A batch that is not `whole` holds part of a commit. Its rows count as done with the batch that ends the commit;
        until that batch is acknowledged the whole commit is sent again.

        In a shared subscription the batch's buckets move, past earlier rows too. `Fenced` lists `buckets` that another
        consumer reads now and receives again; the other buckets count, and the stream continues. If its `applied` is
        "unknown", an answer was lost (a server restart, for example) and the listed buckets may have counted: undo
        nothing of them.
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
        """The rows as dicts, for display."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


class ChangeStream:
    """An iterator of `ChangeBatch`. `next` waits for a time, `close` ends it, from any thread."""

    def __init__(self, transport: Transport, request: pb.ChangesRequest, *, progress: bool = False) -> None:
        self._transport, self._request, self._shows_progress = transport, request, progress
        self._epoch = 0
        self.token = ""
        """The stream's position: everything up to here was delivered or is irrelevant. Empty before the start."""
        self._handed = ("", "")  # last batch's token, and the newest progress after it
        self._acked = ""
        self._share = Share()
        self._messages = ResumingStream(transport, request, self._opened, self._share)
        self._batches = BackgroundIterator(self._read(), self._messages.close, self._given)

    @property
    def subscription(self) -> str:
        """Name under which the server keeps the position; empty without one."""
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

        Raises `Unavailable` if `lake.within` expires first; the batch comes next time. Raises `StreamEnded` after the
        last batch and after `close`.
        """
        left = seconds_to_deadline(float("inf")) if has_deadline() else None
        if left is not None and left <= 0.0:
            raise Unavailable("the caller's deadline passed before the stream was read: nothing was sent")
        seconds = timeout if left is None else left if timeout is None else min(timeout, left)
        batch = self._batches.next(seconds)
        if batch is None and left is not None and (timeout is None or left < timeout):
            quiet = Unavailable("no change came before the caller's deadline: wait again")
            raise copy(self._messages.trouble or quiet)
        return batch

    def ack(self, token: str) -> None:
        """Move the subscription's position. After the last batch, move it as far as the stream has come. Retried
        while the server is unreachable, because moving it twice is harmless.
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
        """Each connection is the subscription's next consumer. Earlier batches still belong to this stream."""
        self._epoch = epoch

    def close(self) -> None:
        """End the stream, from any thread. A thread that waits for a batch wakes up, and resources are released.

        Delivered batches can still be acknowledged.
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
        """The stream reaches a batch's token when the caller has the batch, because it might never take it."""
        self.token, self._handed = batch.token, (batch.token, "")

    def _progressed(self, token: str) -> None:
        """Nothing lies between the last batch and this token, so the batch's end is the token."""
        last = self._handed[0]
        self.token, self._handed = token, (last, token)
        if self.subscription and self._acked == last:
            self._move(token)

    def _lake_snapshot(self, message: ChangeMessage) -> Iterator[ChangeBatch]:
        """The snapshot of a table whose old rows are only in the lake: a union read at its cut.

        The rows come in no order, so every batch but the last has the position of the first. A stream that continues
        there reads the snapshot again.
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
                with suppress(Fenced):  # the new reader of these buckets finds out itself
                    self.ack(last)


def member_name(subscription: str | None, member: str | None, *, shared: bool) -> str:
    """A consumer's name in a shared subscription; empty if it does not share."""
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
        where=literals.fixed(where or ""),
        progress=True,
    )


def _ends_of_lake(token: SnapshotPosition | SharedPosition) -> tuple[str, str]:
    if isinstance(token, SharedPosition):
        return str(replace(token, parts=())), str(token)
    return str(token), str(_after_table(token))


def _after_table(token: SnapshotPosition) -> StreamPosition:
    later = token.tables[token.tables.index(token.place.table) + 1 :]
    place = Place(later[0], 0, 0) if later else None
    return stream_position(token.timeline, token.lsn, token.tables, place)


def _decoded(message: ChangeMessage) -> pa.Table:
    if message.progress:
        return pa.table({})
    with pa.ipc.open_stream(message.rows) as reader:
        return reader.read_all()


def _behind(batch: pa.RecordBatch, token: SnapshotPosition | SharedPosition) -> pa.RecordBatch:
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

"""`table.writer()`: pipelined, batching, idempotent.

- Calls put rows in a buffer and return. One stream sends them as commits, several in flight.
- If a stream breaks, unanswered commits are sent again on the next one with the same sequence.
- Rows count against the window until they are answered.
- After a failure nothing more is applied; `unconfirmed` has the rows in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.client.producer import History, Producer, is_over
from lakestore.client.retry import Backoff, seconds_to_deadline
from lakestore.client.transport import PROCESS, Transport, message_bytes
from lakestore.errors import Exhausted, Internal, Invalid, LakestoreError, Unavailable
from lakestore.model.columns import AS_OF, KEEP_PREFIX, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows import ipc, user
from lakestore.rows.ranges import check_row, pieces
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import CommitMessage
from lakestore.wire.errors import error_of_message
from lakestore.wire.fields import ROWS_MIN, Rows

Keep = Sequence[str] | Mapping[str, Any]
"""Columns that all rows keep, or column to a flag for each row."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a change."""

    keep: tuple[str, ...] = ()
    as_of: bool = False


NO_MARKS = Marks()
_TIME = SYSTEM_TYPES["__timestamp"]


def with_marks(batch: pa.RecordBatch, keep: Keep = (), as_of: Any = None) -> tuple[pa.RecordBatch, Marks]:
    """Add the rows' marks as columns. `as_of` has a time (UTC without a zone) or None for each row."""
    keep = _names(keep)
    if isinstance(keep, Mapping):
        for name, flags in keep.items():
            column = _column(f"keep={{{name!r}: …}}", flags, pa.bool_(), batch.num_rows)
            batch = batch.append_column(f"{KEEP_PREFIX}{name}", column)
    if as_of is not None:
        batch = batch.append_column(AS_OF, _column("as_of=", as_of, _TIME, batch.num_rows))
    return batch, Marks(tuple(keep), as_of is not None)


def _names(keep: Any) -> Keep:
    """Check `keep`. Raises `Invalid` if it names no columns."""
    if isinstance(keep, str):
        raise Invalid(f"keep= is a list of column names, not the text {keep!r}")
    named: Any = keep if isinstance(keep, Mapping) else list(keep) if isinstance(keep, Iterable) else [keep]
    for name in named:
        if not isinstance(name, str):
            raise Invalid(f"keep= takes names of columns, not {name!r}")
        _check_text("keep=", name)
    kept: Keep = named
    return kept


def _check_text(what: str, text: Any) -> None:
    """Raise `Invalid` for what is no text that a message may have."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise Invalid(f"{what} takes text that UTF-8 can express, not {text!r}") from error


def _column(what: str, values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    try:
        found = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
        found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        if kind == _TIME and pa.types.is_integer(found.type):
            raise TypeError("integers tell no unit of time")
        found = pc.cast(found, options=pc.CastOptions(kind, allow_time_truncate=True))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Invalid(f"{what} has no {kind} for each row: {error}") from error
    if len(found) != rows:
        raise Invalid(f"{what} has {len(found)} values for {rows} rows")
    return found


IN_FLIGHT_MAX = 16
SHARE_SECONDS, SHARE_BYTES = 0.005, 64 << 10
"""A commit of fewer bytes waits for more rows while another commit is unanswered, for so many seconds at most. Without
this wait, each row would wait for sixteen small commits before it.
"""
COMMIT_ROWS_MAX = 100_000
COMMIT_BYTES_MAX = 8 << 20
WINDOW_BYTES = 128 << 20
PUT_SECONDS = 120.0
"""The longest wait for room in the window; longer than a stream is retried."""


@dataclass(slots=True)
class _Pending:
    kind: pb.ChangeKind.ValueType
    batches: list[pa.RecordBatch]
    """Several if the rows name different columns and the merge engine depends on that."""
    progress: str
    marks: Marks = NO_MARKS
    nbytes: int = field(init=False)
    """Bytes of the rows as messages, stored because Arrow recounts them at each call."""

    def __post_init__(self) -> None:
        self.nbytes = sum(map(ipc.message_size, self.batches))

    def joins(self, other: _Pending) -> bool:
        alike = (self.kind, self.marks) == (other.kind, other.marks) and len(self.batches) == len(other.batches) == 1
        return alike and bool(self.batches[0].schema == other.batches[0].schema)


class _Bundle:
    """Rows in the buffer that share a commit."""

    def __init__(self, first: _Pending) -> None:
        self.parts, self.nbytes = [first], first.nbytes
        self._rows = first.batches[0].num_rows

    def add(self, pending: _Pending, bytes_max: int) -> bool:
        """Take the rows too. False if they need a commit of their own."""
        rows, nbytes = self._rows + pending.batches[0].num_rows, self.nbytes + pending.nbytes
        if rows > COMMIT_ROWS_MAX or nbytes > bytes_max or not pending.joins(self.parts[0]):
            return False
        self.parts.append(pending)
        self._rows, self.nbytes = rows, nbytes
        return True


def _put_into(bundles: deque[_Bundle], pending: _Pending, bytes_max: int) -> None:
    """Add rows to the last bundle, or to a new one if they need a commit of their own."""
    if not bundles or not bundles[-1].add(pending, bytes_max):
        bundles.append(_Bundle(pending))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows as one batch, which a server takes without a copy; as they are if their dictionaries may differ."""
    if len(batches) == 1 or ipc.has_dictionary(batches[0].schema):
        return batches
    return [pa.concat_batches(batches)]


def _defect(error: Exception) -> Internal:
    return Internal(f"a defect of the writer: {error!r}")


class Writer:
    """Writes rows of one table. Thread-safe. A context manager that flushes at its end."""

    def __init__(
        self,
        transport: Transport,
        table: Table,
        producer: Producer,
        window_bytes: int = WINDOW_BYTES,
        history: History | None = None,
    ) -> None:
        self._window_bytes = window_bytes
        self._transport, self._table, self._producer = transport, table, producer
        self._history = history or History(transport)
        self._state = threading.Condition()
        self._buffer: deque[_Bundle] = deque()
        self._share_until = 0.0
        """The time from which a small commit no longer waits for others."""
        self._held_bytes = 0
        self._sent: dict[int, list[_Pending]] = {}
        self._doubtful: set[int] = set()  # sequences that a broken stream may have delivered
        self._is_reported = False
        self._unanswered: deque[CommitMessage] = deque()
        self._resend: deque[CommitMessage] = deque()
        self._failure: LakestoreError | None = None
        self._closing = False
        self._stream = 0
        self.token = ""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> str:
        """The producer's last progress, as returned when it was opened."""
        return self._producer.progress

    def append(self, data: Any, *, progress: str = "") -> None:
        """Add rows to a log table."""
        self._put(pb.APPEND, data, progress)

    def upsert(self, data: Any, *, progress: str = "", keep: Keep = ()) -> None:
        """Insert or update rows; `keep` as in `Table.upsert`. `NothingToKeep` counts from the first unconfirmed."""
        self._put(pb.UPSERT, data, progress, keep)

    def insert_if_absent(self, data: Any, *, progress: str = "") -> None:
        """Insert rows whose keys do not exist."""
        self._put(pb.INSERT, data, progress)

    def delete(self, data: Any, *, progress: str = "") -> None:
        """Delete keys."""
        self._put(pb.DELETE, data, progress)

    def _put(self, kind: pb.ChangeKind.ValueType, data: Any, progress: str, keep: Keep = ()) -> None:
        PROCESS.check()
        _check_text("progress=", progress)
        waiting: Any = None
        for part in (data,) if keep else user.streamed(data):
            if waiting is not None:
                self._put_rows(kind, waiting, "")
            waiting = part
        if waiting is not None:
            self._put_rows(kind, waiting, progress, keep)

    def _put_rows(self, kind: pb.ChangeKind.ValueType, data: Any, progress: str, keep: Keep = ()) -> None:
        marks, parts = NO_MARKS, [data] if keep else user.by_columns(data, self._table)
        batches = [user.from_user(part, self._table.schema) for part in parts]
        if keep:
            batches[0], marks = with_marks(batches[0], keep)
        for pending in self._cut(_Pending(kind, batches, progress, marks)):
            self._add(pending)

    def _cut(self, pending: _Pending) -> list[_Pending]:
        """Split rows into commits that fit in a message. The progress goes with the last one."""
        message, most = message_bytes(self._transport.server), self._commit_bytes
        if pending.nbytes <= most:
            return [pending]
        row, cut = 0, list[_Pending]()
        for batch in pending.batches:
            for piece in pieces(batch, most):
                check_row(self._table.name, piece, row, message)
                row += piece.num_rows
                cut.append(_Pending(pending.kind, [piece], "", pending.marks))
        cut[-1].progress = pending.progress
        return cut

    @property
    def _commit_bytes(self) -> int:
        return min(COMMIT_BYTES_MAX, message_bytes(self._transport.server) // 2)

    def _add(self, pending: _Pending) -> None:
        with self._state:
            room = self._state.wait_for(lambda: self._has_room(pending.nbytes), seconds_to_deadline(PUT_SECONDS))
            if self._closing:
                raise Invalid("the writer is closed")
            self._raise_failure()
            if not room:
                raise Exhausted("the server does not keep up and the writer's window is full: write more slowly")
            _put_into(self._buffer, pending, self._commit_bytes)
            self._held_bytes += pending.nbytes
            self._state.notify_all()

    def _has_room(self, size: int) -> bool:
        fits = not self._held_bytes or self._held_bytes + size <= self._window_bytes
        return bool(fits or self._failure or self._closing)

    @property
    def unconfirmed(self) -> list[pa.RecordBatch]:
        """Rows without a confirmation, in order. After a failure that was not applied, none is applied. After an
        unknown outcome, the first ones may be.
        """
        with self._state:
            waiting = [pending for request in self._unanswered for pending in self._sent[request.sequence]]
            buffered = [pending for bundle in self._buffer for pending in bundle.parts]
            return [batch for pending in (*waiting, *buffered) for batch in pending.batches]

    def flush(self) -> str:
        """Wait until everything is durable. Returns the last commit's token."""
        PROCESS.check()
        with self._state:
            done = self._state.wait_for(
                lambda: self._failure or self._closing or not (self._buffer or self._unanswered),
                seconds_to_deadline(threading.TIMEOUT_MAX),
            )
            self._raise_failure()
            if not done:
                raise Unavailable("not everything is durable in time: flush again", applied="unknown")
            if self._buffer or self._unanswered:
                raise Invalid("the writer was closed before everything was written")
            return self.token

    def close(self) -> None:
        """Flush and end. A failure that a call has raised is not raised again."""
        try:
            if not self._is_reported:
                self.flush()
        finally:
            with self._state:
                self._closing = True
                self._state.notify_all()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with self._state:
            self._closing = True
            self._state.notify_all()

    def _raise_failure(self) -> None:
        if self._failure:
            self._is_reported = True
            raise self._failure

    def _is_over(self) -> bool:
        return self._closing or self._failure is not None

    # The rest runs on the writer's thread, `_requests` on the stream's.

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._fail(_defect(error), is_ours=True)

    def _write(self) -> None:
        backoff = Backoff()
        while not self._is_over():
            try:
                for answer in self._transport.write(self._requests()):
                    self._answered(answer)
                    backoff.reset()
                if not self._is_over() and not backoff.wait(Unavailable("the server ended the stream")):
                    self._fail(Unavailable("the server keeps ending the stream: try again later", applied="unknown"))
                    return
            except LakestoreError as error:
                self._doubt(error)
                if not self._goes_on(error, backoff):
                    return

    def _goes_on(self, error: LakestoreError, backoff: Backoff) -> bool:
        """True if another stream is opened after an error. Otherwise the writer has failed."""
        try:
            anew = self._begins_anew(error)
        except LakestoreError as failure:
            self._fail(failure)
            return False
        if anew or backoff.wait(error):
            return True
        self._fail(error)
        return False

    def _begins_anew(self, error: LakestoreError) -> bool:
        """Continue under a new name after an error that ends the producer. Returns False if the name was not drawn
        or an outcome is unknown.

        If the server refuses the first commit for this reason it refuses all later ones, so everything unanswered is
        sent again.
        """
        if not is_over(error) or self._producer.born is None or self._doubtful:
            return False
        point = self._history.renew()
        with self._state:
            self._producer = Producer.drawn(point)
            sent = [self._sent.pop(request.sequence) for request in self._unanswered]
            for request, batches in zip(self._unanswered, sent, strict=True):
                self._producer.sign(request.request)
                self._sent[request.sequence] = batches
        return True

    def _requests(self) -> Iterator[CommitMessage]:
        with self._state:
            self._stream += 1
            stream = self._stream
            self._resend = deque(self._unanswered)
        while (request := self._sendable(stream)) is not None:
            yield request

    def _sendable(self, stream: int) -> CommitMessage | None:
        """`_next`; None if it fails, and then the writer has failed. gRPC would take the exception for a lost
        connection."""
        try:
            return self._next(stream)
        except (pa.ArrowException, MemoryError) as error:
            self._fail(Exhausted(f"the rows of a commit cannot be encoded: {error}"), is_ours=True)
        except Exception as error:
            self._fail(_defect(error), is_ours=True)
        return None

    def _next(self, stream: int) -> CommitMessage | None:
        with self._state:
            while not (self._stream != stream or self._closing or self._failure or self._ready()):
                self._state.wait(max(self._share_until - time.monotonic(), 0.0) if self._may_send() else None)
            if self._stream != stream or self._closing or self._failure:
                return None
            if self._resend:
                return self._resend.popleft()
            if not self._fit():
                return None
            batches = self._buffer[0].parts
            self._share_until = time.monotonic() + SHARE_SECONDS
            progress = next((each.progress for each in reversed(batches) if each.progress), "")
            request = CommitMessage(self._producer.request([], progress))
            self._buffer.popleft()
            self._unanswered.append(request)
            self._sent[request.sequence] = batches
            self._state.notify_all()
        changes = self._encoded(batches)
        with self._state:
            for number, (change, rows) in enumerate(changes):
                request.request.changes.append(change)
                if rows:
                    request.rows[number] = rows
            self._state.notify_all()
        return request

    def _encoded(self, bundle: Sequence[_Pending]) -> list[tuple[pb.Change, Rows]]:
        first = bundle[0]
        several = len(first.batches) > 1
        parts = [[batch] for batch in first.batches] if several else [_joined([each.batches[0] for each in bundle])]
        return [change_beside(self._table, first.kind, part, first.marks) for part in parts]

    def _fit(self) -> bool:
        """Split the first bundle if the server of this stream takes smaller messages than the one it was filled for.
        False if a row of it is too large for the server: the writer has failed."""
        if self._buffer[0].nbytes <= self._commit_bytes:
            return True
        try:
            cut = [piece for pending in self._buffer[0].parts for piece in self._cut(pending)]
        except Invalid as error:
            self._fail(error, is_ours=True)
            return False
        self._held_bytes += sum(piece.nbytes for piece in cut) - self._buffer.popleft().nbytes
        bundles = deque[_Bundle]()
        for piece in cut:
            _put_into(bundles, piece, self._commit_bytes)
        self._buffer.extendleft(reversed(bundles))
        return True

    def _ready(self) -> bool:
        if self._resend:
            return bool(self._resend[0].request.changes)
        if not self._may_send():
            return False
        is_whole = len(self._buffer) > 1 or self._buffer[0].nbytes >= SHARE_BYTES
        return is_whole or not self._unanswered or time.monotonic() >= self._share_until

    def _may_send(self) -> bool:
        return bool(self._buffer) and not self._resend and len(self._unanswered) < IN_FLIGHT_MAX

    def _answered(self, answer: pb.CommitAnswer) -> None:
        if answer.HasField("error"):
            raise error_of_message(answer.error)
        with self._state:
            while self._unanswered and self._unanswered[0].sequence <= answer.sequence:
                sequence = self._unanswered.popleft().sequence
                self._held_bytes -= sum(pending.nbytes for pending in self._sent.pop(sequence))
                self._doubtful.discard(sequence)
            self.token = answer.token
            self._state.notify_all()

    def _doubt(self, error: LakestoreError) -> None:
        if error.applied == "unknown":
            with self._state:
                self._doubtful.update(request.sequence for request in self._unanswered)

    def _fail(self, error: LakestoreError, *, is_ours: bool = False) -> None:
        """End the writer. `is_ours` is a failure that no server has told, so earlier commits may still be applied."""
        with self._state:
            first = next(iter(self._unanswered), None)
            if first is not None and (first.sequence in self._doubtful or (is_ours and first.request.changes)):
                error.applied = "unknown"
            self._failure = error
            self._state.notify_all()


def change(
    table: str, kind: pb.ChangeKind.ValueType, batches: list[pa.RecordBatch], schema_id: int | None = None
) -> pb.Change:
    """Rows as a change for any table of the name, in a schema version; default: the server's newest."""
    data = ipc.encode(batches[0].schema, batches)
    return pb.Change(table=table, kind=kind, rows=data, crc32c=ipc.crc32c(data), schema_id=schema_id)


def change_to(
    table: Table, kind: pb.ChangeKind.ValueType, batches: list[pa.RecordBatch], marks: Marks = NO_MARKS
) -> pb.Change:
    """Rows as a change for this table, in its version and with their marks."""
    made, rows = change_beside(table, kind, batches, marks)
    made.rows = made.rows or b"".join(rows)
    return made


def change_beside(
    table: Table, kind: pb.ChangeKind.ValueType, batches: list[pa.RecordBatch], marks: Marks = NO_MARKS
) -> tuple[pb.Change, Rows]:
    """The change of `change_to`; large rows are returned separately."""
    rows = ipc.encoded_parts(batches[0].schema, batches)
    made = pb.Change(table=table.name, kind=kind, crc32c=ipc.crc32c_of(rows), schema_id=table.schema_id)
    made.table_uuid = table.uuid
    made.keep.extend(marks.keep)
    made.as_of = marks.as_of
    if sum(map(len, rows)) >= ROWS_MIN:
        return made, rows
    made.rows = b"".join(rows)
    return made, ()

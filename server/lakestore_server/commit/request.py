"""A commit request on its way to the commit loop: decoded, checked, cast, keyed and routed.

The work is done in the threads of the callers; nothing here changes state. Rows of a change are sorted by bucket, so
that each bucket's part is a slice.
Rows of a producer name the version whose names they use: older names are followed by id; a column that is gone, or a
required one that is missing, is refused with what to do; one that is not named has its default. A refusal waits its
turn on the loop too, so that the retry of a commit from before an alteration gets its first answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict, Corrupt, Invalid, NotFound
from lakestore.limits import DEFAULT, WIDEST, Limits
from lakestore.model.projection import Projection, check_present, renamed
from lakestore.model.table import Table
from lakestore.rows import bitmaps, ipc, keys
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import row_limit, row_marks
from lakestore_server.commit.moves import NONE, Moves
from lakestore_server.commit.row_marks import NO_MARKS, RowMarks
from lakestore_server.files.block_crcs import extended
from lakestore_server.host.permits import Claim
from lakestore_server.host.stages import stage
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import NO_KEYS, IndexKeys, bytes_each, encoded
from lakestore_server.state.chunk import Ints
from lakestore_server.state.commit_record import Answer
from lakestore_server.state.journal import RowsMessage
from lakestore_server.state.producers import is_drawn
from lakestore_server.state.table_versions import Versions
from lakestore_server.state.view import View

Refusal = Invalid | NotFound | Conflict | Corrupt
"""The reason why the rows of a request cannot be taken."""
REFUSALS = (Invalid, NotFound, Conflict, Corrupt)


@dataclass(frozen=True, slots=True)
class Change:
    """Rows for one table."""

    table: Table
    batch: pa.RecordBatch
    """In the storage schema, sorted by bucket."""
    buckets: npt.NDArray[np.int32]
    keys: IndexKeys
    """Index keys; empty for log tables."""
    delete: bool
    given: frozenset[int]
    """Ids of the columns that the rows name."""
    insert: bool = False
    """Only rows of keys that are not there."""
    marks: RowMarks = NO_MARKS
    is_shown: bool = False
    """Whether the answer has the rows that are there behind the commit."""
    hint: Hint | None = None
    """Values that its keys had in the index before it was queued, if they are many."""
    message: RowsMessage | None = None
    """The batch as the Arrow message that came, if it has not changed since; None: it is yet to be made."""

    @property
    def is_remembered(self) -> bool:
        """Whether its deletes name versions, and so leave a record of keys without a row, too."""
        merge = self.table.merge
        if not self.delete or merge.engine != "versioned" or self.table.deletes != "allow":
            return False
        return self.table.column(merge.column).id in self.given

    def taken(self, rows: Ints) -> Change:
        """Some of its rows, which ascend."""
        batch, keys = self.batch.take(pa.array(rows)), self.keys.take(rows)
        marks = self.marks.taken(rows)
        return replace(self, batch=batch, buckets=self.buckets[rows], keys=keys, marks=marks, hint=None, message=None)

    @property
    def nbytes(self) -> int:
        """The memory of its rows, and of what is known of them."""
        hinted = self.hint.values.nbytes if self.hint is not None else 0
        return int(self.batch.nbytes) + self.keys.nbytes + self.marks.nbytes + hinted


@dataclass(slots=True, eq=False)
class Request:
    """A request of one producer: the work that the commit loop puts into a group."""

    changes: tuple[Change, ...]
    producer: str = ""
    epoch: int = 0
    sequence: int = 0
    progress: str = ""
    refusal: Refusal | None = None
    """Why the rows cannot be taken; the commit loop says so, unless the request was answered before."""
    timeline: str = ""
    """The history that the client means; empty for a client that does not say."""
    born: int | None = None
    """The LSN up to which the client had seen the history when it drew the producer's name; None if it did not say."""
    owner: str = ""
    """The principal that sent it."""
    moves: Moves = NONE
    """Registers that move with it, or it is refused."""
    parts: tuple[str, ...] = ()
    """Ids of the parts that have rows of it."""
    answer: Future[Answer] = field(default_factory=Future)
    queued: float = 0.0
    """When, in monotonic seconds; set by the engine."""
    nbytes: int = field(init=False)
    """Weight in the queue."""

    def __post_init__(self) -> None:
        self._weigh()

    def _weigh(self) -> None:
        self.nbytes = 1024 + sum(change.nbytes for change in self.changes) + self.moves.nbytes

    def take_hints(self, hints: Iterator[Hint | None]) -> None:
        """Give each change the next hint."""
        self.changes = tuple(replace(change, hint=next(hints)) for change in self.changes)
        self._weigh()

    @staticmethod
    def of(
        message: pb.CommitRequest,
        changes: tuple[Change, ...],
        refusal: Refusal | None,
        moves: Moves = NONE,
    ) -> Request:
        """A request as it came off the wire, with its changes and moves decoded."""
        return Request(
            changes,
            message.producer,
            message.epoch,
            message.sequence,
            message.progress,
            refusal,
            message.timeline,
            message.born if message.HasField("born") else None,
            message.owner,
            moves,
            tuple([change.part for change in message.changes if change.part]),
        )

    @property
    def ordered_by(self) -> tuple[tuple[str, str], ...]:
        """Names of which requests stay in the order in which they came: the producer's, and those of registers."""
        names = tuple(("register", move.register) for move in self.moves.each)
        return (("producer", self.producer), *names) if self.producer else names

    @property
    def is_named(self) -> bool:
        """Whether a user named the producer, and a client did not draw its name at random."""
        return self.born is None and not is_drawn(self.producer, self.epoch)


def change_of(
    versions: Versions,
    message: pb.Change,
    producer: str,
    limits: Limits = DEFAULT,
    claim: Claim | None = None,
    rows: pa.Buffer | None = None,
) -> Change:
    """A change as it came off the wire, in the current version; names are those of the version that it says.

    `claim` is told of memory that the message's length does not show, before it is taken. `rows` are those that stand
    beside the message.
    """
    table = versions.current
    kind = pb.ChangeKind.Name(message.kind)
    if kind not in ("APPEND", "UPSERT", "DELETE", "INSERT"):
        raise Invalid("a change has no kind")
    if table.keyed == (kind == "APPEND"):
        wanted = "upsert, insert and delete" if table.keyed else "append"
        raise Invalid(f"table {table.name} takes {wanted}, not {kind.lower()}")
    delete = kind == "DELETE"
    _check_deletes(table, delete=delete)
    source = versions.numbered(message.schema_id) if message.HasField("schema_id") else table
    sent, as_sent = _decoded(message.rows if rows is None else rows, message.crc32c, limits)
    stage()
    batch = sent
    if len(set(batch.schema.names)) < len(batch.schema.names):
        raise Invalid(f"table {table.name}: the rows have a column twice")
    batch, marks = row_marks.split(batch, message, source, table, claim)
    if delete:
        batch = _of_a_delete(batch, source)
    named = renamed(batch, source, table)
    names = set(named.schema.names)
    given = frozenset(column.id for column in table.columns if column.name in names) | marks.columns
    if delete:
        only = [*table.primary_key, *(name for name in table.merge.version if name in names)]
        batch = ipc.conform(named, table, keys_only=True, only=only, limits=limits, claim=claim)
    else:
        batch = ipc.conform(_contributions(named, table), marks.loosened(table), limits=limits, claim=claim)
        marks.check_required(batch, table)
    if claim is not None and table.keyed:
        claim(batch.num_rows * bytes_each([table.column(name).arrow.type for name in table.primary_key]))
    row_limit.check(batch, table, limits.message_bytes)
    if batch is not sent:
        as_sent = None
    stage()
    routed = _routed(table, batch, given, kind, marks, as_sent, producer=producer, limits=limits)
    return replace(routed, is_shown=routed.insert) if message.want_rows else routed


def _decoded(data: bytes | pa.Buffer, crc: int, limits: Limits) -> tuple[pa.RecordBatch, RowsMessage | None]:
    """Rows as one validated batch, and as they came if that is one message: with the checksums that the journal and an
    extent need, which are found while that of the rows is checked. To go through them again costs as much as to copy.
    """
    if not isinstance(data, pa.Buffer):
        sent = ipc.decoded(data, crc=crc, limits=limits)
        return sent.batch, None if sent.message is None else RowsMessage(sent.message)
    at, end = ipc.batch_span(data)
    found, crcs = extended(data.slice(at, end - at), ipc.crc32c(data.slice(0, at)))
    ipc.check_crc(ipc.crc32c(data.slice(end), found), crc)
    sent = ipc.decoded(data, limits=limits)
    return sent.batch, None if sent.message is None else RowsMessage(sent.message, crcs)


def _check_deletes(table: Table, *, delete: bool) -> None:
    if delete and table.deletes == "refuse":
        raise Invalid(f"table {table.name} refuses deletes: it has the option deletes='refuse'")


def _of_a_delete(batch: pa.RecordBatch, source: Table) -> pa.RecordBatch:
    """The columns that a delete means: its key, of `partial` also the columns to empty, of `versioned` those that say
    what is older."""
    names = batch.schema.names
    if source.merge.engine == "partial":
        for name in names:
            source.column(name)
        return batch
    version = source.merge.version
    missing = [name for name in version if name not in names]
    if 0 < len(missing) < len(version):
        named = next(name for name in version if name in names)
        raise Invalid(
            f"table {source.name}: a delete that names {named!r} names {missing[0]!r} too, for versions are compared"
            " only where that is equal: name both, or neither"
        )
    return batch.select([name for name in (*source.primary_key, *version) if name in names])


def _contributions(batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    """Rows for `aggregate`: numbers for bitmaps become bitmaps, and counting columns are not the rows' to set."""
    for name, function in table.merge.functions:
        at = batch.schema.get_field_index(name)
        kind = table.column(name).arrow.type
        if function.name in ("count", "distinct_count"):
            zeros = pa.repeat(pa.scalar(0, kind), batch.num_rows)
            batch = batch.append_column(name, zeros) if at < 0 else batch.set_column(at, name, zeros)
        elif function.name == "bitmap" and at >= 0:
            path = f"table {table.name}, column {name!r}"
            column = batch.column(at)
            if pa.types.is_integer(column.type):
                column = bitmaps.singles(column, path)
            elif pa.types.is_binary(column.type):
                column = bitmaps.normalised(column, path)
            batch = batch.set_column(at, name, column)
    return batch


def renewed(request: Request, view: View, limits: Limits = DEFAULT) -> Request:
    """The request in the versions that hold now: its tables may have been altered while it waited."""
    if request.refusal is not None:
        raise request.refusal
    currents = [view.by_uuid(change.table.uuid).table for change in request.changes]
    if all(change.table is current for change, current in zip(request.changes, currents, strict=True)):
        return request
    return replace(
        request, changes=tuple(map(lambda each, table: _renewed(each, table, limits), request.changes, currents))
    )


def _renewed(change: Change, table: Table, limits: Limits = DEFAULT) -> Change:
    if table.keyed and change.table.number != table.number:  # it was truncated
        change = replace(change, keys=_index_keys(change.table, change.batch, WIDEST.key_bytes, table.number))
    _check_deletes(table, delete=change.delete)
    if change.table.schema_id == table.schema_id:
        return replace(change, table=table)
    check_present(change.given, change.table, table)
    known = {column.id for column in change.table.columns}
    for column in table.columns:
        if column.required and column.default is None and column.id not in known and not change.delete:
            raise Invalid(
                f"table {table.name}: required column {column.name!r} of schema version {table.schema_id} is missing"
                f" in rows of version {change.table.schema_id}: load the table again"
            )
    shape = Projection(change.table, table, "null" if change.delete else "default")
    return replace(change, table=table, batch=shape.batch(change.batch), message=None)


def _routed(
    table: Table,
    batch: pa.RecordBatch,
    given: frozenset[int],
    kind: str,
    marks: RowMarks,
    message: RowsMessage | None,
    *,
    producer: str,
    limits: Limits,
) -> Change:
    """Key the rows of a conforming batch and sort them by bucket; `message` is the batch as it came, if it did so."""
    sent, buckets = batch, _buckets(table, batch, producer)
    if table.buckets > 1 and len(buckets) and (buckets[1:] < buckets[:-1]).any():
        order = np.argsort(buckets.astype(np.uint16), kind="stable")  # of so few bits numpy sorts by counting
        buckets, batch, marks = buckets[order], batch.take(pa.array(order)), marks.taken(order)
        message = None
    index_keys: IndexKeys = NO_KEYS
    # A stored key may be longer than a limit that was lowered since, and is deleted all the same.
    bytes_max = WIDEST.key_bytes if kind == "DELETE" else limits.key_bytes
    stage()
    if table.keyed:
        try:
            index_keys = _index_keys(table, batch, bytes_max)
        except Invalid:
            _index_keys(table, sent, bytes_max)  # which names the row as it was sent
            raise
    if batch.schema.names != table.storage_schema.names:
        message = None
    stored, delete, insert = _stored(table, batch), kind == "DELETE", kind == "INSERT"
    return Change(table, stored, buckets, index_keys, delete, given, insert, marks, message=message)


def _index_keys(table: Table, batch: pa.RecordBatch, bytes_max: int, number: int | None = None) -> IndexKeys:
    columns = [batch.column(name) for name in table.primary_key]
    try:
        return encoded(columns, table_prefix(table.number if number is None else number), bytes_max)
    except Invalid as error:
        names = ", ".join(map(repr, table.primary_key))
        raise Invalid(f"table {table.name}: key of {names}: {error.message}") from error


def _buckets(table: Table, batch: pa.RecordBatch, producer: str) -> npt.NDArray[np.int32]:
    if not table.bucket_key:
        one = zlib.crc32(producer.encode()) % table.buckets
        return np.full(batch.num_rows, one, dtype=np.int32)
    return keys.buckets([batch.column(name) for name in table.bucket_key], table.buckets)


def _stored(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns: Sequence[pa.Array] = batch.columns
    if batch.schema.names != table.storage_schema.names:
        at = {name: i for i, name in enumerate(batch.schema.names)}
        columns = [
            batch.column(at[field.name]) if field.name in at else pa.nulls(batch.num_rows, field.type)
            for field in table.storage_schema
        ]
    return pa.RecordBatch.from_arrays(columns, schema=table.storage_schema)

"""A commit request on its way to the commit loop: decoded, checked, cast, keyed and routed.

- The callers' threads do the work; nothing here changes state.
- Rows of a change are sorted by bucket, so each bucket's part is a slice.
- Rows use the column names of the schema version that they state; older names are followed by id. A dropped column or a
  missing required one is refused; an unnamed column has its default.
- A refusal waits for its turn on the loop too, so that the retry of a commit from before an alteration gets its first
  answer.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Conflict, Corrupt, Internal, Invalid, NotFound, Unavailable
from lakestore.limits import DEFAULT, WIDEST, Limits
from lakestore.model import dead_letter_table, outside_values, types
from lakestore.model.columns import AS_OF, KEEP_PREFIX, SYSTEM_TYPES
from lakestore.model.contract.rules import DEAD_LETTER
from lakestore.model.system_tables import AUDIT
from lakestore.model.table import Table
from lakestore.rows import bitmaps, ipc, keys
from lakestore.rows.projection import Projection, check_present, rename_columns
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.arrays import flat_batch
from lakestore_server.commit import contract_rows, contract_times
from lakestore_server.commit.contract_rows import NEVER, NOTHING, Outcome
from lakestore_server.commit.contract_times import Arrival
from lakestore_server.files.segment import extended
from lakestore_server.host.quota import Claim
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import NO_KEYS, IndexKeys, encoded, key_bytes
from lakestore_server.state.chunk import Ints
from lakestore_server.state.commit_record import Answer, CommitRecord, RowsMessage
from lakestore_server.state.producers import is_drawn
from lakestore_server.state.registers import NO_MOVES, RegisterUpdates
from lakestore_server.state.state import State
from lakestore_server.state.view import Versions, View

_RESERVE = 64
"""Divisor of the share of a message that is reserved for columns of later versions."""
_MESSAGE_BYTES, _FIELD_BYTES = 4 << 10, 512
"""Bytes of a message's token, names and frames, and of each field in its rows: buffers and padding."""


def row_bytes_max(table: Table, message_bytes: int) -> int:
    """The most bytes of one row's values."""
    schema = table.read_schema([*table.selected(None), *SYSTEM_TYPES])
    fields = len(schema) + sum(types.nested_count(column.type) for column in table.columns)
    around = _MESSAGE_BYTES + int(schema.serialize().size) + _FIELD_BYTES * fields
    return max(message_bytes - message_bytes // _RESERVE - around, 0)


def check_row_sizes(batch: pa.RecordBatch, table: Table, message_bytes: int, *, merged: bool = False) -> None:
    """`Invalid` if a row of the batch, as sent or merged, could never be sent to a reader."""
    if ipc.message_size(batch) <= message_bytes // 4:
        return
    most = row_bytes_max(table, message_bytes)
    if batch.nbytes <= most:
        return
    sizes = flat_batch.of_rows(batch, np.arange(batch.num_rows))
    row = int(np.argmax(sizes))
    if sizes[row] > most:
        what = f"the merged row {key_of(batch, row, table)}" if merged else f"row {row}"
        raise Invalid(
            f"table {table.name}: {what} takes {sizes[row]} bytes, and no message could hold it: a row of this table"
            f" has at most {most} under limits.message_bytes={message_bytes}; make it smaller, or raise the limit"
        )


def unsendable(
    batch: pa.RecordBatch, table: Table, message_bytes: int, place: tuple[int, int] | None = None
) -> Invalid:
    """The error of a stored row that no message holds; `place` is its bucket and offset if the batch lacks them."""
    row = int(np.argmax(flat_batch.of_rows(batch, np.arange(batch.num_rows))))
    if place is None and {"__bucket", "__offset"} <= set(batch.schema.names):
        place = batch.column("__bucket")[row].as_py(), batch.column("__offset")[row].as_py()
    where = f" (bucket {place[0]}, offset {place[1]})" if place else ""
    return Invalid(
        f"table {table.name}: the row {key_of(batch, row, table)}{where} is larger than a message of {message_bytes}"
        " bytes: read without its large columns (columns=), delete it by its key and start after it, or raise"
        " limits.message_bytes"
    )


def key_of(batch: pa.RecordBatch, row: int, table: Table) -> str:
    """A row's key for an error, as far as the batch has it."""
    names = [name for name in table.primary_key if name in batch.schema.names]
    return ", ".join(f"{name}={outside_values.excerpt(batch.column(name)[row].as_py())}" for name in names) or str(row)


Flags = npt.NDArray[np.bool_]
_KEEPING = ("upsert", "versioned")


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """Columns that the same rows keep."""

    columns: tuple[int, ...]
    """Column ids."""
    rows: Flags
    """Whether each row keeps them."""


@dataclass(frozen=True)
class RowMarks:
    """The marks of a change's rows."""

    kept: tuple[KeptColumns, ...] = ()
    as_of: Ints | None = None
    """In microseconds, or `NEVER`."""
    sent: Ints | None = None
    """The number of each row in its message; None for unchanged order. Known if a row keeps a column."""

    @cached_property
    def columns(self) -> frozenset[int]:
        return frozenset(number for kept in self.kept for number in kept.columns)

    @property
    def nbytes(self) -> int:
        times = sum(each.nbytes for each in (self.as_of, self.sent) if each is not None)
        return times + sum(kept.rows.nbytes for kept in self.kept)

    def taken(self, rows: Ints) -> RowMarks:
        if not self.kept and self.as_of is None and self.sent is None:
            return self
        kept = tuple(KeptColumns(each.columns, each.rows[rows]) for each in self.kept)
        return RowMarks(kept, None if self.as_of is None else self.as_of[rows], self.sent_rows(rows))

    def sent_rows(self, rows: Ints) -> Ints:
        """The numbers of these rows in their message."""
        return rows if self.sent is None else self.sent[rows]

    def loosened(self, table: Table) -> Table:
        """The table for rows as sent: kept columns may be missing."""
        if not self.kept:
            return table
        columns = (replace(c, required=False) if c.id in self.columns else c for c in table.columns)
        return replace(table, columns=tuple(columns))

    def check_required(self, batch: pa.RecordBatch, table: Table) -> None:
        """`Invalid` if a required column is null in a sent row that does not keep it."""
        required = {column.id: column.name for column in table.columns if column.required}
        for kept in self.kept:
            for name in (required[number] for number in kept.columns if number in required):
                column = batch.column(name)
                if column.null_count:
                    wrong = np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False) & ~kept.rows)
                    if len(wrong):
                        raise Invalid(f"table {table.name}: required column {name!r} is null in row {wrong[0]}")


NO_MARKS = RowMarks()


def split(
    batch: pa.RecordBatch, message: pb.Change, source: Table, table: Table, claim: Callable[[int], None] | None
) -> tuple[pa.RecordBatch, RowMarks]:
    """The rows without their marks, and the marks; names are of the version `source`. `claim` is called before memory
    is taken that the message's length does not show."""
    if not message.keep and not message.as_of:
        return batch, NO_MARKS
    if message.keep:
        _check_keep(message, source, table)
    marked = set(batch.schema.names).intersection(f"{KEEP_PREFIX}{name}" for name in message.keep)
    if claim is not None:
        claim(batch.num_rows * (1 + len(marked) + 8 * message.as_of))
    together: dict[bytes, tuple[list[int], Flags]] = {}
    everywhere = np.ones(batch.num_rows, dtype=np.bool_)
    for name in message.keep:
        flags = _flags(batch, f"{KEEP_PREFIX}{name}", source) if f"{KEEP_PREFIX}{name}" in marked else everywhere
        form = b"" if flags is everywhere else np.packbits(flags).tobytes()
        together.setdefault(form, ([], flags))[0].append(source.column(name).id)
    kept = tuple(KeptColumns(tuple(columns), flags) for columns, flags in together.values())
    as_of = _times(batch, source, table, message) if message.as_of else None
    others = {*marked, *([AS_OF] if message.as_of else [])}
    left = [place for place, name in enumerate(batch.schema.names) if name not in others]
    return batch.select(left), RowMarks(kept, as_of)


def _check_keep(message: pb.Change, source: Table, table: Table) -> None:
    if message.kind != pb.UPSERT:
        raise Invalid(f"table {table.name}: only rows to upsert keep columns: leave keep out")
    if table.merge.engine not in _KEEPING:
        raise Invalid(
            f"table {table.name}: its merge engine {table.merge.engine} keeps no columns by name:"
            f" only {' and '.join(_KEEPING)} do; leave keep out"
        )
    if len(set(message.keep)) != len(message.keep):
        raise Invalid(f"table {table.name}: keep names a column twice")
    for name in message.keep:
        source.column(name)
        if name in source.primary_key:
            raise Invalid(f"table {table.name}: column {name!r} is in the primary key, and cannot be kept")
        if name in source.merge.version:
            raise Invalid(f"table {table.name}: column {name!r} says what is older, and cannot be kept")
    check_present({source.column(name).id for name in message.keep}, source, table)


def _flags(batch: pa.RecordBatch, name: str, table: Table) -> Flags:
    column = batch.column(name)
    if not pa.types.is_boolean(column.type) or column.null_count:
        raise Invalid(f"table {table.name}: column {name!r} is true where a row keeps its column, else false")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _times(batch: pa.RecordBatch, source: Table, table: Table, message: pb.Change) -> Ints:
    if message.kind not in (pb.UPSERT, pb.DELETE) or not table.merge.within:
        raise Invalid(
            f"table {table.name}: rows with times need a table with `within` columns and upserts or deletes:"
            " leave as_of out"
        )
    missing = [name for name in source.merge.version if name not in batch.schema.names]
    if missing:
        raise Invalid(f"table {table.name}: rows with times name {missing[0]!r}, which the comparison needs")
    if AS_OF not in batch.schema.names:
        raise Invalid(f"table {table.name}: the rows have no column {AS_OF!r}, which their change says they have")
    column = batch.column(AS_OF)
    if column.type != SYSTEM_TYPES["__timestamp"]:
        raise Invalid(f"table {table.name}: column {AS_OF!r} is of {SYSTEM_TYPES['__timestamp']}, not {column.type}")
    return np.asarray(pc.fill_null(column.view(pa.int64()), NEVER).to_numpy(zero_copy_only=False))


ReadArrival = Callable[[], Arrival]
"""Returns when and by whom a request came; its clock is read at most once."""
Refusal = Invalid | NotFound | Conflict | Corrupt
"""The reason why the rows of a request are refused."""
REFUSALS = (Invalid, NotFound, Conflict, Corrupt)


@dataclass(frozen=True, slots=True)
class TableChange:
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
    """Only rows whose keys do not exist."""
    marks: RowMarks = NO_MARKS
    is_shown: bool = False
    """Whether the answer has the rows after the commit."""
    hint: Hint | None = None
    """Index values of its keys, looked up before it was queued, if there are many."""
    message: RowsMessage | None = None
    """The batch as the received Arrow message, if it is unchanged; None if it must be encoded."""
    outcome: Outcome = NOTHING
    """Rows that broke rules of the table's contract. `with_letters` makes changes of its dead letters."""
    refuses_letters: bool = False
    """Whether rows that would become dead letters refuse the request."""
    is_letters: bool = False
    """Whether the server has added the rows for other changes of the request, so that no result tells of them."""

    @property
    def kind(self) -> str:
        if self.delete:
            return "DELETE"
        return "INSERT" if self.insert else "UPSERT" if self.table.keyed else "APPEND"

    @property
    def is_remembered(self) -> bool:
        """Whether its deletes have versions and so leave tombstones for keys without a row."""
        merge = self.table.merge
        if not self.delete or merge.engine != "versioned" or self.table.deletes != "allow":
            return False
        return self.table.column(merge.column).id in self.given

    def taken(self, rows: Ints) -> TableChange:
        batch, keys = self.batch.take(pa.array(rows)), self.keys.take(rows)
        marks = self.marks.taken(rows)
        return replace(self, batch=batch, buckets=self.buckets[rows], keys=keys, marks=marks, hint=None, message=None)

    @property
    def nbytes(self) -> int:
        hinted = self.hint.values.nbytes if self.hint is not None else 0
        return ipc.message_size(self.batch) + self.keys.nbytes + self.marks.nbytes + hinted


@dataclass(slots=True, eq=False)
class Request:
    """A request of one producer: the unit that the commit loop puts into a group."""

    changes: tuple[TableChange, ...]
    producer: str = ""
    epoch: int = 0
    sequence: int = 0
    progress: str = ""
    refusal: Refusal | None = None
    """Why the rows are refused; the commit loop answers so unless the request is a repeat."""
    timeline: str = ""
    """The client's timeline; empty if the client does not say."""
    born: int | None = None
    """The newest LSN that the client knew when it drew the producer's name; None if it did not say."""
    owner: str = ""
    """The principal that sent it."""
    moves: RegisterUpdates = NO_MOVES
    """Registers that move with the commit, or it is refused."""
    parts: tuple[str, ...] = ()
    """Ids of the parts with rows of it."""
    answer: Future[Answer] = field(default_factory=Future)
    queued: float = 0.0
    """Monotonic seconds; set by the engine."""
    nbytes: int = field(init=False)
    """Weight in the queue."""

    def __post_init__(self) -> None:
        self._weigh()

    def _weigh(self) -> None:
        self.nbytes = 1024 + sum(change.nbytes for change in self.changes) + self.moves.nbytes

    def take_hints(self, hints: Iterator[Hint | None]) -> None:
        """Give each change its next hint."""
        self.changes = tuple(replace(change, hint=next(hints)) for change in self.changes)
        self._weigh()

    @staticmethod
    def of(
        message: pb.CommitRequest,
        changes: tuple[TableChange, ...],
        refusal: Refusal | None,
        moves: RegisterUpdates = NO_MOVES,
    ) -> Request:
        """A request in its wire form, with decoded changes and register updates."""
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
    def source(self) -> str:
        """The name of the request in the source of its dead letters; equal for a retry."""
        if self.producer:
            return f"{self.producer}/{self.epoch}/{self.sequence}"
        if self.moves.each:
            return f"registers/{self.moves.each[0].register}/{self.moves.mark}"
        return secrets.token_hex(16)  # nobody can tell a retry of it from another request

    @property
    def ordered_by(self) -> tuple[tuple[str, str], ...]:
        """Names that keep requests in order: the producer's and the registers'."""
        names = tuple(("register", move.register) for move in self.moves.each)
        return (("producer", self.producer), *names) if self.producer else names

    @property
    def is_named(self) -> bool:
        """Whether a user chose the producer's name; False if a client drew it at random."""
        return self.born is None and not is_drawn(self.producer, self.epoch)


_KINDS = {kind: pb.ChangeKind.Name(kind) for kind in (pb.APPEND, pb.UPSERT, pb.DELETE, pb.INSERT)}


def change_of(
    versions: Versions,
    message: pb.Change,
    producer: str,
    limits: Limits = DEFAULT,
    claim: Claim | None = None,
    rows: pa.Buffer | None = None,
    number: int = 0,
    arrival: ReadArrival | None = None,
) -> TableChange:
    """A change in its wire form, in the current version; names are of the version that it states. `claim` is called
    before memory is taken that the message's length does not show. `rows` are those outside the message. `number` is
    the change's number in the request, and `arrival` returns when it came; a contract with times needs it."""
    table = versions.current
    kind = _kind_of(message, table)
    delete = kind == "DELETE"
    _check_deletes(table, delete=delete)
    source = versions.numbered(message.schema_id) if message.HasField("schema_id") else table
    sent, as_sent = _decoded(message.rows if rows is None else rows, message.crc32c, limits)
    yield_point()
    batch = sent
    if len(set(batch.schema.names)) < len(batch.schema.names):
        raise Invalid(f"table {table.name}: the rows have a column twice")
    batch, marks = split(batch, message, source, table, claim)
    if delete:
        batch = _of_a_delete(batch, source)
    named = rename_columns(batch, source, table)
    names = set(named.schema.names)
    given = frozenset(column.id for column in table.columns if column.name in names) | marks.columns
    rules = None if table.contract is None or delete else contract_rows.rules_of(table)
    if delete:
        only = [*table.primary_key, *(name for name in table.merge.version if name in names)]
        batch = ipc.conform(named, table, keys_only=True, only=only, limits=limits, claim=claim)
    else:
        taken = table if rules is None else rules.loose(given)
        shape = marks.loosened(taken)
        batch = ipc.conform(_contributions(named, table), shape, source=source, limits=limits, claim=claim)
        marks.check_required(batch, taken)
    if claim is not None and table.keyed:
        claim(batch.num_rows * key_bytes([table.column(name).arrow.type for name in table.primary_key]))
    check_row_sizes(batch, table, limits.message_bytes)
    outcome = NOTHING
    if rules is not None:
        # An answer with rows tells of all rows that were sent, so none of them may become a dead letter.
        refuses = message.refuse_dead_letters or message.want_rows
        marks = replace(marks, sent=np.arange(batch.num_rows))
        batch, given, marks, outcome = _ruled(rules, batch, given, marks, number, arrival, refuses=refuses)
    elif delete and table.deletes == DEAD_LETTER:
        outcome = contract_rows.of_deletes(
            table, batch, given, marks.as_of, refuses=message.refuse_dead_letters, change=number
        )
    if outcome.stays is not None:
        batch, marks = batch.take(pa.array(outcome.stays)), marks.taken(outcome.stays)
    if batch is not sent:
        as_sent = None
    yield_point()
    routed = _routed(table, batch, given, kind, marks, as_sent, producer=producer, limits=limits)
    if rules is not None or outcome is not NOTHING:
        routed = replace(routed, outcome=outcome, refuses_letters=message.refuse_dead_letters)
    return replace(routed, is_shown=routed.insert) if message.want_rows else routed


def _kind_of(message: pb.Change, table: Table) -> str:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise Invalid("a change has no kind that this release knows")
    if table.keyed == (kind == "APPEND"):
        wanted = "upsert, insert and delete" if table.keyed else "append"
        raise Invalid(f"table {table.name} takes {wanted}, not {kind.lower()}")
    return kind


def _ruled(
    rules: contract_rows.TableRules,
    batch: pa.RecordBatch,
    given: frozenset[int],
    marks: RowMarks,
    number: int,
    arrival: ReadArrival | None,
    *,
    refuses: bool,
) -> tuple[pa.RecordBatch, frozenset[int], RowMarks, Outcome]:
    """All rows with their times, columns and marks, and what the rules of the contract do to them."""
    timed, times = None, rules.times
    if times is not None:
        if arrival is None:
            raise Internal(f"table {rules.table.name}: rows of a contract with times came without a time")
        marks = replace(
            marks, kept=tuple(replace(each, columns=times.with_derived(each.columns)) for each in marks.kept)
        )
        timed = times.timed(batch, given, [(each.columns, each.rows) for each in marks.kept], arrival())
        batch, given = timed.batch, timed.given
    kept = [(each.columns, each.rows) for each in marks.kept]
    outcome = rules.outcome(batch, given, kept, marks.sent, refuses=refuses, change=number, timed=timed)
    letters = outcome.letters
    if letters is not None and letters.places is not None:
        gone, names = letters.places, {column.id: column.name for column in rules.table.columns}
        keeps = tuple((names[each], part.rows[gone]) for part in marks.kept for each in part.columns)
        letters = replace(letters, kept=keeps, as_of=None if marks.as_of is None else marks.as_of[gone])
        outcome = replace(outcome, letters=letters)
    return batch, given, marks, outcome


def with_letters(
    changes: Sequence[TableChange],
    source: str,
    owner: str,
    tables: RuleTables,
    arrival: ReadArrival | None,
    limits: Limits = DEFAULT,
) -> tuple[TableChange, ...]:
    """The changes, with a change for the dead letters of each, and one for the audit rows about late rows. `source`
    names the request, `owner` is its principal."""
    added = []
    for number, change in enumerate(changes):
        letters, late = change.outcome.letters, change.outcome.late
        if letters is not None:
            table = tables.dead_letters(change.table)
            rows = contract_rows.letter_rows(letters, change.kind, source, number)
            added.append(_of_the_server(table, rows, "UPSERT", limits))
        if late and arrival is not None:
            table = tables.audit()
            rows = contract_times.audit_rows(change.table, late, owner, arrival().now_us, table)
            added.append(_of_the_server(table, rows, "APPEND", limits))
    if not added:
        return tuple(changes)
    told = (replace(each, outcome=replace(each.outcome, letters=None, late=())) for each in changes)
    return (*told, *added)


def _of_the_server(table: Table, rows: pa.RecordBatch, kind: str, limits: Limits) -> TableChange:
    """Rows that the server adds to a request."""
    rows = ipc.conform(rows, table, limits=limits)
    check_row_sizes(rows, table, limits.message_bytes)
    given = frozenset(column.id for column in table.columns)
    made = _routed(table, rows, given, kind, NO_MARKS, None, producer="", limits=limits)
    return replace(made, is_letters=True)


@dataclass(frozen=True, slots=True)
class RuleTables:
    """The tables of rows that the server adds to a request."""

    dead_letters: Callable[[Table], Table]
    """Returns the dead-letter table of a table."""
    audit: Callable[[], Table]


def _decoded(data: bytes | pa.Buffer, crc: int, limits: Limits) -> tuple[pa.RecordBatch, RowsMessage | None]:
    """Rows as one validated batch, and as received if that is one message, with the checksums for journal and extent.
    These are computed while the rows' checksum is verified, because a second pass costs as much as a copy."""
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
    """The columns that a delete uses: its key, for `partial` also the columns to empty, for `versioned` the version
    columns."""
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
            f"table {source.name}: a delete that names {named!r} must name {missing[0]!r} too, because versions are"
            " compared only for an equal value of it: name both, or neither"
        )
    return batch.select([name for name in (*source.primary_key, *version) if name in names])


def _contributions(batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    """Rows for `aggregate`: numbers for bitmaps become bitmaps, and rows may not set counting columns."""
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
    """The request in the current versions: its tables may have been altered while it waited."""
    if request.refusal is not None:
        raise request.refusal
    currents = [view.present(change.table.uuid).table for change in request.changes]
    if view.rescales:
        for table in currents:
            view.refuse_write(table)
    if all(change.table is current for change, current in zip(request.changes, currents, strict=True)):
        return request
    moved = [
        change if change.table.uuid == table.uuid else _rescaled(change, table, request.producer)
        for change, table in zip(request.changes, currents, strict=True)
    ]
    pairs = enumerate(zip(moved, currents, strict=True))
    arrival = partial(Arrival.of, view.clock_us, request.moves)
    changes = [_renewed(change, table, limits, number, arrival) for number, (change, table) in pairs]
    tables = RuleTables(partial(_letters_in, view), lambda: view.named(AUDIT).table)
    made = with_letters(changes, request.source, request.owner, tables, arrival, limits)
    return replace(request, changes=made)


def _letters_in(view: View, table: Table) -> Table:
    """The dead-letter table of a table whose contract changed while a request waited."""
    uuid = view.names.get(dead_letter_table.table_of(table.name))
    if uuid is None:
        raise Unavailable(f"table {table.name}: its dead-letter table was dropped just now: send the rows again")
    letters = view.tables[uuid].table
    dead_letter_table.check(letters, table.name)
    return letters


def _rescaled(change: TableChange, table: Table, producer: str) -> TableChange:
    """The change for the table that replaced its own by a rescale while it waited, in the version of the change."""
    before = replace(change.table, uuid=table.uuid, number=table.number, buckets=table.buckets)
    buckets = _buckets(before, change.batch, producer)
    order = np.argsort(buckets, kind="stable")
    coded = index_keys(before, change.batch, WIDEST.key_bytes) if before.keyed else NO_KEYS
    moved = replace(change, table=before, keys=coded).taken(order)
    return replace(moved, buckets=buckets[order])


def _renewed(
    change: TableChange,
    table: Table,
    limits: Limits = DEFAULT,
    number: int = 0,
    arrival: ReadArrival | None = None,
) -> TableChange:
    if table.keyed and change.table.number != table.number:  # the table was truncated
        change = replace(change, keys=index_keys(change.table, change.batch, WIDEST.key_bytes, table.number))
    _check_deletes(table, delete=change.delete)
    if change.delete and table.deletes == DEAD_LETTER != change.table.deletes:
        raise Conflict(f"table {table.name} takes deletes as dead letters by now: send them again")
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
    made = replace(change, table=table, batch=shape.batch(change.batch), message=None)
    if table.contract is None or change.delete or table.contract == change.table.contract:
        return made
    return _ruled_again(made, number, arrival)


def _ruled_again(change: TableChange, number: int, arrival: ReadArrival | None) -> TableChange:
    """The change under a contract that was applied while it waited."""
    refuses = change.refuses_letters or change.is_shown
    rules = contract_rows.rules_of(change.table)
    batch, given, marks, outcome = _ruled(
        rules, change.batch, change.given, change.marks, number, arrival, refuses=refuses
    )
    change = replace(change, batch=_stored(change.table, batch), given=given, marks=marks, message=None)
    if outcome.stays is not None:
        change = change.taken(outcome.stays)
    broken = (*change.outcome.broken, *outcome.broken)
    return replace(change, outcome=Outcome(broken, letters=outcome.letters, late=change.outcome.late + outcome.late))


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
) -> TableChange:
    """Key the rows of a conforming batch and sort them by bucket; `message` is the received batch, if unchanged."""
    sent, buckets = batch, _buckets(table, batch, producer)
    if table.buckets > 1 and len(buckets) and (buckets[1:] < buckets[:-1]).any():
        order = np.argsort(buckets.astype(np.uint16), kind="stable")  # numpy sorts so few bits by counting
        buckets, batch, marks = buckets[order], batch.take(pa.array(order)), marks.taken(order)
        message = None
    coded: IndexKeys = NO_KEYS
    # A stored key may be longer than a limit that was lowered since; it can still be deleted.
    bytes_max = WIDEST.key_bytes if kind == "DELETE" else limits.key_bytes
    yield_point()
    if table.keyed:
        try:
            coded = index_keys(table, batch, bytes_max)
        except Invalid:
            index_keys(table, sent, bytes_max)  # this names the row as it was sent
            raise
    if batch.schema.names != table.storage_schema.names:
        message = None
    stored, delete, insert = _stored(table, batch), kind == "DELETE", kind == "INSERT"
    return TableChange(table, stored, buckets, coded, delete, given, insert, marks, message=message)


def index_keys(table: Table, batch: pa.RecordBatch, bytes_max: int, number: int | None = None) -> IndexKeys:
    """The keys of rows in the form of the index; `Invalid` for one that is too long."""
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


T = TypeVar("T")
IndexEntries = Sequence[tuple[IndexKeys, npt.NDArray[np.int64]]]
"""Keys of one table and their new values, for several tables."""


def _none(_: object) -> IndexEntries:
    return ()


@dataclass(frozen=True, slots=True)
class Completion(Generic[T]):
    """An operation that happened."""

    view: View
    """The newest view, with the operation in it."""
    result: T
    """The value that `plan` returned."""


@dataclass(slots=True)
class Operation(Generic[T]):
    """A change without a producer: `plan` fills a record from the state and returns a result, or raises."""

    plan: Callable[[State, CommitRecord], T]
    entries: Callable[[T], IndexEntries] = _none
    """The index entries of a result, put once the record is durable."""
    answer: Future[Completion[T]] = field(default_factory=Future)
    nbytes: int = 1024
    queued: float = 0.0
    """Monotonic seconds; set by the engine."""


@dataclass(slots=True)
class Task(Generic[T]):
    """Work that must run on the commit loop and writes no record."""

    run: Callable[[], T]
    answer: Future[T] = field(default_factory=Future)
    nbytes: int = 0


Work = Request | Operation[Any] | Task[Any]

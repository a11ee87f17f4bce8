"""Writers of the data source: `df.write` and `df.writeStream`. Each job or batch is one commit.

Tasks upload their rows as durable parts. The driver names the parts of the successful tasks in one commit; parts of
other attempts are never named. Spark creates a new writer in another process for each step, so a stream's progress is
in a register, committed with its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lakestore.client import parts
from lakestore.client.lake import Lake
from lakestore.client.transport import Transport
from lakestore.client.writer import change_to
from lakestore.errors import Conflict, Corrupt, Fenced, Internal, Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from lakestore.rows import keys
from lakestore.rows.ranges import pieces
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source.options import Address, Options

CHANGE = "__change"
"""The column with the operation of a row: +I, -U, +U or -D."""
CHANGES = "changes"
MODES = ("append", "upsert", "delete", CHANGES)
KINDS = {"append": pb.APPEND, "upsert": pb.UPSERT, "delete": pb.DELETE}


@dataclass(frozen=True, slots=True)
class Target:
    """The table and mode of a write; pickled to executors."""

    address: Address
    table: Table
    """The version whose names the rows use."""
    mode: str

    @staticmethod
    def of(options: Options, schema: StructType, *, overwrite: bool) -> Target:
        """The target of a write with these options and columns. Raises `Invalid`."""
        if overwrite:
            raise Invalid(
                "a table of Lakestore is not overwritten by a write, neither with mode('overwrite') nor with"
                " outputMode('complete'): write with mode('append'), or outputMode 'append' or 'update', and delete"
                " what is to go"
            )
        address = options.address
        with Lake(address.connect(), address.server) as lake:
            table = lake.table(options.table).definition
        names = schema.fieldNames()
        target = Target(address, table, _mode(options.text("mode"), table, has_changes=CHANGE in names))
        target.check(names)
        return target

    def check(self, names: Sequence[str]) -> None:
        """Raise `Invalid` for columns that the table refuses in this mode."""
        known = {column.name for column in self.table.columns}
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"table {self.table.name}: the rows have column {name!r} twice")
            if name not in known and name not in SYSTEM_TYPES:
                raise Invalid(
                    f"table {self.table.name} has no column {name!r}: drop it from the rows, or add it to the table"
                )
        needed = [column for column in self.table.columns if column.required and column.default is None]
        missing = [column.name for column in needed if column.name not in names]
        if self.mode == "delete":
            missing = [name for name in self.table.primary_key if name not in names]
        if missing:
            raise Invalid(f"table {self.table.name}: the rows have no column {missing[0]!r}, which it needs")

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's columns of a batch as the server takes them. A delete has key and version only."""
        names = [name for name in batch.schema.names if name not in SYSTEM_TYPES]
        if self.mode == "delete":
            wanted = {*self.table.primary_key, *self.table.merge.version}
            names = [name for name in names if name in wanted]
        return pa.RecordBatch.from_arrays(
            [_as_declared(batch.column(name), arrow_type(self.table.column(name).type)) for name in names], names=names
        )


def _mode(mode: str, table: Table, *, has_changes: bool) -> str:
    """The mode of a write. Without an option it follows from the table and the rows."""
    if not mode:
        return CHANGES if has_changes else "upsert" if table.keyed else "append"
    if mode not in MODES:
        raise Invalid(f"option mode is one of {', '.join(MODES)}, not {mode!r}")
    if mode == CHANGES:
        if not has_changes:
            raise Invalid(f"mode {CHANGES!r} needs the column {CHANGE!r}, and the rows have none")
        return mode
    if has_changes:
        raise Invalid(
            f"the rows have a column {CHANGE!r}, and mode {mode!r} would take all of them as {mode}s: say mode"
            f" {CHANGES!r}, or drop the column"
        )
    if table.keyed == (mode == "append"):
        takes = "upsert, delete and changes" if table.keyed else "append and changes"
        raise Invalid(f"table {table.name} takes the modes {takes}, not {mode!r}")
    return mode


def _as_declared(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert times of day, which Spark stores as microseconds. The server casts everything else."""
    is_time = pa.types.is_time64(wanted) and pa.types.is_int64(column.type)
    return column.cast(pa.time64("us")) if is_time else column


_HASHES = (1 << 31) - 1
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of a stream's tasks: the id in its checkpoint, and the id of the run."""


@dataclass(frozen=True, slots=True)
class TaskParts(WriterCommitMessage):
    """The parts of a finished task."""

    changes: tuple[bytes, ...]
    """Encoded changes that name parts, in the order of the rows."""
    rows: int
    query: str = ""
    """Id of the streaming query; empty for a batch job."""
    run: str = ""

    def parts(self) -> list[pb.Change]:
        return [pb.Change.FromString(change) for change in self.changes]


def write(target: Target, batches: Iterable[pa.RecordBatch]) -> TaskParts:
    """Upload a task's rows. On an error the uploaded parts are dropped."""
    transport = target.address.connect()
    uploaded: list[pb.Change] = []
    rows = 0
    try:
        transport.greet()
        for batch in _gathered(batches, parts.part_bytes(transport.server)):
            rows += batch.num_rows
            for kind, piece in changes_of(target, batch):
                uploaded += _uploaded(transport, target, kind, piece)
    except BaseException:
        parts.drop(transport, [change.part for change in uploaded])
        raise
    finally:
        transport.close()
    context = TaskContext.get()
    query, run = (context.getLocalProperty(name) or "" for name in (_QUERY, _RUN)) if context else ("", "")
    return TaskParts(tuple(change.SerializeToString() for change in uploaded), rows, query, run)


def _gathered(batches: Iterable[pa.RecordBatch], nbytes: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= nbytes:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _uploaded(
    transport: Transport, target: Target, kind: pb.ChangeKind.ValueType, batch: pa.RecordBatch
) -> Iterator[pb.Change]:
    for piece in pieces(batch, parts.part_bytes(transport.server)):
        change = change_to(target.table, kind, [piece])
        parts.check_whole(change, transport.server)
        yield parts.upload(transport, change)


def changes_of(target: Target, batch: pa.RecordBatch) -> Iterator[tuple[pb.ChangeKind.ValueType, pa.RecordBatch]]:
    """The rows of a batch as changes, in commit order."""
    if target.mode != CHANGES:
        yield KINDS[target.mode], target.columns(batch)
        return
    said = batch.column(CHANGE)
    _check_changes(target, said)
    batch = batch.filter(pc.not_equal(said, "-U"))
    rows = target.columns(batch)
    if not target.table.keyed:
        yield pb.APPEND, rows
        return
    deletes = pc.equal(batch.column(CHANGE), "-D").to_numpy(zero_copy_only=False)
    turns = _turns(keys.buckets([rows.column(name) for name in target.table.primary_key], _HASHES), deletes)
    for turn in range(int(turns.max(initial=-1)) + 1):
        for kind, mine in ((pb.UPSERT, ~deletes), (pb.DELETE, deletes)):
            chosen = np.flatnonzero((turns == turn) & mine)
            if len(chosen):
                yield kind, rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))


def _check_changes(target: Target, changes: pa.Array) -> None:
    known = ("+I", "-U", "+U", "-D") if target.table.keyed else ("+I",)
    other = pc.invert(pc.is_in(changes, pa.array(known, changes.type)))
    row = pc.index(other, True).as_py()
    if row >= 0:
        raise Invalid(
            f"table {target.table.name}: {CHANGE} is {changes[row].as_py()!r} in a row, and the table takes"
            f" {', '.join(known)}"
        )


def _turns(hashes: npt.NDArray[np.int32], deletes: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The number of switches between upsert and delete before each row among rows of its key.

    Keys with the same hash count as one key. That adds switches and changes nothing else.
    """
    order = np.argsort(hashes, kind="stable")
    ordered, kinds = hashes[order], deletes[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_turn = np.zeros(len(order), dtype=np.int64)
    is_turn[1:] = (kinds[1:] != kinds[:-1]) & ~is_first[1:]
    turned = np.cumsum(is_turn)
    begun = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    turns = np.empty(len(order), dtype=np.int64)
    turns[order] = turned - turned[begun]
    return turns


RUNS_KEPT = 40
"""Number of ended runs that a register remembers."""
_RUN_CHARS = 13


def register_of(query: str) -> str:
    """Name of a query's register."""
    return f"spark/{query}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """The last batch of a query."""

    batch: int = -1
    """Its number; -1 before the first."""
    run: str = ""
    over: tuple[str, ...] = ()
    """Runs that owned it before, the newest last."""

    @staticmethod
    def of(value: str, query: str) -> Epoch:
        if not value:
            return Epoch()
        try:
            said = orjson.loads(value)
            return Epoch(int(said["batch"]), str(said["run"]), tuple(map(str, said["over"])))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"register {register_of(query)!r} has a value that no sink of Spark wrote: drop it if nothing else uses"
                " it, and begin the query with a new checkpoint"
            ) from error

    @property
    def value(self) -> str:
        return orjson.dumps({"batch": self.batch, "run": self.run, "over": self.over}).decode()

    def after(self, batch: int, run: str, query: str) -> Epoch:
        """The epoch after a run's batch. Raises `Fenced` or `Conflict` if the run may not commit it."""
        mine = run[:_RUN_CHARS]
        if mine in self.over:
            raise Fenced(
                f"query {query} goes on in another run, which has come to batch {self.batch}: stop this one; nothing of"
                f" its batch {batch} was committed"
            )
        if batch < self.batch:
            raise Conflict(
                f"query {query} has committed batch {self.batch}, and Spark asks for batch {batch}: its checkpoint is"
                " older than its table; go on with the newest checkpoint, or begin with a new one"
            )
        if mine == self.run:
            return Epoch(batch, mine, self.over)
        over = (*self.over, self.run) if self.run else self.over
        return Epoch(batch, mine, over[-RUNS_KEPT:])


class TableWriter(DataSourceArrowWriter):
    """Writer of a batch job: one commit for the job."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskParts:
        return write(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job. If the answer is lost the commit is sent again; it happens once."""
        named = _named(messages)
        if named:
            with _lake(self._target) as lake, lake.commit() as commit:
                commit.add_parts(named)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _drop(self._target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query: each micro-batch is committed once, however often Spark asks."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskParts:
        return write(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Commit a micro-batch with its progress. A repeated batch is a no-op."""
        done = _done(messages)
        named = _named(messages)
        if not done or not named:
            return  # Spark repeats an empty batch under one number
        query, run = done[0].query, done[0].run
        if not query or not run:
            raise Internal("Spark told the tasks of a stream no query: this release of Spark is not supported")
        name = register_of(query)
        with _lake(self._target) as lake, lake.registers([name]) as registers:
            before = Epoch.of(registers.progress[name], query)
            after = before.after(batchId, run, query)
            if before.batch == batchId:
                parts.drop(lake.transport, [change.part for change in named])
                named = []
            if named or after != before:
                with registers.commit({name: after.value}) as commit:
                    commit.add_parts(named)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _drop(self._target, messages)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskParts]:
    return [message for message in messages if isinstance(message, TaskParts)]


def _named(messages: Sequence[WriterCommitMessage | None]) -> list[pb.Change]:
    return [change for message in _done(messages) for change in message.parts()]


def _lake(target: Target) -> Lake:
    return Lake(target.address.connect(), target.address.server)


def _drop(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop parts. Committed parts no longer exist; parts of a running commit stay."""
    named = _named(messages)
    if named:
        with _lake(target) as lake:
            parts.drop(lake.transport, [change.part for change in named])

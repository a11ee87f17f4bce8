"""A task's rows as parts: uploaded while they come, in memory only about a part at a time.

Rows of the column `__change` keep their order for each key: its insert, delete and insert again are three changes of
the commit. Rows of different keys share them, so that there are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from lakestore.client import parts
from lakestore.client.transport import Transport
from lakestore.client.writer import change_to
from lakestore.errors import Invalid
from lakestore.rows import keys
from lakestore.rows.pieces import pieces
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source.write_target import CHANGE, CHANGES, KINDS, Target

_HASHES = (1 << 31) - 1
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of a stream's tasks: the id that its checkpoint keeps, and the one of this run."""


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """The parts of a task that is done."""

    changes: tuple[bytes, ...]
    """Changes that name parts, encoded, in the order of the rows."""
    rows: int
    query: str = ""
    """The id of the streaming query; empty outside of one."""
    run: str = ""
    """The id of its run: another one after each start."""

    def parts(self) -> list[pb.Change]:
        """The changes of the commit that names these parts."""
        return [pb.Change.FromString(change) for change in self.changes]


def write(target: Target, batches: Iterable[pa.RecordBatch]) -> TaskDone:
    """Upload a task's rows; an error drops what it has uploaded."""
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
    return TaskDone(tuple(change.SerializeToString() for change in uploaded), rows, query, run)


def _gathered(batches: Iterable[pa.RecordBatch], nbytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about so many bytes."""
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
    """The rows of a batch as changes, in the order in which a commit is to name them."""
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


def _check_changes(target: Target, said: pa.Array) -> None:
    known = ("+I", "-U", "+U", "-D") if target.table.keyed else ("+I",)
    other = pc.invert(pc.is_in(said, pa.array(known, said.type)))
    row = pc.index(other, True).as_py()
    if row >= 0:
        raise Invalid(
            f"table {target.table.name}: {CHANGE} is {said[row].as_py()!r} in a row, and the table takes"
            f" {', '.join(known)}"
        )


def _turns(hashes: npt.NDArray[np.int32], deletes: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Turns of each row: changes between upsert and delete that the rows of its key before it have made.

    Keys of one hash count as one: that costs turns, and changes nothing.
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

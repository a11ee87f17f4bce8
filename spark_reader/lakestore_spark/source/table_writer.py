"""Writers of the data source: `df.write` and `df.writeStream`, each job or batch one commit.

Tasks upload their rows as durable parts, and the driver names the parts of the tasks that Spark counts in one commit.
Attempts that failed, or that others were faster than, leave parts that no commit names. Spark makes a writer anew in
another process for each step, so a writer keeps nothing: a stream's place is in its register, with its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lakestore.client import parts
from lakestore.client.lake import Lake
from lakestore.errors import Internal
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source import task_writer
from lakestore_spark.source.query_epochs import Epoch, register_of
from lakestore_spark.source.task_writer import TaskDone
from lakestore_spark.source.write_target import Target


class TableWriter(DataSourceArrowWriter):
    """A batch job's writer: one commit for the job."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Upload the rows of a task."""
        return task_writer.write(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job. A commit whose answer is lost is sent again, and happens once."""
        named = _named(messages)
        if named:
            with _lake(self._target) as lake, lake.commit() as commit:
                commit.add_parts(named)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what the tasks of a failed job have uploaded."""
        _drop(self._target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's writer: one commit for a micro-batch, and one only, however often it is asked for."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Upload the rows of a task."""
        return task_writer.write(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Commit a micro-batch with its place; one that was committed before is a no-op."""
        done = _done(messages)
        named = _named(messages)
        if not done or not named:
            return  # an empty batch, again and again, is the same batch
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
        """Drop what the tasks of a failed micro-batch have uploaded."""
        _drop(self._target, messages)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    return [message for message in messages if isinstance(message, TaskDone)]


def _named(messages: Sequence[WriterCommitMessage | None]) -> list[pb.Change]:
    """The changes of all tasks, in the order of their partitions."""
    return [change for message in _done(messages) for change in message.parts()]


def _lake(target: Target) -> Lake:
    return Lake(target.address.connect(), target.address.server)


def _drop(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop parts. Those of a commit that happened are no longer there, those of one under way stay."""
    named = _named(messages)
    if named:
        with _lake(target) as lake:
            parts.drop(lake.transport, [change.part for change in named])

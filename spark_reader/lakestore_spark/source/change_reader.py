"""`spark.readStream.format("lakestore")`: the changes of one table, in ranges that executors fetch themselves.

A position is a token of the change stream, so Spark's checkpoint is the whole state: a range between two tokens is the
same rows whenever and wherever it is read. Before its first batch a stream knows only the words of `startingOffsets`;
the first batch's end holds the position that they named, as Spark writes down ends alone.
PySpark tells a source neither its checkpoint nor a limit, so this one keeps both: the position that it was last shown,
and `maxOffsetsPerTrigger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lakestore.client import changes
from lakestore.errors import Internal, Invalid
from lakestore.model import times
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore_spark.source.options import Address, Options
from lakestore_spark.source.shown import Shown
from lakestore_spark.source.stream_driver import NEXT, START, Planned, StreamDriver
from lakestore_spark.source.table_reader import PlanPart


class ChangePart(InputPartition):
    """The changes of one range, for one task: the same whenever it is read."""

    def __init__(self, address: Address, planned: Planned, begin: str, end: str, count: int, asked: Asked) -> None:
        self.address, self.begin, self.end, self.count, self.asked = address, begin, end, count, asked
        self.definitions = planned.definitions

    def read(self) -> Iterator[pa.RecordBatch]:
        """The changes in Spark's types; `Internal` if they are not as many as the server planned."""
        versions = {table.schema_id: table for table in map(Table.from_json, self.definitions)}
        asked, found = self.asked, 0
        transport = self.address.connect()
        stream = changes.ChangeStream(transport, asked.request(self.begin, self.end, versions[max(versions)]))
        try:
            for batch in stream:
                found += len(batch)
                for piece in batch.table.to_batches():
                    yield asked.shown.batch(piece, versions[batch.schema_id])
        finally:
            stream.close()
            transport.close()
        if found != self.count and not (asked.where or asked.before_images):
            raise Internal(f"table {asked.shown.table.name}: a range of {self.count} changes gave {found}: report this")


class Asked:
    """The changes that a stream is asked for."""

    def __init__(self, shown: Shown, where: str, *, before_images: bool) -> None:
        self.shown, self.where, self.before_images = shown, where, before_images

    def request(self, begin: str, end: str, current: Table) -> Any:
        """The request of a range; columns by their names in the current version, all where it has lost one."""
        names = {column.id: column.name for column in current.columns}
        ids = [column.id for column in self.shown.columns]
        all_columns = len(ids) == len(names) or not set(ids) <= set(names)
        columns = None if all_columns else [names[number] for number in ids] or ["__offset"]
        table = self.shown.table
        return changes.request(
            [current.name],
            begin,
            end,
            columns,
            None,
            before_images=self.before_images,
            where=self.where or None,
            uuids=[table.uuid],
        )


class ChangeReader(DataSourceStreamReader):
    """A stream of one table; the driver's Python worker plans it, tasks read it."""

    def __init__(self, options: Options, table: Table, schema: StructType) -> None:
        self._options, self._shown = options, Shown.of(table, schema)
        if not options.text(START):
            raise Invalid(
                "a stream says where it starts: option('startingOffsets', …) is snapshot, earliest, latest, a time or"
                " a token"
            )
        self._start = times.start_text(options.text(START))
        if table.keyed and "__change" not in self._shown.names:
            raise Invalid(f"a stream of table {table.name} has changes: its schema needs the column __change")
        where, images = options.text("where"), options.flag("beforeImages")
        if images and not table.keyed:
            raise Invalid(f"table {table.name} has no primary key, so nothing was before its rows: no beforeImages")
        if where:
            condition_text.parse(where, table)
        self._asked = Asked(self._shown, where, before_images=images)
        self._most = options.count("maxOffsetsPerTrigger")
        self._at: dict[str, Any] | None = None
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The words of `startingOffsets`: the same at every start, so that the first batch can be planned again."""
        return {START: self._start}

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch; the very position that the stream is at when there is nothing new."""
        return self._drives().after(self._at or self.initialOffset(), self._most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. With two equal positions Spark says where the checkpoint ends."""
        driver = self._drives()
        self._at = end
        if NEXT in end:
            driver.hold(end if START in start or start == end else start)
        if start == end:
            return []
        snapshot = driver.snapshot_of(start, end)
        if snapshot is not None:
            return snapshot
        planned = driver.planned(start, end)
        address = self._options.address
        begins = [planned.start, *(token for token, _ in planned.ranges)]
        return [
            ChangePart(address, planned, begin, token, count, self._asked)
            for begin, (token, count) in zip(begins, planned.ranges, strict=False)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, ChangePart | PlanPart)
        return partition.read()

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to here is done."""
        self._drives().commit(end)

    def stop(self) -> None:
        """Let go of what the stream holds."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _drives(self) -> StreamDriver:
        """The connection of the driver's worker; tasks have a reader without one."""
        if self._driver is None:
            self._driver = StreamDriver(self._options, self._asked.shown, self._asked.where)
        return self._driver

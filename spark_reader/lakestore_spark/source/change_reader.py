"""`spark.readStream.format("lakestore")`: the changes of one table, in ranges that executors fetch.

- A position is a token of the change stream, so Spark's checkpoint is the whole state. A range between two tokens
  always has the same rows.
- Before the first batch the stream knows only the text of `startingOffsets`. Spark stores only end offsets, so the
  first batch's end also holds the resolved start.
- PySpark passes neither the checkpoint nor a limit. The reader remembers the last offset it was given and reads
  `maxOffsetsPerTrigger` itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lakestore.client import changes
from lakestore.client.subscription import Subscription
from lakestore.client.transport import Transport
from lakestore.errors import Internal, Invalid
from lakestore.model import times
from lakestore.model.table import Table
from lakestore.model.token import LogPosition, position_of
from lakestore.rows import condition_text
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.leases import LEASE_SECONDS, SessionLeases
from lakestore_spark.source.options import Address, Options
from lakestore_spark.source.table_reader import BoundColumns, PlanPart, Rows, parts_of

TOUCH_SECONDS = 60.0
"""Seconds without news after which a stream reports that it is alive."""


class KeptPosition:
    """A named subscription that only keeps the log."""

    def __init__(self, transport: Transport, table: str, uuid: str, name: str) -> None:
        self._transport, self._table, self._uuid, self._name = transport, table, uuid, name
        self._stream: changes.ChangeStream | None = None
        self._acked = ""
        self._said = 0.0

    def open(self, position: str) -> None:
        """Take over or create the subscription, once. An earlier query of the name gets `Fenced`."""
        if self._stream is not None:
            return
        known = {info.name: Subscription.of(info) for info in self._listed()}.get(self._name)
        if known is not None and (known.snapshot or known.shared):
            raise Invalid(f"subscription {self._name!r} is read by other consumers: name another one")
        # The stream ends at its own position, so it brings no row, only the epoch that acknowledgements need.
        end = known.token if known is not None else position
        asked = changes.request([self._table], position, end, None, self._name, before_images=False, uuids=[self._uuid])
        stream = changes.ChangeStream(self._transport, asked)
        for _ in stream:
            continue
        self._stream, self._acked, self._said = stream, end, time.monotonic()

    def ack(self, position: str) -> None:
        self.open(position)
        assert self._stream is not None
        self._stream.ack(position)
        self._acked, self._said = position, time.monotonic()

    def touch(self) -> None:
        """Report now and then that the stream is alive. The server drops subscriptions without reports."""
        if self._stream is not None and time.monotonic() - self._said > TOUCH_SECONDS:
            self.ack(self._acked)

    def _listed(self) -> list[pb.SubscriptionInfo]:
        return list(self._transport.list_subscriptions(pb.ListSubscriptionsRequest()).subscriptions)


START = "startingOffsets"
"""Key in the offset of a stream that has not begun."""
NEXT, BEGIN, CHANGES, BEHIND = "next", "begin", "changes", "behind"
"""Keys of an offset. NEXT: position after the batch. BEGIN: position before it (first batch only). CHANGES: number
of changes in it. BEHIND: lag when it was planned.
"""
SNAPSHOT = "snapshot"
"""BEGIN of a stream whose first batch is the table at the cut `next`."""
RANGE_CHANGES = 250_000
"""Approximate number of changes in one task."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The changes of one batch as ranges."""

    start: str
    ranges: tuple[tuple[str, int], ...]
    behind: int
    definitions: tuple[str, ...]
    """JSON of the table versions that rows may have, and of all later ones."""


class StreamDriver:
    """One stream's connection to the server."""

    def __init__(self, options: Options, columns: BoundColumns, where: str) -> None:
        self._address, self._name = options.address, options.table
        self._shown, self._where = columns, where
        self._transport = self._address.connect()
        self._leases = SessionLeases(self._transport)
        self._snapshot: tuple[str, pb.PlanAnswer] | None = None
        name = options.text("subscription")
        self._kept = KeptPosition(self._transport, self._name, columns.table.uuid, name) if name else None

    def after(self, at: dict[str, Any], most: int) -> dict[str, Any]:
        """The next offset: `most` changes later, or at the head. The same offset if there is nothing new."""
        if at.get(START) == SNAPSHOT:
            return self._begun_with_snapshot()
        planned = self._ranges(at.get(NEXT) or at[START], most=most)
        if self._kept is not None:
            self._kept.touch()
        if not planned.ranges and START not in at:
            return at
        end = planned.ranges[-1][0] if planned.ranges else planned.start
        count = sum(changes for _, changes in planned.ranges)
        offset = {NEXT: end, CHANGES: count, BEHIND: planned.behind}
        return {BEGIN: planned.start, **offset} if START in at else offset

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> BatchPlan:
        begin = end[BEGIN] if START in start else start[NEXT]
        if position_of(begin).lsn > position_of(end[NEXT]).lsn:
            raise Invalid(
                f"the batch of table {self._name} would end before it begins: Spark asked for its end before it showed"
                " the checkpoint, as with spark.sql.streaming.triggerAvailableNowWrapper.enabled: leave"
                " maxOffsetsPerTrigger out there, or set that to false"
            )
        return self._ranges(begin, until=end[NEXT], size=RANGE_CHANGES)

    def snapshot_of(self, start: dict[str, Any], end: dict[str, Any]) -> list[PlanPart] | None:
        """Tasks for the table at the cut that a stream begins with; None for a batch of changes."""
        if START not in start or end[BEGIN] != SNAPSHOT:
            return None
        if self._snapshot is None or self._snapshot[0] != end[NEXT]:
            self._take_snapshot(end[NEXT])
        assert self._snapshot is not None
        where = f"({self._where})" if self._where else ""
        answer = pb.PlanAnswer()
        answer.CopyFrom(self._snapshot[1])
        return parts_of(self._transport, self._address, answer, Rows(self._shown, where))

    def hold(self, offset: dict[str, Any]) -> None:
        """Keep the log from an offset. For the first batch, from its beginning."""
        if self._kept is not None:
            begin = offset.get(BEGIN, "")
            self._kept.open(offset[NEXT] if begin in ("", SNAPSHOT) else begin)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge everything up to an offset, so the server may drop the log before it."""
        if self._kept is not None:
            self._kept.ack(end[NEXT])
        self._forget_snapshot()

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._leases.close()
        self._transport.close()

    def _ranges(self, start: str, *, until: str = "", most: int = 0, size: int = 0) -> BatchPlan:
        asked = pb.ChangeRangesRequest(table=self._name, table_uuid=self._shown.table.uuid, start=start, until=until)
        asked.changes_max, asked.range_changes, asked.where = most, size, self._where
        answer = self._transport.change_ranges(asked)
        self._shown.check(Table.from_json(answer.definitions[-1]), self._where)
        ranges = tuple((part.token, part.changes) for part in answer.ranges)
        return BatchPlan(answer.start, ranges, answer.behind, tuple(answer.definitions))

    def _begun_with_snapshot(self) -> dict[str, Any]:
        token = self._take_snapshot("")
        return {BEGIN: SNAPSHOT, NEXT: token, CHANGES: 0, BEHIND: 0}

    def _take_snapshot(self, at: str) -> str:
        """Plan the table at a cut or at the head and keep the plan while the stream lives. Returns the position."""
        self._forget_snapshot()
        answer = self._transport.plan(plan.request([self._name], at=at, lease_seconds=LEASE_SECONDS))
        self._leases.hold(answer.lease)
        self._shown.check(Table.from_json(answer.tables[0].definition), self._where)
        cut = position_of(answer.token)
        token = str(LogPosition(cut.timeline, cut.lsn, (self._shown.table.uuid,)))
        self._snapshot = (token, answer)
        return token

    def _forget_snapshot(self) -> None:
        if self._snapshot is not None:
            self._leases.release(self._snapshot[1].lease)
            self._snapshot = None


class ChangePart(InputPartition):
    """The changes of one range for one task. Every read returns the same rows."""

    def __init__(
        self, *, address: Address, planned: BatchPlan, begin: str, end: str, count: int, request: StreamRequest
    ) -> None:
        self.address, self.begin, self.end, self.count, self.asked = address, begin, end, count, request
        self.definitions = planned.definitions

    def read(self) -> Iterator[pa.RecordBatch]:
        """The changes in Spark's types. Raises `Internal` if their number differs from the plan."""
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


class StreamRequest:
    """The requested changes of a stream."""

    def __init__(self, columns: BoundColumns, where: str, *, before_images: bool) -> None:
        self.shown, self.where, self.before_images = columns, where, before_images

    def request(self, begin: str, end: str, current: Table) -> Any:
        """The request of a range. Columns are named as in the current version; all columns if it has lost one."""
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
    """A stream of one table. The driver's Python worker plans it, tasks read it."""

    def __init__(self, options: Options, table: Table, schema: StructType) -> None:
        self._options, self._shown = options, BoundColumns.of(table, schema)
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
        self._asked = StreamRequest(self._shown, where, before_images=images)
        self._most = options.count("maxOffsetsPerTrigger")
        self._at: dict[str, Any] | None = None
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The text of `startingOffsets`. It is the same at every start, so the first batch can be planned again."""
        return {START: self._start}

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch; the current offset if there is nothing new."""
        return self._drives().after(self._at or self.initialOffset(), self._most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. A batch with equal ends tells the reader where the checkpoint is."""
        driver = self._drives()
        self._at = end
        if NEXT in end:
            driver.hold(end if START in start or start == end else start)
        if start == end:
            return []
        snapshot = driver.snapshot_of(start, end)
        if snapshot is not None:
            return snapshot
        planned = driver.plan(start, end)
        address = self._options.address
        begins = [planned.start, *(token for token, _ in planned.ranges)]
        return [
            ChangePart(address=address, planned=planned, begin=begin, end=token, count=count, request=self._asked)
            for begin, (token, count) in zip(begins, planned.ranges, strict=False)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangePart | PlanPart)
        return partition.read()

    def commit(self, end: dict[str, Any]) -> None:
        self._drives().commit(end)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _drives(self) -> StreamDriver:
        """The connection of the driver's worker. Readers in tasks have none."""
        if self._driver is None:
            self._driver = StreamDriver(self._options, self._asked.shown, self._asked.where)
        return self._driver

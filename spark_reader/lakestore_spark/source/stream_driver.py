"""The driver's side of a stream: where the next batch ends, which ranges it has, what the server keeps for it.

It lives in the Python worker that Spark keeps for the stream, and ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.model.token import LogPosition, position_of
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.leases import LEASE_SECONDS, SessionLeases
from lakestore_spark.source.kept_position import KeptPosition
from lakestore_spark.source.options import Options
from lakestore_spark.source.shown import Shown
from lakestore_spark.source.table_reader import PlanPart, Rows, parts_of

START = "startingOffsets"
"""Key of the offset of a stream that has not begun."""
NEXT, BEGIN, CHANGES, BEHIND = "next", "begin", "changes", "behind"
"""Keys of an offset: the position behind it; of the first one, the position before it; the changes in between; those
that were behind it when it was planned."""
SNAPSHOT = "snapshot"
"""The begin of a stream whose first batch is the table at the cut `next`."""
RANGE_CHANGES = 250_000
"""Changes that one task reads, about."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The changes of one batch as ranges."""

    start: str
    """Token before the first."""
    ranges: tuple[tuple[str, int], ...]
    """Token behind each range, and its changes."""
    behind: int
    """Changes behind the last one."""
    definitions: tuple[str, ...]
    """JSON of the table's versions that rows may be in, and of all later ones."""


class StreamDriver:
    """One stream's connection to the server."""

    def __init__(self, options: Options, shown: Shown, where: str) -> None:
        self._address, self._name = options.address, options.table
        self._shown, self._where = shown, where
        self._transport = self._address.connect()
        self._leases = SessionLeases(self._transport)
        self._snapshot: tuple[str, pb.PlanAnswer] | None = None
        name = options.text("subscription")
        self._kept = KeptPosition(self._transport, self._name, shown.table.uuid, name) if name else None

    def after(self, at: dict[str, Any], most: int) -> dict[str, Any]:
        """The offset that follows another one, `most` changes behind it or at the head; the same when that is there."""
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

    def planned(self, start: dict[str, Any], end: dict[str, Any]) -> Planned:
        """The ranges of a batch."""
        begin = end[BEGIN] if START in start else start[NEXT]
        if position_of(begin).lsn > position_of(end[NEXT]).lsn:
            raise Invalid(
                f"the batch of table {self._name} would end before it begins: Spark asked for its end before it showed"
                " the checkpoint, as with spark.sql.streaming.triggerAvailableNowWrapper.enabled: leave"
                " maxOffsetsPerTrigger out there, or set that to false"
            )
        return self._ranges(begin, until=end[NEXT], size=RANGE_CHANGES)

    def snapshot_of(self, start: dict[str, Any], end: dict[str, Any]) -> list[PlanPart] | None:
        """The tasks of the table at the cut that a stream begins with; None for a batch of changes."""
        if START not in start or end[BEGIN] != SNAPSHOT:
            return None
        if self._snapshot is None or self._snapshot[0] != end[NEXT]:
            self._take_snapshot(end[NEXT])
        assert self._snapshot is not None
        where = f"({self._where})" if self._where else ""
        answer = pb.PlanAnswer()
        answer.CopyFrom(self._snapshot[1])
        return parts_of(self._address, answer, Rows(self._shown, where))

    def hold(self, offset: dict[str, Any]) -> None:
        """Have the server keep the changes behind an offset; for its first batch, those that it begins with."""
        if self._kept is not None:
            begin = offset.get(BEGIN, "")
            self._kept.open(offset[NEXT] if begin in ("", SNAPSHOT) else begin)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to an offset is done: the server need not keep it for this stream."""
        if self._kept is not None:
            self._kept.ack(end[NEXT])
        self._forget_snapshot()

    def close(self) -> None:
        """Let go of everything. Again is harmless."""
        self._leases.close()
        self._transport.close()

    def _ranges(self, start: str, *, until: str = "", most: int = 0, size: int = 0) -> Planned:
        asked = pb.ChangeRangesRequest(table=self._name, table_uuid=self._shown.table.uuid, start=start, until=until)
        asked.changes_max, asked.range_changes, asked.where = most, size, self._where
        answer = self._transport.change_ranges(asked)
        self._shown.check(Table.from_json(answer.definitions[-1]), self._where)
        ranges = tuple((part.token, part.changes) for part in answer.ranges)
        return Planned(answer.start, ranges, answer.behind, tuple(answer.definitions))

    def _begun_with_snapshot(self) -> dict[str, Any]:
        """The end of a first batch that is the table at the head of this moment."""
        token = self._take_snapshot("")
        return {BEGIN: SNAPSHOT, NEXT: token, CHANGES: 0, BEHIND: 0}

    def _take_snapshot(self, at: str) -> str:
        """Plan the table at a cut, or at the head, and hold it while the stream lives; the position of the cut."""
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

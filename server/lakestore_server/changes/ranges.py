"""Ranges of a table's changes: whole commits after a position, for readers that divide them among themselves.

Ranges are computed from offsets, so no row is read. A range is read as a change stream from its start to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakestore.errors import Invalid
from lakestore.model.token import LogPosition, SnapshotPosition
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.filter import bind_condition
from lakestore_server.changes.start import first_view, start_position
from lakestore_server.commit.engine import Engine
from lakestore_server.read.positions import parse_token, reached
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View

RANGES_MAX = 256
"""Ranges in one answer; a longer request gets longer ranges."""


def change_ranges(engine: Engine, request: pb.ChangeRangesRequest) -> pb.ChangeRangesAnswer:
    """The changes between two positions as ranges; `PositionExpired` if the log starts after the first position."""
    view, limit = _ends(engine, request)
    state = view.meant(request.table, request.table_uuid)
    view.refuse_copy(state.table)
    if request.where:
        bind_condition(request.where, state.versions)
    start = start_position(engine, view, request.start or "earliest", (state.table.uuid,))
    if isinstance(start, SnapshotPosition):
        definitions = [state.table.to_json()]
        return pb.ChangeRangesAnswer(start=str(start), behind=0, definitions=definitions)
    at = swaps.TablesAt.of(view, (state.table.uuid,), start.lsn)
    state = at.view.by_uuid(at.tables[0])
    limit = min(limit, at.until) if start.lsn <= at.until else limit  # the table in its place has the rest
    if start.lsn > limit:
        raise Invalid("the position is after the end of the ranges: ask for ranges from an earlier position")
    commits = _Commits(state, start.lsn, limit)
    ranges = list(commits.ranges(request.changes_max, request.range_changes))
    last = ranges[-1] if ranges else start.lsn
    answer = pb.ChangeRangesAnswer(start=str(start), behind=_total(state, view.lsn) - _total(state, last))
    before = commits.base
    for lsn in ranges:
        total = _total(state, lsn)
        token = LogPosition(start.timeline, lsn, start.tables)
        answer.ranges.append(pb.ChangeRange(token=str(token), changes=total - before))
        before = total
    answer.definitions.extend(_definitions(state, start.lsn))
    return answer


def _ends(engine: Engine, request: pb.ChangeRangesRequest) -> tuple[View, int]:
    if request.until:
        lsn = parse_token(request.until, engine).lsn
        return reached(engine, lsn), lsn
    view = first_view(request.start, engine)
    return view, view.lsn


def _definitions(state: TableState, lsn: int) -> list[str]:
    first = state.versions.at(lsn + 1).schema_id
    return [table.to_json() for table in state.versions.tables if table.schema_id >= first]


def _total(state: TableState, lsn: int) -> int:
    return sum(log.at_lsn(lsn).end for log in state.logs)


@dataclass(frozen=True, slots=True)
class _Commits:
    """The commits of a table in (start, limit]."""

    state: TableState
    start: int
    limit: int

    @property
    def base(self) -> int:
        return _total(self.state, self.start)

    def ranges(self, changes_max: int, range_changes: int) -> Iterator[int]:
        base, end = self.base, _total(self.state, self.limit)
        if changes_max and base < end:
            end = _total(self.state, self._reaching(self.start, base + changes_max))
        step = max(range_changes, -(-(end - base) // RANGES_MAX)) if range_changes else max(end - base, 1)
        at, lsn = base, self.start
        while at < end:
            lsn = self._reaching(lsn, min(at + step, end))
            at = _total(self.state, lsn)
            yield lsn

    def _reaching(self, lsn: int, total: int) -> int:
        first = self._first_behind(lsn)
        if _total(self.state, first) >= total:
            return first
        low, high = first, self.limit
        while low < high:
            middle = (low + high + 1) // 2
            if _total(self.state, middle) <= total:
                low = middle
            else:
                high = middle - 1
        return low

    def _first_behind(self, lsn: int) -> int:
        beyond = (log.lsn_beyond(log.at_lsn(lsn).end) for log in self.state.logs)
        return min(found for found in beyond if found is not None)

"""Rows of a split of a hot range, as they are fetched: those alive at the cut, and of these the ones that are wanted.

A condition meets rows that are alive, shown in the version of the cut: never an older version of a row, nor one that
was superseded. Pieces of the log whose values cannot meet it are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.columns import LAKE_TIMESTAMP
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.read import rows
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.read.piece_ranges import PiecePruning, PieceRanges
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import PREV, StoredBatch
from lakestore_server.state.view import TableState


class HotRows:
    """The hot rows of plans. Thread-safe."""

    def __init__(self, engine: Engine, dead: rows.DeadCache) -> None:
        self._engine, self._dead = engine, dead
        self._ranges = PieceRanges()

    def fetch(self, request: pb.FetchRequest, earlier: TableState | None = None) -> Iterator[pb.RowBatch]:
        """The rows of one split, of the table as it was `earlier` if it was truncated since the read began.

        A read that holds a lease goes on although the table was dropped, as long as its rows are kept.
        """
        limits = self._engine.limits
        view = self._engine.view
        dropped = view.dropped.get(request.table_uuid) if request.lease else None
        state = earlier or (dropped.state if dropped else view.by_uuid(request.table_uuid))
        log = _checked(state, request)
        names = [name for name in request.columns if name != PREV]
        wanted = state.versions.numbered(request.schema_id) if request.HasField("schema_id") else state.table
        columns = list(request.columns) if request.columns else wanted.selected(None)
        wanted.selected(names)
        if not request.where:
            options = _options(state, wanted, columns, limits.fetch_batch_rows)
            shown = self._shown(state, wanted, columns, request, self._parts(state, log, request, options))
            yield from rows.messages(shown, limits)
            return
        condition = PARSED.of(request.where, wanted.name, wanted.columns)
        every = list(dict.fromkeys([*columns, *condition.columns]))
        prune = _Prune(PiecePruning(condition.skip, self._ranges, log, request.bucket, state.versions, wanted), request)
        options = _options(state, wanted, every, limits.fetch_batch_rows, prune)
        shown = self._shown(state, wanted, every, request, self._parts(state, log, request, options))
        yield from rows.messages(prune.meeting(shown, condition, columns), limits)
        yield pb.RowBatch(tested=prune.tested, passed_over=prune.passed_over)

    def _parts(
        self, state: TableState, log: BucketLog, request: pb.FetchRequest, options: rows.ReadOptions
    ) -> Iterator[rows.Rows]:
        """The stored rows."""
        if not request.live_only:
            return rows.read(log, request.start, request.end, options)
        dead = self._dead.of(state.table.uuid, request.bucket, log, request.live_start, request.live_end)
        based = log.keyed and request.live_start == 0 and request.live_end >= max(log.base.end, request.end)
        return (rows.live_at if based else rows.live)(log, request.start, request.end, dead, options)

    def _shown(
        self,
        state: TableState,
        wanted: Table,
        columns: Sequence[str],
        request: pb.FetchRequest,
        parts: Iterable[rows.Rows],
    ) -> Iterator[pa.RecordBatch]:
        """The stored rows in the version that is wanted."""
        for part in parts:
            shape = state.versions.projection(part.schema_id, wanted)
            yield rows.sendable(shape, part, columns, request.bucket, self._engine.limits)


@dataclass(slots=True)
class _Prune:
    """A condition at work, and what it spared."""

    pruning: PiecePruning
    request: pb.FetchRequest
    tested: int = 0
    passed_over: int = 0

    def __call__(self, piece: StoredBatch) -> bool:
        if self.pruning.may_meet(piece):
            return True
        self.passed_over += min(piece.end, self.request.end) - max(piece.start, self.request.start)
        return False

    def meeting(
        self, shown: Iterable[pa.RecordBatch], condition: RowFilter, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows that meet the condition."""
        for batch in shown:
            self.tested += batch.num_rows
            kept = condition.apply(batch)
            if kept.num_rows:
                yield kept.select(list(columns))


def _options(
    state: TableState, wanted: Table, columns: Sequence[str], rows_max: int, prune: _Prune | None = None
) -> rows.ReadOptions:
    needed = state.versions.stored_names(wanted, [name for name in columns if name != PREV])
    return rows.ReadOptions(rows_max, LAKE_TIMESTAMP in columns, needed, prune)


def _checked(state: TableState, request: pb.FetchRequest) -> BucketLog:
    """The log of the request's bucket, or `Invalid`."""
    if request.bucket >= len(state.logs):
        raise Invalid(f"table {state.table.name} has no bucket {request.bucket}")
    log = state.logs[request.bucket]
    if request.end > log.head or request.start > request.end:
        raise Invalid(f"bucket {request.bucket} has no rows [{request.start}, {request.end})")
    if request.live_only and not request.live_start <= request.live_end <= log.head:
        raise Invalid(f"bucket {request.bucket} has no rows [{request.live_start}, {request.live_end})")
    if request.where and not request.live_only:
        raise Invalid("a condition is held against live rows: fetch them with live_only")
    return log

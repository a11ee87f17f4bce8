"""Deletes of a keyed table's rows that meet a condition at one cut.

A call reads a part of the offsets below the cut's heads, in order, and deletes the matches. A row that is live now and
lies below the heads was live at the cut, so the index alone decides. A row that was rewritten since has another offset
and stays. Each delete is a normal change with `prev`. Deletes of a call are final; the client holds the place to
continue from and may repeat a call. All rows are in the server's own log, also those in the lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError
from lakestore.model.columns import LAKE_TIMESTAMP
from lakestore.model.contract import deletes
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.read import exact_deletes, rows
from lakestore_server.read.exact_deletes import FoundRows
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.read.piece_ranges import PiecePruning, PieceRanges
from lakestore_server.read.positions import parse_token
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.view import TableState

CALL_SECONDS = 1.0
BLOCK_OFFSETS = 1 << 18
"""Offsets between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A position of a call among the offsets below the heads of a cut."""

    heads: tuple[int, ...]
    bucket: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return ",".join(map(str, (self.bucket, self.offset, *self.heads)))

    @staticmethod
    def of(text: str, state: TableState) -> _Place:
        """The place that a client sends back, or `Invalid`."""
        try:
            bucket, offset, *heads = map(int, text.split(","))
        except ValueError as error:
            raise Invalid("the server did not give this place to continue from: start again") from error
        is_known = len(heads) == len(state.logs) and 0 <= bucket < len(heads) and 0 <= offset
        if not is_known or any(not 0 <= head <= log.head for head, log in zip(heads, state.logs, strict=True)):
            raise Invalid("the place to continue from belongs to another table: start again")
        return _Place(tuple(heads), bucket, offset)

    @property
    def is_end(self) -> bool:
        return self.bucket == len(self.heads)

    @property
    def done(self) -> int:
        """Number of offsets before it."""
        return sum(self.heads[: self.bucket]) + self.offset

    def to(self, offset: int) -> _Place:
        return replace(self, offset=offset) if offset < self.heads[self.bucket] else self.skipped()

    def skipped(self) -> _Place:
        after = _Place(self.heads, self.bucket + 1)
        while not after.is_end and not after.heads[after.bucket]:
            after = _Place(self.heads, after.bucket + 1)
        return after


class ConditionalDeletes:
    """The verb. Thread-safe."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._ranges = PieceRanges()

    def delete_where(self, request: pb.DeleteWhereRequest) -> pb.DeleteWhereAnswer:
        view = self._engine.serving()
        state = view.writable(request.table, request.table_uuid)
        condition = _condition(state.table, request.where)
        if request.next:
            parse_token(request.token, self._engine)
            place, token = _Place.of(request.next, state), request.token
        else:
            first = _Place(tuple(state.heads()))
            place, token = (first if first.heads[0] else first.skipped()), view.token()
        answer = pb.DeleteWhereAnswer(token=token, offsets=sum(place.heads))
        end = self._clock.monotonic() + CALL_SECONDS
        begin = place.done
        while not place.is_end:
            try:
                place = self._block(state, place, condition, answer, end, dry_run=request.dry_run)
            except LakestoreError:
                if not answer.deleted:
                    raise
                break  # the finished deletes are reported; the next call begins at this block and meets the error again
            if self._clock.monotonic() >= end:
                break
        answer.looked_at = (answer.offsets if place.is_end else place.done) - begin
        answer.next = "" if place.is_end else str(place)
        return answer

    def _block(
        self,
        state: TableState,
        place: _Place,
        condition: RowFilter,
        answer: pb.DeleteWhereAnswer,
        end: float,
        *,
        dry_run: bool,
    ) -> _Place:
        """Read some offsets of a bucket and delete their matching rows; returns the place after them. A condition may
        be slow: at the time `end` the place is after the rows that were read."""
        bucket = place.bucket
        upto = min(place.offset + BLOCK_OFFSETS, place.heads[bucket])
        for behind, found in self._matching(state, place, upto, condition):
            if found is not None:
                self._delete(state, bucket, found, answer, dry_run=dry_run)
            if self._clock.monotonic() >= end:
                return place.to(behind)
        return place.to(upto)

    def _delete(
        self, state: TableState, bucket: int, found: FoundRows, answer: pb.DeleteWhereAnswer, *, dry_run: bool
    ) -> None:
        engine, table = self._engine, state.table
        rows_there = found.take(exact_deletes.live(engine, table, found))
        if dry_run:
            answer.matched += len(rows_there.offsets)
            return
        for part in exact_deletes.commits(state, bucket, rows_there, rows.sent_bytes(engine.limits)):
            count, done = exact_deletes.delete(engine, table, bucket, part, _deletable)
            answer.matched += len(part.offsets)
            answer.deleted += count
            answer.last = done.view.token()

    def _matching(
        self, state: TableState, place: _Place, upto: int, condition: RowFilter
    ) -> Iterator[tuple[int, FoundRows | None]]:
        """The stored rows of a range that meet the condition in the current version, live or not, batch by batch, each
        with the offset after the batch."""
        table, log, versions = state.table, state.logs[place.bucket], state.versions
        carried = [column.name for column in exact_deletes.carried(table)]
        names = list(dict.fromkeys([*carried, *condition.columns]))
        pruning = PiecePruning(condition.skip, self._ranges, log, place.bucket, versions, table)
        most, timed = self._engine.limits.fetch_batch_rows, LAKE_TIMESTAMP in condition.columns
        for offsets, batch, schema_id in log.stored(place.offset, upto, most, None, pruning.may_meet):
            change = batch.column(CHANGE).to_numpy()
            times = log.times_at(offsets) if timed else np.zeros(len(offsets), dtype=np.int64)
            part = rows.Rows(batch, offsets, times, change, schema_id).filter(change != DELETE)
            shown = rows.project(versions.projection(schema_id, table), part, names, place.bucket)
            mask = condition.mask(shown)
            kept = shown.select(carried).filter(pa.array(mask)) if mask.any() else None
            yield int(offsets[-1]) + 1, None if kept is None else FoundRows(part.offsets[mask], kept)


def _deletable(table: Table) -> bool:
    return table.deletes == "allow"


def _condition(table: Table, where: str) -> RowFilter:
    """The condition, or `Invalid` if the table's rows cannot be deleted by one."""
    if not where:
        raise Invalid(f"a delete of rows of table {table.name} needs a condition; `truncate` removes all rows")
    if not table.keyed:
        raise Invalid(
            f"table {table.name} is a log table, whose rows stay as they were written: `truncate` takes all of them"
            " away, and retention removes old rows"
        )
    if not _deletable(table):
        is_ruled = deletes.of_table(table).tombstone is not None
        mend = "apply a contract with tombstone: delete" if is_ruled else "alter it to deletes='allow'"
        raise Invalid(f"table {table.name} has deletes={table.deletes!r}: {mend} first")
    return PARSED.filter_of(where, table.name, table.columns)

"""The stream of one member of a shared subscription: the changes of the buckets that are its own for the moment.

Each bucket is read from its acknowledged mark on, its snapshot first if it still reads one. Before anything is sent
the member's seat is asked: what was taken away meanwhile is not sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from lakestore.errors import PositionExpired
from lakestore.schema import Table
from lakestore.server.engine import Engine
from lakestore.server.feed_batches import Shape, live_rows, message
from lakestore.server.feed_cache import Prepared
from lakestore.server.member_batches import member_run
from lakestore.server.shared import Moves, Seat, bell_key, current
from lakestore.server.sharing import Bucket
from lakestore.server.state import TableState, View
from lakestore.server.subscription import NO_CUT, Mark
from lakestore.token import Part, Token
from lakestore.v1 import lakestore_pb2 as pb

SETTLE_SECONDS = 1.0
"""How often marks are moved over what held no rows for the member."""


@dataclass(slots=True)
class _Reading:
    """A bucket that is read under one grant."""

    grant: int
    begin: int
    """The acknowledged offset at which it began."""
    at: Mark
    """Behind what was sent, and what had nothing to send."""
    rows: Iterator[tuple[pa.RecordBatch, int]] | None = None
    """Its snapshot, while that is read."""
    ahead: list[tuple[pa.RecordBatch, int]] = field(default_factory=list)
    """The next batches of it, of which the last one ends it."""

    def look_ahead(self) -> bool:
        """Have the next two batches with rows, or all that are left; False: look again, a condition left some out."""
        assert self.rows is not None, "only of a snapshot that is read"
        room = 2 - len(self.ahead)
        found = list(islice(self.rows, room))
        self.ahead += [(batch, after) for batch, after in found if batch.num_rows]
        return len(found) < room or len(self.ahead) == 2


class MemberStream:
    """One connection of a member; used by one thread."""

    def __init__(self, engine: Engine, seat: Seat, shape: Shape, until: int | None, *, reads_lake: bool) -> None:
        self._engine, self._seat, self._shape, self._until = engine, seat, shape, until
        self._reads_lake = reads_lake
        self._readings: dict[Bucket, _Reading] = {}
        self._known: dict[Bucket, _Reading] = {}
        self.moved = False
        """Whether the last round has sent something, or found that there was nothing to send."""
        self._settled = float("-inf")

    @property
    def bells(self) -> list[str]:
        """What wakes it: its tables, and whatever changes its buckets."""
        return [*self._shape.tables, bell_key(self._seat.name)]

    def messages(self) -> Iterator[Prepared]:
        """What there is to send now; `moved` says whether there may be more behind it."""
        self.moved = False
        self._sync()
        view = self._engine.serving()
        yield from self._snapshots(view)
        yield from self._changes(view)

    def is_over(self) -> bool:
        """Whether the member has everything up to its end."""
        view = self._engine.view
        if self._until is None or self._until > view.lsn or self._seat.shared.waits(self._seat):
            return False
        return all(
            reading.at.cut == NO_CUT and reading.at.offset >= _end(view, bucket, self._until)
            for bucket, reading in self._readings.items()
        )

    def wait(self, bell: threading.Event, poll: float | None) -> None:
        """Until something changes, or time alone changes something."""
        again = self._settle()
        times = (poll, self._seat.shared.due(self._seat), again)
        bell.wait(min((seconds for seconds in times if seconds is not None), default=None))

    def _sync(self) -> None:
        """Follow what the seat reads: drop what was taken away, begin what is new."""
        taken = self._seat.shared.take(self._seat)
        self._known |= self._readings  # what was taken away may come back under the same grant
        self._readings = {}
        for bucket, (grant, mark) in taken.items():
            known = self._known.get(bucket)
            same = known is not None and known.grant == grant
            self._readings[bucket] = known if known and same else _Reading(grant, mark.offset, mark)

    def _snapshots(self, view: View) -> Iterator[Prepared]:
        """The next message of a snapshot, if one is read."""
        for bucket, reading in self._readings.items():
            if reading.at.cut == NO_CUT:
                continue
            state = view.by_uuid(bucket[0])
            if reading.rows is None and not state.has_all_rows:
                yield from self._from_lake(view, state, reading.at.cut)
            else:
                yield from self._snapshot(view, state, bucket, reading)
            return

    def _snapshot(self, view: View, state: TableState, bucket: Bucket, reading: _Reading) -> Iterator[Prepared]:
        cut, whole = reading.at.cut, Mark(_end(view, bucket, reading.at.cut))
        if reading.rows is None:
            start, limits = reading.at.offset, self._engine.limits
            reading.rows = live_rows(state, self._shape, bucket[1], start, cut, limits)
        self.moved = True
        if not reading.look_ahead():
            return
        if not reading.ahead:
            reading.at = whole
            return
        batch, after = reading.ahead[0]
        mark = whole if len(reading.ahead) == 1 else Mark(after, cut)
        if self._sends({bucket: mark}):
            reading.ahead.pop(0)
            reading.at = mark
            yield self._message(state.versions.at(cut), batch, {bucket: mark}, snapshot=True)

    def _from_lake(self, view: View, state: TableState, cut: int) -> Iterator[Prepared]:
        """What tells the member to read the snapshot of its buckets itself, for old rows are only in the lake."""
        table = state.versions.at(cut)
        if not self._reads_lake:
            raise PositionExpired(
                f"the old rows of table {table.name} are only in the lake, which this client does not read in a stream:"
                " let a newer one share the subscription"
            )
        readings = self._readings.items()
        own = [b for b, reading in readings if b[0] == table.uuid and reading.at.cut == cut and reading.rows is None]
        marks = {bucket: Mark(_end(view, bucket, cut)) for bucket in own}
        if self._sends(marks):
            for bucket, mark in marks.items():
                self._readings[bucket].at = mark
            token, number = str(self._token(marks, cut)), table.schema_id
            yield Prepared.of(
                pb.ChangeBatch(table=table.name, token=token, snapshot=True, schema_id=number, read_the_lake=True)
            )

    def _changes(self, view: View) -> Iterator[Prepared]:
        """The next changes of the buckets that have read their snapshots."""
        at = {bucket: reading.at.offset for bucket, reading in self._readings.items() if reading.at.cut == NO_CUT}
        limit = view.lsn if self._until is None else min(view.lsn, self._until)
        run = member_run(view, self._shape, at, limit, self._engine.limits)
        if run is None:
            return
        sent = {bucket: Mark(run.ends[bucket]) for piece in run.pieces for bucket in piece.ends}
        if not self._sends(sent):
            return
        for bucket, end in run.ends.items():
            self._readings[bucket].at = Mark(end)
        for piece in run.pieces:
            marks = {bucket: Mark(end) for bucket, end in piece.ends.items()}
            yield self._message(piece.table, piece.batch, marks, snapshot=False)

    def _sends(self, marks: Mapping[Bucket, Mark]) -> bool:
        self.moved = True
        moves: Moves = {bucket: (self._readings[bucket].grant, mark.order()) for bucket, mark in marks.items()}
        return self._seat.shared.sends(self._seat, moves)

    def _message(
        self, table: Table, batch: pa.RecordBatch, marks: Mapping[Bucket, Mark], *, snapshot: bool
    ) -> Prepared:
        return message(table, batch, self._token(marks), snapshot=snapshot)

    def _token(self, marks: Mapping[Bucket, Mark], lsn: int = 0) -> Token:
        return Token(self._engine.timeline, lsn, self._shape.tables, parts=self._parts(marks))

    def _parts(self, marks: Mapping[Bucket, Mark]) -> tuple[Part, ...]:
        tables = self._shape.tables
        return tuple(
            Part(tables.index(bucket[0]), bucket[1], self._readings[bucket].begin, mark.offset, mark.cut)
            for bucket, mark in sorted(marks.items(), key=lambda item: item[0])
        )

    def _settle(self) -> float | None:
        """Move marks over what held no rows, where all rows are acknowledged; seconds until it is to be done again."""
        shared, view = self._seat.shared, self._engine.view
        done = {bucket for bucket in shared.acknowledged(self._seat) if bucket in self._readings}
        held = current(view, self._seat.name)
        stand = {b: held.marks[held.tables.index(b[0])][b[1]].order() for b in done}
        open_ = {b: self._readings[b].at for b in done if self._readings[b].at.order() > stand[b]}
        if not open_:
            return None
        left = self._settled + SETTLE_SECONDS - shared.now()
        if left <= 0:
            self._settled = shared.now()
            self._seat.settle(view, self._parts(open_))
        return max(left, 0.0) or SETTLE_SECONDS


def _end(view: View, bucket: Bucket, lsn: int) -> int:
    log = view.by_uuid(bucket[0]).logs[bucket[1]]
    return log.base.end if lsn < log.base.lsn else log.at_lsn(lsn).end

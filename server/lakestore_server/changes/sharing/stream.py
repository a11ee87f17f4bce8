"""The stream of one member of a shared subscription: the changes of its buckets.

Each bucket is read from its acknowledged mark, after the rest of its snapshot. A message is noted with the group before
it is sent: rows of a bucket that was taken away are not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakestore.errors import PositionExpired
from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore.model.token import Part, Place, SharedPosition
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.batches import LiveBatch, Shape, bare, live_piece, message, run_end, table_batch
from lakestore_server.changes.sharing.group import Grant, Membership, bell_key, by_bucket, current
from lakestore_server.changes.sharing.members import Bucket, Sending
from lakestore_server.changes.sharing.positions import check_kept
from lakestore_server.commit.durable import Bell, Pause
from lakestore_server.commit.engine import Engine
from lakestore_server.read.rows import DeadCache, bounded, sent_bytes
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CommitIndex
from lakestore_server.state.subscription import NO_CUT, Mark
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class MemberBatch:
    """Rows of one table in one message."""

    table: Table
    batch: pa.RecordBatch
    ends: Mapping[Bucket, int]
    """For each bucket of the message, the end of the last commit that the message completes."""


@dataclass(frozen=True, slots=True)
class MemberRun:
    """The next messages of a member."""

    pieces: tuple[MemberBatch, ...]
    ends: Mapping[Bucket, int]
    """The offset of every bucket after the messages, also of buckets without rows to show."""
    first: int
    """LSN of the first commit in the messages; all messages use the tables' versions at this commit."""


def member_run(view: View, shape: Shape, at: Mapping[Bucket, int], limit: int, limits: Limits) -> MemberRun | None:
    """The messages after the positions, none after the LSN `limit`: about a batch of rows from each bucket. None if
    there are no commits."""
    first = _first_lsn(view, at)
    if first is None or first > limit:
        return None
    upto = _upto(view, shape, at, first, limit, limits)
    ends = {(uuid, bucket): _stream_end(_log(view, uuid, bucket), start, upto) for (uuid, bucket), start in at.items()}
    pieces: list[MemberBatch] = []
    for uuid in shape.tables:
        state = view.by_uuid(uuid)
        here = {bucket: at[owner, bucket] for owner, bucket in at if owner == uuid}
        ranges = [(here[b], ends[uuid, b]) if b in here else (0, 0) for b in range(len(state.logs))]
        table = state.versions.at(first)
        batch = table_batch(state, table, shape, ranges)
        if batch is not None:
            pieces += _messages(view, table, batch, at, ends, sent_bytes(limits))
    return MemberRun(tuple(pieces), ends, first)


def _log(view: View, uuid: str, bucket: int) -> BucketLog:
    return view.by_uuid(uuid).logs[bucket]


def _first_lsn(view: View, at: Mapping[Bucket, int]) -> int | None:
    lsns = [_log(view, *bucket).lsn_beyond(start) for bucket, start in at.items()]
    return min((lsn for lsn in lsns if lsn is not None), default=None)


def _upto(view: View, shape: Shape, at: Mapping[Bucket, int], first: int, limit: int, limits: Limits) -> int:
    upto, nbytes = limit, sent_bytes(limits) // 2 // len(at)
    for uuid in {uuid for uuid, _ in at}:
        upto = view.by_uuid(uuid).versions.until(first - 1, upto)
    for bucket, start in at.items():
        log = _log(view, *bucket)
        if start < log.head:
            reach = run_end(log, shape, start, limits.changes_batch_rows, nbytes)
            upto = min(upto, log.lsn_reaching(start, reach)) if reach < log.head else upto
    return upto


def _stream_end(log: BucketLog, start: int, upto: int) -> int:
    return start if upto < log.base.lsn else max(log.at_lsn(upto).end, start)


def _messages(
    view: View, table: Table, batch: pa.RecordBatch, at: Mapping[Bucket, int], ends: Mapping[Bucket, int], nbytes: int
) -> Iterator[MemberBatch]:
    buckets, offsets = batch.column("__bucket").to_numpy(), batch.column("__offset").to_numpy()
    stop = 0
    for piece in bounded(batch, nbytes):
        stop += piece.num_rows
        reached = {}
        for number in np.unique(buckets[stop - piece.num_rows : stop]).tolist():
            bucket = table.uuid, number
            later = offsets[stop:][buckets[stop:] == number]
            commits = _log(view, *bucket).commits(at[bucket], ends[bucket]) if len(later) else None
            reached[bucket] = _whole(commits, at[bucket], int(later[0])) if commits else ends[bucket]
        yield MemberBatch(table, piece, reached)


def _whole(commits: CommitIndex, start: int, offset: int) -> int:
    count = int(np.searchsorted(commits.end, offset, side="right"))
    return int(commits.end[count - 1]) if count else start


SETTLE_SECONDS = 1.0
"""Seconds between two moves of marks over ranges without rows for the member."""


@dataclass(slots=True)
class _Reading:
    """A bucket that is read under one grant."""

    grant: Grant
    at: Mark
    """The mark after everything sent and after ranges without rows to send."""
    reached: int | None = None
    """Offset up to which the bucket's snapshot was read from the log; None before the first piece."""
    ahead: list[LiveBatch] = field(default_factory=list)
    """The next batches with rows; the very last batch ends the snapshot."""
    is_read: bool = False
    """True if no batch follows `ahead`."""


class MemberStream:
    """One connection of a member; used by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        dead: DeadCache,
        membership: Membership,
        shape: Shape,
        until: int | None,
        *,
        reads_lake: bool,
    ) -> None:
        self._engine, self._dead, self._membership, self._shape = engine, dead, membership, shape
        self._until, self._reads_lake = until, reads_lake
        self._message_bytes = engine.limits.message_bytes
        self._readings: dict[Bucket, _Reading] = {}
        self._known: dict[Bucket, _Reading] = {}
        self.moved = False
        """True if the last call of `messages` advanced, by a message or by a range without rows to send."""
        self._settled = float("-inf")

    @property
    def wakeups(self) -> list[str]:
        """The wake-up keys of the stream: its tables and the subscription's members."""
        return [*self._shape.tables, bell_key(self._membership.name)]

    def messages(self) -> Iterator[EncodedBatch]:
        """The next messages; `moved` tells afterwards whether more may follow."""
        self.moved = False
        self._sync()
        view = self._engine.serving()
        check_kept(current(view, self._membership.name), view)
        yield from self._snapshots(view)
        yield from self._changes(view)

    def is_over(self) -> bool:
        """True if the member has everything up to its end."""
        view = self._engine.view
        if self._until is None or self._until > view.lsn or self._membership.shared.waits(self._membership):
            return False
        return all(
            reading.at.cut == NO_CUT and reading.at.offset >= _end(view, bucket, self._until)
            for bucket, reading in self._readings.items()
        )

    def has_snapshot(self) -> bool:
        """True if any bucket of the subscription still reads its snapshot."""
        held = current(self._engine.view, self._membership.name)
        return any(mark.cut != NO_CUT for table in held.marks for mark in table)

    def pause(self, bell: Bell, poll: float | None) -> Pause:
        """The pause until a commit, a member or time changes the input."""
        again = self._settle()
        times = (poll, self._membership.shared.due(self._membership), again)
        return Pause(bell, min((seconds for seconds in times if seconds is not None), default=None))

    def _sync(self) -> None:
        taken = self._membership.shared.grants(self._membership)
        # A bucket that was taken away may return under the same grant. Then everything sent under it counts and the
        # reading continues; a restart at the mark would send rows twice.
        self._known |= self._readings
        self._readings = {}
        for bucket, grant in taken.items():
            known = self._known.get(bucket)
            same = known is not None and known.grant.number == grant.number
            self._readings[bucket] = known if known and same else _Reading(grant, grant.mark)

    def _snapshots(self, view: View) -> Iterator[EncodedBatch]:
        for bucket, reading in self._readings.items():
            if reading.at.cut == NO_CUT:
                continue
            uuid, _ = bucket
            state = view.by_uuid(uuid)
            if reading.reached is None and not state.has_all_rows:
                yield from self._from_lake(view, state, reading.at.cut)
            else:
                yield from self._snapshot(view, state, bucket, reading)
            return

    def _snapshot(self, view: View, state: TableState, bucket: Bucket, reading: _Reading) -> Iterator[EncodedBatch]:
        cut, self.moved = reading.at.cut, True
        # Read two batches ahead: the very last batch carries the mark after the snapshot, so it must be recognised.
        if len(reading.ahead) < 2 and not reading.is_read:
            self._look_ahead(state, bucket, reading)
            if len(reading.ahead) < 2 and not reading.is_read:
                return
        whole = Mark(_end(view, bucket, cut))
        if not reading.ahead:
            reading.at = whole
            return
        first = reading.ahead[0]
        mark = whole if len(reading.ahead) == 1 else Mark(first.end, cut)
        if self._sends({bucket: mark}):
            reading.ahead.pop(0)
            reading.at = mark
            token = self._token({bucket: mark}, cut)
            yield message(state.versions.at(cut), first.batch, token, self._message_bytes, snapshot=True)

    def _look_ahead(self, state: TableState, bucket: Bucket, reading: _Reading) -> None:
        uuid, number = bucket
        log, cut = state.logs[number], reading.at.cut
        at = reading.at.offset if reading.reached is None else reading.reached
        dead = self._dead.dead_offsets(uuid, number, log, 0, log.at_lsn(cut).end)
        found = live_piece(state, self._shape, Place(uuid, number, at), cut, dead, self._engine.limits)
        reading.reached = found[-1].end if found else at
        reading.is_read = not found
        reading.ahead += [piece for piece in found if piece.batch.num_rows]

    def _from_lake(self, view: View, state: TableState, cut: int) -> Iterator[EncodedBatch]:
        table = state.versions.at(cut)
        if not self._reads_lake:
            raise PositionExpired(
                f"the old rows of table {table.name} are only in the lake, which this client cannot read in a stream: "
                "share the subscription from a newer client"
            )
        marks = {
            (uuid, number): Mark(_end(view, (uuid, number), cut))
            for (uuid, number), reading in self._readings.items()
            if uuid == table.uuid and reading.at.cut == cut and reading.reached is None
        }
        if self._sends(marks):
            for bucket, mark in marks.items():
                self._readings[bucket].at = mark
            made = bare(table, self._token(marks, cut))
            made.snapshot = made.read_the_lake = True
            yield EncodedBatch.encode(made)

    def _changes(self, view: View) -> Iterator[EncodedBatch]:
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
            token = self._token(marks, run.first)
            yield message(piece.table, piece.batch, token, self._message_bytes, snapshot=False)

    def _sends(self, marks: Mapping[Bucket, Mark]) -> bool:
        self.moved = True
        message = {b: Sending(self._readings[b].grant.number, mark.order()) for b, mark in marks.items()}
        return self._membership.shared.sends(self._membership, message)

    def _token(self, marks: Mapping[Bucket, Mark], lsn: int) -> SharedPosition:
        return SharedPosition(self._engine.timeline, lsn, self._shape.tables, self._parts(marks))

    def _parts(self, marks: Mapping[Bucket, Mark]) -> tuple[Part, ...]:
        tables = self._shape.tables
        return tuple(
            Part(tables.index(uuid), number, grant.mark.offset, mark.offset, mark.cut, grant.run)
            for (uuid, number), mark in sorted(marks.items(), key=lambda item: item[0])
            for grant in [self._readings[uuid, number].grant]
        )

    def _settle(self) -> float | None:
        """Move the marks of acknowledged buckets over ranges without rows for the member. Otherwise a bucket whose
        condition matches nothing would hold the log start for good. Returns the seconds until the next move is due;
        None if every mark is current."""
        shared, view = self._membership.shared, self._engine.view
        stand = dict(by_bucket(current(view, self._membership.name)))
        done = [(b, self._readings[b].at) for b in shared.acknowledged(self._membership) if b in self._readings]
        lagging = {bucket: at for bucket, at in done if at.order() > stand[bucket].order()}
        if not lagging:
            return None
        left = self._settled + SETTLE_SECONDS - shared.now()
        if left <= 0:
            self._settled = shared.now()
            self._membership.settle(view, self._parts(lagging))
        return max(left, 0.0) or SETTLE_SECONDS


def _end(view: View, bucket: Bucket, lsn: int) -> int:
    uuid, number = bucket
    log = view.by_uuid(uuid).logs[number]
    return log.base.end if lsn < log.base.lsn else log.at_lsn(lsn).end

"""Verbs of union reads: a cut with its lease, and the rows of its hot ranges.

A plan's `definition` is the version at the cut, `lake_definition` the version at its tier point: the server projects
hot rows, the reader projects lake rows, by field id. A log table only grows: a cut older than the newest usable
snapshot, whose hot range is gone from the log, is read from this snapshot below the heads (`lake_beyond`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, PositionExpired, Unavailable
from lakestore.model.columns import LAKE_TIMESTAMP
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery, Probe
from lakestore_server.index.entry import live, table_prefix
from lakestore_server.index.overlay import Range
from lakestore_server.read import readable_from, rows
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.leases import LeaseConflict, Leases
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.read.piece_ranges import PiecePruning, PieceRanges
from lakestore_server.read.positions import check_once, lsn_at, reached
from lakestore_server.read.readable_from import ReadableFrom
from lakestore_server.state import swaps
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import DROPPED, TierRecord
from lakestore_server.state.chunk import PREV, StoredBatch
from lakestore_server.state.view import TableState, View

RETRIES = 20


class KeyRangeQuery(Protocol):
    """A question for ranges of keys."""

    @property
    def bounds(self) -> Sequence[tuple[bytes, bytes]]:
        """The ranges as [low, high) of encoded keys."""


Question = TypeVar("Question", bound=KeyRangeQuery)


@dataclass(frozen=True, slots=True)
class LiveRanges(Generic[Question]):
    """The first live keys of some ranges, at one moment."""

    view: View
    question: Question
    """The question in the form for this view's table."""
    ranges: list[Range]


def of_keys(
    engine: Engine, name: str, encode: Callable[[TableState], KeyQuery], *, uuid: str = "", cut: int | None = None
) -> tuple[View, npt.NDArray[np.int64]]:
    """(view, live offset of each key) at one moment; `Unavailable` if the table changes during every attempt. A uuid
    selects its table whatever the present name; `NotFound` if it was dropped. With `cut`, the table is the one that had
    the name then."""

    def held(view: View) -> TableState:
        state = view.by_uuid(uuid) if uuid else view.named(name)
        return state if cut is None else swaps.state_at(view, state, cut)

    index, moved_on = engine.index, _moved_on(name)
    probe: Probe | None = None
    for _ in range(RETRIES):
        state = held(engine.view)
        probe = probe or Probe(encode(state))
        with index.lock:
            view = engine.view
            reading = index.begin(probe.keys)
        if _is_another(held(view), state):
            probe = None
            continue
        try:
            found = probe.resolved(held(view), index.finish(reading))
        except Unavailable as error:
            moved_on = error
            continue
        if found is not None:
            return view, live(found.values)
        probe = probe.deeper()
    raise moved_on


def of_ranges(
    engine: Engine, name: str, ask: Callable[[TableState], Question], most: int, cut: int | None = None
) -> LiveRanges[Question]:
    """The first live keys of each range, `most` altogether; `Unavailable` and `cut` as in `of_keys`."""
    index, moved_on = engine.index, _moved_on(name)
    for _ in range(RETRIES):
        state = swaps.state_at(engine.view, engine.view.named(name), cut)
        question = ask(state)
        index.arrange(table_prefix(state.table.number))
        try:
            with index.lock:
                view = engine.view
                reading = index.begin_ranges(question.bounds, most)
            if not _is_another(swaps.state_at(view, view.named(name), cut), state):
                return LiveRanges(view, question, index.finish_ranges(reading))
        except Unavailable as error:
            moved_on = error
    raise moved_on


def _moved_on(name: str) -> Unavailable:
    return Unavailable(f"table {name} keeps changing under the look-up: look up again")


def _is_another(now: TableState, asked: TableState) -> bool:
    """Whether encoded keys of a table are meaningless now: the table was created again or truncated."""
    return (now.table.uuid, now.table.number) != (asked.table.uuid, asked.table.number)


class HotRows:
    """The hot rows of plans. Thread-safe."""

    def __init__(self, engine: Engine, dead: rows.DeadCache) -> None:
        self._engine, self._dead = engine, dead
        self._ranges = PieceRanges()

    def fetch(self, request: pb.FetchRequest, pre_truncate: TableState | None = None) -> Iterator[RowMessage]:
        """The rows of one split; of the table as in `pre_truncate` if it was truncated since the read began. A leased
        read continues after a drop, as long as the table's rows are kept."""
        limits = self._engine.limits
        view = self._engine.view
        dropped = view.dropped.get(request.table_uuid) if request.lease else None
        state = pre_truncate or (dropped.state if dropped else view.by_uuid(request.table_uuid))
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
        condition = PARSED.filter_of(request.where, wanted.name, wanted.columns)
        every = list(dict.fromkeys([*columns, *condition.columns]))
        prune = _Prune(PiecePruning(condition.skip, self._ranges, log, request.bucket, state.versions, wanted), request)
        options = _options(state, wanted, every, limits.fetch_batch_rows, prune)
        shown = self._shown(state, wanted, every, request, self._parts(state, log, request, options))
        yield from rows.messages(prune.meeting(shown, condition, columns), limits)
        yield RowMessage(tested=prune.tested, passed_over=prune.passed_over)

    def _parts(
        self, state: TableState, log: BucketLog, request: pb.FetchRequest, options: rows.ReadOptions
    ) -> Iterator[rows.Rows]:
        if not request.live_only:
            return rows.read(log, request.start, request.end, options)
        dead = self._dead.dead_offsets(state.table.uuid, request.bucket, log, request.live_start, request.live_end)
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
        for part in parts:
            shape = state.versions.projection(part.schema_id, wanted)
            yield rows.sendable(shape, part, columns, request.bucket, self._engine.limits)


@dataclass(slots=True)
class _Prune:
    """A condition in use, and the pieces that it skipped."""

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
        raise Invalid("a condition applies to live rows: fetch with live_only")
    return log


AGAIN_SECONDS = 0.1
"""Seconds to wait for the next view if an expiry or a moving log start came between a cut and its lease."""
NOT_READ = 1 << 62
"""The first needed offset of a bucket whose log is not read."""


@dataclass(frozen=True, slots=True)
class _LeasedCut:
    """A cut whose lake snapshots and log are leased."""

    view: View
    states: list[TableState]
    tiers: list[TierRecord | None]
    """The tier record of each table's lake snapshot; None for a table that is read from its log."""
    lease: str
    """Empty for a cut without a lease."""


class Plans:
    """Cuts. Thread-safe."""

    def __init__(self, engine: Engine, leases: Leases, completeness: Completeness) -> None:
        self._engine, self._leases, self._completeness = engine, leases, completeness
        self._dead = rows.DeadCache(engine.limits.dead_cache_ranges, engine.limits.dead_cache_bytes)
        self._hot = HotRows(engine, self._dead)

    def plan(self, request: pb.PlanRequest) -> pb.PlanAnswer:
        """A cut over tables, with a lease."""
        check_once(request.tables)
        lsn = self._lsn(request)
        cut = self._leased(request, lsn)
        answer = pb.PlanAnswer(token=self._engine.view.token(lsn), lsn=lsn, lease=cut.lease)
        if _is_bounded(request):
            state = cut.states[0]
            answer.changes_left = sum(state.heads()) - sum(_heads(state, lsn))
        for state, tier in zip(cut.states, cut.tiers, strict=True):
            answer.tables.append(self._table_plan(cut.view, state, tier, lsn, dead=not request.no_dead))
        return answer

    def _lsn(self, request: pb.PlanRequest) -> int:
        """The LSN of the requested position, or of the head once it meets the requirement."""
        if _is_bounded(request):
            return self._bounded_lsn(request)
        at = lsn_at(self._engine, request.at, request.tables) if request.at else None
        if request.HasField("require") and request.tables:
            return self._completeness.cut(request.tables, at, request.require)
        return self._engine.view.lsn if at is None else at

    def _bounded_lsn(self, request: pb.PlanRequest) -> int:
        """The newest LSN at which the lake lacks at most `changes_max` offsets of the table with `hot_bytes_max` stored
        bytes, or a single commit."""
        if len(request.tables) != 1 or request.at or request.HasField("require"):
            raise Invalid("`changes_max` and `hot_bytes_max` bound a plan of the head of one table")
        view = self._engine.view
        state = view.named(request.tables[0])
        tier = usable_tier(state, view.lsn, self._leases)
        tier_point = tier.tier_point if tier else (0,) * len(state.logs)

        def hot(lsn: int) -> int:
            return sum(_heads(state, lsn)) - sum(tier_point)

        def share(lsn: int) -> float:
            """The larger of the shares of both bounds that are used."""
            changes = hot(lsn) / request.changes_max if request.changes_max else 0.0
            if not request.hot_bytes_max:
                return changes
            parts = zip(state.logs, tier_point, _heads(state, lsn), strict=True)
            return max(changes, sum(log.bytes_between(*part) for log, *part in parts) / request.hot_bytes_max)

        if share(view.lsn) <= 1:
            return view.lsn
        first = ReadableFrom.first(view, state, self._leases).lsn
        first = max(first, state.swapped_lsn, state.truncated_lsn, tier.lsn if tier else 0)
        positions = range(first, view.lsn + 1)
        fitting = bisect_right(positions, 1.0, key=share)
        if fitting and hot(positions[fitting - 1]) > 0:
            return positions[fitting - 1]
        return positions[bisect_right(positions, 0, key=hot)]

    def _leased(self, request: pb.PlanRequest, lsn: int) -> _LeasedCut:
        """The cut over the request's tables, leased for its seconds; 0 means no lease. Between choosing a snapshot and
        leasing it an expiry may remove it, or the log start may move: then the choice is made again in the next
        view."""
        view = reached(self._engine, lsn)
        while True:
            states = [self._before(swaps.state_at(view, view.named(name), lsn), lsn) for name in request.tables]
            for state in states:
                if state.created_lsn > lsn:
                    raise Invalid(f"table {state.table.name} did not exist at this position")
            readable_from.check_readable(view, states, lsn, self._leases)
            tiers = [
                None if without_lake(self._engine, state) else usable_tier(state, lsn, self._leases) for state in states
            ]
            named = list(zip(states, tiers, strict=True))
            snapshots = {state.table.uuid: tier.snapshot_id for state, tier in named if tier is not None}
            starts = {state.table.uuid: log_starts(state, tier, lsn) for state, tier in named}
            if not request.lease_seconds:
                return _LeasedCut(view, states, tiers, "")
            metadata = {state.table.uuid: metadata_of(view, state) for state, tier in named if tier is not None}
            try:
                before = [state for state in states if swaps.kept_table(view, state.table.uuid) is not state]
                lease = self._leases.grant(
                    snapshots,
                    request.lease_seconds,
                    starts,
                    metadata.values(),
                    owner=request.owner,
                    pre_truncate=before,
                )
            except LeaseConflict:
                view = self._engine.wait_beyond(view.lsn, AGAIN_SECONDS)
                continue
            # A file is removed some commits after the pointer left it: a file that is still named is held from here on.
            now = self._engine.view
            if all(metadata.get(state.table.uuid) in (None, metadata_of(now, state)) for state in states):
                return _LeasedCut(view, states, tiers, lease)
            self._leases.release(lease)
            view = now

    def _before(self, state: TableState, lsn: int) -> TableState:
        """The table for reads at `lsn`: it may have been truncated since, while the cut is held."""
        return state if lsn >= state.truncated_lsn else self._leases.pre_truncate.at(state.table.uuid, lsn) or state

    def _table_plan(
        self, view: View, state: TableState, tier: TierRecord | None, lsn: int, *, dead: bool
    ) -> pb.TablePlan:
        table = state.versions.at(lsn)
        plan = pb.TablePlan(
            definition=table.to_json(),
            lake_definition=state.versions.numbered(tier.schema_id).to_json() if tier else "",
            metadata_location=metadata_of(view, state),
            snapshot_id=tier.snapshot_id if tier else 0,
            tier=_tier_state(state, tier) if tier else None,
        )
        for bucket, log in enumerate(state.logs):
            here = log.at_lsn(lsn)
            start = min(tier.tier_point[bucket], here.end) if tier else 0
            plan.lake_beyond |= tier is not None and tier.tier_point[bucket] > here.end
            entry = plan.buckets.add(
                bucket=bucket, tier_point=start, head=here.end, live_sum=here.live_sum, live_rows=here.live_rows
            )
            if dead and log.keyed and here.end > start:
                for high, data in self._dead.dead_offsets(table.uuid, bucket, log, start, here.end).encode():
                    entry.dead.add(high=high, roaring=data)
        return plan

    def fetch(self, request: pb.FetchRequest) -> Iterator[RowMessage]:
        self._leases.check_lease(request.lease)
        pre_truncate = self._leases.pre_truncate.of_lease(request.table_uuid, request.lease) if request.lease else None
        yield from self._hot.fetch(request, pre_truncate)

    def renew_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        self._leases.renew(request.lease, request.seconds)
        return pb.LeaseAnswer(seconds=request.seconds)

    def release_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        self._leases.release(request.lease)
        return pb.LeaseAnswer()


def _is_bounded(request: pb.PlanRequest) -> bool:
    return bool(request.changes_max or request.hot_bytes_max)


def without_lake(engine: Engine, state: TableState) -> bool:
    """Whether a table is read from its log alone: the log has all rows and the lake continued under another timeline.
    That timeline may have expired the files that this one knows."""
    return state.table.uuid in engine.lake_ahead and state.has_all_rows


def metadata_of(view: View, state: TableState) -> str:
    """The location of the lake table's metadata, also of a dropped table; empty for none."""
    name = state.table.namespace, state.table.short_name
    pointer = view.pointers.get((DROPPED, state.table.uuid) if state.table.uuid in view.dropped else name)
    return pointer.location if pointer else ""


def _tier_state(state: TableState, tier: TierRecord) -> pb.TierState:
    """The record, with every snapshot that a rewrite made on top of it: each of them may be main now."""
    same = [each.snapshot_id for each in state.tiers.values() if each.tier_point == tier.tier_point]
    return pb.TierState(
        snapshot_ids=same,
        tier_point=tier.tier_point,
        live_sum=tier.live_sums,
        lsn=tier.lsn,
        epoch=tier.epoch,
        schema_id=tier.schema_id,
    )


def _heads(state: TableState, lsn: int) -> tuple[int, ...]:
    if lsn < state.log_start_lsn:
        raise PositionExpired(
            f"the log of table {state.table.name} starts at LSN {state.log_start_lsn}, and LSN {lsn} was asked for: "
            "read a later position"
        )
    return tuple(log.at_lsn(lsn).end for log in state.logs)


def usable_tier(state: TableState, lsn: int, leases: Leases) -> TierRecord | None:
    """The newest snapshot below `lsn` from which the table at `lsn` can be made, with its hot range in the log. A log
    table only grows, so the rows below the cut of a newer snapshot are the table too. A snapshot of a later schema
    version may lack columns of the version at the cut."""
    heads, starts = _heads(state, lsn), state.starts()
    version = state.versions.at(lsn).schema_id
    kept = [
        tier
        for tier in state.tiers.values()
        if not leases.is_retired(state.table.uuid, tier.snapshot_id) and tier.schema_id <= version
    ]
    below = [tier for tier in kept if _fits(tier.tier_point, heads, starts)]
    if below:
        return below[-1]
    if state.has_all_rows:
        return None
    beyond = [tier for tier in kept if all(head <= point for point, head in zip(tier.tier_point, heads, strict=True))]
    if not beyond:
        raise PositionExpired(
            f"no snapshot that is kept in the lake fits table {state.table.name} at LSN {lsn}: read a later position"
        )
    return min(beyond, key=lambda tier: sum(tier.tier_point))


def _fits(points: tuple[int, ...], heads: tuple[int, ...], starts: tuple[int, ...]) -> bool:
    """Whether the log holds everything between a tier point and the heads."""
    return all(
        point <= head and (point >= start or point == head)
        for point, head, start in zip(points, heads, starts, strict=True)
    )


def log_starts(state: TableState, tier: TierRecord | None, lsn: int) -> tuple[int, ...]:
    """The first offset of each bucket that is read from the log; above all offsets if none is. Without a snapshot a log
    table needs all of its log; the log start of a keyed table may reach the cut."""
    heads = _heads(state, lsn)
    if tier is None and state.table.keyed:
        return heads
    points = tier.tier_point if tier else state.starts()
    return tuple(point if point < head else NOT_READ for point, head in zip(points, heads, strict=True))

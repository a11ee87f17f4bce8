"""Verbs of union reads: a cut with its lease, and the rows of its hot ranges.

A plan's `definition` is the version at the cut, `lake_definition` the one at its tier point: the server projects hot
rows, the reader lake rows, by field id. A log table only grows: a cut older than the newest usable snapshot, whose hot
range is gone from the log, is read from that snapshot below the heads (`lake_beyond`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakestore.errors import Invalid, PositionExpired, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.read import reach, rows
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.hot_rows import HotRows
from lakestore_server.read.leases import Leases
from lakestore_server.read.positions import check_once, lsn_at, reached
from lakestore_server.state.catalog_change import TierRecord
from lakestore_server.state.view import TableState, View

AGAIN_SECONDS = 0.1
"""Seconds to wait for the next view when an expiry or a moving log start got between a cut and its lease."""
NOT_READ = 1 << 62
"""The first offset that is needed of a bucket whose log is not read."""


@dataclass(frozen=True, slots=True)
class _LeasedCut:
    """A cut whose lake snapshots and log are leased."""

    view: View
    states: list[TableState]
    tiers: list[TierRecord | None]
    """The tier record of the lake snapshot to read of each table; None for a table that is read from its log."""
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
        for state, tier in zip(cut.states, cut.tiers, strict=True):
            answer.tables.append(self._table_plan(cut.view, state, tier, lsn, dead=not request.no_dead))
        return answer

    def _lsn(self, request: pb.PlanRequest) -> int:
        """The cut that is meant: a position, or the head, once what is required of it holds."""
        at = lsn_at(self._engine, request.at, request.tables) if request.at else None
        if request.HasField("require") and request.tables:
            return self._completeness.cut(request.tables, at, request.require)
        return self._engine.view.lsn if at is None else at

    def _leased(self, request: pb.PlanRequest, lsn: int) -> _LeasedCut:
        """The cut over the request's tables, leased for its seconds; without a lease for 0.

        Between choosing a snapshot and leasing it an expiry may take it, or the log start move: then the next view
        shows what is left, and the choice is made again.
        """
        view = reached(self._engine, lsn)
        while True:
            states = [self._before(view.named(name), lsn) for name in request.tables]
            for state in states:
                if state.created_lsn > lsn:
                    raise Invalid(f"table {state.table.name} did not exist at this position")
            reach.check(view, states, lsn, self._leases)
            tiers = [
                None if without_lake(self._engine, state) else usable_tier(state, lsn, self._leases) for state in states
            ]
            named = list(zip(states, tiers, strict=True))
            snapshots = {state.table.uuid: tier.snapshot_id for state, tier in named if tier is not None}
            starts = {state.table.uuid: log_needed(state, tier, lsn) for state, tier in named}
            if not request.lease_seconds:
                return _LeasedCut(view, states, tiers, "")
            metadata = {state.table.uuid: _metadata_of(view, state) for state, tier in named if tier is not None}
            try:
                earlier = [state for state in states if view.by_uuid(state.table.uuid) is not state]
                lease = self._leases.grant(
                    snapshots, request.lease_seconds, starts, metadata.values(), owner=request.owner, earlier=earlier
                )
            except Unavailable:
                view = self._engine.wait_beyond(view.lsn, AGAIN_SECONDS)
                continue
            # A file goes some commits after the pointer left it: one that is still named is held from here on.
            now = self._engine.view
            if all(metadata.get(state.table.uuid) in (None, _metadata_of(now, state)) for state in states):
                return _LeasedCut(view, states, tiers, lease)
            self._leases.release(lease)
            view = now

    def _before(self, state: TableState, lsn: int) -> TableState:
        """The table as reads at `lsn` see it: it may have been truncated since, while the cut is held."""
        return state if lsn >= state.truncated_lsn else self._leases.earlier.at(state.table.uuid, lsn) or state

    def _table_plan(
        self, view: View, state: TableState, tier: TierRecord | None, lsn: int, *, dead: bool
    ) -> pb.TablePlan:
        table = state.versions.at(lsn)
        plan = pb.TablePlan(
            definition=table.to_json(),
            lake_definition=state.versions.numbered(tier.schema_id).to_json() if tier else "",
            metadata_location=_metadata_of(view, state),
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
                for high, data in self._dead.of(table.uuid, bucket, log, start, here.end).encode():
                    entry.dead.add(high=high, roaring=data)
        return plan

    def fetch(self, request: pb.FetchRequest) -> Iterator[pb.RowBatch]:
        """The rows of one split."""
        self._leases.check(request.lease)
        earlier = self._leases.earlier.of_lease(request.table_uuid, request.lease) if request.lease else None
        yield from self._hot.fetch(request, earlier)

    def renew_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """Prolong a lease."""
        self._leases.renew(request.lease, request.seconds)
        return pb.LeaseAnswer(seconds=request.seconds)

    def release_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """End a lease."""
        self._leases.release(request.lease)
        return pb.LeaseAnswer()


def without_lake(engine: Engine, state: TableState) -> bool:
    """Whether a table is read from its log alone, as the log has all rows and its lake went another way.

    The history that the lake went on with may have expired the files that this one knows.
    """
    return state.table.uuid in engine.lake_ahead and state.has_all_rows


def _metadata_of(view: View, state: TableState) -> str:
    """The lake table's metadata file; empty when there is none."""
    pointer = view.pointers.get((state.table.namespace, state.table.short_name))
    return pointer.location if pointer else ""


def _tier_state(state: TableState, tier: TierRecord) -> pb.TierState:
    """The record, with every snapshot that a rewrite made upon it: each of them may be main by now."""
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
    """The snapshot from which the table at `lsn` can be made: the newest one below it whose hot range is in the log.

    A log table only grows, so of a newer snapshot the rows below the cut are the table as well. A snapshot of a later
    version of the schema may lack what the version at the cut has.
    """
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


def log_needed(state: TableState, tier: TierRecord | None, lsn: int) -> tuple[int, ...]:
    """The first offset of each bucket that is read from the log; beyond all of them where none is.

    Without a snapshot a log table needs all of its log; of a primary-key table the log start may come up to the cut.
    """
    heads = _heads(state, lsn)
    if tier is None and state.table.keyed:
        return heads
    points = tier.tier_point if tier else state.starts()
    return tuple(point if point < head else NOT_READ for point, head in zip(points, heads, strict=True))

"""Verbs of union reads: a cut with its lease, and the rows of its hot ranges."""

from __future__ import annotations

from collections.abc import Iterator

from lakestore.errors import Invalid, Unavailable
from lakestore.schema import LAKE_TIMESTAMP
from lakestore.server import reads
from lakestore.server.bucket import PREV
from lakestore.server.catalog.ledger import TierRecord
from lakestore.server.engine import Engine
from lakestore.server.leases import Leases
from lakestore.server.positions import parse_token, reached, token_text
from lakestore.server.state import TableState, View
from lakestore.v1 import lakestore_pb2 as pb


class Plans:
    """Cuts. Thread-safe."""

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine, self._leases = engine, leases
        self._dead = reads.DeadCache(engine.limits.dead_cache_ranges)

    def plan(self, request: pb.PlanRequest) -> pb.PlanAnswer:
        """A cut over tables, with a lease."""
        lsn = parse_token(request.at, self._engine).lsn if request.at else self._engine.view.lsn
        view = reached(self._engine, lsn)
        states = [view.named(name) for name in request.tables]
        for state in states:
            if state.created_lsn > lsn:
                raise Invalid(f"table {state.table.name} did not exist at this position")
        tiers, lease = self._held_tiers(states, lsn, request.lease_seconds)
        answer = pb.PlanAnswer(token=token_text(self._engine, lsn), lsn=lsn, lease=lease)
        for state, tier in zip(states, tiers, strict=True):
            answer.tables.append(self._table_plan(view, state, tier, lsn, dead=not request.no_dead))
        return answer

    def _held_tiers(self, states: list[TableState], lsn: int, seconds: int) -> tuple[list[TierRecord | None], str]:
        """(newest usable snapshot of each table, a lease on them); an expiry that gets in between is gone around."""
        while True:
            tiers = [_newest_tier(state, lsn, self._leases) for state in states]
            named = zip(states, tiers, strict=True)
            snapshots = {state.table.uuid: tier.snapshot_id for state, tier in named if tier is not None}
            if not seconds:
                return tiers, ""
            try:
                return tiers, self._leases.grant(snapshots, seconds)
            except Unavailable:
                continue

    def _table_plan(
        self, view: View, state: TableState, tier: TierRecord | None, lsn: int, *, dead: bool
    ) -> pb.TablePlan:
        table = state.versions.at(lsn)
        pointer = view.pointers.get((table.namespace, table.short_name))
        plan = pb.TablePlan(
            definition=table.to_json(),
            lake_definition=state.versions.numbered(tier.schema_id).to_json() if tier else "",
            metadata_location=pointer.location if pointer else "",
            snapshot_id=tier.snapshot_id if tier else 0,
        )
        for bucket, log in enumerate(state.logs):
            start = tier.tier_point[bucket] if tier else 0
            here = log.at_lsn(lsn)
            entry = plan.buckets.add(
                bucket=bucket, tier_point=start, head=here.end, live_sum=here.live_sum, live_rows=here.live_rows
            )
            if dead and log.keyed and here.end > start:
                for high, data in self._dead.of(table.uuid, bucket, log, start, here.end).encode():
                    entry.dead.add(high=high, roaring=data)
        return plan

    def fetch(self, request: pb.FetchRequest) -> Iterator[pb.RowBatch]:
        """The rows of one split."""
        limits = self._engine.limits
        self._leases.check(request.lease)
        state = self._engine.view.by_uuid(request.table_uuid)
        if request.bucket >= len(state.logs):
            raise Invalid(f"table {state.table.name} has no bucket {request.bucket}")
        log = state.logs[request.bucket]
        if request.end > log.head or request.start > request.end:
            raise Invalid(f"bucket {request.bucket} has no rows [{request.start}, {request.end})")
        names = [name for name in request.columns if name != PREV]
        wanted = state.versions.numbered(request.schema_id) if request.HasField("schema_id") else state.table
        columns = list(request.columns) if request.columns else wanted.selected(None)
        wanted.selected(names)
        wish = reads.Wish(
            limits.fetch_batch_rows, LAKE_TIMESTAMP in columns, state.versions.stored_names(wanted, names)
        )
        if request.live_only:
            dead = self._dead.of(state.table.uuid, request.bucket, log, request.live_start, request.live_end)
            parts = reads.live(log, request.start, request.end, dead, wish)
        else:
            parts = reads.read(log, request.start, request.end, wish)
        shown = (
            reads.project(state.versions.projection(part.schema_id, wanted), part, columns, request.bucket)
            for part in parts
        )
        yield from reads.messages(shown, limits.read_batch_bytes)

    def renew_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """Prolong a lease."""
        self._leases.renew(request.lease, request.seconds)
        return pb.LeaseAnswer(seconds=request.seconds)

    def release_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """End a lease."""
        self._leases.release(request.lease)
        return pb.LeaseAnswer()


def _newest_tier(state: TableState, lsn: int, leases: Leases) -> TierRecord | None:
    """The newest usable snapshot: one of a later version of the schema may lack what the version at the cut has."""
    version = state.versions.at(lsn).schema_id
    heads = [log.at_lsn(lsn).end for log in state.logs]
    usable = [
        tier
        for tier in state.tiers.values()
        if not leases.is_retired(state.table.uuid, tier.snapshot_id)
        and tier.schema_id <= version
        and all(point <= head for point, head in zip(tier.tier_point, heads, strict=True))
    ]
    return usable[-1] if usable else None

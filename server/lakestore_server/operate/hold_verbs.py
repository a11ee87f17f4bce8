"""The verb `hold_snapshots`: the leader keeps what reads at a follower need of the lake.

- The hold is taken first and the view is looked at afterwards, so no expiry can come between.
- The leader confirms that it leads after it took the hold. A deposed leader promises nothing.
- A hold lasts no longer than the grace in which a new leader expires nothing, so a promise survives a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.operate.peers import journal_for
from lakestore_server.read.leader_holds import hold_seconds
from lakestore_server.read.leases import LakeHold, Leases
from lakestore_server.state.view import View


class HoldVerbs:
    """The verb `hold_snapshots`. Thread-safe."""

    def __init__(
        self, engine: Engine, leases: Leases, holds_from_before: Callable[[str], bool], grace_seconds: float
    ) -> None:
        """`holds_from_before` says whether a metadata file stays for readers of another leader. A new leader expires
        nothing for `grace_seconds`."""
        self._engine, self._leases, self._seconds = engine, leases, hold_seconds(grace_seconds)
        self._holds_from_before = holds_from_before

    def hold_snapshots(self, request: pb.HoldSnapshotsRequest) -> pb.HoldSnapshotsAnswer:
        """Hold what is there. `NotLeader` at a follower, `Invalid` for a journal in files."""
        journal_for(self._engine, request.address, request.timeline, "the follower")
        self._engine.loop.refuse_when_following()
        seconds = min(float(request.seconds), self._seconds)
        holds = [of_message(each) for each in request.holds]
        refused, known = self._leases.register(request.address, holds, seconds)
        self._engine.confirm()
        self._engine.loop.refuse_when_following()
        gone = self._gone(self._engine.view, {*holds} - refused - known)
        self._leases.withdraw(request.address, gone)
        lost = refused | gone
        numbers = [number for number, hold in enumerate(holds) if hold in lost]
        return pb.HoldSnapshotsAnswer(lost=numbers, seconds=seconds)

    def _gone(self, view: View, holds: Collection[LakeHold]) -> set[LakeHold]:
        """The needs that a view does not have."""
        files = frozenset(pointer.location for pointer in view.pointers.values())
        gone = set[LakeHold]()
        for hold in holds:
            if hold.table:
                is_there = _has_snapshot(view, hold)
            elif hold.metadata:
                is_there = hold.metadata in files or self._holds_from_before(hold.metadata)
            else:
                is_there = hold.cut is not None and self._has_cut(view, hold.cut, hold.owner)
            if not is_there:
                gone.add(hold)
        return gone

    def _has_cut(self, view: View, cut: int, owner: str) -> bool:
        """Whether all tables that the owner may read are readable at a cut."""
        return not any(
            state.created_lsn <= cut < state.log_start_lsn and self._leases.may_read(owner, uuid)
            for uuid, state in view.kept.items()
        )


def _has_snapshot(view: View, hold: LakeHold) -> bool:
    """Whether the lake has the snapshot, and the log the rows that are read beside it."""
    state = view.kept.get(hold.table)
    if state is None or hold.snapshot not in state.tiers:
        return False
    starts = state.starts()
    return not hold.starts or (
        len(hold.starts) == len(starts)
        and all(needed >= first for needed, first in zip(hold.starts, starts, strict=True))
    )


def of_message(message: pb.LakeHold) -> LakeHold:
    """The need that a message says."""
    return LakeHold(
        message.table_uuid,
        message.snapshot_id,
        tuple(message.starts),
        message.metadata,
        message.cut if message.HasField("cut") else None,
        message.owner,
    )


def to_message(hold: LakeHold) -> pb.LakeHold:
    """The message that says a need."""
    made = pb.LakeHold(
        table_uuid=hold.table,
        snapshot_id=hold.snapshot,
        starts=hold.starts,
        metadata=hold.metadata,
        owner=hold.owner,
    )
    if hold.cut is not None:
        made.cut = hold.cut
    return made

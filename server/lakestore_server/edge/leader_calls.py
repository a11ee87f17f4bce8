"""Calls of a follower to the gRPC port of the leader."""

from __future__ import annotations

from collections.abc import Sequence

from lakestore.errors import NotLeader
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate.hold_verbs import to_message
from lakestore_server.read.leader_holds import HoldOutcome
from lakestore_server.read.leases import LakeHold


class LeaderCalls:
    """Calls to whichever server leads. Thread-safe."""

    def __init__(self, loop: CommitLoop, channel: PeerChannel) -> None:
        self._loop, self._channel = loop, channel

    def hold(self, holds: Sequence[LakeHold], seconds: float) -> HoldOutcome:
        """Ask the leader to hold needs of reads at this server; `NotLeader` if none is known."""
        journal = self._loop.journal
        leader = journal.leader
        if not isinstance(journal, SharedJournal) or leader.has_left or leader.address in ("", self._loop.address):
            raise NotLeader.of("")
        request = pb.HoldSnapshotsRequest(
            timeline=journal.timeline(),
            address=self._loop.address,
            holds=[to_message(hold) for hold in holds],
            seconds=max(int(seconds), 1),
        )
        answer = self._channel.hold_snapshots(leader.address, request)
        return HoldOutcome([holds[number] for number in answer.lost], answer.seconds)

"""What a follower asks its leader to hold, and what the leader holds, by a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from lakestore.errors import Exhausted, PlanExpired, Unavailable
from lakestore.limits import Limits
from lakestore_server.read import leader_holds
from lakestore_server.read.leader_holds import HoldOutcome, LeaderHolds, hold_seconds
from lakestore_server.read.leases import LakeHold, LeaseConflict, Leases
from tests.support.waiting import until
from tests.support.world.clock import HandClock

SECONDS = 60.0


class Pair:
    """A follower's leases and its leader's, with a network that a test cuts."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.leader = Leases(self.clock, 0.0)
        self.calls: list[Sequence[LakeHold]] = []
        self.gone: set[LakeHold] = set()
        self.is_cut = self.is_leading = False
        self.has_lake = True
        self.holds = LeaderHolds(
            clock=self.clock,
            seconds=SECONDS,
            ask=self.ask,
            is_leading=lambda: self.is_leading,
            has_lake=lambda: self.has_lake,
        )
        self.follower = Leases(self.clock, 0.0)
        self.follower.secure_by(self.holds.secure)

    def ask(self, holds: Sequence[LakeHold], seconds: float) -> HoldOutcome:
        self.calls.append(holds)
        if self.is_cut:
            raise Unavailable("no leader")
        wanted = [hold for hold in holds if hold not in self.gone]
        refused, _ = self.leader.register("b:1", wanted, seconds)
        return HoldOutcome([*refused, *self.gone.intersection(holds)], seconds)

    def renew(self) -> None:
        """One round of the duty."""
        self.follower.lose(self.holds.renew(self.follower.needs()))


@pytest.fixture(name="pair")
def _pair() -> Pair:
    return Pair()


def test_a_lease_on_a_snapshot_is_granted_once_the_leader_holds_it(pair: Pair) -> None:
    pair.follower.grant({"t": 7}, 600, {"t": (3, 4)}, ["m"])
    assert not pair.leader.retire("t", frozenset({7}))
    assert pair.leader.starts("t") == [(3, 4)], "the log beside the snapshot is held too"
    assert pair.leader.holds_metadata("m")
    assert (pair.leader.count, pair.leader.registered) == (0, 2)
    assert {held.follower for held in pair.leader.holders(9)} == {"b:1"}


def test_a_read_of_hot_rows_needs_no_leader(pair: Pair) -> None:
    pair.is_cut = True
    pair.follower.grant({}, 600, {"t": (3,)})
    pair.has_lake = False
    pair.follower.grant_cut(5, 600)
    assert pair.calls == []
    pair.has_lake = True
    with pytest.raises(Unavailable, match="read at another server"):
        pair.follower.grant_cut(5, 600)


def test_a_leader_asks_nobody(pair: Pair) -> None:
    pair.is_leading = pair.is_cut = True
    pair.follower.grant({"t": 7}, 600)
    assert pair.calls == []


def test_many_reads_of_a_snapshot_share_one_hold(pair: Pair) -> None:
    for _ in range(200):
        pair.follower.grant({"t": 7}, 600, {"t": (3,)}, ["m"])
    pair.follower.grant({"t": 7}, 600)
    assert len(pair.calls) == 1
    pair.clock.advance(SECONDS / 2 + 1)
    pair.follower.grant({"t": 7}, 600, {"t": (3,)}, ["m"])
    assert len(pair.calls) == 2, "less than half of its time was left"


def test_reads_that_come_during_a_call_share_the_next_one(pair: Pair) -> None:
    began, go_on = threading.Event(), threading.Event()
    ask = pair.holds._ask

    def slow(holds: Sequence[LakeHold], seconds: float) -> HoldOutcome:
        began.set()
        assert go_on.wait(60)
        return ask(holds, seconds)

    pair.holds._ask = slow
    threads = [threading.Thread(target=pair.follower.grant_cut, args=(number, 600)) for number in range(1, 30)]
    threads[0].start()
    assert began.wait(60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(pair.holds._waiting) == len(threads), "all of them wait")
    go_on.set()
    for thread in threads:
        thread.join()
    assert [len(call) for call in pair.calls] == [1, len(threads) - 1]
    assert pair.leader.cuts("t") == [*range(1, 30)]


def test_the_hold_lasts_as_long_as_the_read_and_little_longer(pair: Pair) -> None:
    name = pair.follower.grant({"t": 7}, 86_400)
    for _ in range(20):
        pair.clock.advance(SECONDS / 4)
        pair.renew()
    assert not pair.leader.retire("t", frozenset({7})), "it was renewed"
    pair.follower.release(name)
    pair.renew()
    assert not pair.leader.retire("t", frozenset({7}))
    pair.clock.advance(SECONDS)
    assert pair.leader.retire("t", frozenset({7}))


def test_a_snapshot_that_is_gone_is_chosen_again_and_after_a_while_refused(pair: Pair) -> None:
    hold = LakeHold("t", 7)
    pair.gone.add(hold)
    with pytest.raises(LeaseConflict):
        pair.follower.grant({"t": 7}, 600)
    with pytest.raises(LeaseConflict):
        pair.follower.grant({"t": 7}, 600)
    assert len(pair.calls) == 1
    for _ in range(6):
        pair.clock.advance(leader_holds.ASK_AGAIN_SECONDS)
        with pytest.raises(Unavailable) as refused:
            pair.follower.grant({"t": 7}, 600)
    assert type(refused.value) is Unavailable
    assert refused.value.retry_after
    assert "read at another server" in str(refused.value)
    pair.clock.advance(leader_holds.ASK_AGAIN_SECONDS)
    pair.gone.clear()
    pair.follower.grant({"t": 7}, 600)  # the expiry was refused


def test_without_a_leader_a_hold_that_lasts_serves_on(pair: Pair) -> None:
    pair.follower.grant({"t": 7}, 600)
    pair.is_cut = True
    pair.clock.advance(SECONDS * 0.75)
    pair.follower.grant({"t": 7}, 600)
    with pytest.raises(Unavailable, match="the leader cannot be asked"):
        pair.follower.grant({"t": 8}, 600)
    assert len(pair.calls) == 2, "a leader that did not answer is not asked again at once"
    pair.clock.advance(SECONDS * 0.25)
    with pytest.raises(Unavailable, match="the leader cannot be asked"):
        pair.follower.grant({"t": 7}, 600)
    pair.is_cut = False
    pair.clock.advance(leader_holds.BUSY_SECONDS)
    pair.follower.grant({"t": 7}, 600)


def test_a_leader_that_cannot_be_asked_ends_no_lease(pair: Pair) -> None:
    name = pair.follower.grant({"t": 7}, 600)
    pair.is_cut = True
    pair.clock.advance(SECONDS)
    with pytest.raises(Unavailable):
        pair.renew()
    pair.follower.renew(name, 600)


def test_a_hold_that_is_gone_ends_its_leases_alone(pair: Pair) -> None:
    name, other = pair.follower.grant({"t": 7}, 600), pair.follower.grant({"t": 8}, 600)
    pair.follower.hold("stream", {"t": 7}, {})
    pair.gone.add(LakeHold("t", 7))
    pair.renew()
    with pytest.raises(PlanExpired):
        pair.follower.renew(name, 600)
    pair.follower.renew(other, 600)
    assert pair.follower.needs() == [LakeHold("t", 8)], "a stream goes on without it"
    pair.follower.leave("stream", 0)


def test_what_is_removed_at_this_moment_is_not_held(pair: Pair) -> None:
    assert pair.leader.retire("t", frozenset({7}))
    assert pair.leader.raise_log_start("u", (5,), range(10, 20))
    gone = [LakeHold("t", 7), LakeHold("u", 1, (4,)), LakeHold(cut=19)]
    there = [LakeHold("t", 8), LakeHold("u", 1, (5,)), LakeHold(cut=20), LakeHold(cut=9)]
    refused, known = pair.leader.register("b:1", [*gone, *there], SECONDS)
    assert (refused, known) == (set(gone), set())
    assert pair.leader.register("b:1", there, SECONDS) == (set(), set(there)), "they were held"
    pair.leader.withdraw("b:1", there)
    assert pair.leader.registered == 0


def test_a_cut_has_only_the_tables_that_its_owner_may_read() -> None:
    leader = Leases(HandClock(), 0.0, may_read=lambda owner, table: (owner, table) == ("ann", "t"))
    assert leader.raise_log_start("t", (5,), range(10, 20))
    refused, _ = leader.register("b:1", [LakeHold(cut=15, owner="ann"), LakeHold(cut=15, owner="bob")], SECONDS)
    assert refused == {LakeHold(cut=15, owner="ann")}
    assert leader.cuts("t") == []


def test_holds_for_followers_take_no_room_of_reads_at_the_leader() -> None:
    leader = Leases(HandClock(), 0.0, Limits(leases=2))
    leader.register("b:1", [LakeHold(cut=number) for number in range(50)], SECONDS)
    leader.grant({}, 60)
    leader.grant({}, 60)
    with pytest.raises(Exhausted):
        leader.grant({}, 60)


def test_a_hold_is_no_longer_than_the_grace_of_a_new_leader() -> None:
    assert hold_seconds(3_600.0) == leader_holds.HOLD_SECONDS
    assert hold_seconds(30.0) == 30.0

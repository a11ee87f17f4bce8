"""Who reads which bucket, step by step: one reader at a time, and no reader below an acknowledgement under way."""

from __future__ import annotations

import pytest

from lakestore.errors import Fenced
from lakestore_server.changes.sharing.members import RETURN_SECONDS, Bucket, Group, Order, Sending

BUCKETS: list[Bucket] = [("t", 0), ("t", 1)]
START: dict[Bucket, Order] = dict.fromkeys(BUCKETS, (1, 0))
REBALANCE = 10.0


@pytest.fixture
def group() -> Group:
    return Group(BUCKETS, REBALANCE)


def taken(group: Group, name: str, seat: int, acked: dict[Bucket, Order] = START) -> dict[Bucket, int]:
    return group.take_buckets(name, seat, acked)


def send(group: Group, name: str, seat: int, end: int) -> None:
    grants = taken(group, name, seat)
    assert group.sends(name, seat, {bucket: Sending(grant, (1, end)) for bucket, grant in grants.items()})


def test_a_bucket_is_not_read_while_an_acknowledgement_of_it_is_under_way(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    send(group, "a", a, 5)
    b = group.join("b", 2, 0.0)
    (moving,) = group.missing("b")
    assert group.ack_begins("a", 1, {moving: 0}) == [moving]
    group.look(REBALANCE)
    assert moving not in group.holdings, "its time is over"
    assert taken(group, "b", b) == {}, "it would begin below what is about to be acknowledged"
    assert group.ack_ends([moving], {moving: (1, 5)})
    assert list(taken(group, "b", b)) == [moving]


def test_what_is_sent_late_is_not_sent(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    grants = taken(group, "a", a)
    group.join("b", 2, 0.0)
    moves = {bucket: Sending(grant, (1, 5)) for bucket, grant in grants.items()}
    assert not group.sends("a", a, moves), "one of them was taken away meanwhile"
    assert all(holding.sent == (1, 0) for holding in group.holdings.values())


def test_a_bucket_that_comes_back_before_it_moved_is_read_on(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    send(group, "a", a, 5)
    before = taken(group, "a", a)
    b = group.join("b", 2, 1.0)
    assert len(taken(group, "a", a)) == 1
    group.leave("b", b, 2.0)
    group.look(2.0 + RETURN_SECONDS)
    assert taken(group, "a", a) == before


def test_a_bucket_of_which_nothing_was_sent_moves_at_once(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    taken(group, "a", a)
    b = group.join("b", 2, 0.0)
    assert len(taken(group, "b", b)) == len(taken(group, "a", a)) == 1


def test_an_old_connection_of_a_member_neither_reads_nor_makes_it_leave(group: Group) -> None:
    old = group.join("a", 1, 0.0)
    new = group.join("a", 1, 0.0)
    with pytest.raises(Fenced):
        taken(group, "a", old)
    group.leave("a", old, 0.0)
    group.look(100.0)
    assert len(taken(group, "a", new)) == 2


def test_time_says_when_it_will_change_something(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    assert group.due() is None
    send(group, "a", a, 5)
    group.join("b", 2, 3.0)
    assert group.due() == 3.0 + REBALANCE
    group.leave("a", a, 4.0)
    assert group.due() == 4.0 + RETURN_SECONDS


def test_who_joins_or_leaves_raises_the_generation_and_who_comes_back_does_not(group: Group) -> None:
    seat = group.join("a", 1, 0.0)
    group.join("b", 2, 0.0)
    assert group.generation == 2
    group.leave("a", seat, 1.0)
    group.join("a", 1, 1.5)
    assert group.generation == 2
    group.join("c", 3, 1.5)
    assert group.generation == 3


def test_a_failed_acknowledgement_moves_nothing(group: Group) -> None:
    a = group.join("a", 1, 0.0)
    send(group, "a", a, 5)
    group.ack_begins("a", 1, dict.fromkeys(BUCKETS, 0))
    group.ack_ends(BUCKETS, {})
    assert group.acknowledged("a") == []


def test_what_was_read_before_another_member_read_does_not_count(group: Group) -> None:
    """The first batch was refused while the other member read: the second one would pass over it."""
    a = group.join("a", 1, 0.0)
    send(group, "a", a, 5)
    before = {bucket: group.run(bucket) for bucket in BUCKETS}
    b = group.join("b", 2, 1.0)
    group.look(1.0 + REBALANCE)
    (moved,) = taken(group, "b", b)
    assert group.ack_begins("a", 1, {moved: before[moved]}) == [], "the other one reads it"
    group.leave("b", b, 20.0)
    group.look(20.0 + RETURN_SECONDS)
    assert group.ack_begins("a", 1, {moved: before[moved]}) == [], "nobody reads it, but somebody did"
    taken(group, "a", a)
    assert group.ack_begins("a", 1, {moved: before[moved]}) == []
    assert group.ack_begins("a", 1, {moved: group.run(moved)}) == [moved]
    stays = next(bucket for bucket in before if bucket != moved)
    assert group.ack_begins("a", 1, {stays: before[stays]}) == [stays]


def test_what_was_read_before_a_restart_counts_while_nobody_else_has_read() -> None:
    group = Group(BUCKETS, REBALANCE, 1_000)
    a = group.join("a", 1, 0.0)
    (bucket, *_) = taken(group, "a", a)
    assert group.ack_begins("a", 1, {bucket: 7}) == [bucket]

"""Consumers that share a subscription: each bucket has one reader at a time, and who is gone is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lakestore.client.changes import ChangeStream
from lakestore.errors import Conflict, Fenced, Invalid, NotFound
from tests.support.served import DAY, SCHEMA, Served
from tests.support.sharing import Consumer, buckets, values

NAME, OTHER = "t.log", "t.other"
REBALANCE = 10.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, subscription_idle_seconds=7.0 * DAY)
    running.lake.create_table(NAME, SCHEMA, buckets=4, bucket_key=["v"], retention="1d")
    write(running, range(8))
    yield running
    running.close()


def write(served: Served, numbers: Iterable[int], name: str = NAME) -> None:
    served.lake.table(name).append([{"v": v} for v in numbers])


def consumer(served: Served, member: str, session: int = 0, *, snapshot: bool = False) -> Consumer:
    found = Consumer(served, member, session or ord(member), [NAME])
    found.connect(snapshot=snapshot)
    return found


def opened(served: Served, member: str = "z", start: str = "earliest") -> ChangeStream:
    return served.lake.table(NAME).changes(start, subscription="billing", shared=True, member=member, until="now")


def read(served: Served, *, ack: bool = True) -> list[int]:
    """Everything up to now, by the client, alone."""
    found: list[int] = []
    for batch in opened(served):
        found += values([batch])
        if ack:
            batch.ack()
    served.clock.advance(1)
    return sorted(found)


def reads(served: Served) -> dict[str, set[int]]:
    (held,) = served.lake.subscriptions()
    return {member.name: {bucket for _, bucket in member.buckets} for member in held.members}


def test_a_lonely_member_reads_everything_and_goes_on_behind_its_acks(served: Served) -> None:
    assert read(served, ack=False) == list(range(8))
    assert read(served) == list(range(8))
    write(served, range(8, 12))
    served.restart()
    (held,) = served.lake.subscriptions()
    assert (held.shared, held.behind, held.members) == (True, 4, ())
    assert read(served) == [8, 9, 10, 11]
    assert read(served) == []


def test_members_share_the_buckets_and_each_hears_of_its_own_only(served: Served) -> None:
    a, b = consumer(served, "a"), consumer(served, "b")
    mine, theirs = a.poll(), b.poll()
    assert sorted(values(mine) + values(theirs)) == list(range(8))
    assert not buckets(mine) & buckets(theirs)
    assert {member: len(share) for member, share in reads(served).items()} == {"a": 2, "b": 2}
    (held,) = served.lake.subscriptions()
    assert sum(member.behind for member in held.members) == held.behind == 8


def test_a_bucket_moves_once_its_reader_has_acknowledged_what_it_was_sent(served: Served) -> None:
    a = consumer(served, "a")
    first = a.poll()
    b = consumer(served, "b")
    write(served, range(8, 30))
    assert b.poll() == []
    assert reads(served) == {"a": {0, 1, 2, 3}, "b": set()}
    for batch in first:
        a.ack(batch)
    theirs = b.poll()
    assert buckets(theirs) == reads(served)["b"]
    assert len(buckets(theirs)) == 2
    assert sorted(values(theirs) + values(a.poll())) == list(range(8, 30))


def test_a_slow_reader_loses_in_time_the_buckets_that_move_and_no_others(served: Served) -> None:
    a = consumer(served, "a")
    slow = a.poll()
    b = consumer(served, "b")
    served.clock.advance(REBALANCE - 1)
    assert b.poll() == []
    served.clock.advance(1)
    theirs = b.poll()
    assert len(buckets(theirs)) == 2
    for batch in slow:
        with pytest.raises(Fenced, match=r"reads bucket \d of t.log, bucket \d of t.log now"):
            a.ack(batch)
    for batch in theirs:
        b.ack(batch)
    assert served.lake.subscriptions()[0].behind == 0, "what the slow one acknowledged of its own buckets counts"
    write(served, range(8, 30))
    assert buckets(a.poll()) == {0, 1, 2, 3} - buckets(theirs)


def test_who_is_gone_is_replaced_behind_its_last_acknowledgement(served: Served) -> None:
    a, b = consumer(served, "a"), consumer(served, "b")
    done, _ = a.poll(), b.poll()
    for batch in done:
        a.ack(batch)
    write(served, range(8, 30))
    lost = a.poll()
    a.disconnect()
    assert buckets(b.poll()) == reads(served)["b"], "it may come back for a moment"
    served.clock.advance(1)
    assert values(b.poll()) == values(lost)
    assert reads(served) == {"b": {0, 1, 2, 3}}
    with pytest.raises(Fenced):
        a.ack(lost[-1])


def test_one_that_comes_back_in_time_keeps_its_buckets(served: Served) -> None:
    a, b = consumer(served, "a"), consumer(served, "b")
    before = a.poll()
    b.poll()
    a.disconnect()
    served.clock.advance(0.5)
    a.connect()
    served.clock.advance(5)
    assert values(a.poll()) == values(before)
    assert b.poll() == []
    for batch in before:
        a.ack(batch)


def test_the_same_name_opened_again_takes_the_place_of_the_first(served: Served) -> None:
    a = consumer(served, "a", session=1)
    before = a.poll()
    again = consumer(served, "a", session=2)
    assert values(again.poll()) == values(before)
    with pytest.raises(Fenced, match="member 'a' was opened again"):
        a.poll()
    with pytest.raises(Fenced):
        a.ack(before[0])


def test_idle_members_take_over(served: Served) -> None:
    members = [consumer(served, name) for name in "abcdef"]
    shares = [buckets(member.poll()) for member in members]
    assert sorted(len(share) for share in shares) == [0, 0, 1, 1, 1, 1]
    busy = next(m for m, share in zip(members, shares, strict=True) if share)
    busy.disconnect()
    served.clock.advance(1)
    assert sum(len(buckets(m.poll())) for m, share in zip(members, shares, strict=True) if not share) == 1


def test_an_ack_counts_after_a_restart_unless_somebody_else_went_on(served: Served) -> None:
    a = consumer(served, "a")
    before = a.poll()
    served.restart()
    a.ack(before[0])
    assert served.lake.subscriptions()[0].behind == 8 - len(before[0])
    write(served, range(8, 30))
    a.connect()
    later = a.poll()
    served.restart()
    b = consumer(served, "b")
    for batch in b.poll():
        b.ack(batch)
    a.connect()
    with pytest.raises(Fenced):
        a.ack(later[0])
    b.disconnect()
    served.clock.advance(1)
    assert a.poll() == []
    with pytest.raises(Fenced):
        a.ack(later[0])


def test_an_ack_that_counted_counts_when_it_is_sent_again_whoever_reads_the_bucket_by_then(served: Served) -> None:
    """The server may have died between the journal and the answer."""
    a = consumer(served, "a")
    first, *rest = a.poll()
    a.ack(first)
    served.restart()
    b = consumer(served, "b")
    write(served, range(8, 30))
    theirs = b.poll()
    assert reads(served)["b"] == {0, 1, 2, 3}
    a.ack(first)
    assert served.lake.subscriptions()[0].behind == 30 - len(first), "it does not count twice"
    assert not set(values([first])) & set(values(theirs))
    for batch in rest:
        with pytest.raises(Fenced):
            a.ack(batch)
    for batch in theirs:
        b.ack(batch)
    with pytest.raises(Fenced):
        a.ack(first)


def test_what_two_were_sent_is_acknowledged_by_one_of_them_only(served: Served) -> None:
    a = consumer(served, "a")
    slow = a.poll()
    a.disconnect()
    served.clock.advance(1)
    b = consumer(served, "b")
    for batch in b.poll():
        b.ack(batch)
    for batch in slow:
        with pytest.raises(Fenced):
            a.ack(batch)


def test_what_was_read_before_somebody_else_read_counts_no_more_and_comes_again(served: Served) -> None:
    """Its first batch may have been refused, and undone: an ack of a later one must not pass over that."""
    a = consumer(served, "a")
    first = a.poll()
    write(served, range(8, 16))
    second = a.poll()
    a.disconnect()
    served.clock.advance(1)
    b = consumer(served, "b")
    assert sorted(values(b.poll())) == list(range(16))
    with pytest.raises(Fenced):
        a.ack(first[0])
    b.disconnect()
    served.clock.advance(1)
    with pytest.raises(Fenced):
        a.ack(second[-1])
    a.connect()
    again = a.poll()
    with pytest.raises(Fenced):
        a.ack(second[-1])
    assert sorted(values(again)) == list(range(16))
    for batch in again:
        a.ack(batch)
    assert served.lake.subscriptions()[0].behind == 0


def test_a_snapshot_is_shared_and_goes_on_bucket_by_bucket(served: Served) -> None:
    a, b = consumer(served, "a", snapshot=True), consumer(served, "b")
    write(served, range(8, 30))
    mine, theirs = a.poll(), b.poll()
    assert sorted(values(mine) + values(theirs)) == list(range(30))
    for batches in (mine, theirs):
        for bucket in buckets(batches):
            snapshots = [batch.snapshot for batch in batches if bucket in buckets([batch])]
            assert snapshots == sorted(snapshots, reverse=True), "the snapshot comes first"
    assert served.lake.subscriptions()[0].snapshot
    a.ack(mine[0])
    for batch in theirs:
        b.ack(batch)
    served.restart()
    left = set(range(30)) - set(values(theirs)) - set(values(mine[:1]))
    assert read(served) == sorted(left)
    assert not served.lake.subscriptions()[0].snapshot


def test_a_bucket_with_nothing_to_show_holds_no_snapshot(served: Served) -> None:
    served.lake.create_table(OTHER, SCHEMA, buckets=4, bucket_key=["v"])
    stream = served.lake.table(OTHER).changes("snapshot", subscription="empty", shared=True, until="now")
    assert list(stream) == []
    found = served.lake.table(OTHER).changes(subscription="empty", shared=True, until=None)
    write(served, [1], OTHER)
    next(found).ack()
    found.close()


def test_alone_or_shared_but_not_both(served: Served) -> None:
    alone = served.lake.table(NAME).changes(subscription="billing")
    batch = next(alone)
    with pytest.raises(Conflict, match="read by one consumer alone"):
        next(opened(served))
    alone.close()
    a = consumer(served, "a")
    with pytest.raises(Conflict, match="shared by 1 consumers"):
        next(served.lake.table(NAME).changes(subscription="billing"))
    with pytest.raises(Fenced):
        batch.ack()
    old = a.poll()
    for sent in old[:1]:
        a.ack(sent)
    a.disconnect()
    write(served, [100])
    again = served.lake.table(NAME).changes(subscription="billing", until="now")
    assert 100 in [v for sent in again for v in values([sent])]
    assert not served.lake.subscriptions()[0].shared
    with pytest.raises(Fenced, match="by one consumer alone"):
        a.ack(old[0])


def test_what_only_one_consumer_read_is_shared_from_where_it_stood(served: Served) -> None:
    for batch in served.lake.table(NAME).changes(subscription="billing", until="now"):
        batch.ack()
    write(served, range(8, 12))
    assert read(served) == [8, 9, 10, 11]


def test_requests_that_make_no_sense_are_refused(served: Served) -> None:
    table = served.lake.table(NAME)
    with pytest.raises(Invalid, match="shared=True as well"):
        table.changes(subscription="billing", member="a")
    with pytest.raises(Invalid, match="subscription='name' as well"):
        table.changes(shared=True)
    batch = consumer(served, "a").poll()[0]
    with pytest.raises(Invalid, match="can only acknowledge a batch"):
        next(table.changes(batch.token))
    served.lake.drop_subscription("billing")
    with pytest.raises(NotFound):
        Consumer(served, "a", ord("a"), [NAME]).ack(batch)


def test_dropping_the_subscription_ends_its_members(served: Served) -> None:
    a = consumer(served, "a")
    a.poll()
    served.lake.drop_subscription("billing")
    with pytest.raises((NotFound, Fenced)):
        a.poll()


def test_the_log_stays_until_every_bucket_is_acknowledged(served: Served) -> None:
    a, b = consumer(served, "a"), consumer(served, "b")
    for batch in a.poll():
        a.ack(batch)
    waiting = b.poll()
    served.checkpoint()
    served.tier(NAME)
    served.clock.advance(2 * DAY)
    served.run()
    decision = served.server.retention.decision(served.state(NAME).table.uuid)
    assert decision is not None
    assert "subscription billing" in decision.holders()
    for batch in waiting:
        b.ack(batch)
    served.run()
    assert served.state(NAME).log_start_lsn > 0
    write(served, range(8, 12))
    assert sorted(values(a.poll()) + values(b.poll())) == [8, 9, 10, 11]


def test_a_snapshot_holds_the_log_at_its_cut(served: Served) -> None:
    a = consumer(served, "a", snapshot=True)
    cut = served.state(NAME).logs[0].at_head.lsn
    write(served, range(8, 12))
    for batch in a.poll()[:3]:
        a.ack(batch)
    served.checkpoint()
    served.tier(NAME)
    served.clock.advance(2 * DAY)
    served.run()
    assert served.state(NAME).log_start_lsn <= cut

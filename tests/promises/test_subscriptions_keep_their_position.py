"""Named subscriptions: one consumer, a durable position that never goes back, and an end when nobody comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestore.errors import Exhausted, Fenced, Invalid, NotFound, PositionExpired
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.kept import DAY, SCHEMA, Kept
from tests.support.log_tierer import LogTierer

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    running = Kept(tmp_path, subscription_idle_seconds=7.0 * DAY)
    running.lake.create_table(NAME, SCHEMA, buckets=2, retention="1d")
    for i in range(4):
        running.append(NAME, i)
    yield running
    running.close()


def read(kept: Kept, name: str = "billing", *, start: str = "earliest", acks: int = 1 << 30) -> list[int]:
    """Everything up to now by a subscription, acknowledging the first batches."""
    found: list[int] = []
    with_acks = kept.lake.table(NAME).changes(start, subscription=name, until="now")
    for i, batch in enumerate(with_acks):
        found += batch.to_arrow()["v"].to_pylist()
        if i < acks:
            batch.ack()
    return found


def test_a_subscription_goes_on_behind_what_was_acknowledged(kept: Kept) -> None:
    assert read(kept, acks=0) == [0, 1, 2, 3]
    assert read(kept) == [0, 1, 2, 3]
    assert read(kept) == []
    kept.append(NAME, 4)
    assert read(kept, start="latest") == [4], "start is only for a new one"


def test_an_acknowledged_position_survives_a_restart(kept: Kept) -> None:
    read(kept)
    kept.append(NAME, 4)
    for _ in range(2):
        kept.restart()
        (found,) = kept.lake.subscriptions()
        assert (found.name, found.tables, found.behind) == ("billing", (NAME,), 1)
    assert read(kept) == [4]


def test_a_new_one_begins_at_its_start(kept: Kept) -> None:
    assert read(kept, "late", start="latest") == []
    kept.append(NAME, 4)
    assert read(kept, "late") == [4]


def test_the_second_consumer_fences_the_first(kept: Kept) -> None:
    first = kept.lake.table(NAME).changes(subscription="billing")
    batch = next(first)
    second = kept.lake.table(NAME).changes(subscription="billing")
    later = next(second)
    with pytest.raises(Fenced, match="another consumer"):
        batch.ack()
    with pytest.raises(Fenced):
        next(first)
    later.ack()
    second.close()


def test_positions_never_go_back(kept: Kept) -> None:
    table = kept.lake.table(NAME)
    stream = table.changes(subscription="billing")
    old = next(stream)
    kept.append(NAME, 4)
    new = next(stream)
    new.ack()
    old.ack()
    assert kept.lake.subscriptions()[0].token == new.token
    stream.close()


def test_a_position_of_another_stream_is_refused(kept: Kept) -> None:
    token = kept.lake.create_table(OTHER, SCHEMA).append([{"v": 1}])
    (foreign,) = (batch.token for batch in kept.lake.table(OTHER).changes(until="now"))
    stream = kept.lake.table(NAME).changes(subscription="billing")
    next(stream)
    for wrong in (foreign, token):
        with pytest.raises(Invalid, match="not one of subscription"):
            stream.ack(wrong)
    with pytest.raises(NotFound, match="was dropped"):
        kept.lake.transport.ack(pb.AckRequest(subscription="none", epoch=1, token=foreign))
    stream.close()


def test_a_subscription_keeps_its_tables(kept: Kept) -> None:
    read(kept)
    kept.lake.create_table(OTHER, SCHEMA)
    with pytest.raises(Invalid, match=f"belongs to {NAME}"):
        next(kept.lake.table(OTHER).changes(subscription="billing"))
    kept.lake.drop_table(NAME)
    kept.lake.create_table(NAME, SCHEMA)
    with pytest.raises(NotFound, match="table of subscription 'billing' was dropped"):
        next(kept.lake.table(NAME).changes(subscription="billing"))
    kept.lake.drop_subscription("billing")
    assert kept.lake.subscriptions() == []
    with pytest.raises(NotFound):
        kept.lake.drop_subscription("billing")


def test_several_tables_share_one_position(kept: Kept) -> None:
    kept.lake.create_table(OTHER, SCHEMA)
    with kept.lake.commit() as both:
        both.append(NAME, [{"v": 10}])
        both.append(OTHER, [{"v": 20}])
    names: list[str] = []
    for batch in kept.lake.changes([NAME, OTHER], subscription="both", until="now"):
        names.append(batch.name)
        batch.ack()
    assert names[-2:] == [NAME, OTHER]
    assert kept.lake.subscriptions()[0].behind == 0


def test_the_log_waits_for_a_subscription(kept: Kept) -> None:
    read(kept, acks=0)
    kept.tier(NAME)
    kept.clock.advance(2 * DAY)
    kept.run()
    assert sum(kept.state(NAME).starts()) == 0
    decision = kept.server.retention.decision(kept.state(NAME).table.uuid)
    assert decision is not None
    assert decision.holders() == ["subscription billing"]
    assert read(kept) == [0, 1, 2, 3]
    kept.run()
    assert sum(kept.state(NAME).starts()) == 4
    kept.append(NAME, 4)
    assert read(kept) == [4]


def test_a_forgotten_subscription_is_dropped_and_lets_the_log_go(kept: Kept) -> None:
    read(kept, acks=0)
    kept.tier(NAME)
    kept.clock.advance(8 * DAY)
    kept.run()
    assert kept.lake.subscriptions() == []
    assert sum(kept.state(NAME).starts()) == 4
    kept.restart()
    assert kept.lake.subscriptions() == []


def test_a_consumer_that_only_waits_is_not_forgotten(kept: Kept) -> None:
    stream = kept.lake.table(NAME).changes(subscription="billing")
    next(stream).ack()
    for _ in range(10):
        kept.clock.advance(DAY)
        kept.run()
    stream.close()
    kept.restart()
    kept.run()
    assert [found.name for found in kept.lake.subscriptions()] == ["billing"]
    kept.clock.advance(8 * DAY)
    kept.run()
    assert kept.lake.subscriptions() == []


def test_the_number_of_subscriptions_ends(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limits=Limits(subscriptions=2))
    table = kept.lake.create_table(NAME, SCHEMA)
    table.append([{"v": 1}])
    for name in ("a", "b", "a"):
        next(table.changes(subscription=name))
    with pytest.raises(Exhausted, match="2 subscriptions"):
        next(table.changes(subscription="c"))
    kept.close()


def test_a_snapshot_is_gone_on_with_where_it_was_acknowledged(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limits=Limits(read_batch_bytes=64))
    table = kept.lake.create_table(NAME, SCHEMA, buckets=2)
    table.append([{"v": i} for i in range(40)])
    stream = table.changes("snapshot", subscription="billing")
    first = next(stream)
    first.ack()
    table.append([{"v": 40}])
    stream.close()
    kept.restart()
    assert kept.lake.subscriptions()[0].snapshot
    rest = read(kept)
    assert sorted(first.to_arrow()["v"].to_pylist() + rest) == list(range(41))
    assert not kept.lake.subscriptions()[0].snapshot
    kept.close()


def test_a_snapshot_whose_old_part_is_in_the_lake_is_read_there_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ports=True)
    table = kept.lake.create_table(NAME, SCHEMA, buckets=2, retention={"bytes": 1})
    tierer = LogTierer(kept.server, kept.lake.transport)
    for i in range(5):
        kept.append(NAME, i)
    tierer.flush(NAME)
    kept.append(NAME, 5)
    kept.run()
    assert sum(kept.state(NAME).starts()) == 5
    stream = table.changes("snapshot", subscription="billing")
    snapshot = [next(stream)]
    while not _is_last(snapshot[-1].token):
        snapshot.append(next(stream))
    kept.append(NAME, 6)
    changed = next(stream)
    rows = [row["v"] for batch in snapshot for row in batch.to_pylist()]
    assert sorted(rows) == [0, 1, 2, 3, 4, 5]
    assert all(batch.snapshot for batch in snapshot)
    assert not changed.snapshot
    assert changed.to_arrow()["v"].to_pylist() == [6]
    assert snapshot[0].to_arrow().schema == changed.to_arrow().schema
    snapshot[-1].ack()
    stream.close()
    assert read(kept) == [6], "the last batch of the snapshot is its end"
    request = pb.ChangesRequest(tables=[NAME], start="snapshot", until="now")
    with pytest.raises(PositionExpired, match="only in the lake"):
        next(kept.lake.transport.changes(request))
    kept.close()


def _is_last(token: str) -> bool:
    from lakestore.model.token import place_of, position_of

    return place_of(position_of(token)) is None

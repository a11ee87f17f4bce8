"""Named subscriptions: one consumer, a durable position that never goes back, and an end when nobody comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestore.errors import Fenced, Invalid, LimitReached, NotFound, PositionExpired
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, subscription_idle_seconds=7.0 * DAY)
    running.lake.create_table(NAME, SCHEMA, buckets=2, retention="1d")
    for i in range(4):
        running.append(NAME, i)
    yield running
    running.close()


def read(served: Served, name: str = "billing", *, start: str = "earliest", acks: int = 1 << 30) -> list[int]:
    """Everything up to now by a subscription, acknowledging the first batches."""
    found: list[int] = []
    with_acks = served.lake.table(NAME).changes(start, subscription=name, until="now")
    for i, batch in enumerate(with_acks):
        found += batch.to_arrow()["v"].to_pylist()
        if i < acks:
            batch.ack()
    return found


def test_a_subscription_goes_on_behind_what_was_acknowledged(served: Served) -> None:
    assert read(served, acks=0) == [0, 1, 2, 3]
    assert read(served) == [0, 1, 2, 3]
    assert read(served) == []
    served.append(NAME, 4)
    assert read(served, start="latest") == [4], "start is only for a new one"


def test_an_acknowledged_position_survives_a_restart(served: Served) -> None:
    read(served)
    served.append(NAME, 4)
    for _ in range(2):
        served.restart()
        (found,) = served.lake.subscriptions()
        assert (found.name, found.tables, found.behind) == ("billing", (NAME,), 1)
    assert read(served) == [4]


def test_a_new_one_begins_at_its_start(served: Served) -> None:
    assert read(served, "late", start="latest") == []
    served.append(NAME, 4)
    assert read(served, "late") == [4]


def test_the_second_consumer_fences_the_first(served: Served) -> None:
    first = served.lake.table(NAME).changes(subscription="billing")
    batch = next(first)
    second = served.lake.table(NAME).changes(subscription="billing")
    later = next(second)
    with pytest.raises(Fenced, match="another consumer"):
        batch.ack()
    with pytest.raises(Fenced):
        next(first)
    later.ack()
    second.close()


def test_positions_never_go_back(served: Served) -> None:
    table = served.lake.table(NAME)
    stream = table.changes(subscription="billing")
    old = next(stream)
    served.append(NAME, 4)
    new = next(stream)
    new.ack()
    old.ack()
    assert served.lake.subscriptions()[0].token == new.token
    stream.close()


def test_a_position_of_another_stream_is_refused(served: Served) -> None:
    token = served.lake.create_table(OTHER, SCHEMA).append([{"v": 1}])
    (foreign,) = (batch.token for batch in served.lake.table(OTHER).changes(until="now"))
    stream = served.lake.table(NAME).changes(subscription="billing")
    next(stream)
    for wrong in (foreign, token):
        with pytest.raises(Invalid, match="does not belong to subscription"):
            stream.ack(wrong)
    with pytest.raises(NotFound, match="was dropped"):
        served.lake.transport.ack(pb.AckRequest(subscription="none", epoch=1, token=foreign))
    stream.close()


def test_a_subscription_keeps_its_tables(served: Served) -> None:
    read(served)
    served.lake.create_table(OTHER, SCHEMA)
    with pytest.raises(Invalid, match=f"belongs to {NAME}"):
        next(served.lake.table(OTHER).changes(subscription="billing"))
    served.lake.drop_table(NAME)
    served.lake.create_table(NAME, SCHEMA)
    with pytest.raises(NotFound, match="table of subscription 'billing' was dropped"):
        next(served.lake.table(NAME).changes(subscription="billing"))
    served.lake.drop_subscription("billing")
    assert served.lake.subscriptions() == []
    with pytest.raises(NotFound):
        served.lake.drop_subscription("billing")


def test_several_tables_share_one_position(served: Served) -> None:
    served.lake.create_table(OTHER, SCHEMA)
    with served.lake.commit() as both:
        both.append(NAME, [{"v": 10}])
        both.append(OTHER, [{"v": 20}])
    names: list[str] = []
    for batch in served.lake.changes([NAME, OTHER], subscription="both", until="now"):
        names.append(batch.name)
        batch.ack()
    assert names[-2:] == [NAME, OTHER]
    assert served.lake.subscriptions()[0].behind == 0


def test_the_log_waits_for_a_subscription(served: Served) -> None:
    read(served, acks=0)
    served.tier(NAME)
    served.clock.advance(2 * DAY)
    served.run()
    assert sum(served.state(NAME).starts()) == 0
    decision = served.server.retention.decision(served.state(NAME).table.uuid)
    assert decision is not None
    assert decision.holders() == ["subscription billing"]
    assert read(served) == [0, 1, 2, 3]
    served.run()
    assert sum(served.state(NAME).starts()) == 4
    served.append(NAME, 4)
    assert read(served) == [4]


def test_a_forgotten_subscription_is_dropped_and_lets_the_log_go(served: Served) -> None:
    read(served, acks=0)
    served.tier(NAME)
    served.clock.advance(8 * DAY)
    served.run()
    assert served.lake.subscriptions() == []
    assert sum(served.state(NAME).starts()) == 4
    served.restart()
    assert served.lake.subscriptions() == []


def test_a_consumer_that_only_waits_is_not_forgotten(served: Served) -> None:
    stream = served.lake.table(NAME).changes(subscription="billing")
    next(stream).ack()
    for _ in range(10):
        served.clock.advance(DAY)
        served.run()
    stream.close()
    served.restart()
    served.run()
    assert [found.name for found in served.lake.subscriptions()] == ["billing"]
    served.clock.advance(8 * DAY)
    served.run()
    assert served.lake.subscriptions() == []


def test_the_number_of_subscriptions_ends(tmp_path: Path) -> None:
    served = Served(tmp_path, limits=Limits(subscriptions=2))
    table = served.lake.create_table(NAME, SCHEMA)
    table.append([{"v": 1}])
    for name in ("a", "b", "a"):
        next(table.changes(subscription=name))
    with pytest.raises(LimitReached, match="2 subscriptions"):
        next(table.changes(subscription="c"))
    served.close()


def test_a_snapshot_is_gone_on_with_where_it_was_acknowledged(tmp_path: Path) -> None:
    served = Served(tmp_path, limits=Limits(read_batch_bytes=64))
    table = served.lake.create_table(NAME, SCHEMA, buckets=2)
    table.append([{"v": i} for i in range(40)])
    stream = table.changes("snapshot", subscription="billing")
    first = next(stream)
    first.ack()
    table.append([{"v": 40}])
    stream.close()
    served.restart()
    assert served.lake.subscriptions()[0].snapshot
    rest = read(served)
    assert sorted(first.to_arrow()["v"].to_pylist() + rest) == list(range(41))
    assert not served.lake.subscriptions()[0].snapshot
    served.close()


def test_a_snapshot_whose_old_part_is_in_the_lake_is_read_there_once(tmp_path: Path) -> None:
    served = Served(tmp_path, ports=True)
    table = served.lake.create_table(NAME, SCHEMA, buckets=2, retention={"bytes": 1})
    tierer = LogTierer(served.server, served.lake.transport)
    for i in range(5):
        served.append(NAME, i)
    tierer.flush(NAME)
    served.append(NAME, 5)
    served.run()
    assert sum(served.state(NAME).starts()) == 5
    stream = table.changes("snapshot", subscription="billing")
    snapshot = [next(stream)]
    while not _is_last(snapshot[-1].token):
        snapshot.append(next(stream))
    served.append(NAME, 6)
    changed = next(stream)
    rows = [row["v"] for batch in snapshot for row in batch.to_pylist()]
    assert sorted(rows) == [0, 1, 2, 3, 4, 5]
    assert all(batch.snapshot for batch in snapshot)
    assert not changed.snapshot
    assert changed.to_arrow()["v"].to_pylist() == [6]
    assert snapshot[0].to_arrow().schema == changed.to_arrow().schema
    snapshot[-1].ack()
    stream.close()
    assert read(served) == [6], "the last batch of the snapshot is its end"
    request = pb.ChangesRequest(tables=[NAME], start="snapshot", until="now")
    with pytest.raises(PositionExpired, match="only in the lake"):
        next(served.lake.transport.changes(request))
    served.close()


def _is_last(token: str) -> bool:
    from lakestore.model.token import place_of, position_of

    return place_of(position_of(token)) is None

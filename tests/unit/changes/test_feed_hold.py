"""A stream that begins with a snapshot is whole however slowly it is read; what it needs is held, then let go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Exhausted, LakestoreError, PositionExpired
from lakestore.limits import Limits
from lakestore.model.token import position_of
from lakestore_server.changes import snapshot
from lakestore_server.read.leases import Leases
from tests.support.folding import Fold
from tests.support.served import DAY, SCHEMA, Served
from tests.support.waiting import refusal

NAME = "t.log"
KEYED = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.string())])


@pytest.fixture(params=["log", "keyed"])
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    limits = Limits(fetch_batch_rows=3, read_batch_bytes=100, changes_batch_rows=3, leases=4)
    running = Served(tmp_path, limits=limits)
    key = ["v"] if request.param == "keyed" else None
    running.lake.create_table(NAME, SCHEMA, primary_key=key, buckets=2, retention="1d")
    for at in range(0, 30, 3):
        write(running, at, at + 1, at + 2)
    yield running
    running.close()


def write(served: Served, *values: int) -> None:
    """One commit."""
    served.clock.advance(1)
    table = served.lake.table(NAME)
    (table.upsert if table.definition.keyed else table.append)([{"v": value} for value in values])


def old(served: Served) -> int:
    """Everything becomes as old as retention asks for and is in the lake; how many offsets the log then lacks."""
    served.tier(NAME)
    served.checkpoint()
    served.clock.advance(2 * DAY)
    served.run()
    return sum(served.state(NAME).starts())


def may_go(served: Served) -> int:
    """A primary-key table's log start may come up to the cut, for what lives stays below it; a log lacks nothing."""
    return 30 if served.state(NAME).table.keyed else 0


def leases(served: Served) -> Leases:
    return served.server.sources.leases


def values(batches: Any) -> list[int]:
    return [value for batch in batches for value in batch.to_arrow()["v"].to_pylist()]


def test_a_slow_snapshot_and_the_changes_behind_it_are_whole(served: Served) -> None:
    stream = served.lake.table(NAME).changes("snapshot", until=None)
    found = values([next(stream)])
    for value in range(30, 40):
        write(served, value)
        assert old(served) <= may_go(served), "the log waits"
        found += values([next(stream)])
    while len(found) < 40:
        found += values([next(stream)])
    assert sorted(found) == list(range(40))
    for value in (40, 41):
        write(served, value)
        assert values([next(stream)]) == [value]
    assert leases(served).count == 0, "who has caught up holds nothing"
    assert old(served) > may_go(served)
    stream.close()


def test_the_end_of_a_stream_lets_go(served: Served) -> None:
    assert sorted(values(served.lake.table(NAME).changes("snapshot", until="now"))) == list(range(30))
    assert leases(served).count == 0


def test_a_broken_stream_goes_on_at_its_token_within_the_grace(served: Served) -> None:
    stream = served.lake.table(NAME).changes("snapshot")
    found = values(next(stream) for _ in range(3))
    token = stream.token
    stream.close()
    write(served, 30)
    served.tier(NAME)
    served.checkpoint()
    served.clock.advance(snapshot.UNNAMED_GRACE_SECONDS - 2)
    served.run()
    assert leases(served).count > 0
    again = served.lake.table(NAME).changes(token, until="now")
    assert sorted(found + values(again)) == list(range(31))
    served.clock.advance(snapshot.UNNAMED_GRACE_SECONDS)
    assert leases(served).count == 0


def test_who_stays_away_for_longer_begins_anew(served: Served) -> None:
    stream = served.lake.table(NAME).changes("snapshot")
    token = next(stream).token
    stream.close()
    write(served, 30)
    served.clock.advance(snapshot.UNNAMED_GRACE_SECONDS + 1)
    assert old(served) > may_go(served)
    with pytest.raises(PositionExpired, match="start at 'snapshot'"):
        next(served.lake.table(NAME).changes(token))


def test_streams_at_one_cut_share_their_leases_and_their_number_ends(served: Served) -> None:
    table = served.lake.table(NAME)
    streams = [table.changes("snapshot") for _ in range(5)]
    for stream in streams:
        next(stream)
    assert leases(served).count == 2
    for value in (30, 31):
        write(served, value)
        streams.append(table.changes("snapshot"))
        if value == 30:
            next(streams[-1])
    assert isinstance(refusal(lambda: next(streams[-1]), "4 reads run", 1.0), Exhausted)
    for stream in streams:
        stream.close()


def test_streams_that_are_gone_keep_nobody_from_reading(served: Served) -> None:
    """Each at a cut of its own, with two leases, where four are the limit."""
    table = served.lake.table(NAME)
    for value in range(30, 42):
        write(served, value)
        stream = table.changes("snapshot")
        next(stream)
        stream.close()
        assert leases(served).count <= 4
    served.lake.snapshot()
    running = table.changes("snapshot")
    next(running)
    assert leases(served).count <= 4
    assert sum(lease.may_go for lease in leases(served)._leases.values()) <= 2
    assert sorted(values(table.changes("snapshot", until="now"))) == list(range(42))
    running.close()


def test_the_oldest_that_are_gone_go_first_and_one_that_comes_back_stays(served: Served) -> None:
    held = Leases(served.clock, 0.0, Limits(leases=40))
    for n in range(20):
        held.hold(str(n), {}, {})
        held.leave(str(n), 600 - (n == 7) * 500)
    assert sorted(map(int, held._leases)) == [16, 17, 18, 19], "a tenth of the limit"
    held.hold("16", {}, {})
    names = [held.grant({}, 60) for _ in range(36)]
    assert held.count == 40
    held.grant({}, 60, owner="somebody")
    assert "17" not in held._leases
    assert {"16", "18", "19", *names} <= set(held._leases)


def test_a_stream_that_cannot_go_on_holds_nothing(served: Served) -> None:
    stream = served.lake.table(NAME).changes("snapshot", subscription="s")
    next(stream)
    served.lake.drop_subscription("s")
    with pytest.raises(LakestoreError):
        values(stream)
    assert leases(served).count == 0


def test_a_named_stream_is_awaited_for_longer(served: Served) -> None:
    for name, seconds in (("", snapshot.UNNAMED_GRACE_SECONDS), ("s", snapshot.GRACE_SECONDS)):
        stream = served.lake.table(NAME).changes("snapshot", subscription=name or None)
        next(stream)
        stream.close()
        served.clock.advance(seconds - 2)
        assert leases(served).count > 0
        served.clock.advance(3)
        assert leases(served).count == 0


@pytest.mark.parametrize("way", ["reset", "drop"])
def test_a_subscription_that_leaves_its_snapshot_holds_nothing(served: Served, way: str) -> None:
    def leave(name: str) -> None:
        if way == "reset":
            served.lake.reset_subscription(name, to="latest")
        else:
            served.lake.drop_subscription(name)

    start = "snapshot"
    for name in ("s", "t"):
        stream = served.lake.table(NAME).changes(start, subscription=name)
        start = str(next(stream).token)
        stream.close()
    leave("s")
    assert leases(served).count > 0, "another subscription reads the same snapshot"
    stream = served.lake.table(NAME).changes(start, subscription="t")
    next(stream)
    leave("t")
    with pytest.raises(LakestoreError):
        values(stream)
    assert leases(served).count == 0


def test_a_subscriptions_snapshot_is_held_as_well(served: Served) -> None:
    stream = served.lake.table(NAME).changes("snapshot", subscription="s")
    found = values([next(stream)])
    write(served, 30)
    assert old(served) <= may_go(served)
    while len(found) < 31:
        found += values([next(stream)])
    assert sorted(found) == list(range(31))
    stream.close()


def test_a_snapshot_beside_writes_checkpoints_and_retention_is_the_table_at_its_cut(tmp_path: Path) -> None:
    served = Served(tmp_path, limits=Limits(fetch_batch_rows=5, read_batch_bytes=300, changes_batch_rows=5))
    table = served.lake.create_table(NAME, KEYED, primary_key=["id"], buckets=2, retention="1d")
    for n in range(4):
        table.upsert([{"id": i, "n": n, "s": "x"} for i in range(50)])
        served.clock.advance(10)
    at_cut = table.scan().to_arrow().to_pylist()
    stream, fold, before = table.changes("snapshot", before_images=True), Fold(), Fold()
    actions: list[Callable[[], object]] = [
        lambda: table.upsert([{"id": i, "n": 100, "s": "y"} for i in range(0, 60, 3)]),
        lambda: table.delete([{"id": i} for i in range(0, 60, 7)]),
        served.checkpoint,
        lambda: old(served),
    ]
    for i in itertools.count():
        batch = next(stream)
        fold.add([batch])
        if batch.snapshot:
            before.add([batch])
        if i < 12:
            actions[i % 4]()
        elif not batch.snapshot and position_of(batch.token).lsn >= _newest(served):
            break
    assert before.rows == {row["id"]: row for row in at_cut}
    found = table.lookup([{"id": i} for i in range(60)]).to_pylist()
    assert fold.rows == {row["id"]: row for row in found}
    stream.close()
    served.close()


def _newest(served: Served) -> int:
    """The last commit to the table."""
    return max(log.at_head.lsn for log in served.state(NAME).logs)


def test_a_snapshot_that_is_read_slowly_takes_a_piece_of_memory(tmp_path: Path) -> None:
    served = Served(tmp_path, limits=Limits(read_batch_bytes=100_000))
    table = served.lake.create_table(NAME, KEYED, primary_key=["id"], buckets=1)
    for at in range(0, 40_000, 10_000):
        table.upsert([{"id": i, "n": i, "s": f"{i:0300}"} for i in range(at, at + 10_000)])
    served.checkpoint()
    rows, most, before = 0, 0, pa.total_allocated_bytes()
    for batch in table.changes("snapshot", until="now"):
        rows += len(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 40_000
    assert most < 2_000_000, f"{most} bytes at once of a table of 13 MB"
    served.close()

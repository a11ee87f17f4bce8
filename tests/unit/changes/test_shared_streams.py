"""Streams of a shared subscription: several tables, filters, old rows in the lake, connections that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore import aio
from lakestore.cli.main import cli
from lakestore.client.calls import transport_of
from lakestore.client.changes import ChangeBatch, ChangeStream, Share
from lakestore.errors import Fenced, Invalid, PositionExpired, Unavailable
from lakestore.limits import Limits
from lakestore.model.token import (
    LogPosition,
    Part,
    Place,
    SharedPosition,
    SnapshotPosition,
    Token,
    parts_of,
    position_of,
)
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.row_messages import ChangeMessage
from lakestore_server.files.checkpoint import subscription_list, subscription_of
from lakestore_server.state.subscription import NO_CUT, Mark, MovedMark, Subscription, SubscriptionMove
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served
from tests.support.sharing import Consumer, buckets, values

NAME, OTHER = "t.log", "t.other"
KEYED = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, limits=Limits(read_batch_bytes=600, changes_batch_rows=5))
    running.lake.create_table(NAME, SCHEMA, buckets=3, bucket_key=["v"])
    yield running
    running.close()


def keyed(served: Served) -> ls.Table:
    return served.lake.create_table(OTHER, KEYED, primary_key=["id"], buckets=2)


def shared(served: Served, *tables: str, member: str = "m", start: str = "earliest", **options: Any) -> ChangeStream:
    asked = {"subscription": "s", "shared": True, "member": member, "until": "now", **options}
    return served.lake.changes(list(tables or [NAME]), start, **asked)


def places(batches: list[ChangeBatch]) -> list[tuple[str, int, int]]:
    found = [(b.name, b.table["__bucket"].to_pylist(), b.table["__offset"].to_pylist()) for b in batches]
    return [(name, bucket, offset) for name, some, more in found for bucket, offset in zip(some, more, strict=True)]


def test_several_tables_are_shared_bucket_by_bucket(served: Served) -> None:
    other = keyed(served)
    served.append(NAME, *range(30))
    other.upsert([{"id": i, "v": i} for i in range(30)])
    a, b = (Consumer(served, name, i, [NAME, OTHER]) for i, name in enumerate("ab", 1))
    a.connect()
    b.connect()
    mine, theirs = a.poll(), b.poll()
    counts = [len({(name, bucket) for name, bucket, _ in places(batches)}) for batches in (mine, theirs)]
    assert sorted(counts) == [2, 3]
    assert len(set(places(mine + theirs))) == 60 == len(places(mine + theirs))
    for consumer, batches in ((a, mine), (b, theirs)):
        for batch in batches:
            consumer.ack(batch)
    assert served.lake.subscriptions()[0].behind == 0


@pytest.mark.parametrize("images", [False, True])
def test_a_batch_cut_to_fit_acknowledges_whole_commits_only(served: Served, images: bool) -> None:
    other = keyed(served)
    for n in range(4):
        other.upsert([{"id": i, "v": n} for i in range(40)])
    ends = {b: [int(end) for end in log.commits(0, log.head).end] for b, log in enumerate(served.state(OTHER).logs)}
    batches = list(shared(served, OTHER, before_images=images))
    assert len(batches) > 4
    seen: dict[int, int] = {}
    for i, batch in enumerate(batches):
        for part in parts_of(position_of(batch.token)):
            assert part.end in (0, *ends[part.bucket]), "a position inside a commit"
            later = [offset for _, bucket, offset in places(batches[i + 1 :]) if bucket == part.bucket]
            assert min(later, default=part.end) >= part.end, "what comes later is not acknowledged"
            seen[part.bucket] = part.end
    assert seen == {b: log.head for b, log in enumerate(served.state(OTHER).logs)}


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_acknowledging_some_batches_of_a_cut_stream_and_opening_it_again_loses_nothing(
    served: Served, start: str
) -> None:
    other = keyed(served)
    for n in range(3):
        other.upsert([{"id": i, "v": n} for i in range(40)])
    live: dict[int, int] = {}
    for acked in (1, 2, 3, 1 << 30):
        for i, batch in enumerate(shared(served, OTHER, start=start)):
            if i >= acked:
                break
            live.update(zip(batch.table["id"].to_pylist(), batch.table["v"].to_pylist(), strict=True))
            batch.ack()
        served.clock.advance(2)
    assert live == dict.fromkeys(range(40), 2)
    (held,) = served.lake.subscriptions()
    assert (held.behind, held.snapshot) == (0, False)


def test_a_filter_lets_marks_go_over_what_it_leaves_out(served: Served) -> None:
    served.append(NAME, *range(30))
    stream = shared(served, where="v < 5", until=None)
    got = [next(stream)]
    while sum(map(len, got)) < 5:
        got.append(next(stream))
    for batch in got:
        batch.ack()
    served.append(NAME, *range(30, 60), 1)
    got = [next(stream)]
    assert values(got) == [1]
    got[0].ack()
    stream.close()
    served.clock.advance(2)
    served.append(NAME, *range(60, 90))
    consumer = Consumer(served, "m", 1, [NAME], name="s")
    consumer.connect()
    assert set(values(consumer.poll())) <= set(range(5, 90)), "what was acknowledged does not come again"


def test_marks_go_over_an_empty_snapshot_by_themselves(served: Served) -> None:
    stream = shared(served, start="snapshot", until=None, member="one")
    served.append(NAME, 1)
    batch = next(stream)
    assert not batch.snapshot or values([batch]) == [1]
    batch.ack()
    served.clock.advance(2)
    served.append(NAME, *range(2, 40))
    for _ in range(2):
        next(stream).ack()
    stream.close()
    served.clock.advance(2)
    for batch in shared(served, member="two"):
        batch.ack()
    assert not served.lake.subscriptions()[0].snapshot


def test_a_snapshot_whose_old_part_is_in_the_lake_is_shared_too(tmp_path: Path) -> None:
    served = Served(tmp_path, ports=True)
    served.lake.create_table(NAME, SCHEMA, buckets=4, bucket_key=["v"], retention={"bytes": 1})
    tierer = LogTierer(served.server, served.lake.transport)
    for i in range(4):
        served.append(NAME, *range(i * 10, i * 10 + 10))
    tierer.flush(NAME)
    served.append(NAME, 100)
    served.run()
    assert sum(served.state(NAME).starts()) > 0
    first = shared(served, start="snapshot", member="a", until=None)
    got = [next(first)]
    while 100 not in values(got) or len(values(got)) < 41:
        got.append(next(first))
    assert sorted(values(got)) == [*range(40), 100]
    for batch in got[:-1]:
        batch.ack()
    assert served.lake.subscriptions()[0].snapshot, "these rows come in no order: the last batch acknowledges them"
    got[-1].ack()
    first.close()
    served.clock.advance(2)
    served.append(NAME, 101)
    later = [batch for batch in shared(served, member="b")]
    assert values(later) == [101]
    request = pb.ChangesRequest(
        tables=[NAME], start="snapshot", until="now", subscription="other", member="m", session=1
    )
    with pytest.raises(PositionExpired, match="only in the lake"):
        next(served.lake.transport.changes(request))
    served.close()


class Breaking:
    """A transport whose streams break after one message."""

    def __init__(self, served: Served, between: Any = None) -> None:
        self._served, self._between, self.left = served, between, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._served.lake.transport, name)

    def changes(self, request: pb.ChangesRequest) -> Iterator[ChangeMessage]:
        """As the server's, for a while."""
        messages = self._served.lake.transport.changes(request)
        try:
            for message in messages:
                yield message
                if self.left:
                    self.left -= 1
                    raise Unavailable("cut", applied="no")
        finally:
            messages.close()  # type: ignore[attr-defined]
            if self._between:
                self._between()


def broken(served: Served, between: Any = None) -> ChangeStream:
    request = pb.ChangesRequest(
        tables=[NAME], start="earliest", until="now", subscription="s", member="m", session=7, lake_snapshot=True
    )
    transport: Any = Breaking(served, between)
    return ChangeStream(transport, request)


def test_one_that_comes_back_is_not_given_what_it_was_handed(served: Served) -> None:
    served.append(NAME, *range(40))
    got = list(broken(served))
    assert sorted(values(got)) == list(range(40))
    for batch in got:
        batch.ack()
    assert served.lake.subscriptions()[0].behind == 0


def test_what_another_consumer_acknowledged_meanwhile_is_not_acknowledged_twice(served: Served) -> None:
    served.append(NAME, *range(40))
    seen: list[ChangeBatch] = []

    def takes_over() -> None:
        served.clock.advance(2)
        other = Consumer(served, "other", 9, [NAME], name="s")
        other.connect()
        for batch in other.poll(1):
            seen.append(batch)
            other.ack(batch)
        other.disconnect()
        served.clock.advance(2)

    stream = broken(served, takes_over)
    first = next(stream)
    rest = list(stream)
    with pytest.raises(Fenced, match="another consumer of subscription 's'"):
        first.ack()
    theirs, mine = values(seen), values([first, *rest])
    assert set(theirs) | set(mine) == set(range(40))
    assert not set(values(rest)) & set(theirs), "they were acknowledged before this one came back"


class Forgetful:
    """A wire that loses the answers of the first acknowledgements, after which `then` happens."""

    def __init__(self, served: Served, then: Callable[[], None], lost: int = 1) -> None:
        self._served, self._then, self._lost = served, then, lost

    def __getattr__(self, name: str) -> Any:
        transport: Any = self._served.lake.transport
        return getattr(transport.wire, name)

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        """As the server's, but nobody hears of it."""
        transport: Any = self._served.lake.transport
        answer = transport.wire.call(method, request, seconds)
        if method.name != "Ack":
            return answer
        self._lost -= 1
        if self._lost < 0:
            return answer
        self._then()
        raise Unavailable("the connection is lost", applied="unknown")


@pytest.mark.parametrize("acks", [False, True])
def test_an_ack_whose_answer_is_lost_counts_or_is_said_to_be_unknown(served: Served, acks: bool) -> None:
    for v in range(0, 40, 2):
        served.append(NAME, v, v + 1)
    theirs: list[ChangeBatch] = []

    def takes_over() -> None:
        served.restart()
        other = Consumer(served, "other", 9, [NAME], name="s")
        other.connect()
        theirs.extend(other.poll())
        for batch in theirs if acks else ():
            other.ack(batch)

    request = pb.ChangesRequest(
        tables=[NAME], start="earliest", until="now", subscription="s", member="m", session=7, lake_snapshot=True
    )
    wire: Any = Forgetful(served, takes_over)
    transport = transport_of(wire)
    stream = ChangeStream(transport, request)
    mine = next(stream)
    if acks:
        with pytest.raises(Fenced, match="may have been applied") as refused:
            mine.ack()
        assert refused.value.applied == "unknown"
    else:
        mine.ack()
    assert sorted(values([mine, *theirs])) == list(range(40)), "it counted: nobody is given these rows again"
    assert served.lake.subscriptions()[0].behind == (0 if acks else 40 - len(mine))


def test_an_ack_that_is_refused_at_once_is_known_not_to_count(served: Served) -> None:
    served.append(NAME, *range(40))
    stream = shared(served)
    batch = next(stream)
    other = Consumer(served, "m", 9, [NAME], name="s")
    other.connect()
    assert other.poll()
    with pytest.raises(Fenced) as refused:
        batch.ack()
    assert refused.value.applied == "no"


def test_a_share_knows_which_buckets_somebody_else_has_read() -> None:
    def text(begin: int, end: int) -> str:
        return str(SharedPosition("x", 0, ("t",), (Part(0, 3, begin, end),)))

    share = Share()
    assert share.begun(text(0, 10)) == []
    share.acked(text(0, 10))
    assert share.begun(text(0, 20)) == [], "the same reading goes on"
    assert share.begun(text(10, 20)) == [], "its own acknowledgement"
    assert share.begun(text(15, 20)) == [3]


def test_a_share_knows_when_somebody_else_has_read_a_bucket_and_left_it_where_it_was() -> None:
    def text(run: int) -> str:
        return str(SharedPosition("x", 0, ("t",), (Part(0, 3, 0, 10, run=run),)))

    share = Share()
    assert share.begun(text(5)) == []
    assert share.begun(text(0)) == [], "a server that was started again does not know of anybody"
    assert share.begun(text(6)) == [3]
    assert share.begun(text(6)) == []


def test_a_mark_knows_what_the_session_that_moved_it_last_has_acknowledged() -> None:
    mark, mine, other = Mark(30, by=1, since=20), 1, 2
    assert mark.has(mine, 20, 25, NO_CUT)
    assert mark.has(mine, 25, 30, NO_CUT)
    assert not mark.has(mine, 20, 31, NO_CUT), "it has not come so far"
    assert not mark.has(mine, 10, 25, NO_CUT), "somebody else may have moved it in between"
    assert not mark.has(other, 20, 25, NO_CUT)
    assert not Mark(30, cut=7, by=1, since=0).has(mine, 0, 30, NO_CUT), "the snapshot's end is behind its last row"


def test_positions_of_all_kinds_are_written_and_read() -> None:
    for token in (
        LogPosition("x", 5),
        LogPosition("x", 5, ("t",)),
        SnapshotPosition("x", 5, ("t",), Place("t", 1, 7)),
        SharedPosition("x", 0, ("t",), ()),
        SharedPosition("x", 0, ("t", "u"), (Part(1, 3, 4, 9), Part(0, 0, 1, 2, 77))),
    ):
        assert position_of(str(token)) == token


def test_subscriptions_are_stored_as_before_unless_they_are_shared() -> None:
    old = ["billing", ["t"], 9, ["t", 1, 4], 2, 77]
    assert subscription_list(subscription_of(old)) == old
    held = Subscription("billing", ("t",), 9, None, 2, 77, ((Mark(3), Mark(4, 9, 5, 1)),))
    assert subscription_of(subscription_list(held)) == held
    move = SubscriptionMove("billing", 80, (MovedMark(0, 0, Mark(6, -1, 8, 3)),))
    assert held.moved(move).marks == ((Mark(6, -1, 8, 3), Mark(4, 9, 5, 1)),)


def test_tasks_of_an_event_loop_share_a_subscription(tmp_path: Path) -> None:
    served = Served(tmp_path, ports=True)
    served.lake.create_table(NAME, SCHEMA, buckets=4, bucket_key=["v"])
    served.append(NAME, *range(40))

    async def consume() -> list[int]:
        found: list[int] = []
        async with aio.connect(served.server.about["grpc"]) as lake:
            for member in ("a", "b"):
                options: dict[str, Any] = {"subscription": "s", "shared": True, "member": member, "until": "now"}
                async with lake.changes([NAME], **options) as stream:
                    async for batch in stream:
                        found += values([batch])
                        await stream.ack(batch)
        return found

    assert sorted(asyncio.run(consume())) == list(range(40))
    assert served.lake.subscriptions()[0].behind == 0
    served.close()


def test_the_command_line_shares_a_subscription_and_shows_who_does(tmp_path: Path) -> None:
    served = Served(tmp_path, ports=True)
    served.lake.create_table(NAME, SCHEMA, buckets=4, bucket_key=["v"])
    served.append(NAME, *range(10))
    server = ["--server", served.server.about["grpc"]]
    run = CliRunner()
    one = ["changes", NAME, "--subscription", "s", "--shared", "--member", "w1", "--json", *server]
    shown = run.invoke(cli, one)
    assert shown.exit_code == 0, shown.output
    assert sorted(json.loads(line)["v"] for line in shown.stdout.splitlines()) == list(range(10))
    served.clock.advance(2)
    consumer = Consumer(served, "w2", 1, [NAME], name="s")
    consumer.connect()
    served.append(NAME, 10, 11)
    assert len(values(consumer.poll())) == 2
    listed = run.invoke(cli, ["subscriptions", *server])
    assert "w2 (4 buckets, 2 behind)" in listed.output
    refused = run.invoke(cli, ["changes", NAME, "--shared", *server])
    assert "say --subscription NAME --shared" in str(refused.exception)
    consumer.disconnect()
    served.close()


def test_one_that_nobody_shares_any_more_is_forgotten_in_time(tmp_path: Path) -> None:
    served = Served(tmp_path, subscription_idle_seconds=7.0 * DAY)
    served.lake.create_table(NAME, SCHEMA, buckets=2, retention="1d")
    consumer = Consumer(served, "m", 1, [NAME], name="s")
    consumer.connect()
    served.clock.advance(30 * DAY)
    served.run()
    assert len(served.lake.subscriptions()) == 1, "somebody is there"
    consumer.disconnect()
    served.clock.advance(8 * DAY)
    served.run()
    assert served.lake.subscriptions() == []
    served.close()


def test_a_member_and_its_position_are_what_they_say(served: Served) -> None:
    served.append(NAME, *range(9))
    with pytest.raises(Invalid, match="at most 255"):
        next(shared(served, member="x" * 256))
    with pytest.raises(Invalid, match="names the subscription and its session"):
        next(served.lake.transport.changes(pb.ChangesRequest(tables=[NAME], subscription="s", member="m")))
    batch = next(shared(served))
    token = position_of(batch.token)
    forged: dict[Token, str] = {
        SharedPosition(token.timeline, 0, token.tables, (Part(0, 99, 0, 1),)): "does not have",
        SharedPosition(token.timeline, 0, token.tables, (Part(1, 0, 0, 1),)): "not a position token",
        SharedPosition(token.timeline, 0, token.tables, (Part(0, 0, 0, 1 << 40),)): "ahead",
        LogPosition(token.timeline, 0, token.tables): "does not belong to subscription",
    }
    for position, wrong in forged.items():
        asked = pb.AckRequest(subscription="s", member="m", session=1, token=str(position))
        with pytest.raises(Invalid, match=wrong):
            served.lake.transport.ack(asked)
    assert buckets([batch])

"""A server that follows: the port refuses what only a leader answers, and ends the streams that need one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.calls import transport_of
from lakestore.client.grpc import GrpcWire
from lakestore.client.scope import SCOPE, Scope
from lakestore.errors import NotLeader
from lakestore.model.token import position_of
from lakestore.union.cut import Cut
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import CommitLoop, Engine
from tests.support.served import Served

ROW = pa.schema([pa.field("id", pa.int64(), nullable=False)])
ROWS = [{"id": 1}, {"id": 2}]


class Role:
    """The role of a server, which a test changes."""

    is_follower = False
    name = ""

    def check(self, *_: object) -> None:
        if self.is_follower:
            raise NotLeader.of("b:7340")


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> Role:
    made = Role()
    monkeypatch.setattr("lakestore.client.retry.RETRY_SECONDS", 0.0)
    monkeypatch.setattr(CommitLoop, "refuse_when_following", made.check)
    monkeypatch.setattr(Engine, "role", property(lambda _: made.name))
    return made


@pytest.fixture
def address(tmp_path: Path, role: Role) -> Iterator[str]:
    with Served(tmp_path / "data", ports=True) as served:
        served.lake.create_table("a.t", ROW, primary_key=["id"], buckets=1).upsert(ROWS)
        yield served.server.about["grpc"]


Connect = Callable[[str], ls.Lake]


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connected(reads: str) -> ls.Lake:
            wire = GrpcWire(address, reads=reads)
            return stack.enter_context(ls.Lake(transport_of(wire), address))

        yield connected


def refused(call: Callable[[], object]) -> bool:
    """Whether the server sends a call to the leader."""
    try:
        call()
    except NotLeader as error:
        assert (error.leader, error.applied) == ("b:7340", "no")
        return True
    return False


@pytest.mark.parametrize("reads", ["", "leader", "follower", "nearest"])
def test_a_follower_reads_for_everybody_who_does_not_want_the_leader(role: Role, connect: Connect, reads: str) -> None:
    lake = connect(reads)
    table = lake.table("a.t")
    calls: list[Callable[[], object]] = [
        lambda: table.lookup([{"id": 1}]),
        lambda: table.lookup([{"id": 1}, {"id": 2}]),
        lambda: table.scan().count(),
        lambda: lake.tables(),
        lambda: next(table.changes("earliest")),
        lambda: lake.snapshot().close(),
        lambda: lake.transport.status(pb.StatusRequest()),
    ]
    assert [refused(call) for call in calls] == [False] * len(calls)
    role.is_follower = True
    assert [refused(call) for call in calls] == [reads == "leader"] * len(calls)
    assert not refused(lambda: lake.transport.hello(pb.HelloRequest(protocol=5)))


def test_a_follower_refuses_what_only_a_leader_answers(role: Role, connect: Connect) -> None:
    lake = connect("follower")
    table = lake.table("a.t")
    role.is_follower = True
    transport = lake.transport
    calls: list[Callable[[], object]] = [
        lambda: table.upsert(ROWS),
        lambda: lake.create_database("b"),
        lambda: lake.subscriptions(),
        lambda: transport.report(pb.ReportRequest(producer="p")),
        lambda: transport.acquire_tierer(pb.TiererRequest(holder="h", seconds=60)),
        lambda: next(table.changes(subscription="s")),
    ]
    assert [refused(call) for call in calls] == [True] * len(calls)


@pytest.mark.parametrize("reads", ["leader", "follower"])
def test_a_read_that_began_at_a_leader_ends_there(role: Role, connect: Connect, reads: str) -> None:
    lake = connect(reads)
    with Cut(lake.transport, ["a.t"], clock=lambda: 0.0) as cut:
        role.is_follower = True
        assert Scan(cut, "a.t").to_arrow().num_rows == 2
        lake.transport.renew_lease(pb.LeaseRequest(lease=cut.plan.lease, seconds=60))


@pytest.mark.parametrize(("reads", "subscription"), [("leader", ""), ("follower", "s"), ("leader", "s")])
def test_a_silent_stream_that_needs_the_leader_ends(
    role: Role, connect: Connect, reads: str, subscription: str
) -> None:
    lake = connect(reads)
    request = pb.ChangesRequest(tables=["a.t"], start="earliest", subscription=subscription)
    scope = Scope()
    messages: Any = lake.transport.changes(request)
    too_late = threading.Timer(30, scope.cancel)
    too_late.start()
    before = SCOPE.set(scope)
    try:
        assert next(messages).rows
        role.is_follower = True
        with pytest.raises(NotLeader):
            for _ in messages:
                pass
    finally:
        SCOPE.reset(before)
        too_late.cancel()


def test_a_stream_that_any_server_serves_goes_on(role: Role, connect: Connect) -> None:
    lake = connect("follower")
    stream = lake.table("a.t").changes("earliest")
    assert len(next(stream)) == 2
    role.is_follower = True
    assert stream.next(timeout=1.5) is None
    role.is_follower = False
    lake.table("a.t").upsert([{"id": 3}])
    assert len(next(stream)) == 1


@pytest.mark.parametrize("way", ["changes", "ranges"])
def test_a_follower_waits_for_a_position_of_a_server_that_is_ahead(role: Role, connect: Connect, way: str) -> None:
    lake = connect("follower")
    table = lake.table("a.t")
    head = position_of(lake.transport.head(pb.HeadRequest()).token)
    ahead = str(replace(head, lsn=head.lsn + 1))
    role.name = "follower"
    ranges = pb.ChangeRangesRequest(table="a.t", start=ahead)
    with ThreadPoolExecutor(1) as pool, table.changes(ahead) as stream:
        read: Any = stream.next if way == "changes" else lambda _: lake.transport.change_ranges(ranges)
        waiting = pool.submit(read, 60)
        assert not waiting.done()
        table.upsert([{"id": 3}])
        if way == "changes":
            table.upsert([{"id": 4}])
            assert waiting.result().to_arrow().column("id").to_pylist() == [4]
        else:
            assert not waiting.result().ranges

"""One principal takes no more than its part: of leases, subscriptions, streams, calls and the bodies of HTTP."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client import grpc as client_grpc
from lakestore.errors import Denied, Exhausted, Unavailable
from lakestore.limits import Limits
from lakestore.model.token import LogPosition, position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.http_gate import THREADS, HttpShares
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

LIMITS = Limits(leases=10, subscriptions=10, streams=10, threads=16, principal_percent=40)
PRINCIPALS = {"root": {"*": ["admin"]}, "reader": {"shop.log": ["read"]}, "none": {}}
PRINCIPALS |= {"second": {"shop.*": ["read"]}, "writer": {"shop.log": ["write"]}}
PART = 4
"""One principal's part of ten."""
PATIENCE, REFUSED_WITHIN = 30.0, 1.0
"""Seconds for a call that has a part, however busy the machine is, and for one that is tried again until they end."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("quotas")
    auth = write_auth(folder / "auth.yaml", PRINCIPALS)
    made = Server(Settings(folder / "data", port=0, http_port=0, auth=str(auth), limits=LIMITS))
    made.start()
    with lake_of(made, "root") as lake:
        for name in ("shop.log", "hr.log"):
            lake.create_table(name, pa.schema([("a", pa.int64())])).append([{"a": 1}])
        lake.create_table("shop.keyed", pa.schema([("a", pa.int64())]), primary_key=["a"])
    yield made
    made.close()


def lake_of(server: Server, name: str) -> ls.Lake:
    return ls.connect(server.about["grpc"], token=token_of(name))


def taken(lake: ls.Lake, call: Callable[[int], object]) -> int:
    """The number of calls that succeed before one is `Exhausted`."""
    for number in range(20):
        is_done = False
        while not is_done:
            try:
                with lake.within(PATIENCE if number < PART else REFUSED_WITHIN):
                    call(number)
                is_done = True
            except Exhausted as error:
                assert "reader" in error.message
                return number
            except Unavailable:  # the time was over before the refusal had come
                if number < PART:
                    raise
    return 20


def test_leases_and_subscriptions_have_a_part_for_everybody(server: Server) -> None:
    with lake_of(server, "reader") as reader, lake_of(server, "root") as root:
        plan = pb.PlanRequest(tables=["shop.log"], lease_seconds=3_600, owner="somebody else")
        assert taken(reader, lambda _: reader.transport.plan(plan)) == PART
        assert root.table("hr.log").scan().count() == 1
        log = reader.table("shop.log")
        assert taken(reader, lambda n: list(log.changes(subscription=f"s{n}", start="latest", until="now"))) == PART
        assert list(root.table("hr.log").changes(subscription="plain", start="latest", until="now")) == []


def test_a_lease_on_a_whole_cut_is_for_whoever_reads_and_holds_what_may_be_read(server: Server) -> None:
    asked = pb.HeadRequest(lease_seconds=3_600)
    uuids = server.engine.view.names
    for name in ("none", "writer"):
        with lake_of(server, name) as lake:
            with pytest.raises(Denied, match="no right 'read' on any table"):
                lake.transport.head(asked)
            assert not lake.transport.head(pb.HeadRequest()).lease
    with lake_of(server, "second") as second:
        head = second.transport.head(asked)
        leases = server.sources.leases
        assert head.lsn in leases.cuts(uuids["shop.keyed"])
        assert head.lsn not in leases.cuts(uuids["hr.log"]), "what the holder may not read is not held for it"
        second.transport.release_lease(pb.LeaseRequest(lease=head.lease))
        until(lambda: head.lsn not in leases.cuts(uuids["shop.keyed"]), "the lease is released")


def test_a_release_arrives_though_nobody_waits_for_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if garbage is collected at once, if the connection is closed right behind it, and if it broke before it."""
    leases = server.sources.leases

    def plan_of(lake: ls.Lake) -> str:
        return lake.transport.plan(pb.PlanRequest(tables=["shop.log"], lease_seconds=600)).lease

    before = leases.count
    with lake_of(server, "second") as lake:
        for _ in range(10):
            assert lake.transport.release_lease(pb.LeaseRequest(lease=plan_of(lake))) == pb.LeaseAnswer()
            gc.collect()
        until(lambda: leases.count == before, "all leases are released", 20)
        held = plan_of(lake)
        calls: Any = lake.transport
        calls.wire._greeted = False
        lake.transport.release_lease(pb.LeaseRequest(lease=held))
        until(lambda: leases.count == before, "the release by a new connection")
    monkeypatch.setattr(client_grpc, "LAST_SECONDS", 60.0)
    for _ in range(20):
        with lake_of(server, "second") as lake:
            lake.transport.release_lease(pb.LeaseRequest(lease=plan_of(lake)))
        assert leases.count == before


def test_streams_have_a_part_for_everybody(server: Server) -> None:
    with lake_of(server, "reader") as reader, lake_of(server, "root") as root, ExitStack() as stack:
        asked = pb.ChangesRequest(tables=["shop.log"], start="earliest")

        def opened(_: int) -> None:
            stream: Any = reader.transport.changes(asked)
            stack.callback(stream.close)
            next(stream)

        assert taken(reader, opened) == PART
        assert [batch.table.num_rows for batch in root.table("hr.log").changes(until="now")] == [1]


def test_calls_that_wait_leave_threads_for_others(server: Server) -> None:
    with lake_of(server, "root") as root:
        here = position_of(root.snapshot().token)
        ahead = str(LogPosition(here.timeline, here.lsn + 10**6))
        asked = pb.PlanRequest(tables=["shop.log"], at=ahead).SerializeToString()
        told = (("authorization", f"Bearer {token_of('reader')}"),)
        with grpc.insecure_channel(server.about["grpc"]) as opened:
            channel: Any = opened
            calls = [
                channel.unary_unary("/lakestore.v1.Lakestore/Plan").future(asked, metadata=told, timeout=30)
                for _ in range(3 * LIMITS.threads)
            ]
            until(lambda: sum(call.done() for call in calls) >= 2 * LIMITS.threads, "calls refused")
            assert root.table("hr.log").scan().count() == 1
            assert {call.code() for call in calls if call.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            for call in calls:
                call.cancel()


def test_bodies_and_turns_of_http_have_a_part_for_everybody() -> None:
    shares = HttpShares(Limits(http_bodies_bytes=4_096))
    shares.hold("one", 2_048)
    with pytest.raises(Exhausted):
        shares.hold("one", 1)
    shares.let_go("one", 1)
    shares.hold("two", 2_048)
    with pytest.raises(Exhausted):
        shares.hold("three", 1)
    for owner, nbytes in (("one", 2_048), ("two", 2_048), ("three", 1)):
        shares.let_go(owner, nbytes)
    shares.hold("", 4_096)
    assert shares.held_bytes == 4_096

    async def turns() -> tuple[int, int]:
        begun = {"greedy": 0, "other": 0}
        ends = asyncio.Event()

        async def ask(owner: str) -> None:
            async with shares.turn(owner):
                begun[owner] += 1
                await ends.wait()

        asked = [asyncio.create_task(ask(owner)) for owner in ["greedy"] * 100 + ["other"]]
        await asyncio.sleep(0)
        found = begun["greedy"], begun["other"]
        ends.set()
        await asyncio.gather(*asked)
        assert begun["greedy"] == 100
        return found

    assert asyncio.run(turns()) == (THREADS // 2, 1)

"""The lake keeps what a long read at a follower needs, also while the leader changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import NotLeader, PlanExpired, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.main import Server
from tests.support.log_tierer import LogTierer
from tests.support.replicas import Replicas
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

NAME = "t.log"
SCHEMA = pa.schema([("v", pa.int64())])
GRACE_SECONDS = 6.0
"""As long as a hold, and longer than a busy machine lets a renewal wait."""


def rows(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


class Shop:
    """Servers on one log, with a table whose first snapshot can expire at the leader."""

    def __init__(self, replicas: Replicas, **said: Any) -> None:
        self.replicas, self._said = replicas, said
        with self.lake() as lake:
            table = lake.create_table(NAME, SCHEMA, buckets=1)
            table.append(rows(1, 2))
            self.tierer = LogTierer(self.leader, lake.transport, **said)
            self.tierer.flush(NAME)
            self.table_uuid = self.leader.engine.view.named(NAME).table.uuid
            (self.first,) = self.snapshots(self.leader)
        self.wait()

    @contextmanager
    def lake(self) -> Iterator[ls.Lake]:
        with ls.connect(self.replicas.addresses, **self._said) as lake:
            yield lake

    @property
    def leader(self) -> Server:
        until(lambda: self.replicas.leader() is not None, "a leader")
        return self.replicas.servers[cast("int", self.replicas.leader())]

    def follower(self) -> Server:
        """A follower, which claims no more from here on."""
        found = next(server for server in self.replicas.servers if server is not self.leader)
        found.engine.loop._claims_at = math.inf
        return found

    @staticmethod
    def snapshots(server: Server) -> set[int]:
        return {*server.engine.view.named(NAME).tiers}

    def wait(self) -> None:
        """Wait until every server has applied everything."""
        for number, server in enumerate(self.replicas.servers):
            if not self.replicas.ends[number].is_cut:
                until(lambda: server.engine.view.lsn >= self.leader.engine.view.lsn, "the followers")  # noqa: B023

    def tier_again(self) -> None:
        """Rows and a second snapshot, so that the first one may go."""
        with self.lake() as lake:
            lake.table(NAME).append(rows(3))
            LogTierer(self.leader, lake.transport, **self._said).flush(NAME)

    def expire(self, snapshot: int | None = None) -> int:
        """Ask the leader to expire the first snapshot; the status of its answer."""
        token = self._said.get("token")
        return httpx.post(
            f"http://{self.leader.about['http']}/iceberg/v1/namespaces/t/tables/log",
            json={
                "requirements": [],
                "updates": [{"action": "remove-snapshots", "snapshot-ids": [snapshot or self.first]}],
            },
            headers={"authorization": f"Bearer {token}"} if token else {},
        ).status_code

    def plan(self, server: Server, seconds: int = 600) -> pb.PlanAnswer:
        return server.service.verbs["Plan"](pb.PlanRequest(tables=[NAME], lease_seconds=seconds))


@pytest.fixture(name="shop")
def _shop(tmp_path: Path) -> Iterator[Shop]:
    with Replicas(tmp_path, lease_grace_seconds=GRACE_SECONDS) as replicas:
        made = Shop(replicas)
        until(lambda: not made.leader.sources.leases.in_grace, "the end of the first grace")
        yield made


def test_a_snapshot_that_a_follower_reads_expires_after_the_read(shop: Shop) -> None:
    follower = shop.follower()
    renewal: Any = follower._hold_renewal
    renewal.close()  # the read itself asks
    plan = shop.plan(follower)
    assert plan.tables[0].snapshot_id == shop.first
    shop.tier_again()
    assert shop.expire() == 403, "it is being read"
    follower.service.verbs["ReleaseLease"](pb.LeaseRequest(lease=plan.lease))
    until(lambda: shop.expire() == 200, "the end of the hold")
    assert shop.first not in shop.snapshots(shop.leader)


def test_a_read_at_a_follower_keeps_its_snapshot_through_a_failover(shop: Shop) -> None:
    follower = shop.follower()
    with ls.connect(follower.about["grpc"]) as lake:
        reader = lake.table(NAME).scan().to_reader()
        cut = lake.snapshot()
        shop.tier_again()
        assert shop.expire() == 403
        shop.replicas.lose()
        assert shop.leader is not follower
        until(lambda: not shop.leader.sources.leases.in_grace, "the end of the new leader's grace")
        assert shop.expire() == 403, "the hold was renewed at the new leader"
        assert shop.leader.service.status.now().follower_holds >= 2
        shop.wait()
        assert sorted(reader.read_all()["v"].to_pylist()) == [1, 2]
        assert sorted(cut.scan(NAME).to_arrow()["v"].to_pylist()) == [1, 2]


def test_a_follower_that_is_behind_reads_a_newer_snapshot(shop: Shop) -> None:
    follower = shop.follower()
    number = shop.replicas.servers.index(follower)
    shop.replicas.ends[number].is_cut = True
    shop.tier_again()
    assert shop.expire() == 200
    assert shop.snapshots(follower) == {shop.first}, "it does not know yet"
    with pytest.raises(Unavailable, match="read at another server"):
        shop.plan(follower)
    shop.replicas.ends[number].is_cut = False
    shop.wait()
    plan = shop.plan(follower)
    assert {plan.tables[0].snapshot_id} == shop.snapshots(shop.leader)


def test_a_leader_holds_nothing_that_was_expired_before_it_led(shop: Shop) -> None:
    shop.tier_again()
    assert shop.expire() == 200
    shop.wait()
    shop.replicas.lose()
    leader = shop.leader
    (newer,) = shop.snapshots(leader)
    holds = [pb.LakeHold(table_uuid=shop.table_uuid, snapshot_id=each) for each in (shop.first, newer)]
    request = pb.HoldSnapshotsRequest(timeline=leader.engine.timeline, address="b:1", holds=holds, seconds=60)
    assert list(leader.service.verbs["HoldSnapshots"](request).lost) == [0]


def test_without_a_leader_a_follower_answers_from_hot_rows_alone(shop: Shop) -> None:
    with shop.lake() as lake:
        hot = lake.create_table("t.hot", SCHEMA, buckets=1)
        hot.append(rows(7))
        keyed = lake.create_table("t.keyed", pa.schema([("k", pa.int64())]), primary_key=["k"])
        keyed.upsert([{"k": 1}])
    shop.wait()
    follower = shop.follower()
    for server in shop.replicas.servers:
        server.engine.loop._claims_at = math.inf
    shop.replicas.lose()
    with pytest.raises(Unavailable, match="the leader cannot be asked"):
        shop.plan(follower)
    with ls.connect(follower.about["grpc"]) as lake:
        assert lake.table("t.hot").scan().count() == 1
        assert lake.table("t.keyed").lookup([{"k": 1}]).num_rows == 1


def test_a_leader_that_was_deposed_promises_nothing(shop: Shop) -> None:
    """It holds the snapshot, and notices before it answers."""
    follower, old = shop.follower(), shop.leader
    number = shop.replicas.servers.index(old)
    request = pb.HoldSnapshotsRequest(
        timeline=old.engine.timeline,
        address="b:1",
        holds=[pb.LakeHold(table_uuid=shop.table_uuid, snapshot_id=shop.first)],
        seconds=60,
    )
    assert not old.service.verbs["HoldSnapshots"](request).lost
    with pytest.raises(NotLeader):
        follower.service.verbs["HoldSnapshots"](request)
    shop.replicas.ends[number].is_cut = True
    with pytest.raises(NotLeader):
        old.service.verbs["HoldSnapshots"](request)
    shop.replicas.ends[number].is_cut = False


def test_a_hold_that_lapsed_ends_the_read_if_its_snapshot_is_gone(shop: Shop) -> None:
    follower = shop.follower()
    plan = shop.plan(follower)
    renewal: Any = follower._hold_renewal
    renewal.close()  # as if the server was paused
    shop.tier_again()
    until(lambda: shop.expire() == 200, "the end of the hold")
    renewal.run_once()
    with pytest.raises(PlanExpired):
        follower.service.verbs["RenewLease"](pb.LeaseRequest(lease=plan.lease, seconds=60))


def test_a_follower_refuses_a_lease_that_it_does_not_know_also_to_a_reader_of_the_leader(shop: Shop) -> None:
    """The reader plans again then. It would ask for a minute if it were told that another server leads."""
    lease = pb.LeaseRequest(lease=f"unknown@{shop.follower().about['grpc']}")
    with ls.connect(shop.replicas.addresses, reads="leader") as lake, lake.within(20.0):
        with pytest.raises(PlanExpired):
            lake.transport.renew_lease(lease)


def test_with_principals_servers_alone_may_ask(tmp_path: Path) -> None:
    auth = write_auth(tmp_path / "auth.yaml", {"ann": {"*": ["admin", "read", "write", "tier"]}})
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    with Replicas(tmp_path, 2, auth=str(auth), token_key=str(key)) as replicas:
        shop = Shop(replicas, token=token_of("ann"))
        follower = shop.follower()
        assert shop.plan(follower).tables[0].snapshot_id == shop.first
        assert shop.leader.service.status.now().follower_holds == 2, "the snapshot and its metadata file"
        request = pb.HoldSnapshotsRequest(timeline=follower.engine.timeline, address="b:1", seconds=60)
        stranger = PeerChannel(lambda _: token_of("bob"), None)
        with pytest.raises(ls.LakestoreError, match="token"):
            stranger.hold_snapshots(shop.leader.about["grpc"], request)
        stranger.close()

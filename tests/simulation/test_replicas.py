"""Servers that share a journal, in a world: one leads, the others follow, and another one leads when it is gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.calls import transport_of
from lakestore.errors import NotLeader
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.main import Server
from tests.simulation import folders
from tests.simulation.case import Case, limits_of, run
from tests.simulation.machine import Machine
from tests.simulation.system import JournalKind, SimSystem
from tests.simulation.threads import installed
from tests.simulation.wire import SimWire
from tests.simulation.world import World

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("v", pa.int64())])
SAME_SECONDS = 20.0
"""The longest that a follower may take to have what the leader has."""


def in_world(seed: str, story: Callable[[SimSystem], None], journal: JournalKind = "log") -> None:
    """Tell a story of three servers."""
    world = World(seed)

    def main() -> None:
        system = SimSystem(world, folder, seed, limits_of(random.Random(seed)), servers=3, journal=journal)
        try:
            system.start()
            story(system)
        finally:
            system.close()

    with folders.folder() as folder, installed(world):
        world.run(main)


def server_of(machine: Machine) -> Server:
    assert machine.server is not None, f"{machine.name} is down"
    return machine.server


def engine_of(machine: Machine) -> Engine:
    return server_of(machine).engine


def check_same(system: SimSystem) -> None:
    """Wait until every server has what the leader has, and check it row by row and index by index."""
    lsn = engine_of(system.await_leader()).view.lsn
    for machine in system.machines:
        until = system.world.now + SAME_SECONDS
        while engine_of(machine).view.lsn < lsn and system.world.now < until:
            system.world.sleep(0.05)
        assert engine_of(machine).view.lsn == lsn, machine.name
        with system.connect_to([machine], "verifies") as lake:
            for table in lake.tables():
                assert verify(lake.transport, table.name).same, (machine.name, table.name)


def rows(first: int, last: int, v: int) -> list[dict[str, Any]]:
    return [{"id": f"key-{n}", "v": v} for n in range(first, last)]


@pytest.mark.parametrize("journal", get_args(JournalKind))
@pytest.mark.parametrize("seed", range(3))
def test_a_follower_has_what_the_leader_has_and_leads_after_it(seed: int, journal: JournalKind) -> None:
    def story(system: SimSystem) -> None:
        first = system.await_leader()
        with system.connect(0) as lake:
            table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
            log = lake.create_table("t.log", SCHEMA, buckets=1)
            for turn in range(4):
                table.upsert(rows(turn * 5, turn * 5 + 20, turn))
                log.append(rows(0, 10, turn))
            table.delete([{"id": "key-3"}])
            check_same(system)
            first.kill()
            second = system.await_leader()
            assert second is not first
            assert table.scan().count() == 34
            table.upsert(rows(0, 3, 9))
            system.restart()
            check_same(system)
        with system.connect_to([first], "reads") as lake:
            assert lake.table("t.rows").lookup([{"id": "key-1"}]).to_pylist() == [{"id": "key-1", "v": 9}]

    in_world(f"follow {seed}", story, journal)


def test_a_follower_refuses_a_write_and_names_the_leader() -> None:
    def story(system: SimSystem) -> None:
        leader = system.await_leader()
        with system.connect(0) as lake:
            lake.create_table("t.log", SCHEMA, buckets=1)
            check_same(system)
        follower = next(machine for machine in system.machines if machine is not leader)
        refused = follower.within(lambda: engine_of(follower).loop.refuse_when_following())
        assert isinstance(refused, NotLeader)
        assert refused.leader == leader.name

    in_world("names", story)


def test_a_server_that_follows_never_names_itself_as_the_leader() -> None:
    """A client of this server alone would give up, because it is sent to where it is."""

    def story(system: SimSystem) -> None:
        loop = engine_of(system.await_leader()).loop
        assert loop.journal.leader.address == loop.address
        assert loop.not_leader().leader == ""

    in_world("itself", story)


@pytest.mark.parametrize("journal", get_args(JournalKind))
@pytest.mark.parametrize("seed", range(2))
def test_a_paused_leader_steps_down_and_loses_nothing_that_was_acknowledged(seed: int, journal: JournalKind) -> None:
    def story(system: SimSystem) -> None:
        world, done, unknown = system.world, list[int](), list[int]()
        first, is_over = system.await_leader(), False
        with system.connect(0) as lake:
            lake.create_table("t.log", SCHEMA, buckets=1)

        def write(number: int) -> None:
            with system.connect_to([first], f"writer-{number}") as lake:
                log, value = lake.table("t.log"), number * 10_000
                while not is_over:
                    value += 1
                    try:
                        log.append([{"id": "x", "v": value}])
                    except ls.LakestoreError as error:
                        if error.applied == "unknown":
                            unknown.append(value)
                    else:
                        done.append(value)
                    world.sleep(0.01)

        writers = [world.spawn(f"writer-{n}", world.outside, partial(write, n)) for n in range(3)]
        world.sleep(0.3 + seed / 10)
        assert first.life is not None
        world.pause(first.life.process)
        second = system.await_leader(besides=first)
        with system.connect_to([second], "other") as lake:
            lake.table("t.log").append([{"id": "y", "v": -1}])
        world.resume(first.life.process)
        world.sleep(1.0)
        is_over = True
        while not all(task.is_over for task in writers):
            world.sleep(0.05)
        assert not first.is_leading
        assert second.is_leading
        check_same(system)
        with system.connect(1) as lake:
            stored = sorted(lake.table("t.log").scan(columns=["v"]).to_arrow().column("v").to_pylist())
        assert len(set(stored)) == len(stored)
        assert {*done, -1} <= set(stored) <= {*done, *unknown, -1}
        assert done

    in_world(f"pause {seed}", story, journal)


@pytest.mark.parametrize("journal", get_args(JournalKind))
@pytest.mark.parametrize("seed", range(3))
def test_who_leads_no_more_answers_no_read_of_the_newest_state(seed: int, journal: JournalKind) -> None:
    def story(system: SimSystem) -> None:
        world, first = system.world, system.await_leader()
        wire = SimWire(first.network, world.outside, asks_leader=True)
        with ls.Lake(transport_of(wire, call_seconds=5.0), "reads") as lake:
            table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=1)
            table.upsert(rows(0, 1, 1))
            assert first.life is not None
            world.pause(first.life.process)
            with system.connect_to([system.await_leader(besides=first)], "other") as other:
                other.table("t.rows").upsert(rows(0, 1, 2))
            seen = list[Any]()

            def read(ask: Callable[[], Any]) -> None:
                try:
                    seen.append(ask())
                except NotLeader:
                    seen.append("not the leader")

            asks = (
                lambda: table.lookup([{"id": "key-0"}]).column("v").to_pylist(),
                lambda: table.scan(columns=["v"]).to_arrow().column("v").to_pylist(),
                lambda: lake.transport.head(pb.HeadRequest()).lsn,
            )
            tasks = [world.spawn("read", world.outside, partial(read, ask)) for ask in asks]
            world.sleep(0.01)
            world.resume(first.life.process)
            while not all(task.is_over for task in tasks):
                world.sleep(0.01)
        assert seen == ["not the leader"] * 3

    in_world(f"stale {seed}", story, journal)


def test_a_leader_that_ends_in_order_is_followed_at_once() -> None:
    def story(system: SimSystem) -> None:
        with system.connect(0) as lake:
            lake.create_table("t.log", SCHEMA, buckets=1)
        first = system.await_leader()
        first.stop()
        began = system.world.now
        assert system.await_leader() is not first
        assert system.shared is not None
        assert system.world.now - began < system.shared.lease_seconds / 2

    in_world("leave", story)


@pytest.mark.parametrize("journal", get_args(JournalKind))
def test_servers_start_from_their_checkpoints_on_a_trimmed_log(journal: JournalKind) -> None:
    def story(system: SimSystem) -> None:
        with system.connect(0) as lake:
            table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
            table.upsert(rows(0, 30, 1))
            check_same(system)
            system.world.sleep(15.0)  # beats fill a block of a bucket
            for machine in system.machines:
                assert machine.within(server_of(machine).upkeep.checkpoint) is None
            table.upsert(rows(10, 20, 2))
            check_same(system)
            system.world.sleep(1.0)
            leader = system.await_leader()
            assert leader.within(server_of(leader).upkeep.checkpoint) is None
            assert system.shared is not None
            assert system.shared.log.first > 0, "every server has reported its checkpoint"
            table.upsert(rows(20, 25, 3))
        for machine in system.machines:
            machine.kill()
        system.start()
        check_same(system)
        with system.connect(1) as lake:
            table = lake.table("t.rows")
            assert table.scan().count() == 30
            values = table.lookup([{"id": f"key-{n}"} for n in (0, 15, 22)]).column("v").to_pylist()
            assert values == [1, 2, 3]

    in_world("checkpoints", story, journal)


@pytest.mark.parametrize("journal", get_args(JournalKind))
def test_the_same_seed_gives_the_same_bytes_of_three_servers(journal: JournalKind) -> None:
    case = Case("1", "register", operations=6, servers=3, journal=journal)
    first = run(case)
    assert first.text() == run(case).text()
    assert not first.anomalies

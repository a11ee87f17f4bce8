"""Clients of several servers: they find the leader, go on at the next one, and read where they are told to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.cli.main import run_command
from lakestore.client import profiles, servers
from lakestore.client.credentials import Credentials, credentials_for
from lakestore.client.grpc import GrpcWire
from lakestore.client.servers import ServersWire, connect
from lakestore.errors import Invalid, NotAuthenticated, NotFound, NotLeader, PlanExpired, Stopped, Unavailable
from lakestore.model.token import position_of
from lakestore.union.cut import Cut
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.fronts import Front, Fronts
from tests.support.micro_batches import read_rows
from tests.support.process import ServerProcess
from tests.support.served import Served
from tests.support.waiting import refusal, until

ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PROMPT = 20.0
"""Seconds that are many for a call, and few beside its retries."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", ports=True) as found:
        found.lake.create_table("a.t", ROW, primary_key=["id"], buckets=1)
        found.lake.create_table("a.log", ROW, buckets=1)
        yield found


@pytest.fixture
def fronts(served: Served) -> Iterator[Fronts]:
    with Fronts(served.server.about["grpc"], 3) as found:
        yield found


def dead() -> str:
    return f"127.0.0.1:{free_port()}"


def taken(stream: Any, count: int, *, ack: bool = False) -> list[int]:
    """So many rows of a stream, by id."""
    found: list[int] = []
    while len(found) < count:
        batch = stream.next(timeout=60)
        assert batch is not None, f"{len(found)} of {count} rows came"
        found += batch.to_arrow().column("id").to_pylist()
        if ack:
            batch.ack()
    return found


def ids(table: ls.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "v": str(number)} for number in numbers]


# One address and lists


def test_one_address_is_greeted_once_and_nothing_more(fronts: Fronts) -> None:
    leader = fronts.fronts[0]
    with ls.connect(leader.address) as lake:
        lake.table("a.t").upsert(rows(1))
        lake.table("a.t").upsert(rows(2))
        transport: Any = lake.transport
        assert type(transport.wire) is GrpcWire
    assert leader.names.count("Hello") == 1


def test_a_list_is_searched_once_then_only_the_leader_is_called(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        table = lake.table("a.t")
        table.upsert(rows(1, 2))
        assert ids(table) == [1, 2]
        assert lake.transport.address == fronts.fronts[0].address
        assert lake.transport.server.protocol
    assert [set(front.names) - {"Hello"} for front in fronts.fronts[1:]] == [set(), set()]
    assert sum(front.names.count("Hello") for front in fronts.fronts) <= 3


def test_a_dead_first_address_and_a_space_cost_nothing(fronts: Fronts) -> None:
    with ls.connect(f"{dead()}, {fronts.addresses}") as lake, lake.within(PROMPT):
        table = lake.table("a.t")
        table.upsert(rows(1))
        assert ids(table) == [1]


def test_servers_that_do_not_answer_are_named_in_one_sentence() -> None:
    first, second = dead(), dead()
    with ls.connect(f"{first},{second}") as lake:
        with pytest.raises(Unavailable, match=f"none of the servers {first}, {second} answers: start one"):
            lake.transport.greet()
        with pytest.raises(Unavailable, match="none of the servers") as raised, lake.within(2.0):
            lake.table("a.t").upsert(rows(1))
        assert raised.value.applied == "no"


def test_a_server_that_hangs_holds_nobody_up(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ASK_SECONDS", 600.0)
    monkeypatch.setattr("lakestore.client.grpc.HELLO_SECONDS", 600.0)
    fronts.fronts[1].hangs.set()
    with ls.connect(fronts.addresses) as lake, lake.within(PROMPT):
        assert lake.table("a.t").name == "a.t"
        fronts.fronts[0].stop()
        fronts.lead(2)
        lake.table("a.t").upsert(rows(1))


def test_a_choice_among_servers_waits_for_none_that_hangs(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ASK_SECONDS", 600.0)
    monkeypatch.setattr("lakestore.client.grpc.HELLO_SECONDS", 600.0)
    monkeypatch.setattr(servers, "FIND_SECONDS", 600.0)
    fronts.fronts[1].hangs.set()
    with ls.connect(fronts.addresses, reads="nearest") as lake, lake.within(PROMPT):
        assert lake.table("a.t").name == "a.t"


def test_servers_that_all_hang_end_in_time(fronts: Fronts) -> None:
    for front in fronts.fronts:
        front.hangs.set()
    with ls.connect(fronts.addresses) as lake:
        with pytest.raises(Unavailable, match=r"answered in time|answers|deadline"), lake.within(0.3):
            lake.table("a.t")


def test_an_error_that_no_waiting_mends_is_told_at_once(fronts: Fronts) -> None:
    for front in fronts.fronts:
        front.refusal = NotAuthenticated("who are you?")
    with ls.connect(fronts.addresses) as lake, pytest.raises(NotAuthenticated, match="who are you"):
        lake.table("a.t")
    for front in fronts.fronts[1:]:
        front.refusal = None
    fronts.lead(1)
    with ls.connect(fronts.addresses) as lake:
        assert lake.table("a.t").name == "a.t", "one server that knows nobody does not spoil the others"


@pytest.mark.parametrize("text", ["a:1,", ",a:1", "a:1,,b:2", "a:1,b"])
def test_a_list_with_a_hole_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"comma without an address|not host:port"):
        ls.connect(text)


def test_a_preference_that_does_not_exist_is_refused() -> None:
    wrong: Any = "followers"
    with pytest.raises(Invalid, match="leader, follower, nearest, not 'followers'"):
        ls.connect("a:1,b:2", reads=wrong)


def test_servers_alone_must_be_one_lake(fronts: Fronts) -> None:
    for front in fronts.fronts:
        front.role, front.epoch = "", 0
    with ls.connect(fronts.addresses) as lake:
        lake.table("a.t").upsert(rows(1))
    fronts.fronts[1].timeline = "another"
    preferences: list[profiles.Reads] = ["leader", "nearest"]
    for reads in preferences:
        with ls.connect(fronts.addresses, reads=reads) as lake:
            with pytest.raises(Invalid, match="servers of two lakes"):
                lake.table("a.t")


def test_a_closed_connection_says_so(fronts: Fronts) -> None:
    lake = ls.connect(fronts.addresses)
    lake.tables()
    lake.close()
    for call in (lake.tables, lambda: lake.create_database("b")):
        with pytest.raises(Stopped):
            call()


# The leader changes


def test_a_write_goes_to_the_leader_that_a_follower_names(fronts: Fronts) -> None:
    first, second, third = fronts.fronts
    with ls.connect(fronts.addresses) as lake:
        table = lake.table("a.t")
        fronts.lead(1)
        before = first.names.count("Hello"), third.names.count("Hello")
        table.upsert(rows(1))
        assert second.names.count("Commit") == 1
        assert (first.names.count("Hello"), third.names.count("Hello")) == before, "nobody was asked who leads"
        assert ids(table) == [1]


def test_a_name_that_nobody_can_reach_falls_back_to_asking(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        table = lake.table("a.t")
        fronts.lead(2)
        for front in fronts.fronts:
            front.leader = "leader.invalid:7340"
        table.upsert(rows(1))
        assert fronts.fronts[2].names.count("Commit") == 1


def test_a_leader_outside_the_list_is_reached_by_its_name(fronts: Fronts) -> None:
    extra = fronts.add()
    extra.leads(*fronts.fronts)
    with ls.connect(fronts.addresses) as lake:
        lake.table("a.t").upsert(rows(1))
    assert extra.names.count("Commit") == 1


def test_two_servers_that_name_each_other_are_asked_and_not_called_in_turn(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ls.connect(fronts.addresses) as lake:
        table = lake.table("a.t")
        first, second, third = fronts.fronts
        first.role = third.role = "follower"
        first.leader, second.leader, third.leader = second.address, first.address, first.address
        with pytest.raises(Unavailable), lake.within(5.0):
            table.upsert(rows(1))
        assert sum(front.names.count("Commit") for front in fronts.fronts) == 2
        fronts.lead(2)
        table.upsert(rows(1))


def test_the_higher_epoch_leads_of_two_that_say_they_do(fronts: Fronts) -> None:
    first, second, third = fronts.fronts
    fronts.lead(1)
    first.role, first.epoch, first.leader = "leader", 1, first.address
    wire = ServersWire((first.address, second.address), "leader", lambda each: GrpcWire(each))
    hellos = {front.address: pb.HelloAnswer(role=front.role, epoch=front.epoch) for front in (first, second)}
    made = {wire._servers[address]: hello for address, hello in hellos.items()}
    assert wire._leading(made, True) is wire._servers[second.address]
    wire.close()
    assert third.role == "follower"


def test_a_token_stays_on_this_machine_in_the_clear() -> None:
    told: list[str] = []

    def opened(address: str) -> GrpcWire:
        told.append(address)
        return GrpcWire(address, Credentials(token="secret"))

    wire = ServersWire(("127.0.0.1:1", "localhost:2"), "leader", opened)
    assert wire._at("far.example:7340") is None
    assert wire._at("localhost:3") is not None
    assert told == ["127.0.0.1:1", "localhost:2", "localhost:3"]
    wire.close()


def test_a_writer_goes_on_while_the_leader_changes(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        log = lake.table("a.log")
        with log.writer(producer="p") as writer:
            for number in range(60):
                writer.append(rows(number))
                if number % 10 == 5:
                    fronts.lead(number // 10 % 3)
                if number % 10 == 9:
                    writer.flush()
        assert ids(log) == list(range(60))
        assert [batch for batch in taken(log.changes("earliest"), 60)] == list(range(60))


def test_single_writes_of_many_threads_go_on_while_the_leader_changes(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        log = lake.table("a.log")

        def work(first: int) -> None:
            for number in range(first, first + 20):
                log.append(rows(number))

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 80, 20)]
        for thread in threads:
            thread.start()
        turn = 0
        while any(thread.is_alive() for thread in threads):
            turn += 1
            fronts.lead(turn % 3)
            for thread in threads:
                thread.join(0.05)
        assert ids(log) == list(range(80))


@pytest.mark.usefixtures("settled")
def test_a_subscription_and_its_acks_go_on_at_the_next_leader(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake:
        log = lake.table("a.log")
        stream = log.changes(subscription="s")
        log.append(rows(1))
        assert taken(stream, 1, ack=True) == [1]
        fronts.lead(1)
        log.append(rows(2))
        assert taken(stream, 1, ack=True) == [2]
        stream.close()
        assert [each.name for each in lake.subscriptions()] == ["s"]
        assert fronts.fronts[1].names.count("Ack") == 1
        assert fronts.fronts[2].names.count("Changes") == 0
        again = log.changes(subscription="s", until="now")
        assert list(again) == []


def test_a_change_stream_goes_on_at_another_server(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        log = lake.table("a.log")
        stream = log.changes("earliest")
        log.append(rows(1, 2))
        assert taken(stream, 2) == [1, 2]
        fronts.fronts[0].stop()
        fronts.lead(1)
        log.append(rows(3))
        assert taken(stream, 1) == [3]


# Reads


@pytest.mark.usefixtures("settled")
def test_reads_go_to_a_follower_and_writes_to_the_leader(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake:
        table = lake.table("a.t")
        table.upsert(rows(1))
        assert ids(table) == [1]
        assert table.lookup([{"id": 1}]).num_rows == 1
        leader, *followers = fronts.fronts
        assert "Commit" in leader.names
        assert not {"Plan", "Fetch", "Lookup", "GetTable"} & set(leader.names)
        used = [front for front in followers if set(front.names) - {"Hello"}]
        assert len(used) == 1, "it stays at one follower"
        used[0].stop()
        assert ids(table) == [1], "and goes to the other one"


def test_the_nearest_server_reads(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = GrpcWire.hello
    near = fronts.fronts[1].address
    arrived = threading.Event()

    def late(wire: GrpcWire, seconds: float) -> pb.HelloAnswer:
        if wire.address != near:
            assert arrived.wait(60)
            return hello(wire, seconds)
        try:
            return hello(wire, seconds)
        finally:
            arrived.set()

    monkeypatch.setattr(GrpcWire, "hello", late)
    monkeypatch.setattr(servers, "SETTLE_SECONDS", 5.0)
    with ls.connect(fronts.addresses, reads="nearest") as lake:
        assert lake.table("a.t").scan().count() == 0
    assert "Plan" in fronts.fronts[1].names


def test_without_a_follower_the_leader_reads(fronts: Fronts) -> None:
    leader = fronts.fronts[0].address
    with ls.connect(f"{leader},{dead()}", reads="follower") as lake:
        lake.table("a.t").upsert(rows(1))
        assert ids(lake.table("a.t")) == [1]


@pytest.mark.usefixtures("settled")
def test_a_follower_waits_for_the_connections_own_writes(fronts: Fronts) -> None:
    with ls.connect(f"{fronts.fronts[0].address},{fronts.fronts[1].address}", reads="follower") as lake:
        leader, follower = fronts.fronts[:2]
        table = lake.table("a.t")
        token = table.upsert(rows(1))
        assert table.lookup([{"id": 1}]).num_rows == 1
        assert "Head" not in follower.names, "a look-up names the token itself"
        assert ids(table) == [1]
        heads = [request for name, request in follower.seen if name == "Head"]
        assert [request.at_least for request in heads] == [token]
        assert follower.names.index("Head") < follower.names.index("Plan")
        assert ids(table) == [1]
        assert follower.names.count("Head") == 1, "it has waited once"
        with table.writer() as writer:
            writer.upsert(rows(2))
        assert ids(table) == [1, 2]
        assert follower.names.count("Head") == 2
        assert "Head" not in leader.names
        lake.create_table("a.new", ROW, primary_key=["id"])
        assert lake.table("a.new").lookup([{"id": 1}]).num_rows == 0
        assert leader.names.count("Head") == 1, "the leader says where a change of the catalog is"
        assert follower.names.count("Head") == 3
        last = [request.at_least for name, request in follower.seen if name == "Head"][-1]
        assert position_of(last).lsn > position_of(lake.last_token).lsn


@pytest.mark.usefixtures("settled")
def test_a_read_stays_at_the_server_that_gave_its_lease(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake:
        lake.table("a.t").upsert(rows(*range(10)))
        cut = Cut(lake.transport, ["a.t"])
        (lessor,) = [front for front in fronts.fronts if "Plan" in front.names]
        with contextlib.closing(connect(fronts.addresses)) as other:
            held = Cut(other, (), held=cut.plan)
            assert Scan(held, "a.t").to_arrow().num_rows == 10
        assert "Fetch" in lessor.names, "a task of another process goes where the plan was made"
        assert [front for front in fronts.fronts if "Fetch" in front.names] == [lessor]
        cut.close()
        until(lambda: lessor.names.count("ReleaseLease") == 1, "the lease is released")


@pytest.mark.usefixtures("settled")
def test_a_read_goes_on_where_its_server_is_gone(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake:
        lake.table("a.t").upsert(rows(*range(10)))
        with Cut(lake.transport, ["a.t"]) as cut:
            (lessor,) = [front for front in fronts.fronts if "Plan" in front.names]
            lessor.stop()
            with pytest.raises(PlanExpired, match="gone: plan it again"):
                lake.transport.renew_lease(pb.LeaseRequest(lease=cut.plan.lease, seconds=60))
            assert Scan(cut, "a.t").to_arrow().num_rows == 10
        assert [front for front in fronts.fronts if front is not lessor and "Fetch" in front.names]


def test_a_snapshot_outlives_the_server_that_leased_it(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        table = lake.table("a.t")
        table.upsert(rows(1))
        with lake.snapshot() as snapshot:
            table.upsert(rows(2))
            fronts.fronts[0].stop()
            fronts.lead(1)
            assert snapshot.scan("a.t").to_arrow().num_rows == 1
            assert table.scan().count() == 2


# Processes


def test_a_killed_server_goes_on_at_another_address(tmp_path: Path) -> None:
    data, ports = tmp_path / "data", (free_port(), free_port())
    running = ServerProcess(data, port=ports[0])
    try:
        with ls.connect(f"127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}") as lake:
            log = lake.create_table("a.log", ROW, buckets=1)
            writer = log.writer(producer="p")
            stream, named = log.changes("earliest"), log.changes(subscription="s")
            writer.append(rows(*range(50)))
            writer.flush()
            assert taken(stream, 50) == taken(named, 50, ack=True) == list(range(50))
            for number in range(50, 100):
                writer.append(rows(number))
            running.kill()
            for number in range(100, 150):
                writer.append(rows(number))
            running = ServerProcess(data, port=ports[1])
            writer.close()
            assert ids(log) == list(range(150))
            assert taken(stream, 100) == taken(named, 100, ack=True) == list(range(50, 150))
            stream.close()
            named.close()
            (kept,) = lake.subscriptions()
            assert kept.behind == 0
            with lake.producer("p"), pytest.raises(NotFound):
                lake.table("a.none")
    finally:
        running.stop()


# Everything that takes one address


def test_the_command_line_and_a_profile_take_a_list(
    fronts: Fronts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = f"{dead()}, {fronts.addresses}"
    file = tmp_path / "profiles.yaml"
    file.write_text(f"profiles: {{three: {{server: '{listed}'}}}}\n")
    monkeypatch.setenv("LAKESTORE_PROFILES", str(file))
    for command in (["tables", "--server", listed, "--json"], ["--profile", "three", "tables", "--json"]):
        assert run_command(command) == 0
        assert "a.log" in capsys.readouterr().out
    with ls.connect(profile="three") as lake:
        assert lake.address == listed.replace(" ", "")
        assert lake.table("a.t").name == "a.t"


def test_a_token_goes_in_the_clear_to_no_machine_of_a_list() -> None:
    with pytest.raises(Invalid, match=r"would go to far\.example:1 in the clear"):
        credentials_for("localhost:1,far.example:1", "secret")


def test_only_one_module_opens_connections() -> None:
    root = Path(servers.__file__).parents[2]
    folders = ("lakestore", "server", "spark_reader", "tiering", "examples")
    using = {
        str(file.relative_to(root))
        for folder in folders
        for file in (root / folder).rglob("*.py")
        if "GrpcWire" in (text := file.read_text()) or "client.grpc import" in text
    }
    assert using == {"lakestore/client/grpc.py", "lakestore/client/servers.py"}


def test_a_front_is_a_follower_until_it_leads(fronts: Fronts) -> None:
    front: Front = fronts.fronts[1]
    with ls.connect(front.address) as lake:
        assert lake.table("a.t").scan().count() == 0
        table = lake.table("a.t")
        assert isinstance(refusal(lambda: table.upsert(rows(1)), f"{fronts.fronts[0].address} leads", 0.2), NotLeader)


@pytest.mark.usefixtures("settled")
def test_a_profile_says_where_reads_go(
    fronts: Fronts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(f"profiles: {{far: {{server: '{fronts.addresses}', reads: follower}}}}\n")
    monkeypatch.setenv("LAKESTORE_PROFILES", str(file))
    leader = fronts.fronts[0]
    with ls.connect(profile="far") as lake:
        assert lake.table("a.t").scan().count() == 0
    for command in (["sql", "SELECT 1 FROM a.t"], ["read", "a.t"], ["lookup", "a.t", "1"]):
        assert run_command(["--profile", "far", *command]) in (0, 4)
    assert not {"Plan", "Fetch", "Lookup"} & set(leader.names)
    assert run_command(["--profile", "far", "status"]) == 0
    assert "Status" in leader.names, "operators ask the leader"
    with ls.connect(profile="far", reads="leader") as lake:
        assert lake.table("a.t").scan().count() == 0
    assert "Plan" in leader.names
    file.write_text("profiles: {far: {server: 'a:1', reads: near}}\n")
    with pytest.raises(Invalid, match="reads is one of leader, follower, nearest, not 'near'"):
        ls.connect(profile="far")


@pytest.mark.usefixtures("settled")
def test_sparks_batch_reads_go_where_an_option_says(fronts: Fronts) -> None:
    options = {"server": fronts.addresses, "table": "a.t", "reads": "Follower"}
    with ls.connect(fronts.addresses) as lake:
        token = lake.table("a.t").upsert(rows(1, 2))
    leader = fronts.fronts[0]
    before = len(leader.names)
    assert sorted(row["id"] for row in read_rows({**options, "at": token})) == [1, 2]
    assert not {"Plan", "Fetch"} & set(leader.names[before:])

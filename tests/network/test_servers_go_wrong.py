"""Lists of servers of which one is wrong, gone or late: no row goes to another lake, no call stays at a dead server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.client import servers, snapshot
from lakestore.client.profiles import Reads
from lakestore.errors import Invalid, NotLeader, Unavailable
from lakestore.model.token import position_of
from tests.network.test_servers import PROMPT, ROW, dead, ids, rows
from tests.support.fronts import Fronts
from tests.support.process import ServerProcess
from tests.support.replicas import LONG_LEASE_SECONDS, Replicas
from tests.support.served import Served
from tests.support.waiting import refusal, until


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


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Fronts]:
    """A server of another lake, with a table of the same name."""
    with Served(tmp_path / "other", ports=True) as found:
        found.lake.create_table("a.t", ROW, primary_key=["id"], buckets=1)
        with Fronts(found.server.about["grpc"], 1) as made:
            yield made


@pytest.mark.usefixtures("settled")
def test_a_read_leaves_a_follower_that_dies_before_it_has_shown_a_write(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake, lake.within(PROMPT):
        table = lake.table("a.t")
        assert ids(table) == []
        (used,) = [front for front in fronts.fronts if "Plan" in front.names]
        table.upsert(rows(1))
        used.stop()
        assert ids(table) == [1]


@pytest.mark.usefixtures("settled")
def test_a_read_that_asks_a_dead_leader_for_its_head_goes_on_at_the_next_one(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake, lake.within(PROMPT):
        table = lake.table("a.t")
        assert ids(table) == []
        lake.create_database("b")
        (used,) = [front for front in fronts.fronts if "Plan" in front.names]
        fronts.fronts[0].stop()
        fronts.lead(next(n for n in (1, 2) if fronts.fronts[n] is not used))
        assert ids(table) == []


@pytest.mark.parametrize("role", ["", "leader", "follower"])
@pytest.mark.parametrize("reads", ["leader", "follower"])
def test_a_server_of_another_lake_gets_nothing_while_the_leader_is_gone(
    fronts: Fronts, stranger: Fronts, role: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "FIND_SECONDS", 0.5)
    (other,) = stranger.fronts
    other.role, other.epoch, other.leader = role, 9 * bool(role), ""
    other.refusal = Unavailable("it has not started")
    with ls.connect(f"{fronts.addresses},{other.address}", reads=reads) as lake:
        table = lake.table("a.t")
        other.refusal = None
        fronts.fronts[0].stop()
        for front in fronts.fronts[1:]:
            front.leader = ""
        refused = refusal(lambda: table.upsert(rows(1)), f"leads now .{other.address}: of another lake", 1.0)
        assert isinstance(refused, Unavailable)
        fronts.lead(1)
        table.upsert(rows(2))
        assert ids(table) == [2]
    assert set(other.names) <= {"Hello"}


def test_servers_that_were_all_restored_are_the_lake_of_a_connection(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        lake.table("a.t").upsert(rows(1))
        for front in fronts.fronts:
            front.timeline = "restored"
        fronts.lead(2)
        fronts.fronts[0].refusal = Unavailable("it starts")
        assert isinstance(refusal(lake.tables, "of another lake", 1.0), Unavailable)
        fronts.fronts[0].refusal = None
        assert [table.name for table in lake.tables()] == ["a.log", "a.t"]


def test_a_leader_of_another_journal_gets_no_write(fronts: Fronts, stranger: Fronts) -> None:
    (other,) = stranger.fronts
    other.epoch = 9
    with ls.connect(f"{fronts.addresses},{other.address}") as lake:
        with pytest.raises(Invalid, match="two lakes"):
            lake.table("a.t").upsert(rows(1))
    assert "Commit" not in other.names
    for front in fronts.fronts:
        assert "Commit" not in front.names


@pytest.fixture
def lagging(tmp_path: Path) -> Iterator[tuple[Replicas, int]]:
    """Two servers, and the number of one that follows and lacks the last commit."""
    with Replicas(tmp_path, 2, lease_seconds=LONG_LEASE_SECONDS) as found:
        leading = found.leader()
        assert leading is not None
        with ls.connect(found.address(leading)) as lake:
            log = lake.create_table("a.log", ROW, buckets=1)
            token = log.append(rows(1))
            loop = found.servers[1 - leading].engine.loop
            until(lambda: loop.view.lsn == position_of(token).lsn, "the follower")
            loop._address = ""  # it claims nothing
            found.ends[1 - leading].is_cut = True
            log.append(rows(2))
        yield found, 1 - leading


@pytest.mark.usefixtures("settled")
def test_a_follower_that_lags_is_not_fresh(lagging: tuple[Replicas, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "REQUIRE_WAIT_SECONDS", 1.0)
    replicas, number = lagging
    time.sleep(1.1)
    now = datetime.now(UTC) - timedelta(milliseconds=5)
    with ls.connect(replicas.address(number)) as lake:
        log = lake.table("a.log")
        reads: list[Callable[[], object]] = [
            lambda: log.scan(require_freshness="1s").count(),
            lambda: log.scan(require_complete_through=now).count(),
            lambda: log.scan(at=now).count(),
            lambda: lake.sql("SELECT count(*) FROM a.log", at=now).to_arrow(),
            lambda: list(log.changes("earliest", until=now)),
        ]
        for read in reads:
            with pytest.raises(NotLeader):
                read()
        assert log.scan().count() == 1, "a read that demands nothing sees what there is"
    with ls.connect(replicas.addresses, reads="follower") as lake:
        log = lake.table("a.log")
        assert log.scan().count() == 1
        assert log.scan(require_freshness="1s").count() == 2
        assert log.scan(require_complete_through=now).count() == 2
        assert log.scan(at=now).count() == 2
        assert [row for batch in log.changes("earliest", until=now) for row in batch.to_arrow()["id"].to_pylist()] == [
            1,
            2,
        ]
        assert log.scan().count() == 1, "other reads stay at the follower"


def test_commands_for_operators_show_each_server_of_a_mixed_list(fronts: Fronts, stranger: Fronts) -> None:
    (other,), gone = stranger.fronts, dead()
    listed = f"{fronts.addresses},{other.address},{gone}"
    for command in ("status", "replicas"):
        told = CliRunner().invoke(cli, [command, "--json", "--server", listed])
        assert isinstance(told.exception, Invalid)
        problems = {each["address"]: each["problem"] or "" for each in json.loads(told.stdout)}
        assert list(problems) == listed.split(",")
        assert all("another one" in problems[front.address] for front in (*fronts.fronts, other))
        assert "nothing listens" in problems[gone]
    told = CliRunner().invoke(cli, ["doctor", "--json", "--server", f"{fronts.addresses},{gone}"])
    lines = {each["found"].split(": ")[0]: each for each in json.loads(told.stdout) if each["about"] == "one server"}
    assert {address: line["verdict"] for address, line in lines.items()} == {
        **{front.address: "ok" for front in fronts.fronts},
        gone: "warning",
    }


def test_any_number_of_leaders_outside_the_list_may_follow_each_other(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses) as lake:
        log = lake.table("a.log")
        for number in range(servers.NAMED_MAX + 3):
            extra = fronts.add()
            extra.leads(*fronts.fronts)
            with lake.within(PROMPT):
                log.append(rows(number))
            assert "Commit" in extra.names
            extra.stop()
            for front in fronts.fronts:
                front.leader = ""


def test_doctor_asks_the_http_port_of_the_host_that_answers(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", arguments=["--host", "0.0.0.0", "--insecure"]) as server:
        address = f"127.0.0.2:{server.port}"
        told = CliRunner().invoke(cli, ["doctor", "--json", "--server", address])
        (found,) = [each for each in json.loads(told.stdout) if each["about"] == "catalog"]
    assert found["found"].startswith(f"http://127.0.0.2:{server.http_port}/")

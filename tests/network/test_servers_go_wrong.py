"""Lists of servers of which one is wrong, gone or late: no row goes to another lake, no call stays at a dead server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.client import servers
from lakestore.client.profiles import Reads
from lakestore.errors import Invalid, Unavailable
from tests.network.test_servers import PROMPT, ROW, ids, rows
from tests.support.fronts import Fronts
from tests.support.served import Served


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


def test_a_read_leaves_a_follower_that_dies_before_it_has_shown_a_write(fronts: Fronts) -> None:
    with ls.connect(fronts.addresses, reads="follower") as lake, lake.within(PROMPT):
        table = lake.table("a.t")
        assert ids(table) == []
        (used,) = [front for front in fronts.fronts if "Plan" in front.names]
        table.upsert(rows(1))
        used.stop()
        assert ids(table) == [1]


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
        with pytest.raises(Unavailable, match=f"leads now .{other.address}: of another lake"), lake.within(1.0):
            table.upsert(rows(1))
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
        with pytest.raises(Unavailable, match="of another lake"), lake.within(1.0):
            lake.tables()
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

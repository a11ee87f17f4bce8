"""Clients of real servers that share a journal: each acknowledged row is there once after the leader is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import httpx
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.client import servers
from lakestore.client.grpc import GrpcWire
from lakestore.client.local import local_transport
from lakestore.client.profiles import Reads
from lakestore.errors import Fenced, LakestoreError, NewerFormat, NotLeader, Unavailable
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.errors import error_of_message
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Doubt, RealClock
from lakestore_server.main import Server
from lakestore_server.state.judge import Content, Judge, Kind, Standing, messages
from tests.support.records import TABLE
from tests.support.replicas import LEASE_SECONDS, LONG_LEASE_SECONDS, Replicas
from tests.support.served import Served
from tests.support.sharing import Consumer
from tests.support.waiting import refusal, until
from tests.support.world.clock import HandClock
from tests.unit.state.test_judge import forged

End = Callable[[Replicas], None]
ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path) as found:
        yield found


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "v": str(number)} for number in numbers]


def ids(table: ls.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def taken(stream: ls.ChangeStream, count: int, *, ack: bool = False) -> list[int]:
    """So many rows of a stream, by id."""
    found: list[int] = []
    while len(found) < count:
        batch = stream.next(timeout=60)
        assert batch is not None, f"{len(found)} of {count} rows came"
        found += batch.to_arrow().column("id").to_pylist()
        if ack:
            batch.ack()
    return found


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_servers_listen_at_an_address_of_ipv6(host: str, tmp_path: Path) -> None:
    with Replicas(tmp_path / "a b", 2, host=host) as found:
        leading = found.leader()
        assert leading is not None
        following = 1 - leading
        assert found.address(leading).startswith("[::1]:")
        with ls.connect(found.addresses, reads="follower") as lake:
            lake.create_table("a.t", ROW, primary_key=["id"]).upsert(rows(1))
            assert ids(lake.table("a.t")) == [1]
        journal = found.servers[following].engine.loop.journal
        until(lambda: {each.http for each in journal.replicas} >= {found.http(leading)}, "the leader's HTTP address")


ENDS = pytest.mark.parametrize("ends", [Replicas.lose, Replicas.depose])


def test_each_server_tells_who_leads(replicas: Replicas) -> None:
    number = replicas.leader()
    assert number is not None
    leader = replicas.address(number)
    for other in range(3):
        with ls.connect(replicas.address(other)) as lake:
            lake.transport.greet()
            assert lake.transport.server.role == ("leader" if other == number else "follower")
            if other != number:
                refused = refusal(partial(lake.create_database, "b"), f"{leader} leads", 0.5)
                assert isinstance(refused, NotLeader)
                assert refused.leader == leader


@ENDS
@pytest.mark.parametrize("reads", ["leader", "follower", "nearest"])
def test_writers_and_readers_go_on_at_the_next_leader(replicas: Replicas, reads: Reads, ends: End) -> None:
    with ls.connect(replicas.addresses, reads=reads) as lake:
        table = lake.create_table("a.t", ROW, primary_key=["id"], buckets=1)
        log = lake.create_table("a.log", ROW, buckets=1)
        table.upsert(rows(1, 2))
        assert ids(table) == [1, 2]
        assert table.lookup([{"id": 2}]).num_rows == 1
        stream, named = log.changes("earliest"), log.changes(subscription="s")
        with log.writer(producer="p") as writer:
            writer.append(rows(*range(20)))
            writer.flush()
            assert taken(stream, 20) == taken(named, 20, ack=True) == list(range(20))
            for number in range(20, 40):
                writer.append(rows(number))
            ends(replicas)
            for number in range(40, 60):
                writer.append(rows(number))
        table.upsert(rows(3))
        assert ids(log) == list(range(60))
        assert ids(table) == [1, 2, 3]
        assert taken(stream, 40) == taken(named, 40, ack=True) == list(range(20, 60))
        stream.close()
        named.close()
        assert [each.behind for each in lake.subscriptions()] == [0]


@ENDS
def test_every_acknowledged_single_write_is_there_once(replicas: Replicas, ends: End) -> None:
    with ls.connect(replicas.addresses) as lake:
        log = lake.create_table("a.log", ROW, buckets=1)
        failures: list[BaseException] = []

        def work(first: int) -> None:
            try:
                for number in range(first, first + 50):
                    log.append(rows(number))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 200, 50)]
        for thread in threads:
            thread.start()
        until(lambda: log.scan().count() > 20, "some rows")
        ends(replicas)
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert ids(log) == list(range(200))


@pytest.mark.usefixtures("settled")
def test_a_follower_shows_the_connections_own_writes(replicas: Replicas) -> None:
    with ls.connect(replicas.addresses, reads="follower") as lake:
        table = lake.create_table("a.t", ROW, primary_key=["id"], buckets=1)
        for number in range(30):
            token = table.upsert(rows(number))
            assert table.scan().count() == number + 1
            assert table.lookup([{"id": number}]).num_rows == 1
        assert position_of(lake.transport.head(pb.HeadRequest()).token).lsn >= position_of(token).lsn


@pytest.mark.usefixtures("settled")
def test_a_look_up_at_a_follower_shows_what_a_writer_of_the_connection_wrote(tmp_path: Path) -> None:
    """The request names the token of the connection's last commit, and the writer's rows came after it."""
    replicas = Replicas(tmp_path, 2, lease_seconds=LONG_LEASE_SECONDS)
    with replicas as found, ls.connect(found.addresses, reads="follower") as lake:
        leading = found.leader()
        assert leading is not None
        table = lake.create_table("a.t", ROW, primary_key=["id"], buckets=1)
        table.upsert(rows(1))
        assert table.lookup([{"id": 1}]).num_rows == 1
        found.ends[1 - leading].is_cut = True
        with table.writer() as writer:
            writer.upsert(rows(2))
            writer.flush()
        with pytest.raises(Unavailable), lake.within(1.0):
            table.lookup([{"id": 2}])
        found.ends[1 - leading].is_cut = False
        assert table.lookup([{"id": 2}]).num_rows == 1


@ENDS
def test_a_shared_subscription_goes_on_at_the_next_leader(replicas: Replicas, ends: End) -> None:
    with ls.connect(replicas.addresses) as lake:
        log = lake.create_table("a.log", ROW, buckets=2)
        log.append(rows(*range(10)))
        stream = log.changes(subscription="s", shared=True, member="one")
        got = taken(stream, 10, ack=True)
        ends(replicas)
        log.append(rows(*range(10, 20)))
        got += taken(stream, 10, ack=True)
        assert sorted(got) == list(range(20))


class Present:
    """The server that leads, as consumers without a connection need it."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    @property
    def engine(self) -> Engine:
        return self._server.engine

    @property
    def lake(self) -> ls.Lake:
        return ls.Lake(local_transport(self._server.service), "leader")

    @property
    def _server(self) -> Server:
        number = self._replicas.leader()
        assert number is not None
        return self._replicas.servers[number]

    def verbs(self, rpc: str) -> Any:
        return getattr(getattr(self._server.service, "verbs")[rpc], "__self__")  # noqa: B009 (of a method)


def test_a_leader_that_leads_again_knows_what_another_one_refused_meanwhile(tmp_path: Path) -> None:
    """Else an acknowledgement of what was read before would pass over rows that the consumer has undone."""
    with Replicas(tmp_path, 2) as found:
        present = cast("Served", Present(found))
        log = present.lake.create_table("a.log", ROW, buckets=1)
        log.append(rows(*range(10)))
        a, b = (Consumer(present, member, ord(member), ["a.log"]) for member in "ab")
        a.connect()
        first = a.poll()
        present.lake.table("a.log").append(rows(*range(10, 20)))
        second = a.poll()
        a.disconnect()
        found.depose()
        b.connect()
        assert sum(map(len, b.poll())) == 20
        with pytest.raises(Fenced):
            a.ack(first[0])
        b.disconnect()
        found.depose()
        with pytest.raises(Fenced):
            a.ack(second[-1])
        a.connect()
        assert sum(map(len, a.poll())) == 20


class ClockAhead(RealClock):
    """A clock that is an hour ahead."""

    def now_us(self) -> int:
        return super().now_us() + 3_600_000_000


def test_a_refusal_counts_however_far_the_clocks_of_two_leaders_are_apart(tmp_path: Path) -> None:
    with Replicas(tmp_path, 2, clocks=[ClockAhead()]) as found:
        assert found.leader() == 0
        present = cast("Served", Present(found))
        log = present.lake.create_table("a.log", ROW, buckets=1)
        log.append(rows(*range(10)))
        a, b, c = (Consumer(present, member, ord(member), ["a.log"]) for member in "abc")
        c.connect()
        c.poll()
        a.connect()
        c.disconnect()
        until(a.poll, "the bucket of the reader before")
        present.lake.table("a.log").append(rows(*range(10, 20)))
        second = a.poll()
        assert a.poll() == []
        a.disconnect()
        found.depose()
        b.connect()
        assert sum(map(len, b.poll())) == 20
        with pytest.raises(Fenced):
            a.ack(second[0])
        b.disconnect()
        found.depose()
        with pytest.raises(Fenced):
            a.ack(second[-1])


def refused_by_a_verb(replicas: Replicas, number: int) -> None:
    lake = ls.Lake(local_transport(replicas.servers[number].service), "stale")
    with lake.within(2.0):
        lake.drop_table("a.log")


def refused_by_a_stream(replicas: Replicas, number: int) -> None:
    change = pb.Change(table="a.log", table_uuid="u")
    (answer,) = replicas.servers[number].service.verb("Write")(iter([pb.CommitRequest(changes=[change])]))
    raise error_of_message(answer.error)


def refused_by_changes(replicas: Replicas, number: int) -> None:
    with closing(GrpcWire(replicas.address(number), reads="leader")) as wire:
        list(wire.stream(rpc.METHODS["Changes"], pb.ChangesRequest(tables=["a.log"]), 60.0))


def refused_over_http(replicas: Replicas, number: int) -> None:
    answer = httpx.delete(f"http://{replicas.http(number)}/iceberg/v1/namespaces/other")
    if answer.status_code == 503:
        raise NotLeader.of("")


@pytest.mark.parametrize("refused", [refused_by_a_verb, refused_by_a_stream, refused_by_changes, refused_over_http])
def test_a_leader_that_does_not_know_that_it_leads_no_more_refuses_nothing_for_good(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, refused: Callable[[Replicas, int], None]
) -> None:
    """A server that was paused: what it has read may be out of date, so its refusals are too."""
    former = replicas.leader()
    assert former is not None
    monkeypatch.setattr(replicas.servers[former].engine.loop.journal, "beat", lambda *_: None)
    others = [number for number in range(3) if number != former]
    until(lambda: any(replicas.servers[number].engine.is_leading for number in others), "the next leader")
    with ls.connect(",".join(map(replicas.address, others))) as lake:
        lake.create_table("a.log", ROW, buckets=1)
    assert replicas.servers[former].engine.is_leading, "nobody told it"
    with pytest.raises(NotLeader):
        refused(replicas, former)


@pytest.mark.parametrize("refused", [refused_by_a_verb, refused_by_a_stream, refused_by_changes])
def test_a_leader_that_is_deposed_before_it_refuses_does_not_refuse(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, refused: Callable[[Replicas, int], None]
) -> None:
    """The leader finds no table `a.log`. Before it says so, another server becomes the leader and may create the table.
    So the client is told to ask the next leader."""
    former = replicas.leader()
    assert former is not None
    engine = replicas.servers[former].engine
    certain = engine.certain

    def deposed(refusal: LakestoreError, *, for_leader: bool) -> LakestoreError:
        if engine.is_leading:
            replicas.depose()
        return certain(refusal, for_leader=for_leader)

    monkeypatch.setattr(engine, "certain", deposed)
    with pytest.raises(NotLeader):
        refused(replicas, former)


def test_a_new_leader_deletes_nothing_by_a_clock_that_nobody_has_watched(tmp_path: Path) -> None:
    clocks = [HandClock.real(), HandClock.real()]
    with Replicas(tmp_path, 2, clocks) as found:
        former = found.leader()
        assert former is not None
        with ls.connect(found.addresses) as lake:
            lake.create_database("a")
            time = found.servers[1 - former].engine.time
            clocks[1 - former].jump(86_400)
            assert time.read().doubt is Doubt.AHEAD
            time.accept()
            assert time.read().may_delete
            found.lose()
            until(lambda: found.leader() == 1 - former, "the next leader")
            lake.create_database("b")
            assert time.read().doubt is Doubt.START


def test_a_follower_that_does_not_reach_the_journal_says_for_how_long(tmp_path: Path) -> None:
    with Replicas(tmp_path, 2) as found:
        leading = found.leader()
        assert leading is not None
        following = 1 - leading

        def lag(number: int) -> int:
            url = f"http://{found.servers[number].about['http']}/ready"
            return int(json.loads(urlopen(url).read())["lag_ms"])

        until(lambda: lag(following) == 0, "the follower")
        found.ends[following].is_cut = True
        until(lambda: lag(following) > 1000 * LEASE_SECONDS, "a lag of more than a lease")
        first = lag(following)
        until(lambda: lag(following) > first + 2000 * LEASE_SECONDS, "a greater lag, beyond two claims that failed")
        assert lag(leading) == 0
        shown = CliRunner().invoke(cli, ["replicas", "--server", found.address(following), "--json"]).stdout
        assert [each["lag_ms"] is None or each["lag_ms"] > first for each in json.loads(shown)] == [True, True]
        assert json.loads(shown)[0]["lag_ms"] > first
        metrics = urlopen(f"http://{found.servers[following].about['http']}/metrics").read().decode()
        line = next(each for each in metrics.splitlines() if each.startswith("lakestore_follower_lag_seconds "))
        assert float(line.split()[1]) > first / 1000
        found.ends[following].is_cut = False
        until(lambda: lag(following) == 0, "the follower, again")


def test_status_without_a_leader_shows_each_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "FIND_SECONDS", 3.0)
    with Replicas(tmp_path) as found:
        gone = found.leader()
        assert gone is not None
        found.lose()
        for end in found.ends:
            end.is_cut = True
        until(lambda: not any(each.engine.is_leading for each in found.servers), "the end of the leader")
        for command in ("status", "replicas"):
            told = CliRunner().invoke(cli, [command, "--server", found.addresses])
            assert told.exit_code == 1
            lines = told.stdout.splitlines()
            assert lines[0].split() == ["address", "role", "leader", "epoch", "lsn", "problem"]
            roles = {line.split()[0]: line.split()[1] for line in lines[1:]}
            assert roles == {found.address(i): "-" if i == gone else "follower" for i in range(3)}
            assert "nothing listens" in next(line for line in lines if line.startswith(found.address(gone)))
            assert isinstance(told.exception, Unavailable)
            assert "leads now" in told.exception.message
        told = CliRunner().invoke(cli, ["status", "--json", "--server", found.addresses])
        assert [each["role"] for each in json.loads(told.stdout)].count("follower") == 2


def metric(found: Replicas, number: int, name: str) -> float:
    text = urlopen(f"http://{found.http(number)}/metrics").read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def void_messages(found: Replicas) -> int:
    """Messages of the log that do not count and are no reports, by a fresh judge: claims that failed are among them."""
    judge = Judge()
    for position, data in enumerate(list(found.log.messages)):
        judge.take(position, data)
    return judge.void - judge.reports


def test_messages_that_do_not_count_are_metrics(tmp_path: Path) -> None:
    void, gaps = "lakestore_journal_void_total", "lakestore_journal_gaps_total"
    with Replicas(tmp_path, 2) as found:
        leader = found.leader()
        assert leader is not None
        before, void_before = metric(found, leader, gaps), void_messages(found)

        def counts_all(number: int) -> bool:
            return metric(found, number, void) == void_messages(found)

        report = Content(Kind.REPORT, meta=b"[]")
        foreign = messages(Standing(), Content(Kind.BEAT), 7, 1_000)[0] + messages(Standing(), report, 0, 1_000)[0]
        for data in foreign:
            found.ends[1 - leader].send(data, lambda _: None)
        for i in range(2):
            until(partial(counts_all, i), "the void message")
        assert void_messages(found) > void_before
        assert metric(found, leader, gaps) > before
        assert metric(found, 1 - leader, gaps) == 0


def test_a_server_whose_beats_fail_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would lead without beats: deposed whenever it is idle, and again leader."""
    with Replicas(tmp_path, 2) as found:
        for number in (found.leader(), 1 - (found.leader() or 0)):
            assert number is not None
            monkeypatch.setattr(found.servers[number].engine.loop.journal, "beat", beat_with_a_defect)
            until(partial(has_ended, found, number), "the end of the server")
            assert "a defect" in str(dict(found.fatal)[number])


def has_ended(replicas: Replicas, number: int) -> bool:
    return number in dict(replicas.fatal)


def beat_with_a_defect(*_: str) -> None:
    raise ZeroDivisionError("a defect")


NOVEL: dict[str, dict[str, Any]] = {
    "section": {"producers": [], "novelty": [1]},
    "step": {"catalog": [{"key": "", "steps": [["rename-namespace", "a"]]}]},
    "option": {"alter": [{**TABLE.as_dict(), "novelty": 1}]},
    "entry": {"rename": [["u-1", "a.t", "novelty"]]},
}
"""Records of a newer release, by what is new."""


@pytest.mark.parametrize("part", ["message", *NOVEL])
def test_what_a_newer_release_writes_stops_a_follower_before_it_applies_anything(tmp_path: Path, part: str) -> None:
    with Replicas(tmp_path, 2) as found:
        leading = found.leader()
        assert leading is not None
        leader, follower = found.servers[leading].engine.loop, found.servers[1 - leading].engine.loop
        with ls.connect(found.address(leading)) as lake:
            lake.create_database("a")
        lsn = leader.view.lsn
        until(lambda: follower.view.lsn == lsn, "the follower")
        if part in NOVEL:
            record = {"t": leader.view.time_us + 1, **NOVEL[part]}
            leader.journal.append(lsn + 1, [orjson.dumps(record)])
        else:
            (claim,), _ = messages(Standing(), Content(Kind.CLAIM), 7, 1 << 20)
            found.ends[leading].send(forged(claim, 1), lambda _: None)
        found.ends[leading].is_cut = True
        until(lambda: follower.failure is not None, "the end of the follower")
        assert isinstance(follower.failure, NewerFormat)
        assert "is of a newer release" in str(follower.failure)
        assert follower.view.lsn == lsn
        assert "a" in follower.view.namespaces

"""Two real servers on a real topic: one is killed, the other commits, and nobody loses or sees anything twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from lakestore.cli.main import cli
from lakestore.client import parts as client_parts
from lakestore.errors import Conflict, NotLeader
from lakestore.model.token import position_of
from lakestore.union.verify import verify
from lakestore_server.catalog.shared_parts import PLACE
from tests.support.kafka_servers import KafkaServers
from tests.support.process import ServerProcess, refused
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def run(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).output


@pytest.fixture
def journal(kafka: KafkaProcess, tmp_path: Path) -> str:
    journal = f"kafka://{kafka.address}/{tmp_path.name}"
    run("init-journal", "--journal", journal, "--replicas", "1")
    return journal


@pytest.fixture
def pair(journal: str, tmp_path: Path) -> Iterator[KafkaServers]:
    with KafkaServers(journal, tmp_path) as made:
        yield made


@pytest.fixture
def steady_pair(journal: str, tmp_path: Path) -> Iterator[KafkaServers]:
    """Two servers with a lease of a minute: the first one leads through the whole test."""
    with KafkaServers(journal, tmp_path, environment={"LAKESTORE_JOURNAL_LEASE_SECONDS": "60"}) as made:
        yield made


def test_commits_go_on_at_the_other_server_and_none_is_lost_or_doubled(pair: KafkaServers) -> None:
    done, is_over = list[int](), threading.Event()
    with ls.connect(pair.addresses) as lake:
        lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
        log = lake.create_table("t.log", SCHEMA, buckets=1)

        def write() -> None:
            value = 0
            while not is_over.is_set():
                value += 1
                log.append([{"id": 0, "v": value}])
                done.append(value)

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            count = len(done)
            until(lambda: len(done) > count + 20, "some commits")  # noqa: B023
            leader = pair.the("leader")
            leader.kill()
            count = len(done)
            until(lambda: len(done) > count, "a commit of the other server")  # noqa: B023
            pair.start_again(leader)
        is_over.set()
        writer.join()
        stored = sorted(log.scan(columns=["v"]).to_arrow().column("v").to_pylist())
        assert stored == list(range(1, len(done) + 1)), "each value once, in spite of lost answers"
        token = lake.last_token
    for server in pair.servers:
        with ls.connect(server.address) as alone:
            rows = alone.table("t.log").scan(at=token)
            assert rows.count() == len(done), "at a token a follower waits for it"
            assert verify(alone.transport, "t.log").same


def test_rows_of_a_long_commit_survive_the_kill_of_the_leader_that_took_them(
    pair: KafkaServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_parts, "MESSAGE_BYTES", 1 << 20)
    with ls.connect(pair.addresses) as lake:
        log = lake.create_table("t.log", SCHEMA, buckets=2)
        with lake.commit() as commit:
            for begin in range(0, 800_000, 100_000):
                if begin == 400_000:
                    assert len(list((tmp_path / "warehouse" / PLACE).glob("*/*.part"))) > 3
                    pair.the("leader").kill()
                numbers = pa.array(range(begin, begin + 100_000), pa.int64())
                commit.append("t.log", pa.table({"id": numbers, "v": numbers}))
        stored = log.scan(columns=["v"]).to_arrow().column("v").to_pylist()
        assert sorted(stored) == list(range(800_000)), "each row once"
        assert position_of(lake.last_token).lsn == position_of(commit.token).lsn, "one commit"


def test_a_follower_serves_reads_and_names_the_leader_for_the_rest(steady_pair: KafkaServers) -> None:
    leader = steady_pair.the("leader")
    follower = next(server for server in steady_pair.servers if server is not leader)
    with ls.connect(leader.address) as lake:
        table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=1)
        token = table.upsert([{"id": number, "v": number} for number in range(100)])
    with ls.connect(follower.address) as lake:
        table = lake.table("t.rows")
        assert table.scan(at=token).count() == 100
        assert table.lookup([{"id": 7}]).to_pylist() == [{"id": 7, "v": 7}]
        with lake.within(30), pytest.raises(NotLeader, match=leader.address):  # a retry would last for longer
            table.upsert([{"id": 1, "v": 2}])
        about = lake.status()["journal"]
        assert (about["kind"], about["role"], about["leader"]) == ("kafka", "follower", leader.address)
        assert {each["address"] for each in about["replicas"]} == {server.address for server in steady_pair.servers}
    shown = run("replicas", "--server", follower.address)
    assert leader.address in shown
    assert "follower" in shown


def test_both_servers_stopped_and_started_have_every_commit(pair: KafkaServers) -> None:
    with ls.connect(pair.addresses) as lake:
        table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=1)
        table.upsert([{"id": number, "v": number} for number in range(1_000)])
    for server in pair.servers:
        server.stop()
    for server in list(pair.servers):
        pair.start_again(server)
    with ls.connect(pair.addresses) as lake:
        assert lake.table("t.rows").scan().count() == 1_000
        lake.table("t.rows").upsert([{"id": 1, "v": 2}])


def test_a_folder_moves_into_a_topic_and_back_into_files(kafka: KafkaProcess, tmp_path: Path) -> None:
    journal, folder, warehouse = f"kafka://{kafka.address}/{tmp_path.name}", tmp_path / "a", tmp_path / "warehouse"
    at_warehouse = ["--warehouse", str(warehouse)]
    with ServerProcess(folder, arguments=at_warehouse) as alone, ls.connect(alone.address) as lake:
        table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=1)
        token = table.upsert([{"id": number, "v": number} for number in range(100)])
    run("init-journal", "--journal", journal, "--replicas", "1")
    done = json.loads(run("journal", "move", "--to", journal, "--data", str(folder), "--json"))
    assert done == {"data": str(folder), "journal": journal, "lsn": 2}
    with KafkaServers(journal, tmp_path, "a") as first:
        leader = first.the("leader")
        run("backup", str(tmp_path / "backup"), "--server", leader.address)
        run("restore", str(tmp_path / "backup"), "--data", str(tmp_path / "b"), "--replica")
        with KafkaServers(journal, tmp_path, "b") as second:
            addresses = f"{first.addresses},{second.addresses}"
            with ls.connect(addresses) as lake:
                table = lake.table("t.rows")
                assert table.scan(at=token).count() == 100
                table.upsert([{"id": 100, "v": 100}])
                leader.kill()
                later = table.upsert([{"id": 101, "v": 101}])
            leads = CliRunner().invoke(
                cli, ["journal", "move", "--to", "files", "--journal", journal, "--data", str(folder)]
            )
            assert isinstance(leads.exception, Conflict)
            assert second.the("leader").address in str(leads.exception)
    run("journal", "move", "--to", "files", "--journal", journal, "--data", str(folder))
    with ServerProcess(folder, arguments=at_warehouse) as alone, ls.connect(alone.address) as lake:
        table = lake.table("t.rows")
        assert (table.scan(at=token).count(), table.scan(at=later).count()) == (100, 102)
        table.upsert([{"id": 102, "v": 102}])
    assert "this journal ended" in refused(tmp_path / "b", ["--journal", journal, *at_warehouse])
    again = CliRunner().invoke(cli, ["journal", "move", "--to", journal, "--data", str(folder)])
    assert "has led this journal already" in str(again.exception)

"""Real servers on a journal in a bucket: our S3 in memory, whose answers get lost, and S3Proxy."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from jepsen.system.http_proxy import Trouble, Weather
from jepsen.system.store import Store
from lakestore.cli.main import cli
from lakestore.errors import Invalid, NotFound
from lakestore.rows.ipc import crc32c
from lakestore.union.verify import verify
from lakestore_server.catalog.shared_parts import shared_parts
from lakestore_server.doctor import visit
from lakestore_server.files.part_file import PartHead, name_of, rows_of
from lakestore_server.journals import object_store
from lakestore_server.main import Server
from lakestore_server.settings import Journal, Settings
from tests.support.kafka_servers import KafkaServers
from tests.support.s3proxy import S3ProxyProcess
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
JOURNAL = "s3://lakestore/a journal/of ours"


def run(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).output


def test_parts_in_a_bucket_are_listed_read_in_ranges_and_removed_many_at_once(store: Store) -> None:
    """Stores answer lists of 1,000 names, and refuse more in one removal."""
    files = shared_parts("s3://lakestore/a warehouse", "t")
    keep = tuple(f"column {number}" for number in range(600))
    heads = [
        PartHead(f"{number:052x}", "etl", 1, 1, 4, crc32c(b"rows"), "t.log", "u", 1, 0, keep if not number else ())
        for number in range(1_100)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda head: files.put(head, b"rows"), heads))
    files.put(heads[0], b"rows")  # the answer to the first one was lost
    with pytest.raises(FileExistsError):
        files.put(heads[0], b"ROWS")
    assert len(files.sizes()) == 1_100
    for head in heads[:2]:
        assert files.head(head.id) == head, "a head beyond the bytes of the first request, too"
        assert rows_of(head, files.read(head.id)) == b"rows"
    for missing in (files.head, files.read):
        with pytest.raises(FileNotFoundError):
            missing("f" * 52)
    files.remove([name_of(head.id) for head in heads[1:]] + [name_of("f" * 52)])
    assert list(files.sizes()) == [name_of(heads[0].id)]


def commit_through_failovers(pair: KafkaServers, kills: int) -> None:
    """Commit while leaders are killed; each commit is there once, at both servers."""
    done, is_over, failures = list[int](), threading.Event(), list[BaseException]()
    with ls.connect(pair.addresses) as lake:
        table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
        log = lake.create_table("t.log", SCHEMA, buckets=1)

        def write() -> None:
            try:
                while not is_over.is_set():
                    value = len(done) + 1
                    log.append([{"id": 0, "v": value}])
                    done.append(value)
            except BaseException as error:
                failures.append(error)

        def more(count: int) -> bool:
            assert not failures, failures
            return len(done) > count

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(kills):
            count = len(done)
            until(lambda: more(count + 10), "some commits")  # noqa: B023
            leader = pair.the("leader")
            leader.kill()
            count = len(done)
            until(lambda: more(count), "a commit of the other server")  # noqa: B023
            pair.start_again(leader)
        is_over.set()
        writer.join()
        assert not failures
        table.upsert([{"id": number, "v": number} for number in range(5_000)])
        stored = sorted(log.scan(columns=["v"]).to_arrow().column("v").to_pylist())
        assert stored == list(range(1, len(done) + 1)), "each value once, in spite of lost answers"
        token = lake.last_token
    for server in pair.servers:
        with ls.connect(server.address) as alone:
            assert alone.table("t.log").scan(at=token).count() == len(done)
            assert alone.table("t.rows").scan(at=token).count() == 5_000
            assert verify(alone.transport, "t.log").same


@pytest.mark.timeout(400)
def test_commits_go_on_at_the_other_server_while_answers_of_the_store_are_lost(store: Store, tmp_path: Path) -> None:
    run("init-journal", "--journal", JOURNAL)
    kinds = (Trouble.LOSE, Trouble.HIDE, Trouble.RESET, Trouble.REFUSE, Trouble.REPEAT)
    with KafkaServers(JOURNAL, tmp_path) as pair:
        pair.the("leader")
        store.proxy.breaks(Weather(kinds, 0.1, seed=1))
        commit_through_failovers(pair, kills=1)
        assert sum(store.proxy.mend().values()) > 10


@pytest.mark.long
def test_commits_go_on_at_the_other_server_on_a_store_of_others(tmp_path: Path) -> None:
    with S3ProxyProcess(tmp_path / "s3") as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        assert "is created" in run("init-journal", "--journal", JOURNAL)
        with KafkaServers(JOURNAL, tmp_path) as pair:
            commit_through_failovers(pair, kills=2)


def test_a_server_alone_starts_from_the_bucket_after_its_disk_is_lost(store: Store, tmp_path: Path) -> None:
    run("init-journal", "--journal", JOURNAL)
    with KafkaServers(JOURNAL, tmp_path, "a") as alone:
        with ls.connect(alone.addresses) as lake:
            table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
            for turn in range(20):
                table.upsert([{"id": number, "v": turn} for number in range(100)])
    with KafkaServers(JOURNAL, tmp_path, "b") as other, ls.connect(other.addresses) as lake:
        assert set(lake.table("t.rows").scan().to_arrow().column("v").to_pylist()) == {19}


def test_a_folder_moves_into_a_bucket_and_back(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with ls.open(folder) as lake:
        table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
        before = table.upsert([{"id": number, "v": 1} for number in range(100)])
    run("init-journal", "--journal", JOURNAL)
    into = ("journal", "move", "--to", JOURNAL, "--data", str(folder))
    assert "has its journal in s3://" in run(*into)
    assert "has its journal in s3://" in run(*into), "nothing is left to do"
    with KafkaServers(JOURNAL, tmp_path) as pair, ls.connect(pair.addresses) as lake:
        assert (tmp_path / "b" / "segments").exists(), "the server with an empty folder has copied"
        token = lake.table("t.rows").upsert([{"id": 0, "v": 2}])
        with ls.connect(pair.the("follower").address) as follower:
            found = follower.table("t.rows").scan(at=token).to_arrow()
            assert sorted(found.column("v").to_pylist()) == [1] * 99 + [2]
    out = ("journal", "move", "--to", "files", "--journal", JOURNAL, "--data", str(folder))
    assert "has its journal in files" in run(*out)
    with ls.open(folder) as lake:
        (changed,) = lake.table("t.rows").changes(before, until=token)
        assert changed.to_arrow()["v"].to_pylist() == [2], "a position of before the moves is good"


def test_init_journal_creates_it_once_and_a_start_needs_it(store: Store, tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data", warehouse=str(tmp_path / "lake"), journal=Journal("object", url=JOURNAL))
    with pytest.raises(NotFound, match="lakestore init-journal"):
        Server(settings)
    first = CliRunner().invoke(cli, ["init-journal", "--journal", JOURNAL, "--json"])
    assert json.loads(first.stdout) == {"url": JOURNAL, "created": True}
    file = tmp_path / "server.yaml"
    file.write_text(f"journal: {{kind: object, url: '{JOURNAL}'}}\n")
    again = run("init-journal", "-c", str(file))
    assert again.startswith(f"journal {JOURNAL} exists, and the store lets one put of a name win; start servers with")
    with pytest.raises(Invalid, match=r"--journal must be .* or s3://bucket/prefix"):
        run("init-journal", "--journal", "s3://")
    with pytest.raises(Invalid, match="holds a user and a password"):
        Server(
            Settings(
                tmp_path / "data",
                warehouse=str(tmp_path / "lake"),
                journal=Journal("object", url="s3://me:secret@bucket/x"),
            )
        )


def test_the_doctor_looks_at_the_bucket(store: Store) -> None:
    about = Journal("object", url=JOURNAL)
    (finding,) = visit.bucket_of(about)
    assert (finding.verdict, finding.remedy) == ("failed", "create it: lakestore init-journal")
    run("init-journal", "--journal", JOURNAL)
    assert [each.verdict for each in visit.bucket_of(about)] == ["ok"]
    assert list(visit.bucket_of(Journal())) == []


def test_a_store_that_lets_two_puts_win_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_over(self: object_store.ObjectStore, name: str, data: bytes) -> bool:
        import obstore

        obstore.put(self._store, name, data, mode="overwrite")
        return True

    run("init-journal", "--journal", JOURNAL)
    monkeypatch.setattr(object_store.ObjectStore, "put_new", put_over)
    with pytest.raises(Invalid, match="take a store in which one wins"):
        run("init-journal", "--journal", JOURNAL)
    with pytest.raises(Invalid, match="take a store in which one wins"):
        Server(Settings(tmp_path / "data", warehouse=str(tmp_path / "lake"), journal=Journal("object", url=JOURNAL)))
    (finding,) = visit.looked("journal", lambda: visit.bucket_of(Journal("object", url=JOURNAL)))
    assert (finding.verdict, "take a store in which one wins" in finding.found) == ("failed", True)

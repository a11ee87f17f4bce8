"""Uploaded parts of servers that share a journal: a long commit goes on at the next leader, once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lakestore as ls
from lakestore.client import parts as client_parts
from lakestore.client.writer import change
from lakestore.errors import Conflict, LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.shared_parts import PLACE
from lakestore_server.commit.recovery import open_folder
from lakestore_server.files import checkpoint
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import IndexKeys
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_spark.source.lakestore_source import LakestoreSource
from lakestore_spark.source.table_writer import TableWriter
from tests.support.replicas import LEASE_SECONDS, MemoryEnd, Replicas
from tests.support.waiting import until

SCHEMA = pa.schema([("v", pa.int64())])
ROWS = 60_000
End = Callable[[Replicas], None]
ENDS = pytest.mark.parametrize("ends", [Replicas.lose, Replicas.depose])


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    monkeypatch.setattr(client_parts, "MESSAGE_BYTES", 100_000)
    with Replicas(tmp_path) as found:
        yield found


def files(root: Path) -> list[Path]:
    return sorted((root / "warehouse" / PLACE).glob("*/*"))


def values(lake: ls.Lake) -> list[int]:
    return sorted(lake.table("t.log").scan().to_arrow().column("v").to_pylist())


@ENDS
def test_rows_uploaded_before_a_failover_are_committed_after_it(replicas: Replicas, tmp_path: Path, ends: End) -> None:
    numbers = pa.table({"v": pa.array(range(ROWS), pa.int64())})
    with ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        with lake.commit() as commit:
            commit.append("t.log", numbers)
            uploaded = files(tmp_path)
            assert len(uploaded) > 5
            assert len({path.parent for path in uploaded}) == 1
            ends(replicas)
            commit.append("t.log", pa.table({"v": pa.array(range(ROWS, 2 * ROWS), pa.int64())}))
        assert values(lake) == list(range(2 * ROWS))
        leader = replicas.leader()
        assert leader is not None
        server = replicas.servers[leader]
        server.upkeep.checkpoint()
        assert files(tmp_path) == []
        assert server.engine.parts.count == 0


@ENDS
def test_a_commit_of_parts_without_an_answer_is_known_to_the_next_leader(replicas: Replicas, ends: End) -> None:
    with ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        rows = change("t.log", pb.APPEND, [pa.record_batch([pa.array([1, 2])], schema=SCHEMA)])
        named = client_parts.upload(lake.transport, rows)
        asked = pb.CommitRequest(changes=[named], producer="p", sequence=1)
        first = lake.transport.commit(asked)
        ends(replicas)
        assert lake.transport.commit(asked).token == first.token
        with pytest.raises(Conflict, match="committed before"):
            lake.transport.commit(pb.CommitRequest(changes=[named], producer="q", sequence=1))
        leader = replicas.leader()
        assert leader is not None
        for server in replicas.servers:
            if server.engine.view.lsn >= replicas.servers[leader].engine.view.lsn:
                server.upkeep.checkpoint()
        assert lake.transport.commit(asked).token == first.token
        assert values(lake) == [1, 2]


@ENDS
def test_a_spark_job_whose_tasks_uploaded_at_the_lost_leader_commits_once(replicas: Replicas, ends: End) -> None:
    with ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        source = LakestoreSource({"server": replicas.addresses, "table": "t.log"})
        job = source.writer(st.StructType().add("v", "long"), overwrite=False)
        assert isinstance(job, TableWriter)
        tasks = [[number * 10_000 + each for each in range(10_000)] for number in range(4)]
        written = []
        for number, task in enumerate(tasks):
            if number == 2:
                ends(replicas)
            written.append(job.write(iter([pa.record_batch([pa.array(task, pa.int64())], schema=SCHEMA)])))
        job.commit(written)
        assert values(lake) == list(range(40_000))


def test_a_part_that_a_paused_leader_stores_late_is_there_for_the_next(replicas: Replicas, tmp_path: Path) -> None:
    old = replicas.leader()
    assert old is not None
    with ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        rows = change("t.log", pb.APPEND, [pa.record_batch([pa.array([7])], schema=SCHEMA)])
        table = replicas.servers[old].engine.view.named("t.log").table
        rows.table_uuid, rows.schema_id = table.uuid, table.schema_id
        replicas.depose()
        store = replicas.servers[old].engine.parts
        head = store.store(rows, 1, "", replicas.servers[old].engine.now_us())
        named = pb.Change(table="t.log", kind=pb.APPEND, crc32c=rows.crc32c, part=head.id)
        lake.transport.commit(pb.CommitRequest(changes=[named], producer="p", sequence=1))
        assert values(lake) == [7]
        until(lambda: head.id not in store._parts, "the record at the old leader")
        with pytest.raises(Conflict):
            store.reserve([head.id], "")
        assert len(files(tmp_path)) == 1
        replicas.servers[old].upkeep.checkpoint()
        assert len(files(tmp_path)) == 1, "only the leader removes"


def test_a_server_that_starts_from_a_checkpoint_knows_committed_parts_that_are_still_there(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=2) as replicas, ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        rows = change("t.log", pb.APPEND, [pa.record_batch([pa.array([7])], schema=SCHEMA)])
        named = client_parts.upload(lake.transport, rows)
        lake.transport.commit(pb.CommitRequest(changes=[named], producer="p", sequence=1))
        leader = replicas.leader()
        assert leader is not None
        follower = replicas.servers[1 - leader]
        until(lambda: follower.engine.view.lsn == replicas.servers[leader].engine.view.lsn, "the record")
        follower.upkeep.checkpoint()
        assert len(files(tmp_path)) == 1
        shutil.copytree(follower.engine.folder, tmp_path / "copy")
        journal = SharedJournal(MemoryEnd(replicas.log), RealClock(), LEASE_SECONDS)
        opened = open_folder(tmp_path / "copy", RealDisk(), journal_of=lambda *_: journal)
        assert list(opened.parts) == [named.part]
        replicas.servers[leader].upkeep.checkpoint()
        assert files(tmp_path) == []
        follower.upkeep.checkpoint()
        held = checkpoint.newest(RealDisk(), follower.engine.folder)
        assert held is not None
        assert held.parts == ()


def test_parts_of_an_earlier_release_on_a_servers_disk_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "0" / "parts" / f"{'a' * 32}.part"
    left.parent.mkdir(parents=True, mode=0o700)
    left.write_bytes(b"rows of a commit that has not happened")
    with Replicas(tmp_path, count=1) as replicas:
        assert not left.exists()
        assert replicas.servers[0].engine.parts.count == 0


def test_a_request_that_waited_through_two_failovers_does_not_commit_a_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the part while its server led. Then another server led, committed the part, and lost the lead again."""
    with Replicas(tmp_path, count=2) as replicas, ls.connect(replicas.addresses) as lake:
        lake.create_table("t.log", SCHEMA, buckets=2)
        rows = change("t.log", pb.APPEND, [pa.record_batch([pa.array([7])], schema=SCHEMA)])
        named = client_parts.upload(lake.transport, rows)
        old = replicas.leader()
        assert old is not None
        engine, goes_on, refusals = replicas.servers[old].engine, threading.Event(), list[LakestoreError]()

        def foreseen(several: Sequence[IndexKeys]) -> list[Hint | None]:
            monkeypatch.undo()
            assert goes_on.wait(60)
            return [None] * len(several)

        def commits() -> None:
            try:
                verb = replicas.servers[old].service.verbs["Commit"]
                verb(pb.CommitRequest(changes=[named], producer="q", sequence=1))
            except LakestoreError as error:
                refusals.append(error)

        monkeypatch.setattr(engine, "foreseen", foreseen)
        waiting = threading.Thread(target=commits)
        waiting.start()
        until(lambda: named.part in engine.parts._taken, "the part of the request")
        replicas.depose()
        lake.transport.commit(pb.CommitRequest(changes=[named], producer="p", sequence=1))
        new = replicas.leader()
        assert new is not None
        replicas.servers[new].upkeep.checkpoint()
        until(lambda: engine.view.lsn == replicas.servers[new].engine.view.lsn, "the record at the old leader")
        replicas.servers[old].upkeep.checkpoint()
        assert files(tmp_path) == []
        replicas.depose()
        assert replicas.leader() == old
        goes_on.set()
        waiting.join()
        assert [type(error) for error in refusals] == [Conflict]
        assert values(lake) == [7]

"""The key index under faults: never a wrong answer; what is damaged is set aside and rebuilt beside serving."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change
from lakestore.errors import Corrupt, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import ABSENT
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import ByteKeys
from lakestore_server.index.pipe import Op
from lakestore_server.index.worker_client import DamagedIndex, IndexProcess
from tests.support import older_index
from tests.support.seeds import seeded
from tests.support.segment_places import damage_segment
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = 3_000


def filled(folder: Path) -> None:
    """A table whose index is all in LMDB, and a log table."""
    with ls.open(folder) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert(pa.table({"id": range(KEYS), "name": ["x"] * KEYS}))
        lake.create_table("a.log", SCHEMA)


def found(table: ls.Table) -> dict[int, str]:
    """Key to name, by look-up of all keys."""
    rows = table.lookup(pa.table({"id": range(KEYS + 10)}))
    return dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))


def append(lake: ls.Lake, n: int) -> None:
    """One row for the log table, sent once."""
    batch = pa.record_batch({"id": [n], "name": ["log"]}, schema=SCHEMA)
    lake.transport.commit(pb.CommitRequest(changes=[change("a.log", pb.APPEND, [batch])]))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A rebuild waits before its first part until the event is set."""
    go = threading.Event()
    stage = Index.stage

    def waiting(self: Index, keys: Any, offsets: Any) -> None:
        self.progress = 0.42
        assert go.wait(60)
        stage(self, keys, offsets)

    monkeypatch.setattr(Index, "stage", waiting)
    yield go
    go.set()


def lose(folder: Path) -> None:
    """Remove LMDB's files."""
    for file in (folder / "index").iterdir():
        file.unlink()


def test_log_tables_and_scans_are_served_while_a_lost_index_is_rebuilt(tmp_path: Path, held: threading.Event) -> None:
    filled(tmp_path)
    lose(tmp_path)
    with Served(tmp_path) as served:
        lake = served.lake
        table, engine = lake.table("a.b"), served.engine
        until(lambda: engine.index.progress, "the rebuild")
        assert "42%" in engine.index.state
        row = pa.record_batch({"id": [1], "name": ["y"]}, schema=SCHEMA)
        for refused in (
            lambda: table.lookup(pa.table({"id": [1]})),
            lambda: lake.transport.commit(pb.CommitRequest(changes=[change("a.b", pb.UPSERT, [row])])),
        ):
            with pytest.raises(Unavailable, match=r"being rebuilt, 42% done") as error, lake.within(0.5):
                refused()
            assert error.value.applied == "no"
        append(lake, 1)
        served.checkpoint()
        append(lake, 2)
        assert lake.table("a.log").scan().count() == 2
        assert table.scan().count() == KEYS
        held.set()
        served.until_indexed()
        assert found(table) == dict.fromkeys(range(KEYS), "x")
        table.upsert([{"id": 1, "name": "y"}])
        assert table.last_result is not None
        assert table.last_result.updated == 1
    with Served(tmp_path) as served:
        lake = served.lake
        assert served.engine.index.ready, "no second rebuild"
        assert found(lake.table("a.b"))[1] == "y"


def test_a_start_in_the_middle_of_a_rebuild_begins_it_anew(tmp_path: Path, held: threading.Event) -> None:
    filled(tmp_path)
    lose(tmp_path)
    served = Served(tmp_path)
    until(lambda: served.engine.index.progress, "the rebuild")
    closing = threading.Thread(target=served.close)
    closing.start()
    upkeep = served.server.upkeep
    until(lambda: upkeep._rebuilder._duty.is_closing, "closing")
    held.set()
    closing.join(30)
    with Served(tmp_path) as served:
        lake = served.lake
        assert not served.engine.index.ready or found(lake.table("a.b"))
        served.until_indexed()
        assert len(found(lake.table("a.b"))) == KEYS


def test_flipped_bits_in_the_index_give_no_wrong_answer(tmp_path: Path) -> None:
    """Whatever a flip hits, an answer is right, or the index is rebuilt and then right; the damaged files are kept."""
    filled(tmp_path)
    chance = seeded(5)
    right = dict.fromkeys(range(KEYS), "x")
    for _ in range(int(os.environ.get("LAKESTORE_FLIPS", "6"))):
        raw = bytearray((tmp_path / "index" / "data.mdb").read_bytes())
        for _ in range(400):
            raw[chance.randrange(8192, len(raw))] ^= 1 << chance.randrange(8)
        (tmp_path / "index" / "data.mdb").write_bytes(raw)
        with Served(tmp_path) as served:
            table = served.lake.table("a.b")
            assert found(table) == right, "the client asks again while the index is rebuilt"
    assert list(tmp_path.glob("index-damaged-*"))


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: bytes(len(raw)), lambda raw: b"no"])
def test_an_index_file_that_is_cut_or_no_index_at_all_is_set_aside_and_rebuilt(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    filled(tmp_path)
    file = tmp_path / "index" / "data.mdb"
    file.write_bytes(damage(file.read_bytes()))
    with Served(tmp_path) as served:
        table = served.lake.table("a.b")
        try:
            found(table)
        except Unavailable:
            served.until_indexed()
        assert found(table) == dict.fromkeys(range(KEYS), "x")
    assert (tmp_path / "index-damaged-1" / "data.mdb").exists()


def test_an_index_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    filled(tmp_path)
    with Served(tmp_path) as served:
        lake = served.lake
        index, table = served.engine.index, lake.table("a.b")
        assert index._merged._lmdb.finder.pid
        os.kill(index._merged._lmdb.finder.pid, signal.SIGKILL)
        assert len(found(table)) == KEYS
        table.upsert([{"id": 4, "name": "y"}])
        served.checkpoint()
        assert index._merged._lmdb.merger.pid
        os.kill(index._merged._lmdb.merger.pid, signal.SIGKILL)
        table.upsert([{"id": 5, "name": "y"}])
        with pytest.raises(Unavailable, match="started again"):
            served.checkpoint()
        served.checkpoint()
        assert found(table)[5] == "y"
    assert not list(tmp_path.glob("index-damaged-*")), "nothing was damaged"


def test_a_process_that_ends_by_its_own_fault_says_that_the_files_are_damaged(tmp_path: Path) -> None:
    process = IndexProcess(tmp_path)
    assert process.ask(Op.LSN)[0] == -1
    assert process.pid
    os.kill(process.pid, signal.SIGBUS)
    with pytest.raises(DamagedIndex, match="SIGBUS"):
        process.ask(Op.LSN)
    process.close()


def test_a_full_map_grows_under_live_readers(tmp_path: Path) -> None:
    """From 64 KB on; other processes take over what one has made larger."""
    writer, reader = IndexProcess(tmp_path, map_bytes=1 << 16), IndexProcess(tmp_path, map_bytes=1 << 16)
    keys = ByteKeys([n.to_bytes(8, "big") for n in range(40_000)])
    assert [process.ask(Op.LSN)[0] for process in (writer, reader)] == [-1, -1]
    older_index.put(tmp_path, [(keys, np.arange(40_000, dtype=np.int64))], 1)
    assert (tmp_path / "data.mdb").stat().st_size > 1 << 19
    for prefix in sorted({key[:4] for key in keys.listed()}):
        writer.ask(Op.REMOVE, [prefix], number=39_000)  # copies of pages are new ones
    writer.ask(Op.STAND_AT, number=5)
    lsn, data = reader.ask(Op.FIND, keys.packed())
    assert lsn == 5
    assert np.frombuffer(data, dtype=np.int64).tolist() == [ABSENT] * 39_000 + list(range(39_000, 40_000))
    reader.close()
    writer.close()


def test_a_table_whose_rows_are_damaged_has_no_index_and_says_which_file(tmp_path: Path) -> None:
    filled(tmp_path)
    with Served(tmp_path) as served:
        lake = served.lake
        lake.create_table("a.good", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "name": "good"}])
        uuid = lake.table("a.b").definition.uuid
    segment = damage_segment(tmp_path, uuid)
    lose(tmp_path)
    for _ in range(2):
        with Served(tmp_path) as served:
            lake = served.lake
            engine = served.engine
            until(lambda: not engine.index.state.startswith("rebuilding"), "the rebuild")  # noqa: B023
            with pytest.raises(Corrupt, match=segment.name):
                lake.table("a.b").lookup(pa.table({"id": [1]}))
            assert lake.table("a.good").lookup(pa.table({"id": [1]})).num_rows == 1
            lake.table("a.good").upsert([{"id": 2, "name": "more"}])


def test_after_a_failed_sync_the_files_are_not_used_again(tmp_path: Path) -> None:
    """Linux marks the pages clean: a second sync would succeed with data lost."""
    folder = tmp_path / "index"
    folder.mkdir()
    index = Index(folder, RealDisk())
    index.finish_rebuild(0, {})
    index.found_problem("a sync failed", damaged=True)
    with pytest.raises(Unavailable, match="being rebuilt"):
        index.begin(ByteKeys([b"\0\0\0\1key"]))
    index.begin_rebuild(3)
    index.finish_rebuild(3, {})
    assert index.lsn == 3
    assert index.ready
    assert (tmp_path / "index-damaged-1").is_dir()
    index.close()

"""The key index under faults: never a wrong answer; what is damaged is set aside and rebuilt beside serving."""

from __future__ import annotations

import errno
import os
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
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import ByteKeys
from tests.support.seeds import seeded
from tests.support.segment_places import damage_segment
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = 3_000


def filled(folder: Path) -> None:
    """A table whose index is all in a run, and a log table."""
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
    """Remove the files of the index."""
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
            with pytest.raises(Unavailable, match=r"being rebuilt, 42% done") as error, lake.within(2.0):
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
    for _ in range(int(os.environ.get("LAKESTORE_FLIPS", "4"))):
        file = sorted((tmp_path / "index").glob("*.run"))[-1]
        raw = bytearray(file.read_bytes())
        for _ in range(chance.choice((1, 400))):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        file.write_bytes(raw)
        with Served(tmp_path) as served:
            table = served.lake.table("a.b")
            assert found(table) == right, "the client asks again while the index is rebuilt"
            served.until_indexed()
    assert list(tmp_path.glob("index-damaged-*"))


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: bytes(len(raw)), lambda raw: b"no"])
def test_a_run_that_is_cut_or_no_run_at_all_is_set_aside_and_the_index_rebuilt(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    (file,) = (tmp_path / "index").glob("*.run")
    file.write_bytes(damage(file.read_bytes()))
    with Served(tmp_path) as served:
        table = served.lake.table("a.b")
        assert "rebuilt: it is damaged" in caplog.text
        served.until_indexed()
        assert found(table) == dict.fromkeys(range(KEYS), "x")
    assert (tmp_path / "index-damaged-1" / file.name).exists()


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
    index, key = Index(folder=folder, disk=RealDisk()), ByteKeys([b"\0\0\0\1key"])
    index.put(key, np.array([7]))
    index.freeze(1)
    index.merge(1)
    index.found_problem("a sync failed", damaged=True)
    with pytest.raises(Unavailable, match="being rebuilt"):
        index.begin(key)
    index.begin_rebuild(3)
    index.finish_rebuild(3, {})
    assert index.lsn == 3
    assert index.ready
    assert (tmp_path / "index-damaged-1").is_dir()


def test_a_rebuild_that_begins_again_removes_the_runs_of_the_one_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    index = Index(folder=folder, disk=RealDisk())
    for _ in range(3):
        index.begin_rebuild(3)
        index.stage(ByteKeys([b"\0\0\0\1key"]), np.array([7]))
        index.flush()
        assert len(list(folder.glob("*.run"))) == 1
    index.finish_rebuild(3, {})
    index.begin_rebuild(4)
    assert len(list(folder.glob("*.run"))) == 1, "the runs of a rebuild that ended wait for a checkpoint"


def test_damaged_files_that_were_moved_without_a_new_folder_stop_no_rebuild(tmp_path: Path) -> None:
    class FullOnce(RealDisk):
        is_full = True

        def make_folder(self, path: Path) -> None:
            if self.is_full:
                self.is_full = False
                raise OSError(errno.ENOSPC, "no space")
            super().make_folder(path)

    folder = tmp_path / "index"
    folder.mkdir()
    index = Index(folder=folder, disk=FullOnce())
    index.put(ByteKeys([b"\0\0\0\1key"]), np.array([7]))
    index.freeze(1)
    index.merge(1)
    index.found_problem("a run is damaged", damaged=True)
    with pytest.raises(OSError, match="no space"):
        index.begin_rebuild(3)
    index.begin_rebuild(3)
    index.finish_rebuild(3, {})
    assert index.ready


def test_a_rebuild_that_ends_before_a_checkpoint_merges_leaves_no_older_entry(tmp_path: Path) -> None:
    """A table beside a damaged one keeps its newer value: the frozen entries are those of before the rebuild."""
    folder = tmp_path / "index"
    folder.mkdir()
    index, key = Index(folder=folder, disk=RealDisk()), ByteKeys([b"\0\0\0\1key"])
    index.put(key, np.array([5]))
    index.freeze(1)
    merged: Any = index._merged
    merge = merged.merge

    def merge_after_a_rebuild(*arguments: Any) -> None:
        index.found_problem("a run is damaged", damaged=True)
        index.begin_rebuild(2)
        index.stage(key, np.array([9]))
        index.flush()
        index.finish_rebuild(2, {b"\0\0\0\2": "damaged"})
        merge(*arguments)

    merged.merge = merge_after_a_rebuild
    index.merge(1)
    merged.adopt()
    assert list(merged.find(key, np.array([0]), merged.levels, 0)) == [9]

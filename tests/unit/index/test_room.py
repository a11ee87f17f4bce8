"""Merges and rebuilds of the index keep `disk_free_bytes` free, say what they wait for, and go on with room."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.duties import index_rebuild
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import run_store
from lakestore_server.index.key_index import Index
from tests.support.served import Served
from tests.support.waiting import until
from tests.unit.index.test_index_faults import KEYS, SCHEMA, filled, found, lose
from tests.unit.index.test_merges_take_turns import checkpoint, keys, values

RESERVE = 1 << 30
PLENTY = 1 << 50


class Disk(RealDisk):
    """A disk with as much room as a test says."""

    free = PLENTY

    def free_bytes(self, path: Path) -> int:
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def index(tmp_path: Path, disk: Disk) -> Index:
    (tmp_path / "index").mkdir()
    return Index(folder=tmp_path / "index", disk=disk, disk_free_bytes=RESERVE)


def files(index: Index, tmp_path: Path) -> int:
    """The runs that look-ups search, which are all the files there are."""
    assert {path.name for path in (tmp_path / "index").glob("*.run")} == {run.path.name for run in index.runs}
    return len(index.runs)


def test_a_merge_without_room_waits_and_says_so(index: Index, disk: Disk, tmp_path: Path) -> None:
    for lsn in range(1, 5):
        checkpoint(index, lsn, lsn)
    needed = sum(run.size for run in index.runs)
    disk.free = RESERVE + needed - 2_000_000
    assert not index.work(lambda _: True)
    assert files(index, tmp_path) == 4
    assert index.ready
    assert index.state == "ready; it waits for 2 MB more of free disk, because limits.disk_free_bytes stay free"
    disk.free = RESERVE + needed
    assert index.work(lambda _: True)
    assert index.state == "ready"
    checkpoint(index, 5, 5)
    assert len(index.runs) == 2


def test_fewer_runs_are_merged_if_there_is_no_room_for_all(index: Index, disk: Disk) -> None:
    for lsn in range(1, 10):
        checkpoint(index, lsn, lsn)
    oldest = index.runs[-1]
    disk.free = RESERVE + 8 * oldest.size
    assert index.work(lambda _: True)
    assert len(index.runs) == 2
    assert index.runs[-1] is oldest


def test_a_merge_ends_early_if_others_take_the_room(index: Index, disk: Disk, tmp_path: Path) -> None:
    for lsn in range(1, 5):
        checkpoint(index, lsn, lsn)

    def commits_meanwhile(_entries: int) -> bool:
        disk.free = RESERVE - 1
        return True

    assert not index.work(commits_meanwhile)
    assert files(index, tmp_path) == 4, "nothing is left of the merge"
    assert "waits for 1 MB" in index.state


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_rebuild_without_room_for_merges_leaves_its_runs_unmerged(
    index: Index, disk: Disk, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "REBUILT_MAX", 1)
    index.found_problem("it is lost", damaged=False)
    index.begin_rebuild(1)
    disk.free = RESERVE
    if when == "during":
        monkeypatch.setattr(index._merged._runs, "lacking_room", lambda nbytes: int(not nbytes))
    for value in range(5):
        index.stage(keys(), values(value))
        index.flush()
    index.finish_rebuild(1, {})
    assert files(index, tmp_path) == 5
    assert set(index.find(keys()).tolist()) == {4}


def test_a_rebuild_waits_for_room(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_rebuild, "ROOM_SECONDS", 0.01)
    filled(tmp_path)
    lose(tmp_path)
    disk.free = 0
    with Served(tmp_path, disk=disk) as served:
        index = served.engine.index
        until(lambda: "MB more of free disk" in index.state, "the rebuild that waits")
        assert index.state.startswith("rebuilding, 0% done")
        assert not list((tmp_path / "index").glob("*.run"))
        disk.free = PLENTY
        served.until_indexed()
        assert index.state == "ready"
        assert found(served.lake.table("a.b")) == dict.fromkeys(range(KEYS), "x")


def test_a_server_that_waits_for_room_ends(tmp_path: Path, disk: Disk) -> None:
    filled(tmp_path)
    lose(tmp_path)
    disk.free = 0
    with Served(tmp_path, disk=disk) as served:
        until(lambda: "MB more of free disk" in served.engine.index.state, "the rebuild that waits")


def test_the_duty_merges_when_there_is_room_again(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_rebuild, "ROOM_SECONDS", 0.01)
    with Served(tmp_path, disk=disk) as served:
        table, index = served.lake.create_table("a.b", SCHEMA, primary_key=["id"]), served.engine.index
        with monkeypatch.context() as patch:
            patch.setattr(IndexMerger, "wake", lambda self: None)
            for first in range(4):
                table.upsert(pa.table({"id": range(first, 300), "name": [str(first)] * (300 - first)}, SCHEMA))
                served.checkpoint()
        disk.free = 0
        merger = served.server.upkeep._merger
        merger.wake()
        until(lambda: index.is_lacking_room, "a merge that waits")
        assert len(index.runs) == 4
        disk.free = PLENTY
        until(lambda: len(index.runs) == 1, "the merge")
        until(lambda: index.state == "ready", "the state")

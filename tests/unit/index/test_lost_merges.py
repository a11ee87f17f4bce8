"""A merge whose process dies costs that merge: it is tried a few times, then seldom, and nothing counts as damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Unavailable
from lakestore_server.duties import index_rebuild
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import run_store
from lakestore_server.index.key_index import Index
from lakestore_server.index.merge_apart import Merge, MergeLost, merge_apart
from tests.support.served import Served
from tests.unit.index.test_merges_take_turns import KEYS, checkpoint, keys, rebuilt, values

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Merge]:
    """The merges that a process was asked for. Each process ends by SIGSEGV."""
    asked: list[Merge] = []

    def lost(wanted: Merge, _pause: Callable[[int], bool]) -> bool:
        asked.append(wanted)
        raise MergeLost("the process of a merge of index runs was ended by SIGSEGV: try again")

    monkeypatch.setattr(run_store, "APART_MIN", 1)
    monkeypatch.setattr(run_store, "merge_apart", lost)
    return asked


@pytest.fixture
def index(tmp_path: Path) -> Index:
    (tmp_path / "index").mkdir()
    return Index(folder=tmp_path / "index", disk=RealDisk())


def test_the_duty_tries_three_times_then_with_each_sweep_and_status_says_so(
    tmp_path: Path, tries: list[Merge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexMerger, "wake", lambda self: None)
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        for first in range(4):
            table.upsert(pa.table({"id": range(first, 300), "v": [first] * (300 - first)}, SCHEMA))
            served.checkpoint()
        index, merge = served.engine.index, served.server.upkeep.merge_index
        for _ in range(run_store.LOST_MAX):
            assert index.state == "ready"
            with pytest.raises(Unavailable, match="SIGSEGV"):
                merge()
        merge()
        merge()
        assert len(tries) == run_store.LOST_MAX
        assert index.ready
        assert index.state == (
            "ready; its runs are not merged, 3 tries in a row failed: "
            "the process of a merge of index runs was ended by SIGSEGV: try again"
        )
        assert len(index.runs) == len(list((tmp_path / "index").glob("*.run"))) == 4, "nothing is left of the merges"
        with monkeypatch.context() as patch:
            patch.setattr(index_rebuild, "SWEEP_SECONDS", 0.0)
            with pytest.raises(Unavailable, match="SIGSEGV"):
                merge()
            patch.setattr(run_store, "merge_apart", merge_apart)
            merge()
        assert (index.state, len(index.runs)) == ("ready", 1)
        assert table.lookup(pa.table({"id": range(300)})).num_rows == 300


def test_a_rebuild_goes_on_with_its_runs_unmerged(
    index: Index, tmp_path: Path, tries: list[Merge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "REBUILT_MAX", 1)
    checkpoint(index, 1, 1)
    index.found_problem("it is lost", damaged=False)
    index.begin_rebuild(1)
    for value in range(10):
        index.stage(keys(), values(value))
        index.flush()
    index.finish_rebuild(1, {})
    assert len(tries) == run_store.LOST_MAX
    assert index.ready
    assert len(index.runs) == 10
    assert index.find(keys()).tolist() == [9] * KEYS
    assert not list(tmp_path.glob("index-damaged-*"))


def test_a_run_that_was_cut_short_under_the_process_is_damage(index: Index, tries: list[Merge]) -> None:
    """The process ends by SIGBUS, and the size says why."""
    for lsn in range(1, 5):
        checkpoint(index, lsn, lsn)
    path = index.runs[1].path
    os.truncate(path, index.runs[1].size - 1)
    assert not index.work(lambda _: True)
    assert len(tries) == 1
    assert not index.ready
    assert f"it is damaged: run {path.name} of the index is missing or cut short" in index.state
    rebuilt(index, 4)()
    assert index.ready

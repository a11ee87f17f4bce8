"""Merges beside serving, rebuilds, checkpoints: one process merges at most, and no checkpoint waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lakestore_server.host.disk import RealDisk
from lakestore_server.index import run_merge, run_store
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import NumberKeys
from lakestore_server.index.run import Run

SECONDS = 20.0
KEYS = 50


def keys() -> NumberKeys:
    return NumberKeys(table_prefix(1), 8, np.arange(KEYS, dtype=np.uint64))


def values(value: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.full(KEYS, value, dtype=np.int64)


def checkpoint(index: Index, lsn: int, value: int) -> None:
    with index.lock:
        index.put(keys(), values(value))
    index.freeze(lsn)
    index.merge(lsn)
    index.merged()
    index.named(index.to_name())


@pytest.fixture
def index(tmp_path: Path) -> Index:
    (tmp_path / "index").mkdir()
    return Index(folder=tmp_path / "index", disk=RealDisk())


def rebuilt(index: Index, lsn: int) -> Callable[[], None]:
    """A rebuild of three parts, the last of which holds, each a run of its own and merged with those before."""

    def rebuild() -> None:
        index.begin_rebuild(lsn)
        for value in (7, 8, 9):
            index.stage(keys(), values(value))
            index.flush()
        index.finish_rebuild(lsn, {})

    return rebuild


def begun(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that works, and what went wrong there."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, wrong


def test_a_rebuild_does_not_ask_a_process_that_is_merging(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is lost in the middle of a merge: that one ends, and those of the rebuild follow it."""
    monkeypatch.setattr(run_store, "APART_MIN", 1)
    monkeypatch.setattr(run_store, "REBUILT_MAX", 1)
    for lsn in range(1, 5):
        checkpoint(index, lsn, lsn)
    is_merging, may_go_on = threading.Event(), threading.Event()

    def pause(_entries: int) -> bool:
        is_merging.set()
        return may_go_on.wait(SECONDS)

    merging, of_merge = begun(lambda: index.work(pause))
    assert is_merging.wait(SECONDS)
    index.found_problem("it is lost", damaged=False)
    rebuilding, of_rebuild = begun(rebuilt(index, 4))
    rebuilding.join(0.3)
    may_go_on.set()
    for thread in (merging, rebuilding):
        thread.join(SECONDS)
    assert (of_merge, of_rebuild) == ([], [])
    assert index.find(keys()).tolist() == [9] * KEYS
    assert [run.entries for run in index.runs] == [KEYS]


def test_a_checkpoint_does_not_wait_for_the_merge_of_a_rebuild(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "REBUILT_MAX", 1)
    is_merging, may_go_on = threading.Event(), threading.Event()
    merge = run_merge.merge

    def held(*about: object) -> bool:
        is_merging.set()
        assert may_go_on.wait(SECONDS)
        return merge(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(run_store, "merge", held)
    checkpoint(index, 1, 1)
    index.found_problem("it is lost", damaged=False)
    rebuilding, of_rebuild = begun(rebuilt(index, 1))
    assert is_merging.wait(SECONDS)
    checkpointing, of_checkpoint = begun(lambda: checkpoint(index, 2, 2))
    checkpointing.join(SECONDS / 2)
    is_held_up = checkpointing.is_alive()
    may_go_on.set()
    rebuilding.join(SECONDS)
    assert not is_held_up
    assert (of_checkpoint, of_rebuild) == ([], [])
    found = {path.name for path in index.runs[0].path.parent.glob("*.run")}
    assert found >= {run.path.name for run in index.runs}


def test_a_checkpoint_ends_though_another_thread_removes_the_same_run(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the merge of a rebuild does with its inputs, between the checkpoint's look at the folder and its removal."""
    for lsn in (1, 2):
        checkpoint(index, lsn, lsn)
    store = index._merged._runs
    listed = RealDisk.list
    spare = store._folder / "000000000099.run"
    spare.touch()

    def then_removed(disk: RealDisk, path: Path) -> list[str]:
        names = listed(disk, path)
        store._remove(spare)
        return names

    monkeypatch.setattr(RealDisk, "list", then_removed)
    index.named(index.to_name())
    assert not spare.exists()
    assert len(index.runs) == 2


def test_a_run_of_a_rebuild_is_named_before_a_checkpoint_may_remove_it(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint ends right after each file of a rebuild is durable."""
    monkeypatch.setattr(run_store, "REBUILT_MAX", 1)
    checkpoint(index, 1, 1)
    index.found_problem("it is lost", damaged=False)
    named = run_store.RunStore._named

    def then_removed(store: run_store.RunStore, path: Path) -> Run:
        made = named(store, path)
        index.named(index.to_name())
        return made

    monkeypatch.setattr(run_store.RunStore, "_named", then_removed)
    rebuilt(index, 1)()
    assert all(run.path.exists() for run in index.runs)
    assert index.find(keys()).tolist() == [9] * KEYS

"""Keys that a release before left in LMDB are lifted into runs beside serving, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.worker import Worker
from lakestore_server.index import lmdb_keys, merged_keys
from lakestore_server.index.entry import ABSENT, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import encoded
from tests.model.harness import Harness
from tests.model.test_merging_runs import KEYS
from tests.support import golden
from tests.support.older_index import entries_in_lmdb
from tests.support.served import Served

OLD = golden.FOLDER / "data-0.3.0.dev0.tar.xz"
ROWS = 60
POINTS = (
    (CrashPoint.RUN_WRITTEN, 0),
    (CrashPoint.RUN_DURABLE, 1),
    (CrashPoint.RUN_LIFTED, 0),
    (CrashPoint.RUN_LIFTED, 2),
    (CrashPoint.RUN_MERGED, 0),
    (CrashPoint.CHECKPOINT_DURABLE, 0),
    (CrashPoint.INDEX_FREED, 0),
    (CrashPoint.INDEX_FREED, 3),
)
"""Points, and how often each is passed before power goes there."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries in each slice, run and removal; merges when the test asks for them."""
    monkeypatch.setattr(IndexMerger, "wake", lambda self: None)
    monkeypatch.setattr(merged_keys, "SLICE_KEYS", 7)
    monkeypatch.setattr(merged_keys, "PART_BYTES", 400)
    monkeypatch.setattr(lmdb_keys, "_REMOVE_KEYS", 9)


def in_lmdb(index: Index, number: int) -> bool:
    """Whether LMDB has entries of a table."""
    index._merged._lmdb.forget_highest()
    return index._merged._lmdb.has(table_prefix(number))


def test_a_folder_of_the_release_before_is_lifted_and_right(tmp_path: Path) -> None:
    data = golden.unpacked(OLD, tmp_path)
    with Served(data) as served:
        table, index = served.lake.table("shop.orders"), served.engine.index
        number = served.state("shop.orders").table.number
        assert in_lmdb(index, number)
        right = {row["order_id"]: row for row in table.scan().to_arrow().to_pylist()}
        gone = min(right)
        for _ in range(2):
            table.delete([{"order_id": gone}])
            right.pop(gone, None)
            served.checkpoint()
            served.server.upkeep.merge_index()
        assert not in_lmdb(index, number)
        asked = table.lookup([{"order_id": i} for i in range(600)]).to_pylist()
        assert {row["order_id"]: row for row in asked} == right
        assert not served.server.upkeep.scrubber.run_once()


class Old:
    """A server over a folder whose keys are in LMDB; deletes and updates of some lie in a run above."""

    def __init__(self, folder: Path, keys: str) -> None:
        kind, self.key = KEYS[keys]
        with entries_in_lmdb():
            self.harness = Harness(folder, Limits(index_cache_keys=0))
            schema = pa.schema([("id", kind), ("v", pa.int32())])
            self.harness.lake.create_table("t.one", schema, primary_key=["id"], buckets=3)
            rows = [{"id": self.key(i), "v": i} for i in range(ROWS)]
            self._table.upsert(pa.Table.from_pylist(rows, schema))
            self.harness.server.upkeep.checkpoint()
        self._table.upsert([{"id": self.key(1), "v": -1}])
        self._table.delete([{"id": self.key(2)}])
        self.harness.server.upkeep.checkpoint()
        self._table.upsert([{"id": self.key(3), "v": -3}])
        self.right = {self.key(i): i for i in range(ROWS)} | {self.key(1): -1, self.key(3): -3}
        del self.right[self.key(2)]

    @property
    def _table(self) -> ls.Table:
        return self.harness.lake.table("t.one")

    def work(self) -> None:
        """Merge, lift, remove: with the checkpoints between."""
        for _ in range(3):
            self.harness.server.upkeep.merge_index()
            self.harness.server.upkeep.checkpoint()

    def check(self) -> None:
        """Every key, and no other, is found; the index has what the log says."""
        found = self._table.lookup([{"id": self.key(i)} for i in range(ROWS + 3)]).to_pylist()
        assert {row["id"]: row["v"] for row in found} == self.right
        assert not self.harness.server.upkeep.scrubber.run_once()


@pytest.fixture(params=KEYS)
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Old]:
    made = Old(tmp_path, request.param)
    yield made
    made.harness.stop()


@pytest.mark.parametrize(("point", "passes"), POINTS)
def test_power_may_go_at_every_step(old: Old, point: CrashPoint, passes: int) -> None:
    old.harness.disk.lose_power_at(point, passes)
    try:
        old.work()
    except (OSError, LakestoreError):
        assert not old.harness.disk.powered
    assert not old.harness.disk.powered, f"{point} was not reached"
    old.harness.crash(passes or None)
    old.check()
    old.work()
    old.check()
    assert not in_lmdb(old.harness.server.engine.index, 1)
    old.harness.kill()
    old.check()


def test_a_table_dropped_while_it_is_lifted_leaves_nothing(old: Old) -> None:
    index = old.harness.server.engine.index
    old.harness.server.upkeep.merge_index()
    old.harness.lake.drop_table("t.one", purge=True)
    old.harness.server.dropped.run_once()
    old.work()
    assert not in_lmdb(index, 1)
    assert not index.size.entries


def test_a_rebuild_while_a_table_is_lifted_begins_anew(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    index = old.harness.server.engine.index
    add = index._merged._runs.add_oldest

    def added(*args: object) -> None:
        add(*args)  # type: ignore[arg-type]
        index._health.found_problem("a test says so", damaged=False)

    with monkeypatch.context() as patch:
        patch.setattr(index._merged._runs, "add_oldest", added)
        old.harness.server.upkeep.merge_index()
    old.harness.await_index()
    old.check()
    old.work()
    old.check()


@pytest.mark.parametrize("is_damaged", [True, False])
def test_power_goes_after_a_rebuild_that_no_checkpoint_has_named(
    old: Old, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """LMDB has nothing any more, and the checkpoint names no runs: the next start rebuilds once more."""
    monkeypatch.setattr(Worker, "wake", lambda self: None if self._name == "checkpoint" else self._wanted.set())
    old.harness.server.engine.index.found_problem("a test says so", damaged=is_damaged)
    old.harness.await_index()
    old.check()
    old.harness.crash(None)
    old.check()
    old.harness.server.upkeep.checkpoint()
    old.harness.kill()
    assert old.harness.server.engine.index.ready
    old.check()


def test_a_look_up_that_began_before_its_table_was_lifted_is_told_to_begin_again(old: Old) -> None:
    """LMDB's LSN says nothing of the removal; without the refusal the key would be absent."""
    index = old.harness.server.engine.index
    keys = encoded([pa.array([old.key(5)])], table_prefix(1))
    old.harness.server.upkeep.checkpoint()
    with index.lock:
        early, late = index.begin(keys), index.begin(keys)
    old.harness.server.upkeep.merge_index()
    right = index.find(keys).tolist()
    assert index.finish(early).tolist() == right != [ABSENT], "not removed yet"
    old.work()
    with pytest.raises(Unavailable, match="look up again"):
        index.finish(late)
    assert index.find(keys).tolist() == right

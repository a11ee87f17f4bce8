"""Merges of runs beside everything else: dropped tables, rebuilds, failing disks, lost and damaged runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.worker import Worker
from lakestore_server.index.run_file import NamedRuns
from tests.model.harness import Harness
from tests.support.seeds import seeded
from tests.support.waiting import until

SIZE = 50
"""Keys of each checkpoint."""


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges when the test asks for them."""
    monkeypatch.setattr(IndexMerger, "wake", lambda self: None)


Key = Callable[[int], object]
KEYS: dict[str, tuple[pa.DataType, Key]] = {
    "numbers": (pa.int64(), int),
    "bytes": (pa.string(), lambda n: "key " * (n % 4) + str(n)),
}


class Runs:
    """A table with a few runs, none merged yet, and the rows that are right."""

    def __init__(self, folder: Path, keys: str) -> None:
        self.chance = seeded(11)
        self.harness = Harness(folder, Limits(index_cache_keys=0))
        kind, self.key = KEYS[keys]
        self.schema = pa.schema([("id", kind), ("v", pa.int32())])
        self.harness.lake.create_table("t.one", self.schema, primary_key=["id"], buckets=3)
        self.right: dict[object, int] = {}
        for _ in range(4):
            self.write()
            self.harness.server.upkeep.checkpoint()
        self.merged = len(self.right)
        self.write()

    def write(self) -> None:
        """Rows of old and new keys, and deletes."""
        table = self.harness.lake.table("t.one")
        rows = {self.key(self.chance.randrange(6 * SIZE)): self.chance.randrange(99) for _ in range(SIZE)}
        table.upsert(pa.table({"id": list(rows), "v": list(rows.values())}, self.schema))
        gone = self.chance.sample(list(rows), 9)
        table.delete([{"id": key} for key in gone])
        self.right |= rows
        for key in gone:
            del self.right[key]

    def check(self) -> None:
        """Every key is found, no other, and the index has what the log says."""
        found = self.harness.lake.table("t.one").lookup([{"id": self.key(i)} for i in range(6 * SIZE)]).to_pylist()
        assert {row["id"]: row["v"] for row in found} == self.right
        assert not self.harness.server.upkeep.scrubber.run_once()

    def during(self, deed: Callable[[], object]) -> None:
        """A merge, and after its first slice that deed."""
        done: list[object] = []
        index = self.harness.server.engine.index

        def pause(_entries: int) -> bool:
            if not done:
                done.append(True)
                deed()
            return True

        while index.work(pause):
            pass
        assert done

    @property
    def folder(self) -> Path:
        """The index's."""
        return self.harness.disk.root / "index"

    def files(self) -> list[Path]:
        """The runs in the folder."""
        return sorted(self.folder.glob("*.run"))


@pytest.fixture(params=KEYS)
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runs]:
    made = Runs(tmp_path, request.param)
    yield made
    made.harness.stop()


def test_a_merge_changes_no_answer_and_old_runs_go_with_the_next_checkpoint(runs: Runs) -> None:
    assert len(runs.files()) == 4
    runs.check()
    runs.harness.server.upkeep.merge_index()
    runs.check()
    assert len(runs.files()) == 5, "the checkpoint still names the four"
    (run,) = runs.harness.server.engine.index.runs
    assert run.entries == runs.merged, "deletes leave nothing at the bottom"
    runs.harness.server.upkeep.checkpoint()
    assert len(runs.files()) == 2
    runs.harness.kill()
    runs.check()


def test_checkpoints_and_commits_go_on_during_a_merge(runs: Runs) -> None:
    def go_on() -> None:
        runs.write()
        runs.harness.server.upkeep.checkpoint()
        runs.write()
        runs.check()

    runs.during(go_on)
    runs.check()
    runs.harness.crash(None)
    runs.check()


def test_a_merge_within_a_checkpoint_leaves_the_runs_that_it_names(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    index = runs.harness.server.engine.index
    name = index.to_name

    def named() -> NamedRuns:
        made = name()
        runs.harness.server.upkeep.merge_index()
        return made

    monkeypatch.setattr(index, "to_name", named)
    runs.harness.server.upkeep.checkpoint()
    before = runs.harness.disk.reached[CrashPoint.REBUILD_FINISHED]
    runs.harness.kill()
    assert runs.harness.disk.reached[CrashPoint.REBUILD_FINISHED] == before, "nothing that it names was lost"
    runs.check()


def test_a_table_dropped_during_a_merge_leaves_nothing(runs: Runs) -> None:
    def drop() -> None:
        runs.harness.lake.drop_table("t.one", purge=True)
        runs.harness.server.dropped.run_once()
        runs.harness.server.upkeep.checkpoint()

    runs.during(drop)
    for _ in range(2):
        runs.harness.server.upkeep.merge_index()
        runs.harness.server.upkeep.checkpoint()
    assert not runs.harness.server.engine.index.size.entries
    assert not runs.files()


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_rebuild_during_a_merge_makes_it_void(runs: Runs, *, is_damaged: bool) -> None:
    def rebuild() -> None:
        runs.harness.server.engine.index.found_problem("a test says so", damaged=is_damaged)
        runs.harness.await_index()

    try:
        runs.during(rebuild)
    except OSError:
        assert is_damaged, "the folder was set aside, with the file that was being written"
    runs.check()
    runs.harness.server.upkeep.checkpoint()
    runs.harness.crash(None)
    runs.check()
    assert runs.harness.server.engine.index.ready


def test_a_rebuild_asks_for_the_checkpoint_that_names_its_runs(runs: Runs) -> None:
    index, figures = runs.harness.server.engine.index, runs.harness.server.upkeep.checkpointer.figures
    before = figures.seconds.count
    index.found_problem("a test says so", damaged=True)
    runs.harness.await_index()
    until(lambda: figures.seconds.count > before, "the checkpoint")
    rebuilds = runs.harness.disk.reached[CrashPoint.REBUILD_FINISHED]
    runs.harness.kill()
    assert runs.harness.disk.reached[CrashPoint.REBUILD_FINISHED] == rebuilds, "one is enough"
    runs.check()


@pytest.fixture
def _no_checkpoint_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    wake = Worker.wake
    monkeypatch.setattr(Worker, "wake", lambda self: None if self._name == "checkpoint" else wake(self))


@pytest.mark.usefixtures("_no_checkpoint_by_itself")
@pytest.mark.parametrize("is_damaged", [True, False])
def test_power_goes_after_a_rebuild_that_no_checkpoint_has_named(
    runs: Runs, caplog: pytest.LogCaptureFixture, *, is_damaged: bool
) -> None:
    """The runs that the checkpoint names are not the index any more: the next start rebuilds once more."""
    runs.harness.server.engine.index.found_problem("a test says so", damaged=is_damaged)
    runs.harness.await_index()
    runs.check()
    runs.write()
    runs.harness.crash(None)
    assert "no checkpoint names the rebuilt one" in caplog.text
    runs.check()
    runs.harness.server.upkeep.checkpoint()
    caplog.clear()
    runs.harness.kill()
    assert "rebuilt" not in caplog.text
    runs.check()


@pytest.mark.usefixtures("_no_checkpoint_by_itself")
def test_a_checkpoint_that_named_other_runs_leaves_the_mark_of_a_rebuild(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rebuild ends while the checkpoint is written."""
    index = runs.harness.server.engine.index
    name = index.to_name

    def named() -> NamedRuns:
        made = name()
        index.found_problem("a test says so", damaged=False)
        runs.harness.await_index()
        return made

    monkeypatch.setattr(index, "to_name", named)
    runs.harness.server.upkeep.checkpoint()
    runs.harness.crash(None)
    assert "no checkpoint names the rebuilt one" in caplog.text
    runs.check()


def test_every_kind_of_step_of_a_merge_fails_once(runs: Runs) -> None:
    """Nothing of it is left but what the next checkpoint removes."""
    for what in ("create", "write", "sync", "sync_folder", "map"):
        runs.harness.disk.fail(what)
        try:
            runs.harness.server.upkeep.merge_index()
        except (OSError, LakestoreError):
            runs.check()
        runs.harness.disk.heal()
    runs.check()
    runs.harness.server.upkeep.checkpoint()
    runs.harness.crash(None)
    runs.check()


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def _another(path: Path) -> None:
    """Names come again after a restart, and old files from the dead: size and number of entries may be alike."""
    last = sorted(path.parent.glob("*.run"))[-1]
    shutil.copyfile(last, path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-3]),
        lambda file: _flip(file, 4),
        lambda file: _flip(file, 700),
        lambda file: _flip(file, file.stat().st_size - 30),
        _another,
    ],
    ids=["lost", "cut", "header", "entry", "directory", "another"],
)
def test_one_run_that_is_lost_or_damaged_costs_a_rebuild(runs: Runs, harm: Callable[[Path], object]) -> None:
    assert len(runs.files()) == 4
    runs.harness._end_process()
    harm(runs.files()[0])
    runs.harness._start()
    try:
        runs.check()
    except (Unavailable, AssertionError):  # found at first touch
        runs.harness.await_index()
    runs.check()
    runs.harness.server.upkeep.checkpoint()
    runs.harness.kill()
    assert runs.harness.server.engine.index.ready, "no second rebuild"
    runs.check()

"""Power goes, and the index with it, at every step of a checkpoint that compacts: what lives is found, and no more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from tests.model.harness import Harness
from tests.model.model import Change, Model


class Told:
    """Several segments below the log start, most of whose rows are dead, some by records of other segments."""

    def __init__(self, folder: Path) -> None:
        self.harness = Harness(folder, Limits(segment_rows=24))
        self.model = Model()
        self.model.tables["t.one"] = self.harness.create("t.one")
        self.sequence = 0
        for round_ in range(3):
            self.write("upsert", tuple((i, round_) for i in range(24)))
            self.write("upsert", tuple((i, 10 + round_) for i in range(0, 24, 3)))
            self.write("delete", tuple((i,) for i in range(round_, 24, 7)))
            self.harness.server.upkeep.checkpoint()
        self.harness.move_log_start("t.one")
        self.write("upsert", ((0, 99), (50, 99)))

    def write(self, kind: str, rows: tuple[tuple[object, ...], ...]) -> None:
        commit = (Change("t.one", kind, rows),)  # type: ignore[arg-type]
        self.harness.commit(self.harness.request(commit, self.sequence + 1, self.model.tables))
        self.sequence += 1
        self.model.commit(commit)

    def stored(self) -> int:
        return sum(c.rows for log in self.harness.server.engine.view.named("t.one").logs for c in log.chunks)


def steps_of_a_compaction(folder: Path) -> int:
    told = Told(folder)
    before, rows = len(told.harness.disk.steps), told.stored()
    told.harness.server.upkeep.checkpoint()
    assert told.stored() < rows / 2
    told.harness.stop()
    return len(told.harness.disk.steps) - before


@pytest.mark.timeout(600)
def test_the_index_is_lost_between_any_two_steps_of_a_compaction(tmp_path: Path) -> None:
    for step in range(0, steps_of_a_compaction(tmp_path / "count") + 1, 2):
        told = Told(tmp_path / str(step))
        told.harness.disk.lose_power_after(step)
        with suppress(OSError, LakestoreError):
            told.harness.server.upkeep.checkpoint()
        told.harness.crash(step, lost=["index"])
        told.harness.check(told.model.tables)
        told.harness.compact()
        told.harness.check(told.model.tables)
        assert told.stored() < 60
        told.harness.stop()

"""Local compaction against the model: log starts move anywhere, power and indexes are lost, and nothing is noticed.

Invariants 3 to 5: records never change, one live version of a key, and base with fold is what a scan gives.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakestore.errors import LakestoreError, PositionExpired
from lakestore.evolution import AddColumn
from lakestore.model.token import position_of
from lakestore_server.segments import compaction
from lakestore_server.segments.compaction import Base
from tests.model.harness import IN_PLACE, SCHEMAS, Harness
from tests.model.model import Change, Field, Model, Row

NAMES = ("t.one", "t.two")
TABLES = st.sampled_from(NAMES)
SEEDS = st.none() | st.integers(0, 1 << 16)
LOST: st.SearchStrategy[list[str]] = st.sampled_from([[], ["index"]])
BUDGETS = st.sampled_from([1, 4_000, 1 << 20])
NUMBERS = st.integers(0, 30)


def _row(name: str, number: int, value: int, *, key: bool) -> Row:
    row: Row = (number, value) if name == "t.one" else ("abc"[number % 3], number // 3, value)
    return row[: SCHEMAS[name][1]] if key else row


class CompactionMachine(RuleBasedStateMachine):
    """Two primary-key tables whose keys come again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-compaction-"))
        self.model = Model()
        self.sequence = self.value = 0
        self.tokens: list[str] = []

    @initialize(
        budget=BUDGETS,
        shared=st.sampled_from([0, 0, 1 << 20]),
        merged=st.sampled_from([2, 2, 3]),
        beside=st.sampled_from([0, 0, 2_000, math.inf]),
    )
    def begin(self, budget: int, shared: int, merged: int, beside: float) -> None:
        self.patched = patch.object(compaction, "beside_bytes", lambda limits: beside)
        self.patched.start()
        rows = 64 if shared else 8  # so that there are segments that checkpoints leave as they are
        limits = replace(IN_PLACE, segment_rows=rows, compaction_bytes=budget, shared_segment_bytes=shared)
        self.harness = Harness(self.folder, replace(limits, merge_bytes=0, merge_segments=merged))
        for name in NAMES:
            self.model.tables[name] = self.harness.create(name)

    def teardown(self) -> None:
        try:
            if self.model.tables:
                self.check_everything()
                self.harness.stop()
        finally:
            self.patched.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def change(self, name: str, numbers: list[int], *, delete: bool = False) -> Change:
        table = self.model.tables[name]
        rows = []
        for number in numbers:
            self.value += 1
            row = _row(name, number, self.value, key=delete)
            rows.append(row if delete or not table.schema_id else (*row, self.value))
        return Change(name, "delete" if delete else "upsert", tuple(rows), table.schema_id)

    @rule(name=TABLES, numbers=st.lists(NUMBERS, min_size=1, max_size=40), delete=st.booleans())
    def write(self, name: str, numbers: list[int], delete: bool) -> None:
        commit = [self.change(name, numbers, delete=delete and len(numbers) < 20)]
        answer = self.harness.commit(self.harness.request(commit, self.sequence + 1, self.model.tables))
        self.sequence += 1
        self.model.commit(commit)
        self.model.remember(answer.token)
        self.tokens = [*self.tokens[-3:], answer.token]

    @rule(name=TABLES)
    def alter(self, name: str) -> None:
        table = self.model.tables[name]
        if not table.schema_id:
            new = Field(len(table.fields) + 1, "more", "int32")
            self.harness.lake.table(name).alter(AddColumn(new.name, new.type))
            table.alter((*table.fields, new))

    @rule(name=TABLES, part=st.floats(0, 1))
    def move_log_start(self, name: str, part: float) -> None:
        view = self.harness.server.engine.view
        first = view.named(name).log_start_lsn
        self.harness.move_log_start(name, first + round((view.lsn - first) * part))

    @rule()
    def compact(self) -> None:
        self.harness.compact()

    @rule()
    def checkpoint(self) -> None:
        self.harness.server.upkeep.checkpoint()

    def cut_some(self, name: str, numbers: list[int]) -> None:
        """Some checkpoints with rows in each."""
        for _ in range(3):
            self.write(name, numbers, delete=False)
            self.checkpoint()

    @rule(name=TABLES, numbers=st.lists(NUMBERS, min_size=15, max_size=40))
    def merge(self, name: str, numbers: list[int]) -> None:
        """Files that the next checkpoint names, if what they were made of is still there."""
        self.cut_some(name, numbers)
        self.harness.server.upkeep.checkpointer.merger.run_once()

    @rule(name=TABLES, numbers=st.lists(NUMBERS, min_size=15, max_size=40), steps=st.integers(0, 12), seed=SEEDS)
    def lose_power_in_a_merge(self, name: str, numbers: list[int], steps: int, seed: int | None) -> None:
        self.cut_some(name, numbers)
        self.harness.disk.lose_power_after(steps)
        with suppress(LakestoreError, OSError):
            self.harness.server.upkeep.checkpointer.merger.run_once()
        self.harness.crash(seed)

    @rule(name=TABLES)
    def compact_beside(self, name: str) -> None:
        """Runs that a checkpoint leaves to be rewritten beside, with more to come meanwhile."""
        self.harness.move_log_start(name)
        self.checkpoint()
        self.harness.server.upkeep.checkpointer.merger.run_once()

    @rule(name=TABLES, steps=st.integers(0, 12), seed=SEEDS)
    def lose_power_beside(self, name: str, steps: int, seed: int | None) -> None:
        self.harness.move_log_start(name)
        self.checkpoint()
        self.harness.disk.lose_power_after(steps)
        with suppress(LakestoreError, OSError):
            self.harness.server.upkeep.checkpointer.merger.run_once()
        self.harness.crash(seed)

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule(seed=SEEDS, lost=LOST)
    def crash(self, seed: int | None, lost: list[str]) -> None:
        self.harness.crash(seed, lost=lost)

    @rule(steps=st.integers(0, 25), seed=SEEDS, lost=LOST)
    def lose_power_in_a_checkpoint(self, steps: int, seed: int | None, lost: list[str]) -> None:
        self.harness.disk.lose_power_after(steps)
        with suppress(LakestoreError, OSError):
            self.harness.server.upkeep.checkpoint()
        self.harness.crash(seed, lost=lost)

    @rule(steps=st.integers(0, 12))
    def fail_a_step_of_a_checkpoint(self, steps: int) -> None:
        if not self.harness.checkpoint_failing_after(steps):
            self.harness.crash(None)

    @rule()
    def lose_the_index(self) -> None:
        self.harness.server.engine.index.found_problem("a test says so", damaged=False)
        self.harness.await_index()

    @rule()
    def check_everything(self) -> None:
        """What holds at any moment, and every cut that is still served."""
        self.harness.check(self.model.tables)
        starts = {name: self.harness.server.engine.view.named(name).log_start_lsn for name in NAMES}
        for token in self.tokens:
            for name in NAMES:
                if position_of(token).lsn < starts[name]:
                    with pytest.raises(PositionExpired):
                        self.harness.scan(name, at=token)
                else:
                    assert self.harness.scan(name, at=token) == self.model.cuts[token][name]

    @invariant()
    def whatever_is_dead_is_named(self) -> None:
        """Of the stored rows exactly as many live as the log says; what a bucket may lose is what its records say."""
        if not self.model.tables:
            return
        for name in NAMES:
            for log in self.harness.server.engine.view.named(name).logs:
                base = Base()
                base.advance(log, 0, 0)
                stored = sum(len(o) for o, _, _ in log.stored(0, log.base.end))
                assert stored - len(base.dead) == log.base.live_rows


CompactionMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "4")),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestCompactionMachine = pytest.mark.timeout(600)(CompactionMachine.TestCase)

"""Every merge engine against the model, on a disk that loses power at any step.

After every step: the fold of the changelog over its base, every look-up and the scan are what the model has, and
answers count what it counts. LAKESTORE_MODEL_EXAMPLES sets how many histories are tried; a failure prints the history
that led to it, and with LAKESTORE_MODEL_SHRINK takes minutes to find a short one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestore.errors import Invalid, LakestoreError, NothingToKeep, PositionExpired
from lakestore.evolution import AddColumn, DropColumn, RenameColumn, SetOptions, Step
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from tests.model.engines import SPECS, TTL, IdRow, Mirror, Op, ops, series
from tests.model.engines_harness import COUNTS, EnginesHarness, Written
from tests.model.merging import Key

SEEDS = st.none() | st.integers(0, 1 << 16)
LOST: st.SearchStrategy[list[str]] = st.sampled_from([[], ["index"]])
NAMES = st.sampled_from(sorted(SPECS))
COMMITS = st.lists(ops(), min_size=1, max_size=4)
Served = dict[str, tuple[dict[Key, IdRow], int]]
"""Table to its rows and its version at a cut."""


class EnginesMachine(RuleBasedStateMachine):
    """Producers, a table of each kind, and power cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-engines-"))
        self.harness = EnginesHarness(self.folder)
        self.tables: dict[str, Mirror] = {}
        self.sequences: Counter[str] = Counter()
        self.last: tuple[pb.CommitRequest, pb.CommitAnswer] | None = None
        self.cuts: dict[str, Served] = {}
        self.touched: set[str] = set()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # a step that failed has left the model behind, and is what to tell
                self.harness.hold(self.tables)
            self.harness.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(commit=st.lists(ops(), min_size=10, max_size=20))
    def create(self, commit: list[Op]) -> None:
        """The tables, and some rows."""
        self.create_empty()
        self.write(commit)

    def create_empty(self) -> None:
        """The tables, without rows."""
        self.tables = self.harness.create_all()

    @invariant()
    def everything_agrees(self) -> None:
        assert self.harness.server.engine.loop.failure is None
        self.harness.hold({name: self.tables[name] for name in self.touched})
        self.touched.clear()

    # Writing

    def written(self, commit: Sequence[Op]) -> list[Written]:
        """The changes that the tables take, with the names that hold now."""
        taken = [op for op in commit if not self.tables[op.table].refuses(op.kind)]
        return [(op.table, op.kind, self.tables[op.table].rows_of(op)) for op in taken]

    def request(self, written: Sequence[Written], producer: str) -> pb.CommitRequest:
        return self.harness.commit_of(written, self.tables, producer, self.sequences[producer] + 1)

    def pairs(self, commits: Sequence[Sequence[Op]]) -> list[tuple[list[Written], pb.CommitRequest]]:
        """Requests of one producer each, without rows that have nothing to keep."""
        left, _ = self.harness.based([self.written(commit) for commit in commits], self.tables)
        return [(written, self.request(written, f"p{i}")) for i, written in enumerate(left) if written]

    def accept(self, request: pb.CommitRequest, answer: pb.CommitAnswer, written: Sequence[Written]) -> None:
        """The server has answered: the model follows, and both count alike."""
        for result, (name, kind, rows) in zip(answer.results, written, strict=True):
            expected = self.tables[name].apply(kind, rows, self.harness.committed())
            assert Counter({n: getattr(result, n) for n in COUNTS if getattr(result, n)}) == expected, (name, kind)
            assert sum(expected.values()) == len(rows)
            self.touched.add(name)
        self.sequences[request.producer] = request.sequence
        self.last = request, answer

    def remember(self, token: str) -> None:
        self.cuts[token] = {name: (m.live(), m.table.schema_id) for name, m in self.tables.items()}

    @rule(commit=COMMITS)
    def write(self, commit: list[Op]) -> None:
        written = self.written(commit)
        (left,), (baseless,) = self.harness.based([written], self.tables)
        if baseless:
            with pytest.raises(NothingToKeep) as refused:
                self.harness.commit(self.request(written, "a"))
            assert refused.value.changes == tuple(baseless)
            self.touched.update(change.table for change in baseless)
        if left:
            request = self.request(left, "a")
            answer = self.harness.commit(request)
            self.accept(request, answer, left)
            self.remember(answer.token)

    @rule(
        series=series(),
        trouble=st.sampled_from(["crash", "kill", "restart", "checkpoint", "compact", "index lost"]),
        often=st.integers(1, 3),
    )
    def write_to_one_table_with_trouble_between(self, series: list[Op], trouble: str, often: int) -> None:
        """What a change left behind, tombstones too, is what the next one finds, whatever was in between."""
        harness = self.harness
        for number, op in enumerate(series):
            self.write([op])
            if number % often:
                continue
            if trouble == "crash":
                harness.crash(number)
            elif trouble == "kill":
                harness.kill()
            elif trouble == "restart":
                harness.restart()
            elif trouble == "index lost":
                harness.crash(number, lost=["index"])
            else:
                harness.server.upkeep.checkpoint()
                if trouble == "compact":
                    self.move_the_log_start(op.table)
                    harness.compact()
        self.touched.update(SPECS)

    @rule(commits=st.lists(COMMITS, min_size=2, max_size=4))
    def write_several_together(self, commits: list[list[Op]]) -> None:
        """Requests that become one commit are merged in their order, and each is told what became of its rows."""
        pairs = self.pairs(commits)
        if not pairs:
            return
        answers = self.harness.commit_together([request for _, request in pairs])
        assert len({answer.token for answer in answers}) == 1
        for (written, request), answer in zip(pairs, answers, strict=True):
            self.accept(request, answer, written)
        self.remember(answers[0].token)

    @rule()
    @precondition(lambda self: self.last is not None)
    def retry_the_last_commit(self) -> None:
        assert self.last is not None
        request, first = self.last
        assert self.harness.commit(request) == first

    @rule(op=ops())
    def a_delete_that_is_refused(self, op: Op) -> None:
        mirror = self.tables[op.table]
        if mirror.refuses(op.kind):
            request = self.request([(op.table, op.kind, mirror.rows_of(op))], "a")
            with pytest.raises(Invalid, match="refuses deletes"):
                self.harness.commit(request)
            self.touched.add(op.table)

    @rule(commits=st.lists(COMMITS, min_size=1, max_size=3), steps=st.integers(0, 2), seed=SEEDS)
    def lose_power_in_a_commit(self, commits: list[list[Op]], steps: int, seed: int | None) -> None:
        """What is one commit is there whole or not at all, and its retry is applied exactly once."""
        pairs = self.pairs(commits)
        if not pairs:
            return
        before = deepcopy(self.tables)
        self.harness.disk.lose_power_after(steps)
        answers: list[pb.CommitAnswer] | None = None
        try:
            answers = self.harness.commit_together([request for _, request in pairs])
        except LakestoreError as error:
            assert error.applied == "unknown"
        self.harness.crash(seed)
        found = self.scanned()
        again = [self.harness.commit(request) for _, request in pairs]
        assert answers is None or again == answers, "acknowledged, then lost"
        for (written, request), answer in zip(pairs, again, strict=True):
            self.accept(request, answer, written)
        after = {name: mirror.live() for name, mirror in self.tables.items()}
        was = {name: mirror.live() for name, mirror in before.items()}
        assert found == after or (answers is None and found == was), "part of a commit"
        self.touched.update(SPECS)

    def scanned(self) -> dict[str, dict[Key, IdRow]]:
        snapshot = self.harness.lake.snapshot()
        return {
            name: {m.key_of(row): row for row in self.harness.shown(snapshot.scan(name).to_arrow(), m)}
            for name, m in self.tables.items()
        }

    # Tables change

    @rule(name=NAMES, wish=st.integers(0, 30))
    def alter(self, name: str, wish: int) -> None:
        mirror = self.tables[name]
        step = self.step(mirror, wish)
        if step is not None:
            mirror.altered(self.harness.lake.table(name).alter(step).definition)
            self.touched.add(name)

    def step(self, mirror: Mirror, wish: int) -> Step | None:
        """Columns come, go and are renamed, those of the engine, the key and the TTL too; options change."""
        table = mirror.table
        names = [column.name for column in table.columns]
        column = names[wish % len(names)]
        if wish % 5 == 0:
            return DropColumn("extra") if "extra" in names else AddColumn("extra", "int32")
        if wish % 5 == 1:
            other = column.removesuffix("_2") if column.endswith("_2") else f"{column}_2"
            return RenameColumn(column, other)
        if wish % 5 == 2:
            return SetOptions(deletes=["allow", "ignore", "refuse"][wish % 3])
        if wish % 5 == 3:
            return SetOptions(skip_unchanged=not table.skip_unchanged)
        times = [c.name for c in table.columns if c.name.startswith("at")]
        if not times:
            return None
        return SetOptions(ttl=None if table.ttl else {**TTL, "column": times[0]})

    @rule(name=NAMES)
    def move_the_log_start(self, name: str) -> None:
        self.tables[name].moved(self.harness.move_log_start(name))
        self.touched.add(name)

    @rule(name=NAMES, steps=st.integers(0, 25), seed=SEEDS)
    def lose_power_in_a_local_compaction(self, name: str, steps: int, seed: int | None) -> None:
        self.move_the_log_start(name)
        self.interrupted(self.harness.compact, steps, seed)

    @rule()
    def compact(self) -> None:
        self.harness.compact()
        self.touched.update(SPECS)

    # Time

    @rule(minutes=st.sampled_from([0, 1, 29, 31, 61]))
    def rows_expire(self, minutes: int) -> None:
        self.harness.clock.advance(minutes * 60)
        self.harness.server.expiry.run_once()
        self.follow_expiry()

    def follow_expiry(self) -> None:
        now = self.harness.now()
        self.touched.update(name for name, mirror in self.tables.items() if mirror.expire(now))

    @rule(minutes=st.sampled_from([31, 61]), steps=st.integers(0, 8), seed=SEEDS)
    def lose_power_while_rows_expire(self, minutes: int, steps: int, seed: int | None) -> None:
        self.harness.clock.advance(minutes * 60)
        self.interrupted(self.harness.server.expiry.run_once, steps, seed)
        self.harness.server.expiry.run_once()
        self.follow_expiry()

    # Trouble

    def interrupted(self, action: Callable[[], object], steps: int, seed: int | None) -> None:
        self.harness.disk.lose_power_after(steps)
        with suppress(OSError, LakestoreError):
            action()
        self.harness.crash(seed)
        self.touched.update(SPECS)

    @rule()
    def checkpoint(self) -> None:
        self.harness.server.upkeep.checkpoint()
        self.touched.update(SPECS)

    @rule(steps=st.integers(0, 25), seed=SEEDS)
    def lose_power_in_a_checkpoint(self, steps: int, seed: int | None) -> None:
        self.interrupted(self.harness.server.upkeep.checkpoint, steps, seed)

    @rule(steps=st.integers(0, 25))
    def a_step_of_a_checkpoint_fails(self, steps: int) -> None:
        if not self.harness.checkpoint_failing_after(steps):
            self.harness.crash(None)
        self.touched.update(SPECS)

    @rule(seed=SEEDS, lost=LOST)
    def crash(self, seed: int | None, lost: list[str]) -> None:
        self.harness.crash(seed, lost=lost)
        self.touched.update(SPECS)

    @rule(steps=st.integers(0, 12), first=SEEDS, second=SEEDS)
    def lose_power_in_the_recovery(self, steps: int, first: int | None, second: int | None) -> None:
        self.harness.crash_twice(steps, first, second)
        self.touched.update(SPECS)

    @rule(orderly=st.booleans())
    def start_again(self, orderly: bool) -> None:
        if orderly:
            self.harness.restart()
        else:
            self.harness.kill()
        self.touched.update(SPECS)

    # Reading back

    @rule(data=st.data(), name=NAMES)
    @precondition(lambda self: self.cuts)
    def read_an_old_cut(self, data: st.DataObject, name: str) -> None:
        """Scans, look-ups and the changes since, at and from a token; below the log start they are refused."""
        token = data.draw(st.sampled_from(sorted(self.cuts)))
        mirror = self.tables[name]
        rows, version = self.cuts[token][name]
        if position_of(token).lsn < mirror.start_lsn:
            reads: list[Any] = [self.harness.records, *([self.harness.look_up_at] if mirror.keys else [])]
            for read in reads:
                with pytest.raises(PositionExpired):
                    list(read(name, token, mirror))
            return
        scanned = self.harness.shown(self.harness.lake.table(name).scan(at=token).to_arrow(), mirror, version)
        assert {mirror.key_of(row): row for row in scanned} == rows
        if mirror.keys:
            looked_up = self.harness.look_up_at(name, token, mirror, version)
            assert looked_up == [rows[key] for key in mirror.keys if key in rows]
        base = {key: (row, version) for key, row in rows.items()}
        found = self.harness.fold_from(name, token, mirror, base)
        assert {mirror.key_of(row): row for row in found} == mirror.live()

    @rule(name=NAMES)
    def a_stream_from_the_snapshot_is_the_table(self, name: str) -> None:
        mirror = self.tables[name]
        found: list[Any] = list(self.harness.records(name, "snapshot", mirror))
        assert {change for change, *_ in found} <= {"+I"}
        assert {mirror.key_of(row): mirror.shown(row, mirror.table.schema_id) for *_, row, _ in found} == mirror.live()


EnginesMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "4")),
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
    phases=[phase for phase in Phase if phase != Phase.shrink or "LAKESTORE_MODEL_SHRINK" in os.environ],
    print_blob=True,
)
TestEnginesMachine = pytest.mark.timeout(600)(EnginesMachine.TestCase)


@pytest.mark.parametrize("table", ["e.first", "e.upsert", "e.versioned"])
def test_inserts_and_changes_of_their_rows_become_one_commit(table: str) -> None:
    """Nobody asked to see the rows that these inserts found: others may change them in the same commit."""
    machine = EnginesMachine()
    machine.create_empty()
    keys = {"e.first": ("d", "f"), "e.upsert": ("id",), "e.versioned": ("id",)}[table]
    key = {"e.first": (date(1, 1, 1), True), "e.upsert": (1,), "e.versioned": (1,)}[table]
    always = ("ver",) if table == "e.versioned" else ()
    row = Op(table, "insert", (*keys, *always), ((*key, *(0 for _ in always)),))
    steps = [row, replace(row, kind="upsert"), Op(table, "delete", keys, (key,)), row]
    try:
        for count in (2, 3, 4):
            machine.write_several_together([[step] for step in steps[:count]])
            machine.everything_agrees()
    finally:
        machine.teardown()

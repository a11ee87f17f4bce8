"""The server core against the model, on a disk that loses power at any step (invariants 1 to 5 and 8).

LAKESTORE_MODEL_EXAMPLES sets how many histories are tried; a failure prints the history that led to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound, ProducerForgotten
from lakestore.evolution import AddColumn, DropColumn, RenameColumn, Step, WidenColumn
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from tests.model.harness import SCHEMAS, Harness, batch_of
from tests.model.model import Change, Field, Kind, Model, Row, Version

SMALL = st.integers(0, 12)
TABLES = st.sampled_from(sorted(SCHEMAS))
SEEDS = st.none() | st.integers(0, 1 << 16)
LOST: st.SearchStrategy[list[str]] = st.sampled_from([[], [], ["index"]])


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Rows for one table."""
    name = draw(TABLES)
    key_columns = SCHEMAS[name][1]
    kinds: list[Kind] = ["upsert", "upsert", "delete"] if key_columns else ["append"]
    kind = draw(st.sampled_from(kinds))
    return Change(name, kind, tuple(draw(st.lists(_row(name, kind), min_size=1, max_size=6))))


def _row(name: str, kind: Kind) -> st.SearchStrategy[Row]:
    text = st.sampled_from(["", "a", "a\0", "b" * 600])
    columns: dict[str, list[st.SearchStrategy[Any]]] = {
        "t.one": [SMALL, st.none() | SMALL],
        "t.two": [text, st.integers(-2, 2), SMALL],
        "t.log": [st.none() | SMALL, text],
    }
    wanted = columns[name]
    return st.tuples(*(wanted[: SCHEMAS[name][1]] if kind == "delete" else wanted))


STEPS = st.sampled_from(["add", "drop", "rename", "widen"])
COMMITS = st.lists(changes(), min_size=1, max_size=4)


class LakeMachine(RuleBasedStateMachine):
    """One producer, three tables, and power cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-machine-"))
        self.harness = Harness(self.folder, Limits(index_cache_keys=0))
        self.model = Model()
        self.sequence = 0
        self.last: tuple[pb.CommitRequest, pb.CommitAnswer] | None = None

    def teardown(self) -> None:
        try:
            self.harness.check(self.model.tables)
            self.harness.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def tables(self) -> None:
        for name in SCHEMAS:
            self.create(name)

    def create(self, name: str) -> None:
        self.model.tables[name] = self.harness.create(name)
        self.model.cuts.clear()

    def known(self, commit: list[Change]) -> list[Change]:
        """The changes whose tables exist, in the version that holds, with values for the columns that came later."""
        return [self.current(change) for change in commit if change.table in self.model.tables]

    def current(self, change: Change) -> Change:
        table = self.model.tables[change.table]
        if change.kind == "delete":
            return replace(change, schema_id=table.schema_id)
        first = {field.id for field in table.versions[0]}
        rows = []
        for row in change.rows:
            now = table.shown(row, 0, table.schema_id)
            held = zip(table.fields, now, strict=True)
            rows.append(tuple(value if field.id in first else len(repr(row)) % 7 for field, value in held))
        return replace(change, rows=tuple(rows), schema_id=table.schema_id)

    def accept(self, request: pb.CommitRequest, answer: pb.CommitAnswer, commit: list[Change]) -> None:
        """The server has answered: the model follows, and both must say the same."""
        expected = self.model.commit(commit)
        fields = ("inserted", "updated", "deleted", "not_found")
        assert [{name: getattr(result, name) for name in fields} for result in answer.results] == expected
        self.model.remember(answer.token)
        self.sequence = request.sequence
        self.last = request, answer

    @rule(commit=COMMITS, in_parts=st.booleans())
    def write(self, commit: list[Change], in_parts: bool) -> None:
        if commit := self.known(commit):
            request = self.harness.request(commit, self.sequence + 1, self.model.tables, in_parts=in_parts)
            self.accept(request, self.harness.commit(request), commit)

    @rule()
    @precondition(lambda self: self.last is not None)
    def retry_the_last_commit(self) -> None:
        assert self.last is not None
        request, first = self.last
        assert self.harness.commit(request) == first

    @rule(commit=COMMITS)
    def write_with_the_names_of_the_first_version(self, commit: list[Change]) -> None:
        """Columns are followed by their ids; what is gone is refused, and nothing of the commit is stored."""
        request = self.harness.request(commit, self.sequence + 1, self.model.tables)
        if all(self.model.tables[change.table].accepts(change) for change in commit):
            self.accept(request, self.harness.commit(request), commit)
        else:
            with pytest.raises(Invalid, match="was dropped"):
                self.harness.commit(request)

    def alteration(self, name: str, step: str, wish: int) -> tuple[list[Step], Version] | None:
        """Steps and the version they lead to; None when the table has no column to do it to."""
        table = self.model.tables[name]
        fields, keys = table.fields, table.key_columns
        free = [other for other in "xyz" if other not in [field.name for field in fields]]
        last = max(field.id for version in table.versions for field in version)
        if step == "add" and free:
            new = Field(last + 1, free[0], "int32", [None, 5][wish % 2])
            return [AddColumn(new.name, new.type, default=new.initial)], (*fields, new)
        if step == "drop" and len(fields) > max(keys, 1):
            gone = fields[max(keys, wish % len(fields))]
            return [DropColumn(gone.name)], tuple(field for field in fields if field != gone)
        if step == "rename" and free:
            old = fields[wish % len(fields)]
            return [RenameColumn(old.name, free[0])], tuple(replace(f, name=free[0]) if f == old else f for f in fields)
        narrow = [field for field in fields[keys:] if field.type == "int32"]
        if step == "widen" and narrow:
            wide = replace(narrow[0], type="int64")
            return [WidenColumn(wide.name, "int64")], tuple(wide if f == narrow[0] else f for f in fields)
        return None

    @rule(name=TABLES, step=STEPS, wish=st.integers(0, 9))
    def alter(self, name: str, step: str, wish: int) -> None:
        if made := self.alteration(name, step, wish):
            self.harness.lake.table(name).alter(*made[0])
            self.model.tables[name].alter(made[1])

    @rule(name=TABLES, step=STEPS, wish=st.integers(0, 9), steps=st.integers(0, 2), seed=SEEDS)
    def lose_power_in_an_alteration(self, name: str, step: str, wish: int, steps: int, seed: int | None) -> None:
        """A version is there whole or not at all, and once it is answered it stays."""
        if not (made := self.alteration(name, step, wish)):
            return
        table = self.harness.lake.table(name)
        self.harness.disk.lose_power_after(steps)
        answered = False
        try:
            table.alter(*made[0])
            answered = True
        except LakestoreError as error:
            assert error.applied == "unknown"
        self.harness.crash(seed)
        found = self.harness.lake.table(name).definition.schema_id
        if found != self.model.tables[name].schema_id:
            self.model.tables[name].alter(made[1])
        assert found == self.model.tables[name].schema_id
        assert not answered or self.model.tables[name].fields == made[1], "acknowledged, then lost"
        self.harness.check(self.model.tables)

    @rule(commit=COMMITS, ahead=st.integers(2, 5))
    def a_gap_in_the_sequence_is_refused(self, commit: list[Change], ahead: int) -> None:
        if commit := self.known(commit):
            with pytest.raises((Invalid, ProducerForgotten)):  # the latter before the producer's first commit
                self.harness.commit(self.harness.request(commit, self.sequence + ahead, self.model.tables))

    @rule(commit=COMMITS)
    def a_commit_with_one_bad_part_is_refused_whole(self, commit: list[Change]) -> None:
        request = self.harness.request(self.known(commit), self.sequence + 1, self.model.tables)
        request.changes.add(table="t.absent", kind=pb.APPEND, rows=b"", crc32c=0)
        with pytest.raises(LakestoreError) as refused:
            self.harness.commit(request)
        assert refused.value.applied == "no"

    @rule(commit=COMMITS)
    def write_on_a_disk_that_refuses_once(self, commit: list[Change]) -> None:
        """A write that fails is cut off again; the same commit succeeds later."""
        if commit := self.known(commit):
            request = self.harness.request(commit, self.sequence + 1, self.model.tables)
            self.harness.disk.fail("write", thread="commit")
            with pytest.raises(LakestoreError) as refused:
                self.harness.commit(request)
            assert refused.value.applied == "no"
            self.accept(request, self.harness.commit(request), commit)

    @rule(seconds=st.sampled_from([3600, -3600, 86_400, -86_400]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.harness.clock.jump(seconds)

    @rule()
    def the_clock_stands_still(self) -> None:
        self.harness.clock.freeze()

    @invariant()
    def time_never_goes_back(self) -> None:
        """Per bucket, and so over jumps and restarts, whatever the clock says."""
        for state in self.harness.server.engine.view.tables.values():
            for log in state.logs:
                times = log.commits(0, log.head).time_us if log.head else np.empty(0)
                assert (np.diff(times) >= 0).all()

    @rule()
    def checkpoint(self) -> None:
        self.harness.server.upkeep.checkpoint()

    @rule(steps=st.integers(0, 25))
    def a_step_of_a_checkpoint_fails(self, steps: int) -> None:
        """Either the last checkpoint stays valid and the server goes on, or it ends and its restart has everything."""
        if not self.harness.checkpoint_failing_after(steps):
            self.harness.crash(None)
        self.harness.check(self.model.tables)

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule()
    def kill(self) -> None:
        self.harness.kill()

    @rule(seed=SEEDS, lost=LOST)
    def crash(self, seed: int | None, lost: list[str]) -> None:
        self.harness.crash(seed, lost=lost)
        self.harness.check(self.model.tables)

    @rule(commit=COMMITS, steps=st.integers(0, 2), seed=SEEDS, in_parts=st.booleans())
    def lose_power_in_a_commit(self, commit: list[Change], steps: int, seed: int | None, in_parts: bool) -> None:
        """The commit is there whole or not at all, and its retry is applied exactly once."""
        if not (commit := self.known(commit)):
            return
        request = self.harness.request(commit, self.sequence + 1, self.model.tables, in_parts=in_parts)
        self.harness.disk.lose_power_after(steps)
        answer = None
        try:
            answer = self.harness.commit(request)
        except LakestoreError as error:
            assert error.applied == "unknown"
        self.harness.crash(seed)
        before = self.model.cut()
        found = self.harness.cut()
        again = self.harness.commit(request)
        assert answer is None or again == answer, "acknowledged, then lost"
        self.accept(request, again, commit)
        assert found == self.model.cut() or (found == before and answer is None), "part of a commit"

    @rule(steps=st.integers(0, 25), seed=SEEDS)
    def lose_power_in_a_checkpoint(self, steps: int, seed: int | None) -> None:
        self.harness.disk.lose_power_after(steps)
        try:
            self.harness.server.upkeep.checkpoint()
        except (OSError, LakestoreError):
            pass
        self.harness.crash(seed)
        self.harness.check(self.model.tables)

    @rule(steps=st.integers(0, 12), first=SEEDS, second=SEEDS)
    def lose_power_in_the_recovery(self, steps: int, first: int | None, second: int | None) -> None:
        harness = self.harness
        harness.crash_twice(steps, first, second)
        harness.check(self.model.tables)

    @rule(name=TABLES)
    def drop_and_create_anew(self, name: str) -> None:
        self.harness.lake.drop_table(name)
        del self.model.tables[name]
        with pytest.raises(NotFound):
            self.harness.scan(name)
        self.create(name)
        with pytest.raises(Conflict):
            self.harness.create(name)

    @rule()
    def take_over_as_a_new_epoch(self) -> None:
        opened = self.harness.lake.transport.open_producer(pb.OpenProducerRequest(producer="machine"))
        if self.last is not None:
            with pytest.raises(LakestoreError, match="epoch"):
                self.harness.commit(self.last[0])
        self.harness.epoch, self.sequence, self.last = opened.epoch, 0, None

    @rule(steps=st.none() | st.integers(0, 12))
    def merge_runs(self, steps: int | None) -> None:
        """Runs of the index are merged, or one of the steps of that fails."""
        if steps is not None:
            self.harness.disk.fail("", after=steps)
        with contextlib.suppress(OSError, LakestoreError):
            self.harness.server.upkeep.merge_index()
        self.harness.disk.heal()

    @rule(name=TABLES)
    def scan(self, name: str) -> None:
        assert self.harness.scan(name) == self.model.tables[name].rows()
        assert self.harness.lake.table(name).scan().count() == len(self.model.tables[name].rows())

    @rule(data=st.data())
    @precondition(lambda self: self.model.cuts)
    def read_an_old_cut(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.cuts)))
        for name, rows in self.model.cuts[token].items():
            assert self.harness.scan(name, at=token) == rows

    @rule(data=st.data(), name=TABLES)
    @precondition(lambda self: self.model.cuts)
    def fold_the_changes_since_an_old_cut(self, data: st.DataObject, name: str) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.cuts)))
        keys = SCHEMAS[name][1]
        rows = self.model.cuts[token].get(name, [])
        start = self.model.versions[token].get(name, 0)
        folded: dict[Any, tuple[Row, int]] = {}
        for i, row in enumerate(rows):
            folded[row[:keys] if keys else ("old", i)] = row, start
        for change, bucket, offset, row, version in self.harness.changes(name, token):
            key = row[:keys] if keys else (bucket, offset)
            if change == "-D":
                del folded[key]
            else:
                folded[key] = row, version
        table = self.model.tables[name]
        now = [table.shown(row, version, table.schema_id) for row, version in folded.values()]
        assert sorted(now, key=repr) == table.rows()

    @rule(name=TABLES)
    def a_stream_from_the_snapshot_is_the_table(self, name: str) -> None:
        found = self.harness.changes(name, "snapshot")
        assert sorted((row for _, _, _, row, _ in found), key=repr) == self.model.tables[name].rows()
        assert {change for change, *_ in found} <= {"+I"}

    @rule(keys=st.lists(SMALL, min_size=1, max_size=8))
    def lookup(self, keys: list[int]) -> None:
        live = self.model.tables["t.one"].live
        table = self.model.tables["t.one"]
        wanted = Change("t.one", "delete", tuple((key,) for key in keys), table.schema_id)
        found = self.harness.lake.table("t.one").lookup(batch_of(wanted, table))
        assert [tuple(row.values()) for row in found.to_pylist()] == [live[key,] for key in keys if (key,) in live]

    @invariant()
    def the_server_is_up(self) -> None:
        assert self.harness.server.engine.loop.failure is None


LakeMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "6")),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestLakeMachine = pytest.mark.timeout(600)(LakeMachine.TestCase)

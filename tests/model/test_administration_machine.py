"""Rename, truncate, drop, undrop, purge and deletes by a condition, held against plain values.

Among them come writes, checkpoints, retries, earlier positions, readers that hold a cut, and power cuts.

Whatever happens, each of them is there whole or not at all, over names, rows, changelog, index and sums; a table that
is had back is as it was, at the same offsets; and what is kept of dropped tables costs no other table anything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import lakestore as ls
from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound, PositionExpired
from lakestore.v1 import lakestore_pb2 as pb
from tests.model.harness import IN_PLACE, SCHEMAS, Harness
from tests.model.model import Change, Row, TableModel

NAMES = (*SCHEMAS, "t.spare", "u.other")
NAME, SEEDS = st.sampled_from(NAMES), st.none() | st.integers(0, 1 << 16)
POWER = st.none() | st.tuples(st.integers(0, 6), SEEDS)
"""Steps until power goes, and what is left then; or none of it."""
DAYS_2 = 2 * 86_400


@dataclass
class Held:
    """A table: what it began as, and its rows."""

    origin: str
    uuid: str
    rows: TableModel
    begins: int = 0
    """LSN of the create or of the last truncate: no position below is served."""


@dataclass
class World:
    """All tables by name, and those that were dropped by uuid with the name that they had."""

    tables: dict[str, Held] = field(default_factory=dict)
    shelf: dict[str, tuple[str, Held]] = field(default_factory=dict)

    def seen(self) -> tuple[dict[str, tuple[str, list[Row]]], dict[str, str]]:
        """What a client may see of it."""
        tables = {name: (held.uuid, held.rows.rows()) for name, held in self.tables.items()}
        return tables, {uuid: name for uuid, (name, _) in self.shelf.items()}


class AdministrationMachine(RuleBasedStateMachine):
    """Three tables under changing names."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-administration-"))
        self.harness = Harness(self.folder, replace(IN_PLACE, segment_rows=8))
        self.world = World()
        self.sequence = self.value = 0
        self.last: tuple[pb.CommitRequest, pb.CommitAnswer] | None = None
        self.marks: list[tuple[str, int, dict[str, list[Row]]]] = []
        """Tokens of cuts, their LSNs, and the rows of each table then by uuid."""

    def teardown(self) -> None:
        try:
            self.check_everything()
            self.harness.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def begin(self) -> None:
        for name in SCHEMAS:
            self.create(name)

    @rule(name=st.sampled_from(sorted(SCHEMAS)))
    def create(self, name: str) -> None:
        if name not in self.world.tables:
            rows = self.harness.create(name)
            uuid = self.harness.lake.table(name).definition.uuid
            self.world.tables[name] = Held(name, uuid, rows, begins=self.lsn)

    @property
    def lsn(self) -> int:
        """The newest commit."""
        return self.harness.server.engine.view.lsn

    def models(self) -> dict[str, TableModel]:
        return {name: held.rows for name, held in self.world.tables.items()}

    @rule(name=NAME, numbers=st.lists(st.integers(0, 12), min_size=1, max_size=30), delete=st.booleans())
    def write(self, name: str, numbers: list[int], delete: bool) -> None:
        held = self.world.tables.get(name)
        if held is None:
            return
        keys = SCHEMAS[held.origin][1]
        rows: list[Row] = []
        for number in numbers:
            self.value += 1
            two: Row = ("abc"[number % 3], number // 3, self.value)
            row = two if held.origin == "t.two" else (number, "x" if held.origin == "t.log" else self.value)
            rows.append(row[:keys] if delete and keys else row)
        kind = "append" if not keys else "delete" if delete else "upsert"
        change = Change(name, kind, tuple(rows))  # type: ignore[arg-type]  # one of the three
        request = self.harness.request([change], self.sequence + 1, self.models())
        self.last = request, self.harness.commit(request)
        self.sequence += 1
        for row in rows:
            held.rows.apply(change.kind, row)

    def act(
        self, action: Callable[[], object], change: Callable[[World], None], power: tuple[int, int | None] | None
    ) -> None:
        """Do one thing to server and model; where power goes meanwhile, the model is what is found."""
        after = deepcopy(self.world)
        change(after)
        if power is None:
            action()
            self.world = after
            return
        self.harness.disk.lose_power_after(power[0])
        done = False
        try:
            action()
            done = True
        except (LakestoreError, OSError):
            pass
        self.harness.crash(power[1])
        if self.seen() == after.seen():
            self.world = after
        assert self.seen() == self.world.seen(), "half of it"
        assert not done or self.world is after, "acknowledged, then lost"
        self.check_everything()

    def seen(self) -> object:
        cut = self.harness.cut()
        tables = {table.name: (table.definition.uuid, cut[table.name]) for table in self.harness.lake.tables()}
        return tables, {each.uuid: each.name for each in self.harness.lake.dropped_tables()}

    @rule(name=NAME, new=NAME, power=POWER)
    def rename(self, name: str, new: str, power: tuple[int, int | None] | None) -> None:
        if name not in self.world.tables or name == new:
            return
        table = self.harness.lake.table(name)
        if new in self.world.tables:
            with pytest.raises(Conflict):
                table.rename(new)
            return
        again = self.harness.lake.table(name)
        self.act(lambda: table.rename(new), lambda world: world.tables.update({new: world.tables.pop(name)}), power)
        if power is None:
            with pytest.raises(NotFound, match="was renamed"):
                list(again.changes("earliest", until="now"))

    @rule(name=NAME, power=POWER)
    def truncate(self, name: str, power: tuple[int, int | None] | None) -> None:
        if name not in self.world.tables:
            return
        token = self.harness.lake.snapshot()
        before = self.world.tables[name].rows.rows()
        is_read = self.harness.lake.table(name)

        def emptied(world: World) -> None:
            empty(world.tables[name], self.lsn + 1)

        with token:
            self.act(is_read.truncate, emptied, power)
            if power is None:
                assert len(before) == token.scan(name).count(), "a cut that is held is read as it was"
                with pytest.raises(PositionExpired):
                    list(is_read.changes(token.token, until="now"))

    @rule(name=NAME, power=POWER)
    def drop(self, name: str, power: tuple[int, int | None] | None) -> None:
        if name not in self.world.tables:
            return
        uuid = self.world.tables[name].uuid

        def shelved(world: World) -> None:
            world.shelf[uuid] = name, world.tables.pop(name)

        self.act(lambda: self.harness.lake.drop_table(name), shelved, power)

    @rule(data=st.data(), new=st.just("") | NAME, power=POWER)
    def undrop(self, data: st.DataObject, new: str, power: tuple[int, int | None] | None) -> None:
        if not self.world.shelf:
            return
        uuid = data.draw(st.sampled_from(sorted(self.world.shelf)))
        name, _ = self.world.shelf[uuid]
        target = new or name

        def again(world: World) -> None:
            world.tables[target] = world.shelf.pop(uuid)[1]

        def have_back() -> None:
            self.harness.lake.undrop(name, uuid=uuid, as_name=new)

        if target in self.world.tables:
            with pytest.raises(Conflict, match="--as NAME"):
                have_back()
            return
        self.act(have_back, again, power)

    @rule(power=POWER)
    def let_time_pass(self, power: tuple[int, int | None] | None) -> None:
        """Whatever was dropped goes, also what readers of an earlier life might hold; power cuts leave some of it."""
        self.harness.clock.jump(DAYS_2)
        if power is not None:
            self.harness.disk.lose_power_after(power[0])
            try:
                self.harness.server.dropped.run_once()
            except (LakestoreError, OSError):
                pass
            self.harness.crash(power[1])
        self.harness.clock.advance(DAYS_2)
        self.harness.server.dropped.run_once()
        self.world.shelf = {}
        assert self.seen() == self.world.seen()

    @rule()
    def checkpoint(self) -> None:
        self.harness.server.upkeep.checkpoint()

    @rule(name=NAME)
    def compact(self, name: str) -> None:
        if name in self.world.tables and self.world.tables[name].rows.key_columns:
            self.harness.move_log_start(name)
            self.harness.compact()

    @rule(name=NAME, steps=st.integers(0, 30), seed=SEEDS)
    def truncate_beside_a_checkpoint(self, name: str, steps: int, seed: int | None) -> None:
        """A checkpoint that froze before installs segments of rows that are gone; none of them comes back."""
        if name not in self.world.tables:
            return
        upkeep, table = self.harness.server.upkeep, self.harness.lake.table(name)
        install = upkeep.checkpointer._loop.install

        def after_a_truncate(change: Callable[..., object]) -> None:
            table.truncate()
            install(change)  # type: ignore[arg-type]  # as it came

        upkeep.checkpointer._loop.install = after_a_truncate  # type: ignore[method-assign, assignment]
        try:
            upkeep.checkpoint()
        finally:
            del upkeep.checkpointer._loop.install
        empty(self.world.tables[name], self.harness.server.engine.view.named(name).truncated_lsn)
        self.check_everything()

    @rule()
    def retry_the_last_commit(self) -> None:
        """It gets its first answer, whatever became of its table meanwhile, and changes nothing."""
        if self.last is not None:
            request, first = self.last
            assert self.harness.commit(request) == first

    @rule(name=NAME, most=st.integers(0, 12), power=POWER)
    def delete_where(self, name: str, most: int, power: tuple[int, int | None] | None) -> None:
        """It takes the rows that matched, each by a change that carries the row; a log table has none of it."""
        if name not in self.world.tables:
            return
        held, table = self.world.tables[name], self.harness.lake.table(name)
        column = {"t.one": "id", "t.two": "n", "t.log": "a"}[held.origin]
        where = f"{column} <= {most}"
        if not held.rows.key_columns:
            with pytest.raises(Invalid, match="is a log table"):
                table.delete(where=where)
            return
        place = held.rows.key_columns - 1
        gone = sorted(key for key in held.rows.live if int(str(key[place])) <= most)
        assert table.delete(where=where, dry_run=True).result.deleted == len(gone)
        if power is None:
            assert table.delete(where=where).result.deleted == len(gone)
        else:
            self.harness.disk.lose_power_after(power[0])
            with suppress(LakestoreError, OSError):
                table.delete(where=where)
            self.harness.crash(power[1])
            left = {row[: held.rows.key_columns] for row in self.harness.scan(name)}
            assert left >= set(held.rows.live) - set(gone), "a row that did not match is gone"
            gone = [key for key in gone if key not in left]
        for key in gone:
            held.rows.apply("delete", key)
        self.check_everything()

    @rule()
    def mark(self) -> None:
        """A position to be read at and from later on."""
        with self.harness.lake.snapshot() as snapshot:
            token = snapshot.token
        rows = {held.uuid: held.rows.rows() for held in self.world.tables.values()}
        self.marks.append((str(token), self.lsn, rows))

    @rule()
    def read_the_marks(self) -> None:
        """Below its truncate or its creation a table is `PositionExpired`, or not there; else it is as it was."""
        for token, lsn, then in self.marks:
            for name, held in self.world.tables.items():
                table = self.harness.lake.table(name)
                if lsn < held.begins and then.get(held.uuid) == []:
                    continue  # a truncate of nothing may be lost with power, and nobody sees whether it was
                if lsn < held.begins or held.uuid not in then:
                    for read in (
                        lambda t=table, at=token: t.scan(at=at).count(),
                        lambda t=table, at=token: changed(t, at),
                    ):
                        with pytest.raises((PositionExpired, NotFound)):
                            read()
                    continue
                if lsn >= self.harness.server.engine.view.named(name).log_start_lsn:
                    assert self.harness.scan(name, at=token) == then[held.uuid]
                    changed(table, token)

    @rule(seed=SEEDS, lost=st.sampled_from([[], ["index"]]))
    def crash(self, seed: int | None, lost: list[str]) -> None:
        self.harness.crash(seed, lost=lost)

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule()
    def lose_the_index(self) -> None:
        self.harness.server.engine.index.found_problem("a test says so", damaged=False)
        self.harness.await_index()

    @rule()
    def check_everything(self) -> None:
        assert self.seen() == self.world.seen()
        self.harness.check(self.models())
        assert not self.harness.server.upkeep.scrubber.run_once()


def empty(held: Held, lsn: int) -> None:
    """A truncate."""
    held.rows.live, held.rows.appended, held.rows.changes = {}, [], []
    held.begins = lsn


def changed(table: ls.Table, start: str) -> int:
    """The changes from a position up to now, counted."""
    with table.changes(start, until="now") as stream:
        return sum(len(batch.to_pylist()) for batch in stream)


AdministrationMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "4")),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestAdministrationMachine = pytest.mark.timeout(600)(AdministrationMachine.TestCase)

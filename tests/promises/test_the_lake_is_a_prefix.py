"""Random writes, flushes, compactions, expiries and crashes over three tables; after each round all reads are exact.

What is written goes into plain dicts too, and a copy of them is kept for each commit: the model at every cut.
`LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from lakestore.model.token import position_of
from lakestore.spark import SparkLake
from lakestore.union.plan import TableScan
from lakestore.union.tier_record import Record
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_tiering import Tierer, hot_rows, orphans
from lakestore_tiering.flush import flush
from lakestore_tiering.hot_rows import Hot
from lakestore_tiering.iceberg_java import TIER_TAG, Iceberg, java_errors, record_of
from lakestore_tiering.round import COMPACT, STAGE, lake_name
from tests.support.seeds import seeded
from tests.support.staging import sorted_by_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FEW, MANY = 3, 30
"""The few have every way of hot rows once, a DataFrame that is held, and a check of all tables."""
SPLIT_ROWS = 7
IS_LOCAL = [True, False]
"""Hot rows come to Spark by files in a temporary folder or in the table's folder, in turn."""
FLUSH_POINTS = ["staged", "deaths-written", "before-commit", "after-commit"]
COMPACT_POINTS = ["compact-forked", "compact-rewritten", "compact-before-landing", "compact-landed"]

Row = tuple[Any, ...]
State = dict[str, dict[Row, Row]]


class Died(BaseException):
    """The tierer's process is gone."""


@dataclass(frozen=True)
class Kind:
    """A table: the first `keys` columns tell its rows apart (of the log table, because the test never repeats one)."""

    schema: pa.Schema
    keys: int
    options: dict[str, Any]
    keyed: bool = True

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return list(self.schema.names)


KINDS = {
    "rnd.pairs": Kind(
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())]), 2, {"format_version": 2, "sort_by": "v"}
    ),
    "rnd.moves": Kind(
        pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())]),
        1,
        {"format_version": 3, "partition_by": "part", "sort_by": "v desc"},
    ),
    "rnd.notes": Kind(
        pa.schema([("n", pa.int64()), ("t", pa.string()), ("v", pa.int64())]), 1, {"format_version": 2}, keyed=False
    ),
}
EVERY_TABLE = " UNION ALL ".join(
    f"SELECT '{name}' AS name, CAST({kind.names[0]} AS BIGINT) AS x, {kind.names[1]} AS y, v FROM {name}"
    for name, kind in KINDS.items()
)


@dataclass
class Model:
    """The tables as dicts, and as they were after each commit."""

    lake: ls.Lake
    rng: random.Random
    state: State = field(default_factory=lambda: {name: {} for name in KINDS})
    history: list[tuple[int, str, State]] = field(default_factory=list)
    counter: int = 0

    def write(self) -> None:
        """One commit over one to three tables, with changes of one key one after the other in it now and then."""
        with self.lake.commit() as commit:
            for name in self.rng.sample(list(KINDS), self.rng.randint(1, 3)):
                for _ in range(self.rng.randint(1, 3)):
                    self._change(commit, name)
        copied = {name: dict(rows) for name, rows in self.state.items()}
        self.history.append((position_of(commit.token).lsn, commit.token, copied))

    def _change(self, commit: Any, name: str) -> None:
        kind, rows = KINDS[name], self.state[name]
        if kind.keyed and self.rng.random() < 0.35:
            known = self.rng.sample(sorted(rows), min(len(rows), self.rng.randint(1, 6)))
            gone = known or [self._row(name)[: kind.keys]]
            commit.delete(name, [dict(zip(kind.names, key, strict=False)) for key in gone])
            for key in gone:
                rows.pop(key, None)
            return
        new = [self._row(name) for _ in range(self.rng.randint(1, 12))]
        data = pa.Table.from_pylist([dict(zip(kind.names, row, strict=True)) for row in new], schema=kind.schema)
        (commit.upsert if kind.keyed else commit.append)(name, data)
        rows.update((row[: kind.keys], row) for row in new)

    def _row(self, name: str) -> Row:
        self.counter += 1
        if name == "rnd.pairs":
            return self.rng.randrange(6), self.rng.choice("xyzé"), self.counter
        if name == "rnd.moves":
            return self.rng.randrange(40), self.rng.choice(["p", "q", None]), self.counter
        return self.counter, self.rng.choice("mn"), self.counter

    def at(self, lsn: int) -> State:
        """The tables at a point of the server's history."""
        return next((state for at, _, state in reversed(self.history) if at <= lsn), {name: {} for name in KINDS})

    def cuts_from(self, lsn: int) -> list[tuple[str, State]]:
        """Commits that a lake tiered up to `lsn` can still be read at: the last before it, and all after."""
        first = max(0, sum(at <= lsn for at, _, _ in self.history) - 1)
        return [(token, state) for _, token, state in self.history[first:]]


@dataclass
class Rounds:
    """A tierer over the model's tables, and what is done to it at its named points."""

    server: Server
    spark: SparkSession
    model: Model
    rng: random.Random
    mischief: dict[str, list[str]] = field(default_factory=dict)
    table: str = ""
    touched: list[str] = field(default_factory=list)
    busy: bool = False
    did: Counter[str] = field(default_factory=Counter)
    held: list[tuple[DataFrame, list[Row]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tierer = self.started()

    def started(self) -> Tierer:
        """A tierer that takes over at once, as it has the same name."""
        return Tierer(self.model.lake, self.spark, holder="one", crash=self.point)

    def hot(self, number: int) -> Hot:
        """The way of hot rows in this round."""
        return Hot(self.spark, self.model.lake.transport, is_local=IS_LOCAL[number % len(IS_LOCAL)])

    def point(self, name: str) -> None:
        """The tierer has come to a named point."""
        if self.busy:
            return
        self.busy = True
        try:
            for action in self.mischief.pop(name, []):
                self.did[f"{action} at {name}"] += 1
                getattr(self, action)()
        finally:
            self.busy = False

    def write(self) -> None:
        self.model.write()

    def flush(self) -> None:
        self.model.write()
        flush(self.tierer.tools, self.table)

    def die(self) -> None:
        raise Died

    def expire_sql(self) -> None:
        """All of the table's snapshots go, by Spark's procedure; when one is held, the others go by ours."""
        try:
            self.spark.sql(
                f"CALL lake.system.expire_snapshots(table => '{self.table}', retain_last => 1, "
                "older_than => TIMESTAMP '2100-01-01 00:00:00')"
            ).collect()
        except Exception as error:
            self._expire_unheld(error)

    def expire_java(self) -> None:
        """The same by Iceberg's Java API."""
        update = self.iceberg(self.table).table.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 1000)
        try:
            with java_errors():
                update.cleanExpiredFiles(True).commit()
        except ls.Invalid as error:
            self._expire_unheld(error)

    def _expire_unheld(self, error: Exception) -> None:
        if "being read" not in str(error):
            raise error
        self.did["expiry refused: held"] += 1
        definition = self.model.lake.table(self.table).definition
        orphans.expire(self.tierer.tools, definition, keep_last=1, keep_seconds=-1.0)

    def iceberg(self, table: str) -> Iceberg:
        """The lake table."""
        return Iceberg(self.spark, lake_name(self.model.lake.table(table).definition))

    def record(self, table: str) -> Record:
        """Its tier record."""
        return self.tierer.tools.standing(self.model.lake.table(table).definition)[1]

    def run(self) -> None:
        """Writes, then rounds of some tables; a tierer that dies is followed by another that does its work."""
        for _ in range(self.rng.randint(1, 3)):
            self.model.write()
        self.touched = self.rng.sample(list(KINDS), self.rng.choice([1, 1, 2]))
        for table in self.touched:
            compaction = self.rng.random() < 0.35
            self.table, self.mischief = table, self._mischief(compaction)
            too_late = "flush" in self.mischief.get("compact-before-landing", [])
            try:
                self.tierer.run_once(table, compaction=compaction)
            except Died:
                self.tierer._held._ended.set()
                self.tierer = self.started()
            except ls.Conflict:
                # A flush after the deaths were looked up: the landing must be refused.
                assert too_late
                self.did["landing refused"] += 1
            else:
                continue
            self.mischief = {}
            self.tierer.run_once(table, compaction=False)
        if self.rng.random() < 0.3:
            getattr(self, self.rng.choice(["expire_sql", "expire_java"]))()
        for _ in range(self.rng.randint(0, 3)):
            self.model.write()

    def _mischief(self, compaction: bool) -> dict[str, list[str]]:
        planned: dict[str, list[str]] = defaultdict(list)
        expiry = ["expire_sql", "expire_java", "expire_java"]
        for _ in range(self.rng.randint(0, 2)):
            planned[self.rng.choice(FLUSH_POINTS)].append(self.rng.choice(["write", *expiry]))
        if compaction:
            point = self.rng.choice(["compact-forked", "compact-rewritten", "compact-rewritten", *COMPACT_POINTS[:3]])
            planned[point] += self.rng.choice([["flush"], ["flush", "flush"], ["flush", self.rng.choice(expiry)]])
            planned[self.rng.choice(COMPACT_POINTS)].append(self.rng.choice(["write", *expiry]))
        if self.rng.random() < 0.25:
            planned[self.rng.choice(COMPACT_POINTS if compaction else FLUSH_POINTS)].append("die")
        return planned

    def check(self, number: int) -> None:
        """Everything that can be read is what the model says."""
        lsn = 0
        for table in KINDS:
            record = self.record(table)
            lsn = max(lsn, record.lsn)
            if table in self.touched or number % 5 == 2:
                self._check_lake(table, record)
                self._check_refs(table, record)
                verified = verify(self.model.lake.transport, table)
                assert verified.same, verified.problems()
        cuts = self.model.cuts_from(lsn)
        for token, state in {cuts[0][0]: cuts[0][1], cuts[-1][0]: cuts[-1][1]}.items():
            self._check_arrow(token, state)
        self._check_spark(*self.rng.choice(cuts))
        for frame, expected in self.held:
            assert _rows(frame.toArrow()) == expected

    def _check_lake(self, table: str, record: Record) -> None:
        kind = KINDS[table]
        found = self.spark.sql(f"SELECT * FROM lake.{table}").toArrow()
        place = ["__bucket", "__offset"]
        seen = sorted(_rows(found.select([*place, *kind.names])), key=repr)
        until = self.model.history[-1][1]
        folded = sorted(_folded(self.model.lake.table(table), kind, record.tier_point, until), key=repr)
        assert seen == folded, f"{table} at {record.tier_point}"
        expected = _sorted(self.model.at(record.lsn)[table].values())
        assert _rows(found.select(kind.names)) == expected, f"{table} at LSN {record.lsn}"

    def _check_refs(self, table: str, record: Record) -> None:
        """The tag stands at the newest commit of ours, and nothing staged is left."""
        lake = self.iceberg(table)
        if lake.current_id() is None:
            return
        tagged = record_of(lake.branch_snapshot(TIER_TAG))
        assert tagged is not None
        assert (tagged.tier_point, tagged.live_sum, tagged.lsn) == (record.tier_point, record.live_sum, record.lsn)
        assert not lake.branches(STAGE), table
        assert not lake.branches(COMPACT), table

    def _check_arrow(self, token: str, state: State) -> None:
        for table, rows in state.items():
            assert _rows(self.model.lake.table(table).scan(at=token).to_arrow()) == _sorted(rows.values()), table

    def _check_spark(self, token: str, state: State) -> None:
        reads = SparkLake(self.spark, self.model.lake.transport).at(token)
        every = _rows(reads.sql(EVERY_TABLE).toArrow())
        assert every == _sorted((name, *row) for name, rows in state.items() for row in rows.values())
        table = self.rng.choice(list(KINDS))
        assert _rows(reads.table(table).toArrow()) == _sorted(state[table].values()), table

    def hold(self) -> None:
        """A DataFrame at a cut, to be read after the round; it holds its snapshot."""
        reads = SparkLake(self.spark, self.model.lake.transport)
        table = self.rng.choice(list(KINDS))
        token, state = self.rng.choice(self.model.cuts_from(self.record(table).lsn))
        self.held = [(reads.at(token).table(table), _sorted(state[table].values()))]


def _sorted(rows: Any) -> list[Row]:
    return sorted(rows, key=repr)


def _rows(table: pa.Table) -> list[Row]:
    return _sorted(tuple(row.values()) for row in table.to_pylist())


def _folded(table: ls.Table, kind: Kind, tier_point: tuple[int, ...], until: str) -> Iterator[Row]:
    """The rows alive at a tier point, by the changelog alone."""
    alive: dict[Row, Row] = {}
    for batch in table.changes("earliest", until=until):
        for change in batch.to_pylist():
            bucket, offset = change["__bucket"], change["__offset"]
            row = tuple(change[name] for name in kind.names)
            if offset >= tier_point[bucket]:
                continue
            if change["__change"] == "-D":
                del alive[row[: kind.keys]]
            else:
                alive[row[: kind.keys]] = (bucket, offset, *row)
    yield from alive.values()


@pytest.fixture
def rounds(server: Server, lake: ls.Lake, spark: SparkSession) -> Iterator[Rounds]:
    rng = seeded()
    for name, kind in KINDS.items():
        keys = kind.names[: kind.keys] if kind.keyed else None
        lake.create_table(name, kind.schema, primary_key=keys, buckets=2 + kind.keys % 2, lake=kind.options)
    made = Rounds(server, spark, Model(lake, rng), rng)
    yield made
    with suppress(ls.LakestoreError):
        made.tierer.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_random_rounds(rounds: Rounds, server: Server, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(hot_rows, "SPLIT_ROWS_MAX", SPLIT_ROWS)
    monkeypatch.setattr(TableScan.hot_splits, "__defaults__", (SPLIT_ROWS,))
    for number in range(count):
        began = time.monotonic()
        if number % 4 == 2:
            rounds.hold()
        rounds.tierer.tools.hot = rounds.hot(number)
        rounds.run()
        ran = time.monotonic()
        rounds.check(number)
        rounds.held = []
        print(f"round {number}: {ran - began:.1f} s, checks {time.monotonic() - ran:.1f} s, {dict(rounds.mischief)}")
    print(dict(rounds.did))
    assert count < MANY or rounds.did["flush at compact-rewritten"], (
        "no row died during a compaction: choose another seed"
    )


@pytest.fixture(autouse=True)
def sorted_tables_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of staging rows are tested: by Spark for sorted tables, by Arrow for the others."""
    sorted_by_spark(monkeypatch)

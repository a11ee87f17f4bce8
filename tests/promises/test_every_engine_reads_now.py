"""Every engine reads the head: stock engines over the catalog give a state of the table between their begin and end.

A writer goes on all the while, as do rounds, compaction, expiry, other engines' rewrites, new columns and restarts.
`LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.evolution import AddColumn
from lakestore.spark import session
from lakestore_tiering import Tierer
from tests.support import engines
from tests.support.engines import ClickHouse, DuckDb, Read, Sums
from tests.support.process import ServerProcess
from tests.support.seeds import seeded
from tests.support.spark import SPARK_CONF
from tests.support.trino import TrinoProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
FEW, MANY = 100, 3_000
IDS, BATCH, PAUSE_SECONDS = 400, 12, 0.02
KEPT_CUTS = 40
"""The newest commits of which one is read again under `at:`."""
SPARK_PART = 12
"""One read of so many is Spark's, which takes a hundred times as long as the others."""
EVERY = 15
"""Reads between two disturbances."""


@dataclass
class Written:
    """One table, and what it held after each commit."""

    table: ls.Table
    keyed: bool
    vectors: bool = False
    """Whether its deletes are deletion vectors, which not every engine reads."""
    rows: dict[int, int] = field(default_factory=dict)
    states: list[Sums] = field(default_factory=lambda: [Sums.of_values({})])
    tokens: list[str] = field(default_factory=list)
    """The token of the commit that made each state but the first."""
    begun: int = 0
    """States that a reader may see: the last one may still be on its way."""


class Writer:
    """Commits to all tables, one after the other, until it is ended."""

    def __init__(self, tables: list[Written]) -> None:
        self._tables, self._rng = tables, seeded(13)
        self._end = threading.Event()
        self._failure: list[BaseException] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.wait(PAUSE_SECONDS):
                self._write(self._rng.choice(self._tables))
        except BaseException as error:
            self._failure.append(error)

    def _write(self, one: Written) -> None:
        rows, gone = dict(one.rows), False
        if one.keyed and rows and self._rng.random() < 0.3:
            gone, chosen = True, self._rng.sample(sorted(rows), min(len(rows), BATCH // 2))
            for key in chosen:
                del rows[key]
        else:
            first = len(rows)
            keys = self._rng.sample(range(IDS), BATCH) if one.keyed else range(first, first + BATCH)
            chosen = list(keys)
            rows |= {key: self._rng.randrange(1_000) for key in chosen}
        with self._lock:
            one.states.append(Sums.of_values(rows))
        if gone:
            token = one.table.delete([{"id": key} for key in chosen])
        else:
            values = [{"id": key, "v": rows[key]} for key in chosen]
            token = one.table.upsert(values) if one.keyed else one.table.append(values)
        with self._lock:
            one.rows = rows
            one.tokens.append(str(token))

    def acknowledged(self, one: Written) -> int:
        """The state that every read which begins now must show, or a later one."""
        with self._lock:
            return len(one.tokens)

    def possible(self, one: Written, since: int) -> list[Sums]:
        """The states that a read may have seen that began at `since` and has ended."""
        with self._lock:
            return one.states[since:]

    def cut(self, one: Written, back: int) -> tuple[str, Sums]:
        """(token, state) of a commit of the last ones."""
        with self._lock:
            number = max(len(one.tokens) - back, 1)
            return one.tokens[number - 1], one.states[number]

    def wait(self, commits: int) -> None:
        """Until so many commits are in every table."""
        while any(self.acknowledged(one) < commits for one in self._tables):
            self.check()
            self._end.wait(0.01)

    def check(self) -> None:
        """Raise what ended the writer."""
        if self._failure:
            raise self._failure[0]

    def stop(self) -> None:
        """End it."""
        self._end.set()
        self._thread.join(60)
        self.check()


class Place:
    """A server in a process that is killed and started again on its ports, its tierer, and what disturbs readers."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ports = folder, (free_port(), free_port())
        self.server = self._started()
        self.uri = f"http://127.0.0.1:{self._ports[1]}/iceberg"
        self.lake = ls.connect(self.server.address)
        self.tables = [self._made(*each) for each in (("shop.plain", 2), ("shop.vectors", 3), ("shop.log", 2))]
        self.spark: SparkSession = session(self.server.address, master="local[2]", conf=SPARK_CONF)
        self.tierer = Tierer(self.lake, self.spark)
        self._columns = 0

    def _started(self) -> ServerProcess:
        port, http = self._ports
        return ServerProcess(self._folder / "data", port=port, http_port=http)

    def _made(self, name: str, version: int) -> Written:
        keyed = name != "shop.log"
        layout: dict[str, Any] = {"format_version": version}
        if version == 3:
            layout["partition_by"] = ["bucket(3, id)"]
        key = ["id"] if keyed else None
        made = self.lake.create_table(name, SCHEMA, primary_key=key, buckets=2, lake=layout)
        return Written(made, keyed, vectors=version == 3)

    def restart(self) -> None:
        """kill -9, and the same server again."""
        self.server.kill()
        self.server = self._started()

    def round(self, one: Written) -> None:
        """A flush."""
        self.tierer.run_once(one.table.name, compaction=False)

    def compact(self, one: Written) -> None:
        """A flush with compaction and expiry."""
        self.tierer.run_once(one.table.name, compaction=True)

    def rewrite(self, one: Written) -> None:
        """Another engine's compaction."""
        options = "options => map('rewrite-all', 'true')"
        self.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{one.table.name}', {options})").collect()

    def widen(self, one: Written) -> None:
        """A new column; nobody asks for it, so that every answer stays what it was."""
        self._columns += 1
        one.table.alter(AddColumn(f"extra{self._columns}", "string"))

    def close(self) -> None:
        """End everything."""
        self.tierer.close()
        self.lake.close()
        self.server.stop()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


class Readers:
    """Engines that ask in turns, and the check of each answer."""

    def __init__(self, place: Place, writer: Writer) -> None:
        self._writer, self._rng = writer, seeded(14)
        duckdb, clickhouse = DuckDb(place.uri), ClickHouse(place.uri)
        self._closed: list[Callable[[], None]] = [duckdb.close, clickhouse.close]
        self._spark = engines.spark(place.spark, place.uri)
        self._quick: dict[str, Read] = {
            "DuckDB": duckdb.read,
            "PyIceberg": engines.pyiceberg(place.uri),
            "polars": engines.polars(place.uri),
            "ClickHouse": clickhouse.read,
        }
        self.read: dict[str, int] = {}
        """Reads of each engine so far."""

    def one(self, number: int, table: Written) -> None:
        """One read of one engine, which gives a state of the table or fails the test."""
        name = "Spark" if number % SPARK_PART == 0 else self._rng.choice(list(self._quick))
        if name == "ClickHouse" and table.vectors:
            name = "DuckDB"
        read = self._quick.get(name, self._spark)
        if name not in ("ClickHouse", "Spark") and self._rng.random() < 0.3:
            token, expected = self._writer.cut(table, self._rng.randrange(1, KEPT_CUTS))
            possible, warehouse = [expected], f"at:{token}"
            found = read(warehouse, table.table.name)
        else:
            since, warehouse = self._writer.acknowledged(table), "now"
            found = read(warehouse, table.table.name)
            possible = self._writer.possible(table, since)
        self.read[name] = self.read.get(name, 0) + 1
        assert found in possible, f"read {number}: {name} says {found} of {table.table.name} under {warehouse}"

    def close(self) -> None:
        """Let go of the engines."""
        for close in self._closed:
            close()


def read_while_all_goes_on(place: Place, reads: int) -> None:
    """So many reads by all engines, with a disturbance between some of them."""
    rng, writer = seeded(15), Writer(place.tables)
    readers = Readers(place, writer)
    try:
        writer.wait(3)
        for number in range(reads):
            writer.check()
            if number % EVERY == EVERY - 1:
                do = rng.choice([place.round, place.round, place.compact, place.rewrite, place.widen, None])
                do(rng.choice(place.tables)) if do else place.restart()
            readers.one(number, rng.choice(place.tables))
    finally:
        readers.close()
        writer.stop()
    assert set(readers.read) == {"Spark", "DuckDB", "PyIceberg", "polars", "ClickHouse"}


def test_every_read_of_every_engine_is_a_state_of_the_table(place: Place) -> None:
    read_while_all_goes_on(place, FEW)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_thousands_of_reads_are_states_of_the_table(place: Place) -> None:
    read_while_all_goes_on(place, MANY)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_trino_reads_tables_without_vectors(place: Place, tmp_path: Path) -> None:
    (tmp_path / "trino").mkdir()
    plain, log = (one for one in place.tables if not one.vectors)
    writer = Writer([plain, log])
    try:
        writer.wait(10)
        place.round(plain)
        token, expected = writer.cut(plain, 5)
        warehouses = {"now": "now", "cut": f"at:{token}"}
        with TrinoProcess(tmp_path / "trino", place.uri, warehouses) as trino:
            for number in range(60):
                one = (plain, log)[number % 2]
                since = writer.acknowledged(one)
                found = Sums.of_row(trino.rows(f"SELECT {engines.SUMS} FROM now.{one.table.name}")[0])
                assert found in writer.possible(one, since)
                if number % EVERY == 0:
                    place.round(one)
            assert Sums.of_row(trino.rows(f"SELECT {engines.SUMS} FROM cut.{plain.table.name}")[0]) == expected
    finally:
        writer.stop()

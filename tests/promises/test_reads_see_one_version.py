"""Columns change while rows are tiered: each reader, whoever wrote it, sees one version and the right values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from lakestore.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SetOptions,
    Step,
    WidenColumn,
)
from lakestore.model.table import Table
from lakestore.union.verify import verify
from lakestore_server.catalog.gate import PIN_PREFIX
from lakestore_server.main import Server
from lakestore_tiering import Tierer, compact
from tests.lake.evolving import EVENTS, ITEMS, Evolving, Row, alter, shown, tuples
from tests.lake.test_tier_crash import Died, at
from tests.support.staging import sorted_by_spark

pytestmark = pytest.mark.spark

ROUNDS: list[list[list[Step]]] = [
    [[AddColumn("note", "string"), MoveColumn("price", first=True)]],
    [[WidenColumn("count", "int64"), WidenColumn("ratio", "float64"), WidenColumn("price", "decimal(20,2)")]],
    [[RenameColumn("text", "word"), WidenColumn("small", "int16"), MakeOptional("small")]],
    [[DropColumn("note")], [AddColumn("note", "int64")]],
    [[DropColumn("count"), RenameColumn("ratio", "count")], [RenameColumn("note", "ratio")]],
    [[DropColumn("count")]],
    [[AddColumn("count", "string", after="id")]],
]
"""Per round the changes, each followed by writes."""
FEW: list[list[list[Step]]] = [
    [[*ROUNDS[0][0], *ROUNDS[1][0]]],
    [[*ROUNDS[2][0], *ROUNDS[3][0][0:1]], ROUNDS[3][1]],
]
"""The changes of the first four rounds in two."""
SHORT_AND_LONG = pytest.mark.parametrize("rounds", [FEW, pytest.param(ROUNDS, marks=pytest.mark.long)], ids=len)
READ_SECONDS = 0.02
"""Between two reads of a reader that loops: a process that only read would leave the tierer no time."""


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.long)])
def shop(server: Server, lake: ls.Lake, spark: SparkSession, request: pytest.FixtureRequest) -> Evolving:
    made = Evolving(server, lake, spark, request.param)
    made.create()
    return made


@pytest.mark.timeout(900)
@SHORT_AND_LONG
def test_every_reader_sees_the_version_and_the_model_s_rows(shop: Evolving, rounds: list[list[list[Step]]]) -> None:
    every = [shop.by_union, shop.by_spark_union, shop.by_spark, shop.by_duckdb, shop.by_pyiceberg]
    with Tierer(shop.lake, shop.spark) as tierer:
        shop.write()
        tierer.run_once(compaction=False)
        for number, changes in enumerate(rounds):
            for steps in changes:
                shop.alter(*steps)
                shop.check(shop.by_union, shop.by_spark_union)
                shop.write()
                shop.check(shop.by_union, shop.by_spark_union)
            if number in (1, 3, 6):
                shop.check_conditions()
            tierer.run_once(compaction=False)
            shop.check(*every)
        tierer.run_once(compaction=True)
        shop.check(*every)
    for table in (ITEMS, EVENTS):
        verified = verify(shop.lake.transport, table)
        assert verified.same, verified.problems()


@pytest.mark.parametrize("shop", [2], indirect=True)
def test_an_older_cut_keeps_its_version_and_what_was_dropped_since(shop: Evolving) -> None:
    held: list[tuple[DataFrame, Table, list[Row]]] = []
    with Tierer(shop.lake, shop.spark) as tierer:
        shop.write()
        tierer.run_once(compaction=False)
        shop.write()
        token = shop.lake.last_token
        before = {table: (shop.definition(table), shown(shop.definition(table), shop.model(table))) for table in BOTH}
        shop.alter(DropColumn("count"), RenameColumn("ratio", "count"))
        shop.alter(AddColumn("ratio", "string"))
        # No commit of rows lies between: the next snapshot's tier point is the token's own cut.
        tierer.run_once(compaction=False)
        for turn in range(2):
            for table, (definition, rows) in before.items():
                found = shop.lake.table(table).scan(at=token).to_arrow()
                assert found.schema == definition.schema
                assert tuples(found, definition) == rows, table
                assert tuples(shop.reads.at(token).table(table).toArrow(), definition) == rows, table
            if turn == 0:
                held.extend((shop.reads.table(table), shop.definition(table), shop.model(table)[:]) for table in BOTH)
            shop.write()
            tierer.run_once(compaction=True)
            shop.alter(DropColumn("ratio"), AddColumn("ratio", "string"))
        shop.write()
        tierer.run_once(compaction=True)
        for frame, definition, rows_then in held:
            assert tuples(frame.toArrow(), definition) == shown(definition, rows_then)
        shop.check(shop.by_union, shop.by_spark)


def test_maintenance_begun_before_a_change_lands_after_it(shop: Evolving) -> None:
    """Our compaction, another engine's, and an expiry of all that is old; options reach the lake on the way."""
    with Tierer(shop.lake, shop.spark) as tierer:
        for _ in range(2):
            shop.write()
            tierer.run_once(compaction=False)
        shop.alter(RenameColumn("price", "cost"), WidenColumn("small", "int64"))
        frame = shop.reads.sql(f"SELECT text FROM {ITEMS} WHERE cost > 3 AND small > 20")
        plan = str(frame._jdf.queryExecution().executedPlan().toString())
        (scan,) = [line for line in plan.splitlines() if "BatchScan now" in line]
        assert "cost > 3" in scan, "a renamed column's condition reaches the files, which are older"
        assert "small > 20" in scan, "a widened one's too"
        forks = [compact.fork(tierer.tools, table, force=True) for table in BOTH]
        shop.alter(DropColumn("count"), RenameColumn("text", "count"), AddColumn("text", "int32"))
        shop.alter(SetOptions({"target_file_bytes": 64 << 20}))
        shop.write()
        tierer.run_once(compaction=False)
        for started in forks:
            assert started is not None
            compact.rewrite(tierer.tools, started)
            assert compact.land(tierer.tools, started) is not None
        shop.check(shop.by_union, shop.by_spark_union, shop.by_spark)
        for table in BOTH:
            _call(shop, "rewrite_data_files", f"'{table}', options => map('rewrite-all', 'true')")
            _call(shop, "expire_snapshots", f"'{table}', older_than => TIMESTAMP '2100-01-01 00:00:00'")
            said = shop.spark.sql(f"SHOW TBLPROPERTIES lake.{table} ('write.target-file-size-bytes')").collect()
            assert said[0].value == str(64 << 20)
        shop.check(shop.by_union, shop.by_spark)
        shop.alter(WidenColumn("text", "int64"))
        shop.write()
        tierer.run_once(compaction=True)
        shop.check(shop.by_union, shop.by_spark_union, shop.by_spark, shop.by_duckdb, shop.by_pyiceberg)


BOTH = (ITEMS, EVENTS)


def _call(shop: Evolving, procedure: str, arguments: str) -> None:
    shop.spark.sql(f"CALL lake.system.{procedure}(table => {arguments})").collect()


@pytest.mark.parametrize("shop", [3], indirect=True)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_tierer_that_dies_as_the_schema_changes_is_followed(shop: Evolving, every: int) -> None:
    """Whatever is in the lake between has one whole version, old or new."""
    with Tierer(shop.lake, shop.spark) as tierer:
        shop.write()
        tierer.run_once(compaction=False)
    changes: list[list[Step]] = [
        [DropColumn("count"), AddColumn("count", "string", default="new")],
        [RenameColumn("text", "word")],
        [RenameColumn("word", "text"), WidenColumn("ratio", "float64")],
        [DropColumn("count"), AddColumn("count", "int64")],
    ]
    points = ["staged", "deaths-written", "before-commit", "after-commit"]
    for point, steps in list(zip(points, changes, strict=True))[::every]:
        old, rows = shop.definition(ITEMS), shown(shop.definition(ITEMS), shop.model(ITEMS))
        shop.alter(*steps)
        shop.write()
        with pytest.raises(Died):
            Tierer(shop.lake, shop.spark, holder="one", crash=at(point)).run_once(ITEMS, compaction=False)
        if point == "after-commit":
            old, rows = shop.definition(ITEMS), shown(shop.definition(ITEMS), shop.model(ITEMS))
        found = shop.by_spark(ITEMS)
        assert tuples(found, old) == rows, point
        shop.check(shop.by_union, shop.by_spark_union)
        shop.alter(AddColumn(f"x_{len(old.columns)}", "int32"))
        with Tierer(shop.lake, shop.spark, holder="one") as following:
            shop.write()
            following.run_once(compaction=False)
        shop.check(shop.by_spark)
        names = {row.name for row in shop.spark.sql(f"SELECT name FROM lake.{ITEMS}.refs").collect()}
        refs = {name for name in names if not name.startswith(PIN_PREFIX)}
        assert refs == {"main", "lakestore-tier"}, point


DEFAULTS = {
    "b1": ("bool", True),
    "s1": ("string", "dé'f"),
    "i1": ("int8", -3),
    "i8": ("int64", 1 << 40),
    "f4": ("float32", 1.5),
    "f8": ("float64", 2.25),
    "d1": ("decimal(12,3)", "12.500"),
    "dt": ("date", "2020-02-29"),
    "ts": ("timestamp", "2020-02-29T12:34:56.123456"),
    "tz": ("timestamptz", "2020-02-29T12:34:56.123456+00:00"),
    "by": ("binary", "00ffab"),
    "fx": ("fixed(3)", "0a0b0c"),
    "tm": ("time", "01:02:03.000004"),
    "u1": ("uint8", 200),
    "u4": ("uint32", 4_000_000_000),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("required", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("shop", [3], indirect=True)
def test_defaults_of_older_rows_are_seen_by_every_engine(shop: Evolving, required: bool) -> None:
    every = [shop.by_union, shop.by_spark_union, shop.by_spark, shop.by_duckdb, shop.by_pyiceberg]
    with Tierer(shop.lake, shop.spark) as tierer:
        shop.write()
        tierer.run_once(compaction=False)
        shop.alter(*[AddColumn(name, kind, required, default) for name, (kind, default) in DEFAULTS.items()])
        shop.check(shop.by_union, shop.by_spark_union)
        if not required:  # the other form asks once files with and without the columns are there
            shop.check_conditions()
        shop.write()
        tierer.run_once(compaction=False)
        shop.check(*every)
        shop.check_conditions()
        shop.alter(WidenColumn("i1", "int64"), WidenColumn("f4", "float64"), WidenColumn("d1", "decimal(20,3)"))
        shop.alter(WidenColumn("u1", "uint32"), WidenColumn("u4", "int64"))
        shop.write()
        tierer.run_once(compaction=False)
        shop.check(*(every if not required else every[:2]))
        for table in BOTH:
            _call(shop, "rewrite_data_files", f"'{table}', options => map('rewrite-all', 'true')")
        shop.check(*every)


@pytest.mark.parametrize("shop", [2], indirect=True)
@SHORT_AND_LONG
def test_readers_that_loop_meanwhile_see_one_version_each(shop: Evolving, rounds: list[list[list[Step]]]) -> None:
    """Every answer is one state that the table had: its columns and its rows.

    Plain Iceberg in Spark is left out: Spark itself reads the newest rows by the columns of its analysis.
    """
    states: set[tuple[Any, ...]] = set()

    def state() -> None:
        names = shop.definition(ITEMS).schema.names
        states.add((tuple(names), tuple(shown(shop.definition(ITEMS), list(shop.items.values())))))

    seen: list[tuple[str, tuple[Any, ...]]] = []
    stop = threading.Event()

    def loop(reader: Callable[[str], pa.Table]) -> None:
        while not stop.wait(READ_SECONDS):
            found = reader(ITEMS)
            names = [name for name in found.schema.names if not name.startswith("__")]
            rows = (tuple(row[name] for name in names) for row in found.to_pylist())
            seen.append((reader.__name__, (tuple(names), tuple(sorted(rows, key=repr)))))

    with Tierer(shop.lake, shop.spark) as tierer, ThreadPoolExecutor(4) as pool:
        shop.upsert(12)
        state()
        tierer.run_once(ITEMS, compaction=False)
        readers = [shop.by_arrow, shop.by_arrow, shop.by_spark_union, shop.by_pyiceberg]
        running = [pool.submit(loop, reader) for reader in readers]
        try:
            for changes in rounds:
                for steps in changes:
                    alter(shop.lake, ITEMS, *steps)
                    state()
                    shop.upsert(12)
                    state()
                tierer.run_once(ITEMS, compaction=len(states) % 3 == 0)
        finally:
            stop.set()
        for done in running:
            done.result(timeout=60)
    assert {name for name, _ in seen} == {"by_arrow", "by_spark_union", "by_pyiceberg"}
    assert [name for name, one in seen if one not in states] == []


@pytest.fixture(autouse=True)
def sorted_tables_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of staging rows are tested: by Spark for sorted tables, by Arrow for the others."""
    sorted_by_spark(monkeypatch)

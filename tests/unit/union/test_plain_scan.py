"""Queries that one union read answers have the rows, names and types that DuckDB gives.

`OFFSET 0` sends the same query to DuckDB. Tables have all types, files in the lake and rows behind them, deletes, old
versions, and columns that were added and renamed; reads are at the newest commit and at past cuts.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import LakestoreError
from lakestore.evolution import AddColumn, RenameColumn, WidenColumn
from lakestore.model.types import arrow_type
from lakestore.union import sql
from lakestore.union.plain_scan import PlainScan
from lakestore.union.sql import Bounds, Query
from tests.support.log_tierer import LogTierer
from tests.support.seeds import examples, seeded
from tests.support.served import Served

UTC = dt.UTC
TIMES = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(9999, 12, 31)]
VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [0, 1, -128, 127],
    "int16": [0, -7, 2**15 - 1],
    "int32": [0, 2, -(2**31)],
    "int64": [0, 3, 2**63 - 1, -(2**63)],
    "uint8": [0, 255],
    "uint16": [0, 65_535],
    "uint32": [0, 2**32 - 1],
    "float32": [0.0, -0.0, 1.5, float("inf"), float("nan")],
    "float64": [0.0, -0.0, 0.1, 1e300, -float("inf"), float("nan")],
    "string": ["", "a", "it's", "x\\y", "ÄÖ", "\t", "long enough for a buffer of its own"],
    "binary": [b"", b"a", b"\0\xff"],
    "fixed(2)": [b"ab", b"\0\xff"],
    "date": [time.date() for time in TIMES],
    "time": [dt.time(0), dt.time(23, 59, 59, 999_999)],
    "timestamp": TIMES,
    "timestamptz": [time.replace(tzinfo=UTC) for time in TIMES],
    "decimal(4,2)": [Decimal("1.25"), Decimal("-0.01")],
    "decimal(38,3)": [Decimal("-0.001"), Decimal("9" * 35 + ".999")],
    "list<int64>": [[], [1, None]],
    "map<string, int16>": [[], [("a", 1)]],
    "struct<a: int8, t: timestamptz>": [{"a": 1, "t": None}],
}
COLUMNS = {f"c{number}": kind for number, kind in enumerate(VALUES)}
SCHEMA = pa.schema([("id", pa.int32()), *((name, arrow_type(kind)) for name, kind in COLUMNS.items())])
CONDITIONS = ["id > 7", "id BETWEEN 3 AND 20 OR c1 = 0", "c10 <> 'a'", "c9 <= 0.1", "c16 IS NULL", "c17 < 1", "NOT c0"]
ROUNDS = 4
SAME = [kind for kind in VALUES if not kind.startswith(("list", "map", "struct", "fixed"))]
"""Types that a union read and DuckDB give alike."""


class World:
    """A log table with files in the lake and rows behind them, and a keyed table with old versions and deletes."""

    def __init__(self, served: Served, chance: Random) -> None:
        self.lake, self.chance = served.lake, chance
        served.lake.create_table("p.log", SCHEMA, buckets=2)
        served.lake.create_table("p.keyed", SCHEMA, primary_key=["id"], buckets=2)
        tierer = LogTierer(served.server, served.lake.transport)
        self.cuts = {"p.log": list[str](), "p.keyed": list[str]()}
        for part in range(ROUNDS):
            log, keyed = served.lake.table("p.log"), served.lake.table("p.keyed")
            self.cuts["p.log"].append(str(log.append(self._rows(log, range(20 * part, 20 * part + 20)))))
            ids = chance.sample(range(30), 20)
            keyed.upsert(self._rows(keyed, ids))
            gone = pa.table({"id": pa.array(ids[:3], pa.int32())})
            self.cuts["p.keyed"].append(str(keyed.delete(gone)))
            if part < 2:
                tierer.flush("p.log")
            if part == 1:
                for table in (log, keyed):
                    table.alter(RenameColumn("c3", "renamed"), AddColumn("added", "string"))
                log.alter(WidenColumn("id", "int64"))

    def _rows(self, table: ls.Table, ids: Iterable[int]) -> pa.Table:
        return pa.Table.from_pylist([self._row(table.schema, number) for number in ids], schema=table.schema)

    def _row(self, schema: pa.Schema, number: int) -> dict[str, Any]:
        kinds = {**COLUMNS, "renamed": COLUMNS["c3"], "added": "string"}
        return {name: number if name == "id" else self._value(kinds[name]) for name in schema.names}

    def _value(self, kind: str) -> Any:
        return None if self.chance.random() < 0.2 else self.chance.choice(VALUES[kind])

    def question(self) -> tuple[str, str, int | None]:
        """(text without a limit, cut, limit)."""
        chance, name = self.chance, self.chance.choice(list(self.cuts))
        columns = chance.sample([*SCHEMA.names, "renamed", "added", "__offset"], chance.randint(1, 4))
        if chance.random() < 0.7:
            columns = [column for column in columns if COLUMNS.get(column) in (None, *SAME)] or ["id"]
        where = f" WHERE {chance.choice(CONDITIONS)}" if chance.random() < 0.4 else ""
        shown = [
            f"{column} AS Shown{at}" if not where and chance.random() < 0.2 else column
            for at, column in enumerate(columns)
        ]
        text = f"SELECT {', '.join(shown) if chance.random() < 0.9 else '*'} FROM {name}"
        at = chance.choice(self.cuts[name]) if chance.random() < 0.4 else ""
        if at and chance.random() < 0.3:
            text, at = f"{text} AT (TOKEN => '{at}')", ""
        return text + where, at, chance.choice([0, 1, 7, 1_000]) if chance.random() < 0.2 else None

    def answer(self, text: str, at: str = "", **options: Any) -> tuple[pa.Schema, Counter[str]]:
        """Columns and rows of a query as a server answers it."""
        query = Query(text, at=at or None, bounds=Bounds(256 << 20), **options)
        with sql.stream(self.lake.transport, query) as found:
            return found.schema, Counter(repr(row) for batch in found.batches for row in batch.to_pylist())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Served(tmp_path_factory.mktemp("plain_scan"), ports=True) as served:
        yield World(served, seeded())


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[PlainScan]:
    """The scans that answered queries without DuckDB."""
    taken: list[PlainScan] = []

    def batches(self: PlainScan, *rest: Any) -> Any:
        taken.append(self)
        return inner(self, *rest)

    inner = PlainScan.batches
    monkeypatch.setattr(PlainScan, "batches", batches)
    return taken


def _asked(world: World, text: str, at: str, **options: Any) -> tuple[pa.Schema, Counter[str]] | str:
    try:
        return world.answer(text, at, **options)
    except LakestoreError as error:
        return error.kind


def test_rows_names_and_types_are_those_of_duckdb(world: World, plain: list[PlainScan]) -> None:
    kinds, limited, rounds = set[pa.DataType](), 0, examples(240)
    for _ in range(rounds):
        text, at, limit = world.question()
        for options in ({}, {"zone": "Asia/Tokyo"}):
            plain.clear()
            own = _asked(world, text + ("" if limit is None else f" LIMIT {limit}"), at, **options)
            taken = list(plain)
            judge = _asked(world, text + " OFFSET 0", at, **options)
            assert len(plain) == len(taken), "DuckDB is the judge"
            if limit is None or isinstance(own, str) or isinstance(judge, str):
                assert own == judge, (text, at)
                continue
            assert own[0] == judge[0], (text, at)
            assert own[1].total() == min(limit, judge[1].total()), (text, limit)
            assert own[1] <= judge[1], (text, limit)
            limited += len(taken)
        kinds.update(kind for scan in taken for kind in scan.schema.types)
    assert limited, "no limit was asked of a union read"
    assert kinds == {arrow_type(kind) for kind in SAME} | {pa.int64()}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id, id FROM p.log", "SELECT id AS a, c1 AS A FROM p.log", "SELECT ID FROM p.log",
        "SELECT id + 0 FROM p.log",
        "SELECT DISTINCT c1 FROM p.log", "SELECT c1 FROM p.log GROUP BY c1", "SELECT id FROM p.log ORDER BY id LIMIT 3",
        "SELECT id AS c1, c1 AS id FROM p.log WHERE c1 > 0", "SELECT c12, c1 FROM p.log", "SELECT c19 FROM p.log",
        "SELECT * FROM p.log", "SELECT l.id FROM p.log AS l, p.keyed", "SELECT l.id FROM p.log AS l(id, b)",
        "SELECT c12 FROM p.log",
        "SELECT id FROM p.log LIMIT 10%", "SELECT id FROM p.log WHERE c15 > c15 - INTERVAL 1 DAY",
        "SELECT count(*) FROM p.log",
        "SELECT id FROM p.log WHERE id + 1 > 7", "WITH l AS (SELECT 1 AS x) SELECT x FROM l, p.log",
        "SELECT id FROM p.log WHERE id IN (SELECT id FROM p.keyed)", "SELECT id FROM p.log USING SAMPLE 3",
        "SELECT id FROM p.log WINDOW w AS (PARTITION BY id)", "SELECT unnest([id]) FROM p.log",
    ],
)  # fmt: skip
def test_duckdb_answers_what_is_more_than_one_read(world: World, plain: list[PlainScan], text: str) -> None:
    assert not isinstance(_asked(world, text, ""), str)
    assert not plain


def test_times_without_a_zone_in_a_condition_are_of_the_session_s_zone(world: World, plain: list[PlainScan]) -> None:
    table = world.lake.create_table("p.zones", pa.schema([("t", pa.timestamp("us", tz="UTC"))]))
    table.append([{"t": dt.datetime(2026, 1, 1, hour, tzinfo=UTC)} for hour in range(24)])
    for what in ("count(*) AS n", "t"):
        text = f"SELECT {what} FROM p.zones WHERE t < '2026-01-01 12:00'"
        rows = [world.answer(text, zone=zone)[1] for zone in ("UTC", "Asia/Tokyo")]
        assert rows == ([Counter(["{'n': 12}"]), Counter(["{'n': 3}"])] if "n" in what else rows)
        assert [each.total() for each in rows] == ([1, 1] if "n" in what else [12, 3])
    assert len(plain) == 2, "the union read takes conditions in UTC only"

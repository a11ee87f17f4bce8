"""Conditions of scans and of DuckDB's queries: where they are held against rows, and what is not read for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import lakestore as ls
from lakestore.union.cut import Cut
from lakestore.union.scan import Scan
from lakestore.union.sql import run
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.files.new_segment import LOG_BATCH_ROWS
from tests.support.condition_cases import SCHEMA, VALUES, Case, Row, comparisons, conditions, narrowed, rows, rows_of
from tests.support.log_tierer import LogTierer
from tests.support.seeds import examples
from tests.support.served import Served

WIDE = pa.schema([("id", pa.int64()), *((f"c{i}", pa.string()) for i in range(49))])


class Watched:
    """A transport that notes what is fetched, of a server of some protocol."""

    def __init__(self, transport: Any, protocol: int | None = None) -> None:
        self._transport = transport
        self.fetched: list[pb.FetchRequest] = []
        self.received = self.looked_up = 0
        self.server = pb.HelloAnswer(protocol=transport.server.protocol if protocol is None else protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def fetch(self, request: pb.FetchRequest) -> Iterator[RowMessage]:
        self.fetched.append(request)
        for message in self._transport.fetch(request):
            self.received += len(message.rows)
            yield message

    def lookup(self, request: pb.LookupRequest) -> pb.RowBatch:
        self.looked_up += 1
        found: pb.RowBatch = self._transport.lookup(request)
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served"), ports=True) as found:
        yield found


@pytest.fixture(scope="module")
def tables(served: Served) -> tuple[ls.Table, ls.Table]:
    keyed = served.lake.create_table("c.keyed", SCHEMA, primary_key=["id"], buckets=2)
    return keyed, served.lake.create_table("c.log", SCHEMA, buckets=2)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows(), rows(), conditions())
def test_every_way_gives_the_rows_for_which_a_condition_is_true(
    served: Served, tables: tuple[ls.Table, ls.Table], old: list[Row], made: list[Row], case: Case
) -> None:
    keyed, log = tables
    keyed.delete(pa.table({"id": range(20)}))
    if old:
        keyed.upsert(pa.Table.from_batches([narrowed(old)]))
    kept = {row["id"]: row for row in (*old, *made)}
    before = {row["id"] for row in log.scan(columns=["id"]).to_arrow().to_pylist()}
    base = max(before, default=99) + 1
    events = [{**row, "id": base + row["id"]} for row in made]
    if made:
        keyed.upsert(pa.Table.from_batches([narrowed(made)]))
        log.append(pa.Table.from_batches([narrowed(events)]))
    for table, held in ((keyed, list(kept.values())), (log, events)):
        text = case.text if table is keyed else f"id >= {base} AND ({case.text})"
        wanted = sorted(row["id"] for row in held if case.holds(row) is True)
        name = table.definition.name
        for protocol in (5, 4):
            found = Scan(Watched(served.lake.transport, protocol), name, columns=["id"], where=text).to_arrow()
            assert sorted(found.column("id").to_pylist()) == wanted, (text, protocol)
        assert table.scan(where=text).count() == len(wanted), text
        answer = served.lake.sql(f"SELECT id FROM {name} WHERE {text} ORDER BY id").to_arrow()
        assert answer.column("id").to_pylist() == wanted, text
        assert served.lake.sql(f"SELECT count(*) AS n FROM {name} WHERE {text}").to_pylist() == [{"n": len(wanted)}]


@pytest.mark.parametrize("name", ["f", "f4"])
def test_nan_is_the_greatest_number_in_queries_too(served: Served, name: str) -> None:
    table = served.lake.create_table(f"c.{name}", SCHEMA, buckets=1)
    made = rows_of(name)
    table.append(pa.Table.from_batches([narrowed(made)]))
    for case in comparisons(name):
        found = served.lake.sql(f"SELECT id FROM c.{name} WHERE {case.text} ORDER BY id").to_arrow()
        assert found.column("id").to_pylist() == [row["id"] for row in made if case.holds(row) is True], case.text


PARTS = 4


@pytest.fixture(scope="module")
def tiered(served: Served) -> tuple[str, list[Row]]:
    """A log table with four files in the lake and rows behind them, whose values differ from part to part."""
    table = served.lake.create_table("c.parts", SCHEMA, buckets=1)
    tierer = LogTierer(served.server, served.lake.transport)
    made: list[Row] = []
    for part in range(PARTS + 1):
        some = [_row(part, place) for place in range(16)]
        table.append(pa.Table.from_batches([narrowed(some)]))
        made += some
        if part < PARTS:
            tierer.flush("c.parts")
    return "c.parts", made


def _row(part: int, place: int) -> Row:
    """A row of values and nulls that follow from its place; a part has a few values of each column."""
    row: Row = {"id": part * 16 + place}
    for number, (name, values) in enumerate(VALUES.items()):
        at = part + place // (2 + number % 3)
        value = None if (place + number) % 7 == 0 else values[(part if number % 2 else at) % len(values)]
        outer, _, inner = name.partition(".")
        if inner:
            row[outer] = None if place == 3 else {**(row.get(outer) or {}), inner: value}
        else:
            row[name] = value
    return row


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(conditions())
def test_files_and_log_give_the_rows_for_which_a_condition_is_true(
    served: Served, tiered: tuple[str, list[Row]], case: Case
) -> None:
    name, made = tiered
    wanted = sorted(row["id"] for row in made if case.holds(row) is True)
    table = served.lake.table(name)
    assert sorted(table.scan(columns=["id"], where=case.text).to_arrow().column("id").to_pylist()) == wanted, case.text
    assert table.scan(where=case.text).count() == len(wanted), case.text
    answer = served.lake.sql(f"SELECT id FROM {name} WHERE {case.text} ORDER BY id").to_arrow()
    assert answer.column("id").to_pylist() == wanted, case.text
    assert len(served.lake.sql(f"SELECT i FROM {name} WHERE ({case.text}) IS NOT DISTINCT FROM TRUE")) == len(wanted)


def test_a_condition_and_its_columns_stay_with_the_server(served: Served) -> None:
    table = served.lake.create_table("c.wide", WIDE, primary_key=["id"], buckets=1)
    names = WIDE.names[1:]
    table.upsert(pa.table({"id": range(5_000), **{name: [f"{name} of {i}" for i in range(5_000)] for name in names}}))
    watched = Watched(served.lake.transport)
    whole = Scan(watched, "c.wide").explain().figures
    one = Scan(watched, "c.wide", columns=["c7"]).explain().figures
    assert one.hot_bytes <= whole.hot_bytes * 0.06
    few = Scan(watched, "c.wide", columns=["c7"], where="c9 = 'c9 of 17' AND c8 LIKE 'c8%'").explain()
    assert (few.rows, few.figures.hot_tested, few.figures.hot_rows) == (1, 5_000, 1)
    assert few.figures.hot_bytes < 1_000
    assert list(watched.fetched[-1].columns) == ["c7"]
    assert "5,000 live ones held against the condition by the server, 1 rows came" in str(few)


def test_the_whole_key_is_looked_up_at_the_cut(served: Served) -> None:
    both = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
    table = served.lake.create_table("c.pairs", both, primary_key=["a", "b"], buckets=4)
    table.upsert([{"a": a, "b": b, "v": a} for a in range(300) for b in ("x", "y")])
    watched = Watched(served.lake.transport)
    with Cut(watched, ["c.pairs"]) as cut:
        table.upsert([{"a": 7, "b": "x", "v": -1}])
        table.delete([{"a": 8, "b": "y"}])
        for where, wanted in [
            ("a = 7 AND b = 'x'", [7]),
            ("a IN (7, 8, 7, 999) AND b IN ('x', 'y')", [7, 7, 8, 8]),
            ("(a = 7 AND b = 'x') OR (a = 8 AND b = 'y')", [7, 8]),
            ("a = 7 AND b = 'x' AND v = -1", []),
            ("a = 7 AND b = 'x' AND v IS NOT NULL AND a < 9", [7]),
        ]:
            explained = Scan(cut, "c.pairs", columns=["v"], where=where).explain()
            assert explained.rows == len(wanted), where
            assert explained.figures.keys
            assert Scan(cut, "c.pairs", where=where).count() == len(wanted)
            found = Scan(cut, "c.pairs", columns=["v"], where=where).to_arrow().column("v").to_pylist()
            assert sorted(found) == wanted
        assert not watched.fetched
        answer = run(cut, "SELECT v FROM c.pairs WHERE a IN (7, 8) AND b = 'x' ORDER BY v")
        assert answer.to_arrow().column("v").to_pylist() == [7, 8]
        looked_up = watched.looked_up
        many = ", ".join(map(str, range(3_000)))
        assert Scan(cut, "c.pairs", where=f"a IN ({many}) AND b IN ('x', 'y')").count() == 600
        assert Scan(cut, "c.pairs", where="a = 7").count() == 2
        assert Scan(cut, "c.pairs", where="a = 7 OR b = 'x'").count() == 301
        assert watched.looked_up == looked_up
        assert watched.fetched


def test_a_row_whose_older_version_matches_is_not_there(served: Served) -> None:
    table = served.lake.create_table(
        "c.versions", pa.schema([("id", pa.int64()), ("v", pa.int64())]), primary_key=["id"]
    )
    table.upsert(pa.table({"id": range(2_000), "v": [1] * 2_000}))
    table.upsert(pa.table({"id": range(1_000), "v": [2] * 1_000}))
    table.delete(pa.table({"id": range(100)}))
    for version, wanted in ((1, 1_000), (2, 900)):
        assert table.scan(where=f"v = {version}").count() == wanted
        assert served.lake.sql(f"SELECT count(*) AS n FROM c.versions WHERE v = {version}").to_pylist() == [
            {"n": wanted}
        ]


def test_pieces_of_the_log_that_cannot_match_are_passed_over(tmp_path: Path) -> None:
    size = LOG_BATCH_ROWS
    kinds = pa.schema([("day", pa.date32()), ("n", pa.int64())])
    with Served(tmp_path) as own:
        table = own.lake.create_table("c.days", kinds, buckets=1)
        for day in range(4):
            own.clock.advance(86_400)
            table.append(pa.table({"day": [date(2026, 1, 1 + day)] * size, "n": range(size)}, schema=kinds))
            own.checkpoint()
        noon = own.lake.sql("SELECT max(__timestamp) AS at FROM c.days WHERE day = '2026-01-02'").to_pylist()[0]["at"]
        for where in ("day = '2026-01-02'", f"__timestamp = '{noon.isoformat()}'"):
            for _ in range(2):
                explained = table.scan(columns=["n"], where=where).explain()
                figures = explained.figures
                assert (explained.rows, figures.hot_tested, figures.hot_passed_over) == (size, size, 3 * size), where
        nothing = table.scan(where="day > '2027-01-01'").explain()
        assert (nothing.rows, nothing.figures.hot_passed_over, nothing.figures.hot_bytes) == (0, 4 * size, 0)
        assert f"{4 * size:,} passed over by their ranges, 0 rows came, 0 B" in str(nothing)


def test_a_query_without_columns_reads_nothing(served: Served) -> None:
    table = served.lake.create_table("c.many", pa.schema([("v", pa.int64())]), buckets=2)
    table.append(pa.table({"v": range(300_000)}))
    watched = Watched(served.lake.transport)
    for text in ("SELECT count(*) AS n FROM c.many", "WITH m AS (SELECT * FROM c.many) SELECT count(*) AS n FROM m"):
        assert run(watched, text).to_pylist() == [{"n": 300_000}]
    assert not watched.fetched
    assert run(watched, "SELECT * FROM c.many LIMIT 0").to_arrow().schema.names == ["v"]
    named = run(watched, "SELECT count(*) FROM c.many WHERE v < 10")
    assert named.to_pylist() == [{"count_star()": 10}]
    assert "10 of 300,000 rows" in named.explain()


def test_a_count_means_by_its_names_what_the_rows_mean(served: Served) -> None:
    """A struct called as its table or database; and a computed integer has the bits of its type in SQL."""
    inner = pa.struct([("id", pa.int64()), ("v", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("named", inner), ("c", inner), ("small", pa.uint8())])
    table = served.lake.create_table("c.named", schema=schema, buckets=1)
    table.append([{"id": n, "named": {"id": 99 - n}, "c": {"id": 99 - n, "v": n}, "small": n} for n in range(10)])
    for text in ("named.id < 2", "NAMED.ID < 2", "c.named.id < 2", "c.v < 3", "id < 4", "-small < 0"):
        rows = served.lake.sql(f"SELECT id FROM c.named WHERE {text}").to_arrow().num_rows
        assert served.lake.sql(f"SELECT count(*) AS n FROM c.named WHERE {text}").to_pylist() == [{"n": rows}], text
    served.lake.drop_table("c.named")


def test_statistics_count_without_reading(served: Served) -> None:
    table = served.lake.create_table("c.tiered", pa.schema([("v", pa.int64()), ("w", pa.int64())]), buckets=1)
    tierer = LogTierer(served.server, served.lake.transport)
    for part in range(4):
        table.append(pa.table({"v": range(part * 1_000, part * 1_000 + 1_000), "w": [None, *range(999)]}))
        tierer.flush("c.tiered")
    table.append(pa.table({"v": range(4_000, 4_010), "w": range(10)}))
    for where, rows_, files, counted in [
        ("v < 2000", 2_000, 0, 2),
        ("v < 2500", 2_500, 1, 2),
        ("v >= 0", 4_010, 0, 4),
        ("v <> 5", 4_009, 1, 3),
        ("w IS NOT NULL", 4 * 999 + 10, 4, 0),
        ("v >= 4000", 10, 0, 0),
    ]:
        answer = served.lake.sql(f"SELECT count(*) AS n FROM c.tiered WHERE {where}")
        assert answer.to_pylist() == [{"n": rows_}], where
        assert table.scan(where=where).count() == rows_
        figures = answer.reads[0].figures
        assert (figures.files, figures.files_counted, figures.files_pruned) == (files, counted, 4 - files - counted), (
            where
        )
    opened = table.scan(where="v = 1500").explain().figures
    through = served.lake.sql("SELECT w FROM c.tiered WHERE v = 1500").reads[0].figures
    for figures in (opened, through):
        assert (figures.files, figures.files_pruned, figures.row_groups) == (1, 3, 1)
    cut = table.scan(columns=["w"]).explain().figures
    assert cut.lake_bytes < table.scan().explain().figures.lake_bytes

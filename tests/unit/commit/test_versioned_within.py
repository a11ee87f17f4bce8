"""`versioned(column, within column)`: versions of one source alone are compared, and rows that come late give way."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.model.merge_engines import Merge, parse_merge
from lakestore.model.table import Table
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("o", pa.int64()), ("s", pa.string()), ("x", pa.string())])
MERGE = "versioned(o, within s)"
Sent = tuple[int, str]
"""Version and source."""


def made(lake: ls.Lake, name: str = "d.t", **options: Any) -> ls.Table:
    return lake.create_table(name, SCHEMA, primary_key=["id"], **{"merge": MERGE, "buckets": 2, **options})


def upsert(table: ls.Table, *sent: Sent, key: int = 1) -> dict[str, int]:
    table.upsert([{"id": key, "o": o, "s": s, "x": f"{s}{o}"} for o, s in sent])
    return counted(table)


def counted(table: ls.Table) -> dict[str, int]:
    assert table.last_result is not None
    counts = asdict(table.last_result)
    return {name: value for name, value in counts.items() if value and name not in ("table", "schema_id")}


def live(table: ls.Table, key: int = 1) -> str | None:
    found = table.lookup([{"id": key}]).to_pylist()
    return found[0]["x"] if found else None


def test_versions_are_compared_where_within_is_equal_and_else_the_later_row_stays(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = made(lake)
        assert upsert(table, (5, "a")) == {"inserted": 1}
        assert upsert(table, (4, "a")) == {"ignored": 1}
        assert upsert(table, (5, "a")) == {"updated": 1}
        assert upsert(table, (1, "b")) == {"updated": 1}
        assert live(table) == "b1"
        assert upsert(table, (0, "b")) == {"ignored": 1}
        assert upsert(table, (2, "a")) == {"updated": 1}, "nothing is remembered of what another source replaced"


@pytest.mark.parametrize(
    ("sent", "stays"),
    [
        ([(6, "a"), (7, "a")], "a7"),
        ([(7, "a"), (6, "a")], "a7"),
        ([(3, "a"), (4, "a")], "a5"),
        ([(3, "a"), (1, "b")], "b1"),
        ([(1, "b"), (3, "a")], "a3"),
        ([(1, "b"), (3, "a"), (2, "a")], "a3"),
        ([(9, "a"), (1, "b"), (3, "a"), (2, "a"), (4, "b"), (3, "b")], "b4"),
        ([(3, "b"), (1, "b"), (2, "c"), (1, "b")], "b1"),
    ],
)
def test_rows_of_a_key_in_one_change_are_as_if_they_had_come_one_by_one(
    tmp_path: Path, sent: list[Sent], stays: str
) -> None:
    with ls.open(tmp_path) as lake:
        together, apart = made(lake), made(lake, "d.apart")
        for table in (together, apart):
            upsert(table, (5, "a"))
        counts = upsert(together, *sent)
        for one in sent:
            upsert(apart, one)
        assert live(together) == live(apart) == stays
        outcome = "ignored" if stays == "a5" else "updated"
        assert counts == {outcome: 1, "folded": len(sent) - 1}


def test_a_delete_names_both_columns_or_neither_and_both_are_remembered(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = made(served.lake)
        for number in range(5):
            upsert(table, (5, "a"), key=number)
        with pytest.raises(Invalid, match="a delete that names 'o' must name 's' too"):
            table.delete([{"id": 1, "o": 5}])
        with pytest.raises(Invalid, match="a delete that names 's' must name 'o' too"):
            table.delete([{"id": 1, "s": "a"}])
        table.delete([{"id": 0}, {"id": 1}])
        table.delete([{"id": 2, "o": 4, "s": "a"}, {"id": 3, "o": 4, "s": "b"}, {"id": 4, "o": 6, "s": "a"}])
        assert counted(table) == {"ignored": 1, "deleted": 2}
        records = [row for batch in table.changes(until="now") for row in batch.to_arrow().to_pylist()]
        gone = {row["id"]: (row["o"], row["s"]) for row in records if row["__change"] == "-D"}
        assert gone == {0: (5, "a"), 1: (5, "a"), 3: (4, "b"), 4: (6, "a")}
        expected = {0: ("a4", {"ignored": 1}), 1: ("b1", {"inserted": 1}), 3: ("b3", {"ignored": 1})}
        served.kill()
        shutil.rmtree(tmp_path / "index")
        served.start()
        served.until_indexed()
        table = served.lake.table("d.t")
        for key, (row, counts) in expected.items():
            assert upsert(table, (int(row[1]), row[0]), key=key) == counts, key
        table.insert_if_absent([{"id": 0, "o": 4, "s": "a"}, {"id": 4, "o": 0, "s": "b"}])
        assert counted(table) == {"ignored": 1, "inserted": 1}
        table.delete([{"id": 4, "o": 1, "s": "b"}, {"id": 4, "o": 0, "s": "c"}, {"id": 4, "o": 3, "s": "c"}])
        assert counted(table) == {"deleted": 1, "folded": 2}
        assert upsert(table, (2, "c"), key=4) == {"ignored": 1}, "the delete of the last source is remembered"


def test_a_row_that_expires_is_remembered_with_both_columns(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us")))
    with Served(tmp_path) as served:
        ttl = {"column": "at", "after": "1h"}
        table = served.lake.create_table("d.t", schema, primary_key=["id"], merge=MERGE, ttl=ttl)
        table.upsert([{"id": 1, "o": 5, "s": "a", "at": dt.datetime(2000, 1, 1)}])
        served.clock.advance(600)
        served.server.expiry.run_once()
        assert live(table) is None
        table.upsert([{"id": 1, "o": 4, "s": "a"}])
        assert counted(table) == {"ignored": 1}
        table.upsert([{"id": 1, "o": 4, "s": "b"}])
        assert counted(table) == {"inserted": 1}


def committed(served: Served) -> dt.datetime:
    """The time of the newest commit."""
    return dt.datetime.fromtimestamp(served.engine.view.time_us / 1e6, dt.UTC)


def test_a_late_row_gives_way_to_what_another_source_wrote_at_its_time_or_later(tmp_path: Path) -> None:
    tick = dt.timedelta(microseconds=1)
    with Served(tmp_path) as served:
        table, lake = made(served.lake), served.lake

        def late(kind: str, as_of: dt.datetime | None, *sent: Sent, key: int = 1) -> dict[str, int]:
            rows = [{"id": key, "o": o, "s": s, "x": f"{s}{o}"} for o, s in sent]
            with lake.commit() as commit:
                getattr(commit, kind)("d.t", rows, as_of=[as_of] * len(rows))
            found = commit.results[0]
            return {name: n for name in ("inserted", "updated", "deleted", "ignored") if (n := getattr(found, name))}

        for place in ("tail", "segments"):
            upsert(table, (5, "a"))
            served.clock.advance(1)
            upsert(table, (9, "b"))
            then = committed(served)
            served.clock.advance(1)
            upsert(table, (1, "z"), key=7)
            if place == "segments":
                served.checkpoint()
            assert late("upsert", then, (6, "a")) == {"ignored": 1}
            assert late("upsert", then - tick, (6, "a")) == {"ignored": 1}
            assert late("delete", then, (6, "a")) == {"ignored": 1}
            assert late("upsert", then, (10, "b")) == {"updated": 1}, "of one source the version decides"
            assert late("upsert", then, (9, "b")) == {"ignored": 1}
            then = committed(served)
            assert late("upsert", then + tick, (6, "a")) == {"updated": 1}
            assert late("upsert", None, (1, "b")) == {"updated": 1}
            then = committed(served)
            assert late("delete", then + tick, (6, "a")) == {"deleted": 1}
            then = committed(served)
            assert late("upsert", then, (1, "b")) == {"ignored": 1}, "a remembered delete is a record, too"
            assert late("upsert", then + tick, (1, "b"), (2, "c")) == {"inserted": 1}
            assert live(table) == "c2", "rows of one change follow one another"
            assert late("upsert", then, (3, "a"), (4, "c"), (5, "a")) == {"updated": 1}
            assert live(table) == "c4"
            with lake.commit() as commit:
                commit.upsert("d.t", [{"id": 8, "o": 1, "s": "a"}])
                commit.upsert("d.t", [{"id": 8, "o": 1, "s": "b"}], as_of=[dt.datetime(2020, 1, 1)])
                commit.delete("d.t", [{"id": 8}])
            assert [result.ignored for result in commit.results] == [0, 1, 0], "a row of this very commit is later"
            assert late("upsert", dt.datetime(2020, 1, 1), (1, "q"), key=9) == {"inserted": 1}
            table.delete([{"id": 9}])


def test_times_are_refused_where_they_mean_nothing(tmp_path: Path) -> None:
    row = {"id": 1, "o": 1, "s": "a"}
    at = [dt.datetime(2026, 1, 1)]
    with ls.open(tmp_path) as lake:
        made(lake, "d.v", merge="versioned(o)")
        made(lake)
        for name, kind, data, why in (
            ("d.v", "upsert", row, "with `within` columns and upserts or deletes: leave as_of out"),
            ("d.t", "delete", {"id": 1}, "rows with times name 'o', which the comparison needs"),
        ):
            with pytest.raises(Invalid, match=why), lake.commit() as commit:
                getattr(commit, kind)(name, [data], as_of=at)
        wrong: tuple[tuple[Any, str], ...] = (
            (at * 2, "2 values for 1 rows"),
            (["soon"], r"has no timestamp\[us, tz=UTC\]"),
            ([1_790_000_000], "integers tell no unit of time"),
            (pa.array([1 << 60], pa.timestamp("s")), "would result in out of bounds"),
        )
        for times, why in wrong:
            with pytest.raises(Invalid, match=why), lake.commit() as commit:
                commit.upsert("d.t", [row], as_of=times)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint32(), pa.int64(), pa.string()])
def test_within_is_an_integer_or_a_string_and_may_be_renamed_and_widened(tmp_path: Path, kind: pa.DataType) -> None:
    schema = SCHEMA.set(2, pa.field("s", kind))
    first, second = ("a", "b") if pa.types.is_string(kind) else (1, 2)
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", schema, primary_key=["id"], merge=MERGE)
        table.upsert([{"id": i, "o": 5, "s": first} for i in range(3)])
        table.delete([{"id": 2}])
        table.alter(rename={"s": "from_", "o": "at"}, add={"more": pa.int32()})
        assert str(table.definition.merge) == "versioned(at, within from_)"
        if not pa.types.is_string(kind) and kind != pa.int64():
            table.alter(widen={"from_": pa.int64()})
        with pytest.raises(Invalid, match="'from_' is in the merge engine and cannot be dropped"):
            table.alter(drop=["from_"])
        with pytest.raises(Invalid, match="within column 'from_' must be required"):
            table.alter(optional=["from_"])
        table.upsert([{"id": i, "at": 4, "from_": first} for i in range(3)])
        assert counted(table) == {"ignored": 3}
        table.upsert([{"id": i, "at": 4, "from_": second} for i in range(3)])
        assert counted(table) == {"updated": 2, "inserted": 1}
    with ls.open(tmp_path) as lake:
        assert lake.table("d.t").definition == table.definition


def test_every_spelling_is_one_engine_and_old_definitions_stay_as_they_were() -> None:
    wanted = Merge("versioned", "o", "s")
    spellings: tuple[Any, ...] = (
        ls.versioned("o", within="s"),
        "versioned(o, within s)",
        " versioned( o ,within  s ) ",
        {"versioned": "o", "within": "s"},
        {"within": "s", "versioned": "o"},
    )
    for spelling in spellings:
        assert parse_merge(spelling) == wanted
        assert parse_merge(parse_merge(spelling).as_data()) == wanted == parse_merge(str(parse_merge(spelling)))
    assert parse_merge("versioned(o)").as_data() == {"versioned": "o"}
    wrong: tuple[Any, ...] = (
        "versioned(o, s)",
        "versioned(o within s)",
        "versioned(, within s)",
        {"versioned": "o", "within": ""},
        {"versioned": "o", "within": None},
        {"versioned": "o", "by": "s"},
        {"within": "s"},
    )
    for spelling in wrong:
        with pytest.raises(Invalid, match="is not known"):
            parse_merge(spelling)
    with pytest.raises(Invalid, match="versioned takes names of columns, not 5"):
        parse_merge({"versioned": "o", "within": 5})


@pytest.mark.parametrize(
    ("merge", "why"),
    [
        ("versioned(o, within id)", "'id' is in the primary key"),
        ("versioned(o, within o)", "'o' is the version, and cannot be within as well"),
        ("versioned(o, within f)", "within column 'f' is float64: take an integer or a string"),
        ("versioned(o, within q)", "names column 'q', which is not there"),
        ("versioned(s, within o)", "version column 's' is string"),
        (ls.versioned("", within="s"), "versioned names the column with the version"),
    ],
)
def test_columns_that_cannot_be_within_are_refused(tmp_path: Path, merge: Any, why: str) -> None:
    with ls.open(tmp_path) as lake, pytest.raises(Invalid, match=why):
        lake.create_table("d.t", SCHEMA.append(pa.field("f", pa.float64())), primary_key=["id"], merge=merge)


def test_a_table_keeps_its_columns_required(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        definition = made(lake).definition
        assert [definition.column(name).required for name in ("o", "s", "x")] == [True, True, False]
        assert Table.received(definition.to_json()) == definition
        for column in ("o", "s"):
            with pytest.raises(Invalid, match=f"required column '{column}' is null in row 0"):
                made(lake, f"d.{column}").upsert([{"id": 1, "o": 1, "s": "a", column: None}])

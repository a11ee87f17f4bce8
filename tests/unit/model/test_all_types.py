"""Random rows of every type come back as they went in: hot, after a restart, from segments, as changes, by key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.model import types
from lakestore.union.verify import verify
from tests.support.all_types import SCALARS, SCHEMA, rows
from tests.support.served import Served

QUICK = settings(max_examples=5, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
IDS = list(range(6))
KEYS = [name for name in SCALARS if not name.startswith("float")]


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    assert table.schema.types == SCHEMA.types
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


def test_rows_come_back_on_every_path(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        keyed = lake.create_table("d.keyed", SCHEMA, primary_key=["id"], buckets=2)
        log = lake.create_table("d.log", SCHEMA)
        written: list[dict[str, Any]] = []
        tokens = ["earliest"]

        @QUICK
        @given(rows(IDS), st.booleans())
        def check(made: pa.Table, checkpoint: bool) -> None:
            before = {row["id"]: row for row in written[-len(IDS) :]}
            tokens.append(keyed.upsert(made))
            log.append(made)
            written.extend(made.to_pylist())
            if checkpoint:
                served.checkpoint()
            assert by_id(keyed.scan().to_arrow()) == made.to_pylist()
            assert by_id(keyed.lookup([{"id": i} for i in IDS])) == made.to_pylist()
            changes = _changes(keyed, *tokens[-2:])
            assert [row for kind, row in changes if kind in ("+U", "+I")] == made.to_pylist()
            assert [row for kind, row in changes if kind == "-U"] == list(before.values())

        check()
        assert log.scan().count() == len(written)
        proof = verify(lake.transport, "d.keyed")
        assert proof.same, proof.problems
    with Served(tmp_path) as served:
        lake = served.lake
        assert by_id(lake.table("d.keyed").scan().to_arrow()) == written[-len(IDS) :]
        found = lake.table("d.log").scan().to_arrow().to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, written))


def _changes(table: ls.Table, start: str, until: str) -> list[tuple[str, dict[str, Any]]]:
    """The changes between two tokens by id."""
    batches = table.changes(start=start, until=until, before_images=True)
    found = [row for batch in batches for row in batch.to_pylist()]
    shown = [(row["__change"], {k: v for k, v in row.items() if not k.startswith("__")}) for row in found]
    return sorted(shown, key=lambda pair: int(pair[1]["id"]))


@pytest.mark.parametrize("kind", KEYS)
def test_every_scalar_is_a_key(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("k", types.arrow_type(kind)), ("v", pa.int64())])
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", schema, primary_key=["k"], buckets=3)
        held: dict[Any, int] = {}

        @QUICK
        @given(st.lists(SCALARS[kind], min_size=1, max_size=8, unique=True), st.integers(0, 99))
        def check(found: list[Any], number: int) -> None:
            table.upsert([{"k": key, "v": number} for key in found])
            held.update(dict.fromkeys(found, number))
            assert {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == held
            assert table.lookup([{"k": key} for key in held]).num_rows == len(held)

        check()
        table.delete([{"k": key} for key in held])
        assert table.scan().count() == 0


def _made(lake: ls.Lake, kinds: dict[str, str]) -> ls.Table:
    fields = [pa.field("id", pa.int64(), nullable=False)]
    fields += [pa.field(name, types.arrow_type(kind)) for name, kind in kinds.items()]
    return lake.create_table("d.t", pa.schema(fields), buckets=1)


def test_python_pandas_and_polars_rows_nest(tmp_path: Path) -> None:
    kinds = {"m": "map<string, int16>", "s": "struct<a: uint8, l: list<date>>", "t": "time", "f": "fixed(2)"}
    day, noon = dt.date(2026, 1, 2), dt.time(12, 0, 0, 5)
    row = {"id": 1, "m": {"x": 7}, "s": {"a": 200, "l": [day, None]}, "t": noon, "f": b"ab"}
    none = {"id": 2, "m": None, "s": None, "t": None, "f": None}
    with ls.open(tmp_path) as lake:
        table = _made(lake, kinds)
        table.append([row, none])
        table.append(pd.DataFrame([row, none]))
        flat = {**row, "m": [{"key": "x", "value": 7}]}
        table.append(pl.DataFrame([flat, none]))
        table.append(table.scan().to_arrow().slice(0, 1))
        found = table.scan().to_arrow().to_pylist()
        assert [r for r in found if r["id"] == 1] == [{**row, "m": [("x", 7)]}] * 4
        assert [r for r in found if r["id"] == 2] == [none] * 3
        assert len(table.scan().to_pandas()) == len(table.scan().to_polars()) == 7


def test_integers_that_pandas_made_floats_for_a_missing_one_are_integers_again(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = _made(lake, {"n": "int32", "x": "float64"})
        table.append(pd.DataFrame({"id": [1, 2], "n": [7, None], "x": [1.0, None]}))
        assert table.scan().to_arrow().to_pylist() == [{"id": 1, "n": 7, "x": 1.0}, {"id": 2, "n": None, "x": None}]
        for value in (1.5, float(1 << 53), float("inf")):
            with pytest.raises(Invalid, match="column 'n' is int32, not double"):
                table.append(pd.DataFrame({"id": [1, 2], "n": [value, None]}))


REFUSED: list[tuple[str, Any, str]] = [
    ("struct<a: int8>", {"a": 1, "b": 2}, "'c', row 1: there is no field 'b'"),
    ("list<struct<a: int8>>", [{"a": 1}, {"z": 2}], "'c.element', row 1: there is no field 'z'"),
    ("struct<a: int8>", [1], "list is no dict"),
    ("int32", 1.5, "'c', row 1: 1.5 is no int32"),
    ("list<uint8>", [1.5], "'c.element', row 1: 1.5 is no uint8"),
    ("map<string, int8>", {"a": Decimal("1.5")}, "'c.value', row 1"),
    ("map<string, int8>", [("a", 1, 2)], "a map is a dict or a list of pairs"),
    ("uint8", 256, "column 'c'"),
    ("uint8", -1, "column 'c'"),
    ("date", dt.datetime(2026, 1, 1, 5), "'c', row 1: .* is no date"),
    ("time", 1.5, "is no time"),
    ("fixed(2)", b"abc", "column 'c'"),
    ("map<string, int8>", [("a", 1), ("a", 2)], "key 'a' twice in row 1"),
    ("struct<a: list<int8 not null> not null>", {"a": [None]}, "'c.a.element' is required, but null in row 1"),
]


@pytest.mark.parametrize(("kind", "wrong", "says"), REFUSED)
def test_python_values_lose_nothing_without_a_word(tmp_path: Path, kind: str, wrong: Any, says: str) -> None:
    with ls.open(tmp_path) as lake:
        table = _made(lake, {"c": kind})
        with pytest.raises(Invalid, match=says):
            table.append([{"id": 0, "c": None}, {"id": 1, "c": wrong}])
        assert table.scan().count() == 0


def test_conditions_and_sql_know_the_types(tmp_path: Path) -> None:
    kinds = {"t": "time", "u": "uint32", "f": "fixed(4)", "s": "struct<x: float64, a: int8>", "l": "list<int8>"}
    with ls.open(tmp_path) as lake:
        table = _made(lake, kinds)
        table.append(
            [
                {"id": 1, "t": dt.time(12), "u": 2**32 - 1, "f": b"abcd", "s": {"x": float("nan"), "a": 1}, "l": [1]},
                {"id": 2, "t": dt.time(13, 0, 0, 1), "u": 0, "f": b"abce", "s": {"x": 0.1, "a": None}, "l": []},
                {"id": 3},
            ]
        )
        for condition, ids in {
            "t > '12:30'": [2],
            "t = TIME '12:00:00'": [1],
            "t in ('12:00', '13:00:00.000001')": [1, 2],
            "u > -1": [1, 2],
            "u >= 4294967295": [1],
            "u = 4294967296": [],
            "f = 'abcd'::BLOB": [1],
            r"f > '\x61\x62\x63\x64'::BLOB": [2],
            "f <> CAST('ab' AS BLOB)": [1, 2],
        }.items():
            assert sorted(table.scan(["id"], where=condition).to_arrow()["id"].to_pylist()) == ids, condition
            text = f"SELECT id FROM d.t WHERE {condition} ORDER BY id"
            assert lake.sql(text).to_arrow()["id"].to_pylist() == ids, condition
        assert lake.sql("SELECT id FROM d.t WHERE s.x > 0.5").to_pylist() == [{"id": 1}]
        assert lake.sql("SELECT id FROM d.t WHERE len(l) = 0 OR s.a = 1 ORDER BY id").to_pylist() == [
            {"id": 1},
            {"id": 2},
        ]
        for condition, says in {
            "l = 1": "'l' is nested",
            "t > 5": "cast one of them",
            "t > '25:00'": "is not a time64",
            "t > '12:00Z'": "is not a time64",
        }.items():
            with pytest.raises(Invalid, match=says):
                table.scan(where=condition).to_arrow()


def test_sql_answers_in_utc_at_any_depth(tmp_path: Path) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    with ls.open(tmp_path) as lake:
        table = _made(lake, {"l": "list<struct<at: timestamptz>>", "m": "map<string, timestamptz>"})
        table.append([{"id": 1, "l": [{"at": noon}], "m": {"a": noon}}])
        answer = lake.sql("SELECT l, m FROM d.t").to_arrow()
        assert "Etc/UTC" not in str(answer.schema)
        assert answer.to_pylist() == [{"l": [{"at": noon}], "m": [("a", noon)]}]

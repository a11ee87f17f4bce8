"""Rows in every form that Python users have them, and tables that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import Writer
from lakestore.errors import Conflict, Invalid
from lakestore.model.types import schema_of
from lakestore.rows import user
from tests.support.served import Served

TYPES = {"id": "int64", "n": "int32", "ok": pa.bool_(), "name": "string", "tags": "list<string>"}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "n": 7, "ok": True, "name": "a", "tags": ["x"]},
    {"id": 2, "n": None, "ok": None, "name": None, "tags": None},
    {"id": 3, "n": 9, "ok": False, "name": "", "tags": []},
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ls.Lake]:
    with Served(tmp_path_factory.mktemp("rows")) as made:
        yield made.lake


@pytest.fixture
def table(lake: ls.Lake) -> ls.Table:
    for each in lake.tables():
        lake.drop_table(each.name)
    return lake.create_table("a.t", TYPES, primary_key=["id"])


def _arrow() -> pa.Table:
    return pa.Table.from_pylist(ROWS, schema=schema_of(TYPES))


def _pandas() -> pd.DataFrame:
    frame = pd.DataFrame(ROWS).astype({"n": "Int32", "ok": "boolean", "name": "string"})
    assert frame["n"][1] is pd.NA
    return frame


def _relation() -> Any:
    rows = _arrow()
    return duckdb.from_arrow(rows)


FORMS: dict[str, Callable[[], Any]] = {
    "generator of dicts": lambda: (dict(row) for row in ROWS),
    "values of a dict": lambda: {row["id"]: row for row in ROWS}.values(),
    "generator of batches": lambda: (_arrow().slice(i, 1).to_batches()[0] for i in range(3)),
    "list of tables": lambda: [_arrow().slice(0, 2), _arrow().slice(2)],
    "list of frames": lambda: [_pandas().iloc[:2], _pandas().iloc[2:]],
    "reader of batches": lambda: _arrow().to_reader(max_chunksize=1),
    "pandas with nullable types": _pandas,
    "pandas of Arrow": lambda: _arrow().to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.from_arrow(_arrow()),
    "lazy polars": lambda: pl.from_arrow(_arrow()).lazy(),  # type: ignore[union-attr]
    "relation of DuckDB": _relation,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_are_taken(lake: ls.Lake, table: ls.Table, form: str) -> None:
    def held() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
        return rows

    assert table.upsert(FORMS[form]()).result.inserted == 3
    assert held() == ROWS
    assert table.delete(FORMS[form]()).result.deleted == 3
    with lake.commit() as commit:
        commit.upsert("a.t", FORMS[form]())
    assert held() == ROWS
    table.delete(FORMS[form]())
    with table.writer() as writer:
        writer.upsert(FORMS[form]())
    assert held() == ROWS
    assert table.lookup(FORMS[form]() if form.startswith("gen") else [{"id": 1}]).num_rows


@pytest.mark.parametrize("merge", ["upsert", "partial"])
def test_no_rows_are_no_change(lake: ls.Lake, table: ls.Table, merge: str) -> None:
    del table
    for name, key in (("a.keyed", ["id"]), ("a.log", [])):
        made = lake.create_table(name, TYPES, primary_key=key, merge=merge if key else "upsert")
        put = made.upsert if key else made.append
        nothings: list[Any] = [[], (), iter(()), pd.DataFrame(), pa.table({"id": pa.array([], pa.int64())})]
        for nothing in nothings:
            token = put(nothing)
            assert made.scan(at=token).count() == 0
        with made.writer() as writer:
            (writer.upsert if key else writer.append)([])


def test_a_writer_takes_an_iterator_in_pieces(table: ls.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "STREAMED_ROWS", 4)
    puts, put = list[int](), Writer._put_rows

    def counted(self: Writer, kind: Any, rows: Any, *more: Any) -> None:
        puts.append(len(rows))
        put(self, kind, rows, *more)

    monkeypatch.setattr(Writer, "_put_rows", counted)
    with table.writer() as writer:
        writer.upsert({"id": i} for i in range(10))
    assert (puts, table.scan().count()) == ([4, 4, 2], 10)


def test_batches_of_other_columns_are_refused_together(table: ls.Table) -> None:
    with pytest.raises(Invalid, match=r"have the same columns, not \(id\) and \(id, n\)"):
        table.upsert([pa.table({"id": [1]}), pa.table({"id": [2], "n": [1]})])
    with pytest.raises(Invalid, match="rows of type str are not a table"):
        table.upsert("id")
    with pytest.raises(Invalid, match="rows of type int are not a table"):
        table.upsert(7)


OPTIONS: dict[str, Any] = {
    "primary_key": ["id"], "buckets": 2, "merge": ls.versioned("n"), "retention": "7d", "deletes": "ignore",
    "lake": {"freshness": "10s", "sort_by": ["n"]}, "tombstone_ttl": "8d",
}  # fmt: skip


def test_a_table_that_is_there_is_given_if_it_is_the_same(lake: ls.Lake, table: ls.Table) -> None:
    del table
    made = lake.create_table("a.x", TYPES, **OPTIONS)
    again = lake.create_table("a.x", TYPES, **OPTIONS, if_not_exists=True)
    assert again.definition == made.definition
    with pytest.raises(Conflict):
        lake.create_table("a.x", TYPES, **OPTIONS)
    assert lake.create_table("a.new", TYPES, if_not_exists=True).name == "a.new"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": TYPES | {"n": "int64"}}, "its column 'n' is int32, not int64"),
        ({"schema": {"id": "int64", "n": "int32"}}, "it has a column 'ok' as well"),
        ({"schema": TYPES | {"more": "string"}}, "it has no column 'more'"),
        ({"schema": dict(reversed(TYPES.items()))}, "its columns are in the order id, n, ok, name, tags"),
        ({"schema": TYPES | {"name": pa.field("name", pa.string(), nullable=False)}}, "column 'name' is optional"),
        ({"buckets": 3}, "its buckets is 2, not 3"),
        ({"retention": None}, "its retention is .*, not not set"),
        ({"deletes": "allow"}, "its deletes is ignore, not allow"),
        ({"merge": "upsert"}, "its merge is "),
        ({"tombstone_ttl": "9d"}, "its tombstone_ttl is 691200 s"),
        ({"lake": {"freshness": "10s"}}, "its lake option sort_by is"),
    ],
)
def test_another_table_of_the_name_is_refused_by_its_difference(
    lake: ls.Lake, table: ls.Table, change: dict[str, Any], says: str
) -> None:
    del table
    lake.create_table("a.x", TYPES, **OPTIONS)
    wanted = OPTIONS | change
    with pytest.raises(Conflict, match=rf"table a.x is there already, and .*{says}"):
        lake.create_table("a.x", wanted.pop("schema", TYPES), **wanted, if_not_exists=True)


def test_types_are_named_by_texts_everywhere(table: ls.Table) -> None:
    table.alter(widen={"n": "int64"}, add={"price": "decimal(12,2)", "when": pa.timestamp("us")})
    assert table.schema.field("n").type == pa.int64()
    assert table.schema.field("price").type == pa.decimal128(12, 2)
    for wrong in ({"widen": {"n": "number"}}, {"add": {"x": 7}}, {"widen": {"n": int}}):
        with pytest.raises(Invalid):
            table.alter(**wrong)


def test_a_schema_is_one_of_pyarrow_or_names_to_types(lake: ls.Lake, tmp_path: Path) -> None:
    del tmp_path
    for wrong in ([("id", pa.int64())], {"id": int}, {"id": "number"}, "id int64"):
        with pytest.raises(Invalid):
            lake.create_table("a.wrong", wrong)

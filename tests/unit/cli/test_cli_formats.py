"""Files in and out of the command line: every format gives back what was put in, in bounded pieces."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, find, settings

from lakestore.cli import row_files
from lakestore.cli.output import size, table
from lakestore.errors import Invalid
from lakestore.model import table as definitions
from lakestore.model import types
from lakestore.rows import ipc as rows_of
from lakestore.rows import user
from tests.support.all_types import SCHEMA as ALL_TYPES
from tests.support.all_types import rows

DEFINED = definitions.define("d.t", ALL_TYPES, buckets=1)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("small", pa.int8()),
    ]
)
ROWS = [
    {"id": 1, "name": "a, b", "amount": Decimal("1.50"), "day": dt.date(2026, 1, 1),
     "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), "small": -1},
    {"id": 2, "name": "", "amount": Decimal("-2.00"), "day": None, "at": None, "small": None},
    {"id": 3, "name": None, "amount": None, "day": dt.date(1969, 1, 1),
     "at": dt.datetime(1969, 1, 1, tzinfo=dt.UTC), "small": 5},
]  # fmt: skip


def test_a_csv_file_may_leave_out_the_nested_columns_of_a_table(tmp_path: Path) -> None:
    nested = pa.schema([*SCHEMA, pa.field("tags", pa.list_(pa.string()))])
    path = tmp_path / "x.csv"
    path.write_text("id,name\n7,x\n")
    assert pa.Table.from_batches(row_files.batches_of(path, nested)).to_pylist() == [{"id": 7, "name": "x"}]
    path.write_text("id,tags\n7,x\n")
    with pytest.raises(Invalid, match="'tags' is nested"):
        list(row_files.batches_of(path, nested))


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.jsonl", "x.arrow"])
def test_a_file_gives_back_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with row_files.Output(path, row_files.kind_of(path), SCHEMA) as out:
        for _ in range(2):
            out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    read = pa.Table.from_batches(row_files.batches_of(path, SCHEMA)).select(SCHEMA.names)
    assert read.cast(SCHEMA).to_pylist() == ROWS * 2


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.arrow"])
def test_a_file_gives_back_every_type(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    made = find(rows(list(range(8))), lambda _: True, settings=settings(max_examples=1, phases=[Phase.generate]))
    hollow = {"id": 8, "c21": {"a": None, "b": None}, "c24": [], "c23": [("odd", None)]}
    whole = pa.concat_tables([made, pa.Table.from_pylist([hollow], schema=ALL_TYPES)])
    with row_files.Output(path, row_files.kind_of(path), ALL_TYPES) as out:
        for batch in whole.to_batches():
            out.write(batch)
    read = [rows_of.conform(batch, DEFINED) for batch in row_files.batches_of(path, ALL_TYPES)]
    assert pa.Table.from_batches(read).to_pylist() == whole.to_pylist()


def test_csv_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,l\n1,2\n")
    schema = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(Invalid, match="'l' is nested, which CSV cannot hold"):
        row_files.Output(path, "csv", schema)
    with pytest.raises(Invalid, match="'l' is nested, which CSV cannot hold"):
        list(row_files.batches_of(path, schema))


def test_times_and_bytes_of_fixed_size_go_through_csv(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.time64("us")), ("f", pa.binary(2)), ("u", pa.uint16())])
    made = pa.RecordBatch.from_pylist([{"t": dt.time(1, 2, 3, 4), "f": b"ab", "u": 65_535}, {}], schema=schema)
    path = tmp_path / "x.csv"
    with row_files.Output(path, "csv", schema) as out:
        out.write(made)
    assert pa.Table.from_batches(row_files.batches_of(path, schema)).to_pylist() == made.to_pylist()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"m": {"x": 1}}', "line 1, column 'm'"),
        ('{"z": 1}', "line 1: the table has no column 'z'"),
        ('{"s": {"q": 1}}', "there is no field 'q'"),
        ('{"t": "25:00"}', "line 1, column 't'"),
        ('{"f": "xyz"}', "line 1, column 'f'"),
        ('{"at": "2026-01-01T00:00:00"}', "no time zone"),
        ("[1]", "line 1 is no JSON object"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("{", "line 1 is not JSON"),
    ],
)
def test_lines_that_do_not_fit_are_refused_by_number(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    kinds = {"m": "map<int64, int8>", "s": "struct<a: int8>", "t": "time", "f": "fixed(2)", "at": "timestamptz"}
    schema = pa.schema([(name, types.arrow_type(kind)) for name, kind in kinds.items()])
    with pytest.raises(Invalid, match=says):
        list(row_files.batches_of(path, schema))


def test_a_line_that_arrow_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    for line, says in (('{"id": "x"}', "line 2, column 'id'"), ('{"z": 1}', "line 2: the table has no column 'z'")):
        path.write_text('{"id": 1}\n' + line + "\n")
        with pytest.raises(Invalid, match=says):
            list(row_files.batches_of(path, schema))
    path.write_bytes(b'{"m": "\xff"}\n')
    with pytest.raises(Invalid, match=r"x.jsonl cannot be read: .*utf-8"):
        list(row_files.batches_of(path, pa.schema([("m", pa.binary())])))


def _table(**said: Any) -> definitions.Table:
    columns = [("id", pa.int64()), ("v", pa.int64()), ("city", pa.string()), ("phone", pa.string()), ("b", pa.binary())]
    return definitions.define("d.t", pa.schema(columns), primary_key=["id"], **said)


@pytest.mark.parametrize("merge", ["partial", "versioned(v)", {"aggregate": {"v": "sum"}}])
def test_a_line_sends_the_columns_that_it_names(tmp_path: Path, merge: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1, "city": "Rome"}\n{"id": 2, "phone": null}\n')
    (rows,) = row_files.changes_of(path, _table(merge=merge))
    assert rows == [{"id": 1, "city": "Rome"}, {"id": 2, "phone": None}]


def test_a_file_of_a_table_with_defaults_sends_what_it_names(tmp_path: Path) -> None:
    table = _table()
    columns = [replace(c, default="new") if c.name == "city" else c for c in table.columns]
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1}\n')
    assert list(row_files.changes_of(path, replace(table, columns=tuple(columns)))) == [[{"id": 1}]]


@pytest.mark.parametrize(
    ("merge", "carried"),
    [
        ("upsert", {"id"}),
        ("partial", {"id", "v", "city"}),
        ("versioned(v)", {"id", "v"}),
        ("versioned(v, within city)", {"id", "v", "city"}),
        ("first_row", {"id"}),
    ],
)
def test_a_file_of_deletes_carries_what_the_merge_engine_asks_for(
    tmp_path: Path, merge: str, carried: set[str]
) -> None:
    lines, commas = tmp_path / "x.jsonl", tmp_path / "x.csv"
    lines.write_text('{"id": 1, "v": 2, "city": "x"}\n')
    commas.write_text("id,v,city\n1,2,x\n")
    for path in (lines, commas):
        (rows,) = row_files.changes_of(path, _table(merge=merge), delete=True)
        assert set(rows.schema.names if isinstance(rows, pa.Table) else rows[0]) == carried


def test_members_of_a_bitmap_are_numbers_in_text_files(tmp_path: Path) -> None:
    table = _table(merge={"aggregate": {"b": "bitmap"}})
    commas, lines = tmp_path / "x.csv", tmp_path / "x.jsonl"
    commas.write_text("id,b\n1,70\n")
    lines.write_text('{"id": 1, "b": 70}\n')
    (rows,) = row_files.changes_of(commas, table)
    assert isinstance(rows, pa.Table)
    assert rows.to_pylist() == [{"id": 1, "b": 70}]
    (found,) = row_files.changes_of(lines, table)
    assert user.from_user(found, table.schema).to_pylist() == [{"id": 1, "b": 70}]


def test_an_output_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    out = row_files.Output(path, "parquet", SCHEMA)
    out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    error = ValueError("stop")
    out.__exit__(ValueError, error, None)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_parquet_is_its_files(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "_hidden.parquet", "notes.txt"):
        pq.write_table(pa.Table.from_pylist(ROWS, schema=SCHEMA), tmp_path / name)
    assert [path.name for path in row_files.files_of(tmp_path)] == ["a.parquet", "b.parquet"]


def test_commits_are_neither_tiny_nor_huge() -> None:
    sizes = [1, 250_000, 5, 5, 99_990, 3]
    batches = (pa.record_batch({"id": pa.array(range(n), pa.int64())}) for n in sizes)
    commits = [commit.num_rows for commit in row_files.commits_of(batches)]
    assert sum(commits) == sum(sizes)
    assert max(commits) <= row_files.COMMIT_ROWS
    assert len(commits) == 5


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b'id\n"'), ("x.parquet", b"no"), ("x.jsonl", b"{"), ("x.arrow", b"zz"), ("x.txt", b"")],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Invalid, match=name):
        list(row_files.batches_of(path, SCHEMA))


def test_tables_for_people() -> None:
    text = table([{"name": "a", "rows": 1234, "null": None}, {"name": "longer", "rows": 1, "null": True}])
    assert text.splitlines() == ["name     rows  null", "a       1,234  -", "longer      1  yes"]
    assert [size(n) for n in (5, 2048, 3 << 20)] == ["5 B", "2.0 KB", "3.0 MB"]

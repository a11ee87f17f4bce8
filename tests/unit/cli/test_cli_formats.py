"""Files in and out of the command line: every format gives back what was put in, in bounded pieces."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from lakestore.cli import row_files
from lakestore.cli.output import size, table
from lakestore.errors import Invalid
from lakestore.loading.changes import Changes
from lakestore.loading.reading import ColumnRequest, Options
from lakestore.model import table as definitions
from lakestore.model import types
from tests.support.all_types import SCHEMA as ALL_TYPES
from tests.support.all_types import rows
from tests.support.loading import chunks, read

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
    assert read(path, nested).to_pylist() == [{"id": 7, "name": "x"}]
    path.write_text('id,tags\n7,"[""a"", null]"\n8,x\n')
    with pytest.raises(Invalid, match=r"line 3: column 'tags': 'x' is no list<string>"):
        read(path, nested)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.jsonl", "x.arrow"])
def test_a_file_gives_back_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with row_files.Output(path, row_files.kind_of(path), SCHEMA) as out:
        for _ in range(2):
            out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    assert read(path, SCHEMA).to_pylist() == ROWS * 2


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.jsonl", "x.arrow"])
@settings(
    max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[Phase.generate], deadline=None
)
@given(made=rows(list(range(8))))
def test_a_file_gives_back_every_type(tmp_path: Path, name: str, made: pa.Table) -> None:
    path = tmp_path / name
    hollow = {"id": 8, "c21": {"a": None, "b": None}, "c24": [], "c23": [("odd", None)], "c8": math.inf, "c10": ""}
    odd = {"id": 9, "c9": -math.inf, "c10": '"null"\r\n,;\\', "c23": [("", 1), ('"', None)]}
    whole = pa.concat_tables([made, pa.Table.from_pylist([hollow, odd], schema=ALL_TYPES)])
    with row_files.Output(path, row_files.kind_of(path)) as out:
        for batch in whole.to_batches():
            out.write(batch)
    assert read(path, ALL_TYPES).to_pylist() == whole.to_pylist()


def test_times_and_bytes_of_fixed_size_go_through_csv(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.time64("us")), ("f", pa.binary(2)), ("u", pa.uint16())])
    made = pa.RecordBatch.from_pylist([{"t": dt.time(1, 2, 3, 4), "f": b"ab", "u": 65_535}, {}], schema=schema)
    path = tmp_path / "x.csv"
    with row_files.Output(path, "csv", schema) as out:
        out.write(made)
    assert read(path, schema).to_pylist() == made.to_pylist()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"m": {"x": 1}}', 'line 1: m is "x", and not an int64'),
        ('{"z": 1}', "line 1: table d.t has no column 'z'"),
        ('{"s": {"q": 1}}', "line 1: table d.t has no column 's.q'"),
        ('{"t": "25:00"}', "line 1: column 't': '25:00' is no time"),
        ('{"f": "xyz"}', r"line 1: column 'f': 'xyz' is no fixed\(2\)"),
        ('{"at": "2026-01-01T00:00:00"}', "line 1: column 'at': '2026-01-01T00:00:00' is no timestamptz"),
        ('{"t": "10:00:00.0000001"}', "line 1: column 't'"),
        ("[1]", "line 1: the line is .1., and not a JSON object"),
        ("[" * 100_000, "line 1: the line nests deeper"),
        ("{", "line 1: the line is not JSON"),
    ],
)
def test_lines_that_do_not_fit_are_refused_by_number(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    kinds = {"m": "map<int64, int8>", "s": "struct<a: int8>", "t": "time", "f": "fixed(2)", "at": "timestamptz"}
    schema = pa.schema([(name, types.arrow_type(kind)) for name, kind in kinds.items()])
    with pytest.raises(Invalid, match=says):
        read(path, schema)


def test_a_line_that_arrow_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    for line, says in (('{"id": "x"}', "line 2: id is"), ('{"z": 1}', "line 2: table d.t has no column 'z'")):
        path.write_text('{"id": 1}\n' + line + "\n")
        with pytest.raises(Invalid, match=says):
            read(path, schema)
    path.write_bytes(b'{"m": "\xff"}\n')
    with pytest.raises(Invalid, match=r"line 1: byte 7 of the line is not UTF-8"):
        read(path, pa.schema([("m", pa.binary())]))


def _table(**said: Any) -> definitions.Table:
    columns = [("id", pa.int64()), ("v", pa.int64()), ("city", pa.string()), ("phone", pa.string()), ("b", pa.binary())]
    return definitions.define("d.t", pa.schema(columns), primary_key=["id"], **said)


@pytest.mark.parametrize("merge", ["partial", "versioned(v)", {"aggregate": {"v": "sum"}}])
def test_a_line_sends_the_columns_that_it_names(tmp_path: Path, merge: Any) -> None:
    path, table = tmp_path / "x.jsonl", _table(merge=merge)
    path.write_text('{"id": 1, "city": "Rome"}\n{"id": 2, "phone": null}\n')
    (chunk,) = chunks(path, table)
    changes = Changes(ColumnRequest(table, Options())).of(chunk)
    assert [change.batch.to_pylist() for change in changes] == [
        [{"id": 2, "phone": None}],
        [{"id": 1, "city": "Rome"}],
    ] or [change.batch.to_pylist() for change in changes] == [[{"id": 1, "city": "Rome"}], [{"id": 2, "phone": None}]]


def test_a_line_that_does_not_name_a_column_has_its_default(tmp_path: Path) -> None:
    """Beside lines that name it, and ones that have a null or the name elsewhere."""
    table = _table()
    columns = [replace(c, default="new") if c.name == "city" else c for c in table.columns]
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"id": 1}\n{"id": 2, "city": null}\n{"id": 3, "city": "Rome"}\n{"id": 4, "phone": "\\"city\\": "}\n'
        '{"id": 5, "\\u0063ity": null}\n'
    )
    (chunk,) = chunks(path, replace(table, columns=tuple(columns)))
    assert chunk.batch.column("city").to_pylist() == ["new", None, "Rome", "new", None]
    (chunk,) = chunks(path, replace(table, columns=tuple(columns)), where="city = 'new'")
    assert chunk.batch.column("id").to_pylist() == [1, 4]
    path.write_text('{"id": 1}\n')
    (chunk,) = chunks(path, replace(table, columns=tuple(columns)), where="city = 'new'")
    assert chunk.batch.to_pylist() == [{"id": 1}]


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
        table = _table(merge=merge)
        (chunk,) = chunks(path, table, deletes=True)
        (change,) = Changes(ColumnRequest(table, Options(), deletes=True)).of(chunk)
        assert (change.is_delete, set(change.batch.schema.names)) == (True, carried)


def test_members_of_a_bitmap_are_numbers_in_text_files(tmp_path: Path) -> None:
    table = _table(merge={"aggregate": {"b": "bitmap"}})
    commas, lines = tmp_path / "x.csv", tmp_path / "x.jsonl"
    commas.write_text("id,b\n1,70\n")
    lines.write_text('{"id": 1, "b": 70}\n')
    for path in (commas, lines):
        (chunk,) = chunks(path, table)
        assert chunk.batch.to_pylist() == [{"id": 1, "b": 70}]


def test_an_output_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    out = row_files.Output(path, "parquet", SCHEMA)
    out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    assert not path.exists()
    error = ValueError("stop")
    out.__exit__(ValueError, error, None)
    assert not list(tmp_path.iterdir())


def test_rows_go_into_parts_of_a_folder(tmp_path: Path) -> None:
    """Each of so many rows; other columns begin a new part, and parts of before are not mixed with."""
    folder = tmp_path / "out"
    with row_files.Output(folder, "csv", rows_per_file=4) as out:
        for _ in range(3):
            out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
        out.write(pa.RecordBatch.from_pydict({"id": [7]}))
        assert not list(folder.glob("part-*"))
    assert [len(path.read_text().splitlines()) for path in sorted(folder.iterdir())] == [5, 5, 2, 2]
    with pytest.raises(Invalid, match="holds parts of earlier rows"):
        row_files.Output(folder, "csv", rows_per_file=4)
    with row_files.Output(tmp_path / "x.csv", "csv") as out:
        out.write(pa.RecordBatch.from_pydict({"id": [7]}))
        with pytest.raises(Invalid, match="the columns change"):
            out.write(pa.RecordBatch.from_pydict({"other": [7]}))


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b'id\n"'), ("x.parquet", b"no"), ("x.jsonl", b"{"), ("x.arrow", b"zz"), ("x.txt", b"")],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Invalid, match=name):
        read(path, SCHEMA)


def test_tables_for_people() -> None:
    text = table([{"name": "a", "rows": 1234, "null": None}, {"name": "longer", "rows": 1, "null": True}])
    assert text.splitlines() == ["name     rows  null", "a       1,234  -", "longer      1  yes"]
    assert [size(n) for n in (5, 2048, 3 << 20)] == ["5 B", "2.0 KB", "3.0 MB"]

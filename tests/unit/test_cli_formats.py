"""Files in and out of the command line: every format gives back what was put in, in bounded pieces."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestore.cli import formats
from lakestore.cli.output import size, table
from lakestore.errors import Invalid

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


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.jsonl", "x.arrow"])
def test_a_file_gives_back_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with formats.Output(path, formats.kind_of(path), SCHEMA) as out:
        for _ in range(2):
            out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    read = pa.Table.from_batches(formats.batches_of(path, SCHEMA)).select(SCHEMA.names)
    assert read.cast(SCHEMA).to_pylist() == ROWS * 2


def test_an_output_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    out = formats.Output(path, "parquet", SCHEMA)
    out.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    error = ValueError("stop")
    out.__exit__(ValueError, error, None)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_parquet_is_its_files(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "_hidden.parquet", "notes.txt"):
        pq.write_table(pa.Table.from_pylist(ROWS, schema=SCHEMA), tmp_path / name)
    assert [path.name for path in formats.files_of(tmp_path)] == ["a.parquet", "b.parquet"]


def test_commits_are_neither_tiny_nor_huge() -> None:
    sizes = [1, 250_000, 5, 5, 99_990, 3]
    batches = (pa.record_batch({"id": pa.array(range(n), pa.int64())}) for n in sizes)
    commits = [commit.num_rows for commit in formats.commits_of(batches)]
    assert sum(commits) == sum(sizes)
    assert max(commits) <= formats.COMMIT_ROWS
    assert len(commits) == 5


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b'id\n"'), ("x.parquet", b"no"), ("x.jsonl", b"{"), ("x.arrow", b"zz"), ("x.txt", b"")],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Invalid, match=name):
        list(formats.batches_of(path, SCHEMA))


def test_tables_for_people() -> None:
    text = table([{"name": "a", "rows": 1234, "null": None}, {"name": "longer", "rows": 1, "null": True}])
    assert text.splitlines() == ["name     rows  null", "a       1,234  -", "longer      1  yes"]
    assert [size(n) for n in (5, 2048, 3 << 20)] == ["5 B", "2.0 KB", "3.0 MB"]

"""Files that are none of what their names say, and pipes: rows, or one sentence with the file."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestore.errors import Invalid
from lakestore.loading.files import source_of
from lakestore.loading.json_blocks import chunks_of
from lakestore.loading.progress import Place
from lakestore.loading.reading import ColumnRequest, Options
from lakestore.model.table import define

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = pa.table({"id": range(5_000), "name": [f"row {i * 7919 % 5_003}" for i in range(5_000)]})


def _read(path: Path, kind: str | None = None) -> tuple[list[int], dict[int, str]]:
    """The rows' ids, and the lines that are refused."""
    wanted = ColumnRequest(define("a.b", SCHEMA, buckets=1), Options(), deletes=False)
    found = list(chunks_of(source_of(str(path), kind=kind).files[0], wanted, Place()))
    ids = [each for chunk in found for each in chunk.batch.column("id").to_pylist()]
    return ids, {bad.line: bad.reason for chunk in found for bad in chunk.bad}


def _parquet(folder: Path) -> bytes:
    pq.write_table(ROWS, folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


def _arrows(folder: Path) -> bytes:
    with pa.ipc.new_stream(folder / "whole.arrows", SCHEMA) as stream:
        stream.write_table(ROWS.cast(SCHEMA), max_chunksize=100)
    return (folder / "whole.arrows").read_bytes()


def _packed(_: Path) -> bytes:
    return gzip.compress(b"id,name\n" + b"".join(b"%d,row %d\n" % (i, i * 7919 % 5_003) for i in range(5_000)))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("empty.csv", lambda _: b""),
        ("empty.parquet", lambda _: b""),
        ("empty.arrow", lambda _: b""),
        ("cut.parquet", lambda folder: _parquet(folder)[:-100]),
        ("cut.arrows", lambda folder: _arrows(folder)[:3_000]),
        ("odd.parquet", lambda folder: (data := _parquet(folder))[:100] + b"\xff" * 500 + data[600:]),
        ("cut.csv.gz", lambda folder: _packed(folder)[:9_000]),
        ("behind.csv.gz", lambda folder: _packed(folder) + b"more"),
        ("no.csv.gz", lambda _: b"id,name\n1,a\n"),
        ("no.csv.zst", lambda _: b"id,name\n1,a\n"),
        ("twice.csv", lambda _: b"id,name,id\n1,a,2\n"),
        ("case.csv", lambda _: b"id,Name\n1,a\n"),
        ("returns.csv", lambda _: b"id,name\r1,a\r2,b\r"),
        ("wide.csv", lambda _: "id,name\n1,é\n".encode("utf-16")),
    ],
)  # fmt: skip
def test_a_file_that_is_broken_is_one_sentence(tmp_path: Path, name: str, made: object) -> None:
    assert callable(made)
    (tmp_path / name).write_bytes(made(tmp_path))
    with pytest.raises(Invalid) as refused:
        _read(tmp_path / name)
    assert name in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "ids", "bad"),
    [
        (b"id,name\n", [], []),
        (b"\xef\xbb\xbfid,name\r\n1,\"a\r\nb\"\r\n2,\"x \"\"q\"\"\"\r\n", [1, 2], []),
        (b"id,name\n1,Stra\xdfe\n2,ok\n", [2], [2]),
        (b"id,name\n1,a,3\n2\n3,c", [3], [2, 3]),
        (b'id,name\n1,"a\n2,b\n', [2], [2]),
    ],
)  # fmt: skip
def test_odd_lines_of_csv_are_refused_alone(tmp_path: Path, text: bytes, ids: list[int], bad: list[int]) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    found, refused = _read(tmp_path / "x.csv")
    assert (found, sorted(refused)) == (ids, bad)


@pytest.mark.parametrize(("name", "kind"), [("x.csv", None), ("pipe", "csv"), ("x.csv.gz", None), ("x.parquet", None)])
def test_a_named_pipe_is_read_as_stdin_is(tmp_path: Path, name: str, kind: str | None) -> None:
    os.mkfifo(tmp_path / name)
    made = _packed(tmp_path) if ".gz" in name else b"id,name\n7,a\n8,b\n"
    data = _parquet(tmp_path) if "parquet" in name else made
    writer = threading.Thread(target=lambda: (tmp_path / name).write_bytes(data))
    writer.start()
    ids, bad = _read(tmp_path / name, kind)
    writer.join(20)
    assert (len(ids), bad) == (2 if "gz" not in name and "parquet" not in name else 5_000, {})

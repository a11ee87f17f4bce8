"""`lakestore write` by its words: tables that it makes, what it asks, and what it says at its end."""

from __future__ import annotations

import gzip
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakestore as ls
from lakestore.cli import write as command
from lakestore.cli.main import run_command
from lakestore.loading import inference
from tests.support.served import Served

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("write")) as made:
        yield made


class _Lake:
    """A lake that stays open."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake

    def __enter__(self) -> ls.Lake:
        return self._lake

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setattr(command, "open_lake", lambda _: _Lake(served.lake))
    monkeypatch.chdir(tmp_path)
    for table in served.lake.tables():
        served.lake.drop_table(table.name)

    def ran(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert run_command(["write", *arguments]) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return said.out, said.err

    return ran


def _types(served: Served, table: str) -> dict[str, str]:
    return {column.name: column.type for column in served.lake.table(table).definition.columns}


CSV = "id,zip,price,ok,day,at,utc,text,empty\n" + "".join(
    f"{i},0{i}234,{i}.5,{'true' if i % 2 else 'FALSE'},2026-01-0{i},2026-01-01 10:00:0{i},2026-01-01T10:00:00Z,x{i},\n"
    for i in range(1, 5)
)


def test_a_table_is_made_of_the_first_rows(served: Served, run: Run) -> None:
    Path("a.csv").write_text(CSV)
    _, said = run("a.t", "a.csv", "--key", "id", "--yes")
    assert "a.t: primary-key table (id), 4 buckets; types from the first 4 rows of a.csv" in said
    assert said.endswith("4 inserted\n")
    assert _types(served, "a.t") == {
        "id": "int64", "zip": "string", "price": "float64", "ok": "bool", "day": "date", "at": "timestamp",
        "utc": "timestamptz", "text": "string", "empty": "string",
    }  # fmt: skip
    assert served.lake.table("a.t").scan(columns=["zip"]).to_arrow().column(0).to_pylist()[0][0] == "0"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_nested_columns_of_a_new_table(served: Served, run: Run, name: str) -> None:
    rows = [{"id": i, "place": {"city": "x", "zip": i}, "tags": ["a"] if i else []} for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), name)
    else:
        Path(name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    run("a.t", name, "--create", "--yes")
    assert _types(served, "a.t") == {"id": "int64", "place": "struct<city: string, zip: int64>", "tags": "list<string>"}
    assert served.lake.table("a.t").scan().to_arrow().select(["id", "place", "tags"]).sort_by("id").to_pylist() == rows


def test_nothing_is_made_unless_the_first_rows_are_read_and_someone_says_yes(
    served: Served, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.csv").write_text("id,n\n1,1\n2\n")
    assert (
        "a.csv, line 3: the line has 1 values, and there are 2 columns; table a.t was not made"
        in run("a.t", "a.csv", "--create", "--yes", code=1)[1]
    )
    Path("b.csv").write_text("id,n\n1,1\n")
    assert "has no column 'nope'; it has id, n" in run("a.t", "b.csv", "--key", "nope", code=1)[1]
    assert "does not exist: give --key COLUMN" in run("a.t", "b.csv", code=1)[1]
    assert "nobody is here to ask: say --yes" in run("a.t", "b.csv", "--create", code=1)[1]
    Path("c.csv").write_text("")
    assert "c.csv has no header" in run("a.t", "c.csv", "--create", code=1)[1]
    assert not served.lake.tables()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, code in (("n\n", 130), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert "Make table a.t?" in run("a.t", "b.csv", "--create", code=code)[1]
        assert len(served.lake.tables()) == (code == 0)


def test_a_table_is_made_of_stdin_which_is_read_once(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Piped:
        def __init__(self, data: bytes) -> None:
            self.buffer = io.BytesIO(data)

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    parquet = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2, 3]}), parquet)
    for kind, data in {
        "csv": b"id\n1\n2\n3\n",
        "jsonl": b'{"id":1}\n{"id":2}\n{"id":3}\n',
        "parquet": parquet.getvalue(),
    }.items():
        monkeypatch.setattr(sys, "stdin", Piped(data))
        _, said = run(f"a.{kind}", "-", "--format", kind, "--key", "id", "--yes")
        assert "3 inserted; stdin without --name" in said
        assert served.lake.table(f"a.{kind}").scan().count() == 3
    assert "say --format" in run("a.csv", "-", code=1)[1]


def test_every_ending_says_what_is_committed(served: Served, run: Run) -> None:
    Path("a.csv").write_text("id,n\n1,1\n2,2\n3,x\n")
    served.lake.create_table("a.t", {"id": "int64", "n": "int64"}, primary_key=["id"])
    _, said = run("a.t", "a.csv", code=1)
    assert said.splitlines()[-2:] == [
        "committed: 2 rows, to line 3 of a.csv; the same command goes on from there",
        "lakestore: a.csv, line 4: column 'n': 'x' is no int64",
    ]
    Path("a.csv").write_text("id,n\n1,1\n2,2\n3,3\n")
    out, said = run("a.t", "a.csv", "--json")
    assert "went on from line 3 of a.csv, with 2 rows loaded before" in said
    told = json.loads(out)
    assert (told["rows"], told["result"]["inserted"], told["sources"][0]["producer"][:9]) == (1, 1, "write a.t")
    out, said = run("a.t", "a.csv")
    assert out.strip()
    assert said == "a.csv is loaded already, 3 rows: --again loads it once more\n"
    assert "3 updated" in run("a.t", "a.csv", "--again")[1]
    Path("b.csv").write_text("id\n1\n9\n")
    assert "1 deleted, 1 not found" in run("a.t", "b.csv", "--delete")[1]


def test_types_of_a_new_table_can_be_named_and_an_old_table_keeps_its_own(
    run: Run, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id,code\n1,10\n")
    run("a.typed", "a.csv", "--key", "id", "-y", "--type", "code=string", "--type", "id=int32")
    assert _types(served, "a.typed") == {"id": "int32", "code": "string"}
    run("a.typed", "a.csv", "--type", "code=string")
    _, said = run("a.typed", "a.csv", "--type", "code=int64", code=1)
    assert "table a.typed exists, and --type code=int64 differs from it" in said
    _, said = run("a.typed2", "a.csv", "--create", "-y", "--type", "code:string", code=1)
    assert "--type takes COLUMN=TYPE" in said


def test_the_rate_counts_the_reading_of_the_first_rows_and_no_question(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(1000)))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def spent(seconds: float, then: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            now[0] += seconds
            return then(*arguments, **named)

        return timed

    monkeypatch.setattr(inference, "sample_columns", spent(10.0, inference.sample_columns))
    monkeypatch.setattr(command, "_ask", spent(60.0, lambda _: None))
    _, said = run("a.rate", "a.csv", "--key", "id")
    assert said.startswith("reading the first rows of a.csv\n")
    assert "1,000 rows in 10.0 s (100 rows/s)" in said


def test_a_name_that_is_nearly_a_table_or_a_column_is_told(run: Run, served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,cusotmer\n1,ann\n")
    served.lake.create_table("a.orders", pa.schema([("id", pa.int64()), ("customer", pa.string())]))
    _, said = run("a.ordesr", "a.csv", code=1)
    assert "table a.ordesr does not exist: did you mean a.orders?" in said
    _, said = run("a.orders", "a.csv", code=1)
    assert "has no column 'cusotmer': did you mean customer?" in said

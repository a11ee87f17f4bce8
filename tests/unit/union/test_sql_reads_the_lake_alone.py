"""A query reads the tables of the lake and nothing else of the machine that it runs on, unless it is told to."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.union import sql_gate
from tests.support.served import Served

TEXTS = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM '{file}'",
    'SELECT * FROM "{file}"',
    "SELECT count(*) FROM glob('{folder}/*')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "SELECT * FROM query('FROM read_csv(''{file}'')')",
    "SELECT * FROM query_table('{file}')",
    "SUMMARIZE '{file}'",
    "SELECT id FROM shop.orders WHERE id IN (SELECT a FROM read_csv('{file}'))",
    "SELECT * FROM held",
    "SELECT * FROM duckdb_secrets()",
]


@pytest.mark.parametrize("has_list", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_a_query_reads_no_file(
    served: Served, tmp_path: Path, text: str, has_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allow list refuses the text; DuckDB's settings refuse the file also without the list."""
    if not has_list:
        monkeypatch.setattr(sql_gate, "check", lambda *_: None)
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,topsecret\n")
    held = pa.table({"a": ["topsecret"]})
    served.lake.create_table("shop.orders", pa.schema([("id", pa.int64())])).append([{"id": 1}])
    if text.endswith("duckdb_secrets()") and not has_list:
        return
    with pytest.raises(Invalid, match="the query failed") as refused:
        served.lake.sql(text.format(file=file, folder=tmp_path))
    assert "topsecret" not in refused.value.message
    assert held.num_rows == 1


def test_settings_are_locked_and_queries_of_tables_are_as_ever(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.lake.create_table("shop.orders", pa.schema([("id", pa.int64())])).append([{"id": 1}, {"id": 2}])
    answer = served.lake.sql("SELECT sum(id) s, max(json_extract('[7]', '$[0]')) j FROM shop.orders")
    assert [row["s"] for row in answer.to_pylist()] == [3]
    assert "2" in str(served.lake.snapshot().sql("SELECT max(id) FROM shop.orders"))
    names = "'enable_external_access','autoinstall_known_extensions','autoload_known_extensions'"
    text = f"SELECT value FROM duckdb_settings() WHERE name IN ({names})"
    with pytest.raises(Invalid, match="duckdb_settings is refused"):
        served.lake.sql(text)
    monkeypatch.setattr(sql_gate, "check", lambda *_: None)
    assert {row["value"] for row in served.lake.sql(text).to_pylist()} == {"false"}


def test_a_query_that_is_told_to_reads_files(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "more.csv"
    file.write_text("id,who\n1,ada\n")
    served.lake.create_table("shop.orders", pa.schema([("id", pa.int64())])).append([{"id": 1}])
    text = f"SELECT who FROM shop.orders JOIN read_csv('{file}') USING (id)"
    with pytest.raises(Invalid, match=r"external_access=True .* lets it read"):
        served.lake.sql(text)
    assert served.lake.sql(text, external_access=True).to_pylist() == [{"who": "ada"}]


def test_the_command_line_has_the_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sql", "--help"]) == 0
    assert "--external-access" in capsys.readouterr().out

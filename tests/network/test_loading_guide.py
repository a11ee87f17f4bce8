"""Every command of docs/loading.md, in its order, against a server: none fails, and they do what the page says."""

from __future__ import annotations

import gzip
import os
import re
import shlex
from pathlib import Path

import pytest

from lakestore.cli.main import run_command
from tests.support.process import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "loading.md"
FILES = {
    "more.csv": b"id,name\n4,NULL\n",
    "changes.jsonl": b'{"op": "D", "id": 2}\n{"op": "I", "id": 5, "name": "joe"}\n',
    "tall.jsonl.gz": gzip.compress(b'{"id": 6, "height": 1.9}\n{"id": 7, "height": 1.5}\n'),
    "guests.csv": b"id,height\n8,1.6\n9,tall\n",
}


def test_the_commands_of_the_page_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    rows = re.search(r"```csv\n(.*?)```", text, re.DOTALL)
    assert rows
    Path("people.csv").write_text(rows[1])
    for name, data in FILES.items():
        Path(name).write_bytes(data)
    with ServerProcess(tmp_path / "server") as server:
        monkeypatch.setenv("LAKESTORE_SERVER", server.address)
        for block in re.findall(r"```\n(lakestore .*?)```", text, re.DOTALL):
            for command in block.splitlines():
                assert run_command(shlex.split(command)[1:]) == 0, command
        said = capfd.readouterr().err
        assert "is loaded already, 3 rows" in said
        assert "types from the first 3 rows of people.csv" in said
        assert run_command(["read", "shop.people", "--json"]) == 0
        ids = sorted(int(each) for each in re.findall(r'"id":(\d+)', capfd.readouterr().out))
    assert ids == [1, 3, 4, 5, 6, 8]
    assert Path("some.csv").read_text().splitlines()[0] == '"id","name"'
    assert os.listdir("people") == ["part-00000.parquet"]
    assert len(Path("bad.jsonl").read_text().splitlines()) == 1
    assert '"op":"d"' in Path("events.jsonl").read_text()

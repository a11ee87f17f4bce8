"""Names, rows and errors of other people cannot steer the terminal of the one who reads them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lakestore.cli import output
from lakestore.cli.main import cli, run_command
from lakestore.model.terminal_text import terminal_text
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

STEERED = "\x1b]0;pwned\x07\x9b2J\x7f\u202e"
ESCAPED = r"\x1b]0;pwned\x07\x9b2J\x7f\u202e"


def test_control_characters_are_escaped_and_text_stays() -> None:
    assert terminal_text(f"a{STEERED}b\r\n\tä 字 😀") == f"a{ESCAPED}b\\x0d\n\tä 字 😀"


def test_a_table_escapes_values_and_names_of_columns_and_aligns_them() -> None:
    assert output.table([{STEERED: f"orders{STEERED}", "n": 1}]).splitlines() == [
        f"{ESCAPED:{len('orders' + ESCAPED)}}  n",
        f"orders{ESCAPED}  1",
    ]


def test_a_line_a_log_record_and_progress_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_text(STEERED)
    output.Progress(STEERED).done()
    printed = capsys.readouterr()
    assert printed.out == f"{ESCAPED}\n"
    assert printed.err.startswith(f"{ESCAPED}: 0 rows")
    record = logging.LogRecord("a", logging.WARNING, "a.py", 1, STEERED, (), None)
    assert output._LogText("%(message)s").format(record) == ESCAPED


def test_an_error_is_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command([STEERED]) != 0
    monkeypatch.setattr("lakestore.cli.main.cli.main", lambda **_: (_ for _ in ()).throw(click.ClickException(STEERED)))
    run_command([])
    assert capsys.readouterr().err.count(ESCAPED) == 2


def test_rows_and_status_are_escaped_and_json_keeps_every_character(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        served.lake.create_table("a.t", schema=pa.schema([("v", pa.string())])).append([{"v": STEERED}])
        served.lake.transport.report(pb.ReportRequest(producer=f"p{STEERED}", detail="{}"))
        at = ["--server", served.server.about["grpc"]]
        for arguments in (["read", "a.t"], ["status"]):
            shown = CliRunner().invoke(cli, [*arguments, *at], catch_exceptions=False).output
            assert ESCAPED in shown
            assert not set(shown) & {"\x1b", "\x07", "\x9b", "\x7f", "\u202e"}
        read = CliRunner().invoke(cli, ["read", "a.t", "--json", *at], catch_exceptions=False).stdout
        assert json.loads(read.splitlines()[0])["v"] == STEERED

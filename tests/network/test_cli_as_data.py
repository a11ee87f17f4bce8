"""The command line for programs and people: `--json` is data, pipes get everything, and a shell takes SQL."""

from __future__ import annotations

import codecs
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli import output
from lakestore.cli.main import run_command
from lakestore.cli.shell import is_complete, script, statements
from tests.support.commands import leaves

WIDE = "x" * 300
_WHERE = "\x1b[6n"
"""A program asks the terminal where the cursor is."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a keyed table, a log table, a producer and a subscription."""
    data = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "lakestore", "serve", "--data", str(data), "--port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"gRPC on ([\w.]+:\d+)", process.stdout.readline())
        assert found
        with ls.connect(found[1]) as lake:
            schema = pa.schema([("id", pa.int64()), ("who", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
            orders = lake.create_table("shop.orders", schema, primary_key=["id"], buckets=2)
            orders.upsert([{"id": n, "who": WIDE, "at": None} for n in range(1500)])
            lake.create_table("shop.events", schema, buckets=1).append([{"id": 1, "who": "a", "at": None}])
            with lake.producer("etl") as producer, producer.commit(progress="file=1") as commit:
                commit.upsert("shop.orders", [{"id": 1, "who": WIDE, "at": None}])
            for batch in orders.changes(subscription="billing", until="now"):
                batch.ack()
        yield found[1]
        process.terminate()
        assert process.wait(120) == 0


ASKED: dict[str, list[str]] = {
    "tables": [],
    "describe": ["shop.orders"],
    "status": [],
    "replicas": [],
    "files": ["shop.orders"],
    "erase": ["shop.orders", "--list"],
    "verify": ["shop.orders"],
    "producers": [],
    "subscriptions": [],
    "clock": [],
    "connect": ["duckdb"],
    "dlq list": [],
    "proposals list": [],
    "who": ["shop.orders"],
    "sql": ["SELECT count(*) AS n FROM shop.orders"],
    "lookup": ["shop.orders", "1"],
    "read": ["shop.events"],
    "changes": ["shop.events", "--until", "now"],
    "sizing": ["--rows", "1M", "--rate", "1k"],
    "token": ["someone"],
    "profiles": [],
    "doctor": [],
    "databases": [],
    "serve": ["--print-config"],
}
"""Commands that print what they find, each with its arguments."""
_RENDERED = re.compile(
    r"\d{1,3}(,\d{3})+|.*\b\d+(\.\d+)? (B|KB|MB|GB|TB)\b|\d{4}-\d\d-\d\d \d\d:\d\d.*|yes|no|-|[\[{].*[\]}]"
)
_SENTENCES = {"found", "note", "message", "remedy", "lines", "why", "reads_from_why", "source", "sources", "about"}
"""Fields that are sentences for people, in data too."""


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    else:
        yield name, value


@pytest.mark.parametrize("command", ASKED)
def test_json_is_data_and_not_text_in_text(command: str, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    wants_server = command not in ("sizing", "token", "profiles", "serve")
    arguments = [*command.split(), *ASKED[command], "--json", *(["--server", server] if wants_server else [])]
    assert run_command(arguments) in (0, 1)
    said = capsys.readouterr().out
    found = json.loads(said) if not said.startswith('{"') else [json.loads(line) for line in said.splitlines()]
    for name, value in _leaves(found):
        if isinstance(value, str) and name not in _SENTENCES:
            assert not _RENDERED.fullmatch(value), (name, value)


DONE: tuple[tuple[str, ...], ...] = (
    ("write", "shop.people", "FOLDER/more.csv", "--key", "id", "--create", "--yes"),
    ("apply", "-f", "FOLDER/tables.yaml"),
    ("contract", "export", "shop.people"),
    ("contract", "check", "FOLDER/items.odcs.yaml"),
    ("contract", "import", "FOLDER/items.odcs.yaml"),
    ("contract", "apply", "FOLDER/items.odcs.yaml"),
    ("contract", "diff", "FOLDER/items.odcs.yaml"),
    ("contract", "test", "shop.items"),
    ("create", "shop.new", "--column", "id int64", "--column", "who string", "--key", "id"),
    ("alter", "shop.new", "--add", "more int32"),
    ("rename", "shop.new", "shop.newer"),
    ("write", "shop.newer", "FOLDER/more.csv"),
    ("read", "shop.newer", "--explain"),
    ("read", "shop.newer", "--count"),
    ("sql", "SELECT 1 FROM shop.newer", "--explain"),
    ("describe", "shop.newer"),
    ("status", "shop.newer"),
    ("delete", "shop.newer", "--where", "id = 7", "--dry-run"),
    ("delete", "shop.newer", "--where", "id = 7", "--yes"),
    ("truncate", "shop.newer", "--yes"),
    ("drop", "shop.newer", "--yes"),
    ("tables", "--dropped"),
    ("undrop", "shop.newer"),
    ("rescale", "shop.newer", "--buckets", "2"),
    ("replay", "shop.newer", "--into", "shop.fixed"),
    ("replay", "shop.newer", "--diff"),
    ("replay", "shop.newer", "--swap"),
    ("subscriptions", "reset", "billing", "--to", "latest", "--yes"),
    ("producers", "--registers"),
    ("support-bundle", "-o", "FOLDER/bundle.tar.gz"),
    ("backup", "FOLDER/backup"),
    ("inspect", "FOLDER/backup"),
    ("restore", "FOLDER/backup", "--data", "FOLDER/restored", "--warehouse", "FOLDER/lake"),
)
"""Commands that do something, one after the other."""
CONTRACT = """
apiVersion: v3.2.0
kind: DataContract
id: items
version: 1.0.0
schema: [{name: shop.items, properties: [{name: id, logicalType: integer, primaryKey: true}]}]
"""
ELSEWHERE = {
    "login", "logout",  # tests.unit.cli.test_profiles
    "bridge", "dlq replay", "dlq show", "dlq drop", "proposals approve", "proposals reject",
    "init-bridge",  # tests.network.test_bridge_cli
    "init-journal",  # tests.network.test_kafka_journal
    "journal move",  # tests.network.test_failover
    "tier",  # tests.network.test_cli
    "adopt", "release",  # tests.network.test_adoption
    "freshness price",  # tests.lake.test_freshness_price
    "demo",  # make demo
}  # fmt: skip
"""Commands whose ends are data by tests that have what they need; their errors are tried here."""
ARGUMENTS = {"lookup": ["t.a", "1"], "tier": ["--once"]}


def test_every_command_takes_json_and_is_tried() -> None:
    found = dict(leaves())
    assert [name for name, each in found.items() if "as_json" not in {one.name for one in each.params}] == []
    groups = {"bridge", "contract", "dlq", "subscriptions"}
    done = {" ".join(each[: 1 + (each[0] in groups)]) for each in DONE}
    assert found.keys() <= ASKED.keys() | done | ELSEWHERE


@pytest.mark.parametrize("name", [name for name, _ in leaves()])
def test_every_error_is_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestore.cli.profiles._typed", lambda *_: "secret")
    assert run_command([*name.split(), "--no-such-option", "--json"]) == 2
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (error["kind"], error["applied"], said.out) == ("Usage", "no", "")
    assert "no-such-option" in error["message"]
    found = dict(leaves())[name]
    if not any(each.name == "server" for each in found.params) or name in ("doctor", "support-bundle", "connect"):
        return  # these say what they know without a server
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "a.yaml").write_text("tables: []\n")
    words = ARGUMENTS.get(name, [])
    if not words:
        for each in found.params:
            told = {"path": "a.yaml", "files": "a.csv", "dest": "new"}.get(each.name or "")
            value = str(tmp_path / told) if told else "t.a"
            if isinstance(each, click.Argument):
                words = [*words, value]
            elif each.required:
                words = [*words, each.opts[0], value]
    code = run_command([*name.split(), *words, "--json", "--server", "127.0.0.1:1"])
    said = capsys.readouterr()
    error = json.loads(said.err.strip().splitlines()[-1])["error"]
    assert (bool(code), said.out) == (True, ""), said
    assert error["kind"] in ("Unavailable", "Usage", "Invalid"), error
    assert "\n" not in error["message"]


def test_what_commands_do_is_data(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESTORE_SERVER", server)
    (tmp_path / "more.csv").write_text("id,who\n7,ann\n8,bob\n")
    (tmp_path / "items.odcs.yaml").write_text(CONTRACT)
    (tmp_path / "tables.yaml").write_text("tables:\n  - {name: shop.more, columns: [{name: id, type: int64}]}\n")
    for each in DONE:
        arguments = [word.replace("FOLDER", str(tmp_path)) for word in each]
        assert run_command([*arguments, "--json"]) == 0, (arguments, capsys.readouterr().err)
        found = list(_leaves(json.loads(capsys.readouterr().out)))
        assert found or "--registers" in arguments, arguments
        for name, value in found:
            if isinstance(value, str) and name not in _SENTENCES:
                assert not _RENDERED.fullmatch(value), (each[0], name, value)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["describe", "shop.nothing"], "NotFound"),
        (["sql", "SELECT * FROM shop.ordres"], "NotFound"),
        (["read", "shop.orders", "--where", "nothing = 1"], "Invalid"),
        (["describe"], "Usage"),
    ],
)
def test_errors_are_data_too(arguments: list[str], kind: str, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*arguments, "--json", "--server", server]) != 0
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (error["kind"], error["applied"], said.out) == (kind, "no", "")


def test_an_error_says_when_to_try_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tables", "--json", "--server", "127.0.0.1:1"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["kind"] == "Unavailable"


def test_a_pipe_gets_whole_values_and_a_screen_says_what_it_cut(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sql", "SELECT who FROM shop.orders WHERE id = 1", "--server", server]) == 0
    assert WIDE in capsys.readouterr().out
    row = {f"column{n}": "v" * (5 * n) for n in range(12)}
    assert output.table([row], 1 << 20) == output.table([row])
    for width in range(1, 700, 7):
        lines = output.table([row], width).splitlines()
        assert max(map(len, lines[:2])) <= width
        assert lines[2:] == [] or "cut to the screen" in lines[2]
    assert "columns column" in output.table([row], 40)
    assert re.search(r"values of .*column11", output.table([row], 300))


def test_statements_are_told_apart() -> None:
    assert statements("SELECT ';' ; -- a;b\nSELECT 2;") == ["SELECT ';'", "-- a;b\nSELECT 2"]
    assert [is_complete(text) for text in ("SELECT 1", "SELECT 1;", "SELECT ';", ".help", "", "SELECT 1; --x")] == [
        False, True, False, True, True, True,
    ]  # fmt: skip


def test_dot_commands_of_a_pipe_are_run_between_statements(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ".tables\nSELECT '\n.x' AS a; SELECT\n 2 AS b;\n\\d shop.orders\n.quit\nSELECT 3 AS c"
    assert script(text) == [
        ".tables", "SELECT '\n.x' AS a", "SELECT\n 2 AS b", "\\d shop.orders", ".quit", "SELECT 3 AS c",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run_command(["sql", "--server", server]) == 0
    said = capsys.readouterr().out
    assert all(part in said for part in ("orders", "column_name", "\nb\n2\n"))
    assert "\nc\n" not in said, ".quit leaves"


def test_a_past_cut_in_another_dialect_is_told_the_way_to_write_it(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for clause in ("AS OF TIMESTAMP '2026-01-01'", "FOR SYSTEM_TIME AS OF '2026-01-01'"):
        assert run_command(["sql", f"SELECT * FROM shop.orders {clause}", "--server", server]) == 1
        assert "AT (TIMESTAMP => '2026-11-20T10:00Z')" in capsys.readouterr().err
    assert run_command(["sql", "SELECT nothing FROM shop.orders AS o", "--server", server]) == 1
    assert "AT (TIMESTAMP" not in capsys.readouterr().err


def test_a_look_up_of_an_absent_key_has_an_exit_code_of_its_own(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["lookup", "shop.orders", "1", "--server", server]) == 0
    assert run_command(["lookup", "shop.orders", "1", "1", "--server", server]) == 0
    assert run_command(["lookup", "shop.orders", "1", "99999999", "--server", server]) == 4
    capsys.readouterr()
    assert run_command(["lookup", "shop.orders", "abc", "--server", server]) == 1
    assert capsys.readouterr().err == "lakestore: a key does not fit the primary key (id): 'abc' is no int64\n"


def test_statements_of_a_pipe_are_run_one_by_one(server: str) -> None:
    command = [sys.executable, "-m", "lakestore", "sql", "--server", server, "--json"]
    text = "SELECT count(*) AS n FROM shop.orders;\nSELECT 2 AS n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"n": 1500}, {"n": 2}]


class Terminal:
    """A shell behind a pseudo-terminal.

    The shell draws what differs from what it drew before, and how far a drawing goes hangs on how much of what was
    typed it has read by then: look for what comes to be at once, as a completion, a prompt, a line that is printed.
    """

    def __init__(self, server: str, state: Path) -> None:
        environment = os.environ | {"XDG_STATE_HOME": str(state), "TERM": "xterm", "PAGER": "cat", "NO_COLOR": "1"}
        self.pid, self._end = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
            os.execve(sys.executable, [sys.executable, "-m", "lakestore", "sql", "--server", server], environment)
        self.seen = self._said = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, keys: str) -> None:
        """Press keys."""
        self.seen = ""
        os.write(self._end, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C once the prompt has given the terminal back: before, it would be a key of the line."""
        self._wait(lambda: not self._is_prompt, "the prompt's end")
        time.sleep(1)  # the query is under way
        self.type("\x03")

    def ready(self) -> None:
        """Wait for the prompt behind what was printed; its text alone is drawn again with what was typed."""
        self._wait(lambda: self._is_prompt, "a prompt")

    @property
    def _is_prompt(self) -> bool:
        """Whether keys are taken as they are: a prompt turns the terminal's signals off, and on at its end."""
        return not termios.tcgetattr(self._end)[3] & termios.ISIG

    def until(self, words: str) -> str:
        """All that is shown until these words are."""
        self._wait(lambda: words in self.plain(), words)
        return self.plain()

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                pytest.fail(f"{what!r} is not shown: {self.plain()[-800:]!r}")
            if select.select([self._end], [], [], 0.05)[0]:
                self._take()

    def _take(self) -> None:
        found = self._decoder.decode(os.read(self._end, 1 << 16))
        asked = self._said.count(_WHERE)
        self._said += found
        for _ in range(self._said.count(_WHERE) - asked):
            os.write(self._end, b"\x1b[1;1R")  # where the cursor is
        self.seen += found

    def plain(self) -> str:
        """What is shown, without the terminal's own sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", self.seen)

    def end(self) -> int:
        """The exit code."""
        try:
            while True:
                self._take()
        except OSError:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_of_sql(server: str, tmp_path: Path) -> None:
    terminal = Terminal(server, tmp_path)
    terminal.until("lake>")
    terminal.type(".tables\r")
    assert "orders" in terminal.until(" s\n")
    terminal.ready()
    terminal.type("SELECT count(*) AS n,\r")
    terminal.until("…>")
    terminal.type("41 + 1 AS m FROM shop.ord\t")
    terminal.until("ers")  # shop.orders
    terminal.type(" WHERE id < 7;\r")
    shown = terminal.until("1 row")
    assert re.search(r"n +m\n *7 +42", shown)
    terminal.ready()
    terminal.type("SELECT whoo FROM shop.orders;\r")
    assert "error: " in terminal.until('"who"')
    terminal.ready()
    terminal.type("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b;\r")
    terminal.interrupt()
    terminal.until("interrupted")
    terminal.ready()
    terminal.type("SELECT id FROM shop.orders ORDER BY id;\r")
    assert "1,499" in terminal.until("1,500 rows")
    terminal.ready()
    terminal.type(".at 2020-01-01T00:00Z\r")
    terminal.until("00Z>")
    terminal.type("SELECT count(*) FROM shop.orders;\r")
    terminal.until("error: ")
    terminal.ready()
    terminal.type(".at now\r")
    terminal.until("lake>")
    terminal.type("\\d shop.orders\r")
    assert "PRI" in terminal.until("rows")
    terminal.ready()
    terminal.type(".quit\r")
    assert terminal.end() == 0
    history = tmp_path / "lakestore" / "sql_history"
    assert ".tables" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0

"""psql of this machine through the Postgres port: its commands that describe, \\copy, \\gdesc, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pgjdbc
from tests.support.postgres import USER, Postgres
from tests.support.sql_door import HOT, ORDER_COUNT, TIERED, Door

SECONDS = 60.0
MARK = "---- next"


def psql(door: Door, *texts: str, stops: bool = True, user: str = "") -> str:
    """What psql prints for some commands, without alignment."""
    return _ran(door, [word for text in texts for word in ("-c", text)], stops=stops, user=user)


def _command(door: Door, user: str = "") -> tuple[list[str], dict[str, str]]:
    given = door.dsn(user)
    command = ["psql", "-X", "-h", given["host"], "-p", str(given["port"]), "-U", given["user"], "-d", given["dbname"]]
    environment = {**os.environ, "PGPASSWORD": given["password"], "LC_ALL": "C.UTF-8", "PAGER": "cat"}
    return command, environment


def _ran(door: Door, words: list[str], *, stops: bool = True, user: str = "", text: str = "") -> str:
    command, environment = _command(door, user)
    command += ["-A", "-F", "|", *(["-v", "ON_ERROR_STOP=1"] if stops else []), *words]
    done = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert not stops or done.returncode == 0, done.stderr
    return done.stdout + ("" if stops else done.stderr)


def test_psql_lists_and_describes(door: Door) -> None:
    tables = psql(door, "\\dt shop.*")
    assert "shop|orders|table|" in tables
    assert "shop|OddNames|table|" in tables
    assert "shop|orders|" in psql(door, "\\dt+ shop.orders")
    assert "shop|orders|" in psql(door, "\\d")
    assert "|orders|" in psql(door, "\\dt")
    described = psql(door, "\\d shop.orders")
    for line in (
        "order_id|bigint||not null|",
        "customer|text|||",
        "amount|numeric(12,2)|||",
        "created_at|timestamp with time zone|||",
        "PRIMARY KEY",
    ):
        assert line in described, described
    assert "Größe|text|" in psql(door, '\\d shop."OddNames"')
    assert "price|numeric(20,3)|" in psql(door, "\\d+ every")
    assert "shop|" in psql(door, "\\dn")
    assert ("Hr|" in psql(door, "\\dn")) == (not door.guarded)
    assert psql(door, "\\encoding").strip() == "UTF8"


COMMANDS = (
    r"\l \dn \df \dp \du \dT \di \dv \ds \dx \db \dO \dD \conninfo \dconfig \drds \dd \dS \d+ \dtS \dAo \dg \dE"
    r" \dm \dP \dL \dy \dX \des \det \dRp \dRs \ddp \dF \dC \dc \dAf \dAp \dA \da \do \dn+ \l+"
).split()
LINES = (*COMMANDS, r"\sf abs(integer)", r"\df lower", r"\dconfig *zone", r"\do =")
OTHER_ROWS = {
    r"\conninfo": "it names user and port",
    r"\d+": "sizes are unknown",
    r"\dAf \dAp \dAo \dC \dc \dF \dL \dx": "the lake has none",
    r"\dconfig \drds": "settings are others",
    r"\do": "operators are not listed",
    r"\du \dg": "roles are the user and the owner of all tables",
    r"\l \l+": "there is one database",
    r"\sf": "the text of a function is unknown",
}
"""Commands to the reason why they show other rows than PostgreSQL."""


@pytest.fixture(scope="module")
def real() -> Iterator[Postgres]:
    """A PostgreSQL with the tables of the door that `ann` sees."""
    with Postgres() as server:
        pgjdbc.fill(server)
        server.run("DROP TABLE shop.lines; DROP SCHEMA public")
        yield server


def test_commands_of_psql_show_what_they_show_of_postgresql(door: Door, real: Postgres) -> None:
    given = door.dsn()
    ours = _shown(given["host"], given["port"], given["user"], given["password"])
    theirs = _shown("127.0.0.1", real.port, USER, "")
    others = {command for commands in OTHER_ROWS for command in commands.split()}
    for line, mine, yours in zip(LINES, ours, theirs, strict=True):
        assert mine[:2] == yours[:2] or line.split()[0] in others, line
        assert mine == yours or line.split()[0] in others, line


def _shown(host: str, port: int, user: str, password: str) -> list[list[str]]:
    """The lines that psql prints for each command of `LINES`."""
    command = ["psql", "-X", "-A", "-h", host, "-p", str(port), "-U", user, "-d", "shop", "-f", "-"]
    text = "".join(f"\\echo {MARK}\n{line}\n" for line in LINES)
    environment = {**os.environ, "PGPASSWORD": password, "LC_ALL": "C.UTF-8", "PAGER": "cat"}
    done = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "ERROR" not in done.stderr, done.stderr
    shown = done.stdout.replace("lakestore", "owner").replace(USER, "owner").split(f"{MARK}\n")[1:]
    return [part.splitlines() for part in shown]


def test_psql_copies_to_a_file(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "a file.csv"
    said = psql(door, f"\\copy (SELECT order_id, customer FROM orders ORDER BY 1) TO '{file}' (FORMAT csv, HEADER)")
    assert said.strip() == f"COPY {ORDER_COUNT}"
    assert file.read_text().splitlines()[:2] == ["order_id,customer", "0,customer 0"]
    assert psql(door, f"\\copy shop.events TO '{file}'").strip() == f"COPY {TIERED + HOT}"
    refused = psql(door, "\\copy shop.events FROM '/dev/null'", stops=False)
    assert "ERROR" in refused


def test_psql_runs_a_script(door: Door) -> None:
    text = """
\\pset tuples_only
SELECT count(*) AS n FROM events \\gset
\\echo n is :n
SELECT order_id, customer FROM orders WHERE order_id < 3 ORDER BY 1 \\gdesc
SELECT customer FROM orders WHERE order_id = :n \\g
BEGIN; SELECT 1; SAVEPOINT s; SELECT 2; ROLLBACK TO s; COMMIT;
SELECT 'a' AS a, 1 AS b, 2 AS c \\crosstabview a b c
\\set FETCH_COUNT 10
BEGIN;
SELECT order_id FROM orders WHERE order_id > 94 ORDER BY 1;
COMMIT;
"""
    said = _ran(door, ["-f", "-"], text=text)
    lines = said.splitlines()
    assert f"n is {TIERED + HOT}" in lines
    assert "order_id|bigint" in lines
    assert "customer|text" in lines
    assert f"customer {(TIERED + HOT) % 7}" in lines
    assert [str(number) for number in range(95, 100)] == [line for line in lines if line in map(str, range(95, 100))]


def test_psql_shows_an_error_with_its_place(door: Door) -> None:
    said = psql(door, "\\set VERBOSITY verbose", "SELECT nothing FROM orders", stops=False)
    assert "42703" in said
    said = psql(door, "DELETE FROM orders", stops=False)
    assert "ERROR" in said


def test_ctrl_c_ends_the_query_and_psql_goes_on(door: Door) -> None:
    command, environment = _command(door)
    process = subprocess.Popen(
        [*command, "-A", "-t"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write("SELECT 'first';\n\\! sleep 0\nSELECT count(*) FROM range(300000000000);\n")
    process.stdin.flush()
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate("SELECT 'last';\n", timeout=SECONDS)
    assert "canceling statement" in out or "57014" in out or "ERROR" in out, out
    assert first == "first\n"


@pytest.mark.parametrize(
    "fresh", ["SHOW server_version", "SELECT version()", "SHOW ALL", "EXPLAIN SELECT * FROM orders"]
)
def test_psql_asks_the_server_about_itself(door: Door, fresh: str) -> None:
    assert psql(door, fresh)

"""The shell of `lakestore sql`: statements up to `;`, commands that begin with a dot, and their output.

Each query reads a fresh cut until `.at` fixes one. A query runs in a process of its own, so Ctrl-C interrupts only the
query. `shell_prompt` reads lines with history and completion.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from lakestore.cli.output import emit_text, table
from lakestore.errors import Invalid, LakestoreError
from lakestore.model.names import rows_text
from lakestore.model.terminal_text import terminal_text
from lakestore.model.times import position_text
from lakestore.union import sql as union_sql

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.model.table import Table

ROWS_SHOWN, BYTES_SHOWN = 10_000, 16 << 20
"""Most rows and bytes of an answer that are kept and printed."""
_WAKE_SECONDS = 0.1
_HELP = """\
statement;         run a query at a fresh cut; it may have several lines, and ends with ;
.tables  \\d        list the tables
.describe T  \\d T  the columns of a table, their types, nullability and key
.at POSITION       read at a token or a time from now on; .at now reads the newest again
.rows N            print at most N rows, of 16 MB
.timing on|off     print how long a query took, and its cut
.help  .quit       this text; leave, as Ctrl-D does
Ctrl-C interrupts a query, or forgets the line. Tab completes tables, columns and words."""


def statements(text: str) -> list[str]:
    """Split a text into statements without semicolons. The last statement may lack it."""
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except SqlglotError as error:
        raise Invalid(f"the text cannot be read: {' '.join(str(error).split())}") from error
    found, begin = [], 0
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            found.append(text[begin : token.start])
            begin = token.end + 1
    return [each.strip() for each in (*found, text[begin:]) if each.strip()]


def script(text: str) -> list[str]:
    """Split a piped text into statements and commands: lines that begin with a dot or backslash."""
    parts: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        if not pending.strip() and line.lstrip().startswith((".", "\\")):
            parts.append(line.strip())
            continue
        pending += line
        if is_complete(pending):
            parts += statements(pending)
            pending = ""
    return [*parts, *statements(pending)]


def is_complete(text: str) -> bool:
    """True if Enter runs the text: a command, nothing, or a statement that ends with `;`."""
    said = text.strip()
    if not said or said.startswith((".", "\\")):
        return True
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except SqlglotError:
        return False  # a quote or a comment is open
    return bool(tokens) and tokens[-1].token_type is TokenType.SEMICOLON


@dataclass
class Shell:
    """One session of the shell."""

    lake: Lake
    at: str | None = None
    external_access: bool = False
    rows: int = ROWS_SHOWN
    timing: bool = True
    _known: list[Table] = field(default_factory=list)

    def run(self) -> None:
        """Read and run until the end. An error is printed and the session continues."""
        from lakestore.cli.shell_prompt import Prompt

        emit_text(f"lakestore {self.lake.address}: SQL up to ;  .help tells more, .quit leaves")
        prompt = Prompt(self.known)
        while True:
            try:
                line = prompt.read(f"{self.at[:16]}…> " if self.at and len(self.at) > 19 else f"{self.at or 'lake'}> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                if not self.handle(line):
                    return
            except (LakestoreError, click.ClickException) as error:
                emit_text(f"error: {error}", err=True)
            except KeyboardInterrupt:
                emit_text("interrupted", err=True)

    def known(self, *, fresh: bool = False) -> list[Table]:
        """The table definitions, cached unless `fresh`."""
        if fresh or not self._known:
            self.lake.transport.probe()  # reports an absent server at once instead of after a timeout
            self._known = [each.definition for each in self.lake.tables()]
        return self._known

    def handle(self, line: str) -> bool:
        """Run one input. Returns False to leave."""
        said = line.strip()
        if said.startswith((".", "\\")):
            return self._command(said)
        for text in statements(said):
            self._query(text)
        return True

    def _command(self, text: str) -> bool:
        try:
            name, *arguments = shlex.split(text.rstrip(";").replace("\\", "\\\\"))
        except ValueError as error:
            raise Invalid(f"{text} cannot be read: {error}") from error
        if name in (".quit", ".exit", "\\q"):
            return False
        command = _COMMANDS.get("\\d T" if name == "\\d" and arguments else name)
        if command is None:
            raise Invalid(f"there is no command {name}: .help lists all")
        command(self, arguments)
        return True

    def tables(self, _: list[str]) -> None:
        self.known(fresh=True)
        self._query("SHOW TABLES")

    def describe(self, arguments: list[str]) -> None:
        name = _only(arguments, ".describe shop.orders")
        if not all(part.replace("_", "a").isalnum() for part in name.split(".")):
            raise Invalid(f"{name!r} is not a table name: write database.table")
        self._query(f"DESCRIBE {name}")

    def fix(self, arguments: list[str]) -> None:
        position = " ".join(arguments) or "now"
        self.at = None if position == "now" else position_text(position)

    def limit(self, arguments: list[str]) -> None:
        number = _only(arguments, ".rows 100")
        if not number.isdecimal() or not int(number):
            raise Invalid(f".rows takes a number, not {number!r}")
        self.rows = int(number)

    def time(self, arguments: list[str]) -> None:
        self.timing = _only(arguments, ".timing on") != "off"

    def help(self, _: list[str]) -> None:
        emit_text(_HELP)

    def _query(self, text: str) -> None:
        self.lake.transport.probe()
        began = time.monotonic()
        result = self._answered(text)
        seconds = time.monotonic() - began
        found = result.to_arrow()
        shown = found.slice(0, self.rows).to_pylist()
        if found.column_names == ["explanation"]:
            emit_text("\n".join(str(row["explanation"]) for row in shown))
        else:
            _page(lambda width: table(shown, width) if shown else "no rows", len(shown))
        count = found.num_rows + result.rows_behind
        why = ".rows" if len(shown) == self.rows else f"{BYTES_SHOWN >> 20} MB"
        more = f", {len(shown):,} shown ({why})" if count > len(shown) else ""
        if self.timing:
            emit_text(f"{rows_text(count)}{more}, {seconds:.3f} s", err=True)
        elif more:
            emit_text(f"{rows_text(count)}{more}", err=True)

    def _answered(self, text: str) -> union_sql.SqlResult:
        """Run a query in a process of its own. Ctrl-C interrupts it."""
        interrupts: list[Callable[[], None]] = []
        query = union_sql.Query(
            text,
            at=self.at,
            external_access=self.external_access,
            kept_rows=self.rows,
            kept_bytes=BYTES_SHOWN,
            started=interrupts.append,
        )
        worker = ThreadPoolExecutor(1, "query")
        answer = worker.submit(union_sql.run, self.lake.transport, query, self.known)
        worker.shutdown(wait=False)
        try:
            while not answer.done():
                wait([answer], _WAKE_SECONDS)
        except KeyboardInterrupt:
            for interrupt in interrupts:
                interrupt()
            raise
        return answer.result()


def _only(arguments: list[str], example: str) -> str:
    if len(arguments) != 1:
        raise Invalid(f"write {example}")
    return arguments[0]


def _page(text: Callable[[int | None], str], rows: int) -> None:
    """Print a text if it fits the screen; otherwise show it in the pager `less` or PAGER."""
    size = shutil.get_terminal_size()
    if rows + 2 < size.lines:
        emit_text(text(size.columns))
        return
    os.environ.setdefault("LESS", "-SRFX")
    click.echo_via_pager(terminal_text(text(_ENDLESS)))


_ENDLESS = 1 << 30
_COMMANDS: dict[str, Callable[[Shell, list[str]], None]] = {
    ".tables": Shell.tables,
    "\\d": Shell.tables,
    "\\dt": Shell.tables,
    ".describe": Shell.describe,
    "\\d T": Shell.describe,
    ".at": Shell.fix,
    ".rows": Shell.limit,
    ".timing": Shell.time,
    ".help": Shell.help,
    "\\?": Shell.help,
}
COMMAND_NAMES = sorted({name for name in _COMMANDS if " " not in name} | {".quit"})

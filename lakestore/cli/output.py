"""Output of commands: tables or JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import pyarrow as pa

from lakestore.cli.json_lines import lines, plain
from lakestore.errors import Invalid
from lakestore.model.names import rows_text
from lakestore.model.terminal_text import terminal_text

_Command = TypeVar("_Command", bound=Callable[..., Any])


def yes_option(command: _Command) -> _Command:
    """Adds the option `--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to continue, unless `yes`. Without a terminal this raises."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(f"{what}: nobody is there to be asked, so say --yes to do it")
    click.confirm(terminal_text(f"{what}. Go on?"), abort=True, err=True)


CELL_CHARS_MIN = 8
"""Characters that a value keeps on a screen before whole columns are left out."""
_NUMBERS = (int, float)
_BAR_SECONDS, _FIRST_LINE_SECONDS, _LINE_SECONDS = 0.2, 0.5, 5.0


def emit(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str = "nothing") -> None:
    """Print rows as a table, or as a JSON list."""
    if as_json:
        emit_json(list(rows))
    elif rows:
        emit_text(table(rows))
    else:
        emit_text(empty)


def emit_text(text: object, *, err: bool = False, nl: bool = True, live: bool = False) -> None:
    """Print text with control characters escaped. `live` replaces the current line of the terminal."""
    shown = terminal_text(str(text))
    click.echo(f"\r{shown}\x1b[K" if live else shown, err=err, nl=nl)


class _LogText(logging.Formatter):
    """Formats log lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        return terminal_text(super().format(record))


def emit_log(form: str) -> None:
    """Print warnings of all loggers on stderr, with control characters escaped."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogText(form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def emit_json(data: Any) -> None:
    """Print data as indented JSON."""
    click.echo(json.dumps(data, indent=2, default=plain, ensure_ascii=False))


def emit_lines(batch: pa.RecordBatch | pa.Table) -> None:
    """Print one line of JSON for each row."""
    for line in lines(batch):
        click.echo(line)


def screen_width() -> int | None:
    """Width of the terminal behind stdout; None for a pipe or a file, which get everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Format rows as a table: header, aligned columns, numbers to the right.

    On a terminal, or with a width, wide values are cut and then columns left out. A last line names them.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    heads = [_cell(name) for name in names]
    right = [all(isinstance(row.get(name), _NUMBERS) for row in rows) for name in names]
    full = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(heads)]
    widths = _fitting(full, screen_width() if width is None else width)
    shown = "\n".join(
        "  ".join(
            _cut(cell, width).rjust(width) if number else _cut(cell, width).ljust(width)
            for cell, width, number in zip(line, widths, right, strict=False)
        ).rstrip()
        for line in [heads, *cells]
    )
    return shown + _left_out(heads, full, widths)


def _fitting(full: list[int], screen: int | None) -> list[int]:
    """Widths of the columns that fit the screen. The widest columns are cut first."""
    widths = list(full)
    while screen is not None and sum(widths) + 2 * (len(widths) - 1) > screen and widths:
        over = sum(widths) + 2 * (len(widths) - 1) - screen
        widest = max(widths)
        rest = max((width for width in widths if width < widest), default=0)
        least = max(rest, widest - over, CELL_CHARS_MIN)
        if least >= widest:
            if len(widths) == 1:
                return [max(screen, 1)]
            widths.pop()
            widths = [min(width, full[i]) for i, width in enumerate(widths)]
            continue
        place = widths.index(widest)
        widths[place] = max(least, widest - over)
    return widths


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def _left_out(names: list[str], full: list[int], widths: list[int]) -> str:
    cut = [name for name, whole, width in zip(names, full, widths, strict=False) if width < whole]
    said = [f"values of {', '.join(cut)}"] if cut else []
    said += [f"columns {', '.join(names[len(widths) :])}"] if len(widths) < len(names) else []
    return f"\n(cut to the screen: {'; '.join(said)}. A pipe or --json gets everything.)" if said else ""


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return terminal_text(" ".join(_text(value).split()))


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, default=plain, ensure_ascii=False)
    return str(plain(value) if isinstance(value, bytes) or hasattr(value, "isoformat") else value)


def size(count: float) -> str:
    """A number of bytes for people, such as `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A number of seconds for people."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


class Progress:
    """Counts rows on stderr: in place on a terminal, otherwise a line now and then."""

    def __init__(self, what: str, started: float | None = None) -> None:
        """`started` is the monotonic start time for the rate; default: now."""
        self._what = what
        self._live = sys.stderr.isatty()
        self._pause = _BAR_SECONDS if self._live else _FIRST_LINE_SECONDS
        self._shown = time.monotonic()
        self._started = self._shown if started is None else started
        self.rows = 0

    def add(self, rows: int) -> None:
        self.rows += rows
        now = time.monotonic()
        if now - self._shown >= self._pause:
            self._shown, self._pause = now, _BAR_SECONDS if self._live else _LINE_SECONDS
            emit_text(self._line(), err=True, nl=not self._live, live=self._live)

    def done(self) -> None:
        emit_text(self._line(), err=True, live=self._live)

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-3)
        return f"{self._what}: {rows_text(self.rows)} in {seconds:.1f} s ({self.rows / seconds:,.0f} rows/s)"

"""Output of commands: short tables or JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import pyarrow as pa

from lakestore.cli.json_lines import lines, plain

CELL_CHARS_MAX = 40
_NUMBERS = (int, float)
_BAR_SECONDS, _LINE_SECONDS = 0.2, 5.0


def emit(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str = "nothing") -> None:
    """Rows as a table, or as a JSON list."""
    if as_json:
        emit_json(list(rows))
    elif rows:
        click.echo(table(rows))
    else:
        click.echo(empty)


def emit_json(data: Any) -> None:
    """Data as indented JSON."""
    click.echo(json.dumps(data, indent=2, default=str, ensure_ascii=False))


def emit_lines(batch: pa.RecordBatch | pa.Table) -> None:
    """Rows as one line of JSON each."""
    for line in lines(batch):
        click.echo(line)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with a header, columns aligned, numbers to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    right = [all(isinstance(row.get(name), _NUMBERS) for row in rows) for name in names]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [names, *cells]
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = " ".join(_text(value).split())
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, default=plain, ensure_ascii=False)
    return str(plain(value) if isinstance(value, bytes) or hasattr(value, "isoformat") else value)


def size(count: float) -> str:
    """A number of bytes as people read it, such as `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A number of seconds as people read it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


class Progress:
    """Rows done so far, on stderr: in place on a terminal, else a line now and then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._shown = time.monotonic()
        self._live = sys.stderr.isatty()
        self.rows = 0

    def add(self, rows: int) -> None:
        """Count more rows."""
        self.rows += rows
        now = time.monotonic()
        if now - self._shown >= (_BAR_SECONDS if self._live else _LINE_SECONDS):
            self._shown = now
            click.echo(("\r" if self._live else "") + self._line(), err=True, nl=not self._live)

    def done(self) -> None:
        """Print the last line."""
        click.echo(("\r" if self._live else "") + self._line(), err=True)

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-3)
        return f"{self._what}: {self.rows:,} rows in {seconds:.1f} s ({self.rows / seconds:,.0f} rows/s)"

"""Options that commands which give rows share: the files they go to, and columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lakestore.cli import row_files

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_options(command: _Command) -> _Command:
    """The options of rows that go into files."""
    command = click.option(
        "--rows-per-file", type=click.IntRange(min=1), help="Parts of so many rows, in the folder that -o names."
    )(command)
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="A file, whose name says the format, or a folder."
    )(command)


def chosen_kind(output: Path | None, kind: str | None) -> str | None:
    """The format of what is written; None: nothing says one."""
    if output is None or kind is not None:
        return kind
    return "parquet" if output.is_dir() or not output.suffix else row_files.kind_of(output)


def names_in(columns: str | None) -> list[str] | None:
    """The names of columns in an option; None: all of them."""
    return [name.strip() for name in columns.split(",")] if columns else None

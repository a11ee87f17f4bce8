"""Questions before something is lost: answered on a terminal, or by `--yes`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lakestore.errors import Invalid
from lakestore.model.terminal_text import terminal_text

_Command = TypeVar("_Command", bound=Callable[..., Any])


def yes_option(command: _Command) -> _Command:
    """The option `--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to go on, unless that was said; without a terminal there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(f"{what}: nobody is there to be asked, so say --yes to do it")
    click.confirm(terminal_text(f"{what}. Go on?"), abort=True, err=True)

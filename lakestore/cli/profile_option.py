"""The option `--profile`. The list of commands shows it without importing any client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
PROFILE_META = "lakestore.profile"
"""Key in the click context for the profile of the flag."""


def remember_profile(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Store the profile of a flag in the context."""
    if value is not None:
        context.meta[PROFILE_META] = value


def profile_option(command: _Command) -> _Command:
    """Adds the option `--profile`, after `lakestore` or after the command."""
    return click.option(
        "--profile",
        expose_value=False,
        is_eager=True,
        callback=remember_profile,
        metavar="NAME",
        help="Server and token by name, as `lakestore login` keeps them; or in LAKESTORE_PROFILE.",
    )(command)

"""The option `--profile`, which the list of commands has without importing any client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
PROFILE_META = "lakestore.profile"
"""The context's word for the profile that a flag named."""


def remember_profile(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keep the profile that a flag names."""
    if value is not None:
        context.meta[PROFILE_META] = value


def profile_option(command: _Command) -> _Command:
    """The option `--profile`, which stands behind `lakestore` or behind the command."""
    return click.option(
        "--profile",
        expose_value=False,
        is_eager=True,
        callback=remember_profile,
        metavar="NAME",
        help="Server and token by name, as `lakestore login` keeps them; or in LAKESTORE_PROFILE.",
    )(command)

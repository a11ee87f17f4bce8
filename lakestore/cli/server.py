"""Options that many commands share, and the way to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

SERVER_DEFAULT = "localhost:7340"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def server_option(command: _Command) -> _Command:
    """`--server`, or the variable LAKESTORE_SERVER."""
    return click.option(
        "--server", envvar="LAKESTORE_SERVER", default=SERVER_DEFAULT, show_default=True, help="Host and port."
    )(command)


def json_option(command: _Command) -> _Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="The same as JSON.")(command)


def connected(server: str) -> Lake:
    """A lake to be closed by `with`."""
    from lakestore.client.lake import connect

    return connect(server)

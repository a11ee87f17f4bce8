"""Options that many commands share, and the way to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lakestore.client.credentials import TLS, Credentials, credentials_for, token_in

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

SERVER_DEFAULT = "localhost:7340"
_Command = TypeVar("_Command", bound=Callable[..., Any])


_SHOWN = {
    "tls-key": "Key of the client certificate.",
    "tls-cert": "Client certificate, for a server that asks for one.",
    "tls-ca": "Authority of the server's certificate; implies TLS.",
    "tls": "Whether to connect by TLS.",
    "token-file": "File that holds your token; or the token itself in LAKESTORE_TOKEN.",
}
_META = "lakestore.shown"


def _remembered(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta.setdefault(_META, {})[parameter.name] = value


def shown(address: str) -> Credentials:
    """The credentials that this command's options and the environment give."""
    context = click.get_current_context(silent=True)
    said = {name: value for name, value in (context.meta.get(_META, {}) if context else {}).items() if value}
    tls: TLS | bool | None = None
    if files := {name.removeprefix("tls_"): said[name] for name in ("tls_ca", "tls_cert", "tls_key") if name in said}:
        tls = TLS(**files)
    elif "tls" in said:
        tls = said["tls"].lower() == "true"
    token = token_in(said["token_file"]) if "token_file" in said else None
    return credentials_for(address, token, tls)


def server_option(command: _Command) -> _Command:
    """The option `--server`, or the variable LAKESTORE_SERVER, and the options of its credentials."""
    for name, what in _SHOWN.items():
        command = click.option(
            f"--{name}", expose_value=False, callback=_remembered, metavar="true|false" if name == "tls" else "FILE",
            envvar=f"LAKESTORE_{name.removeprefix('tls-').replace('-', '_').upper()}", help=what,
        )(command)  # fmt: skip
    return click.option(
        "--server",
        envvar="LAKESTORE_SERVER",
        default=SERVER_DEFAULT,
        show_default=True,
        help="Host and gRPC port; or in LAKESTORE_SERVER.",
    )(command)


def json_option(command: _Command) -> _Command:
    """The option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="The same as JSON.")(command)


def connected(server: str) -> Lake:
    """A lake to be closed by `with`; an error at once if no server answers there."""
    from lakestore.client.grpc import connect
    from lakestore.client.lake import Lake

    lake = Lake(connect(server, shown(server)), server)
    try:
        lake.transport.greet()
    except BaseException:
        lake.close()
        raise
    return lake

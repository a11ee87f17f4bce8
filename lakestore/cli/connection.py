"""Options that many commands share, and the connection to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lakestore.cli.profile_option import PROFILE_META, profile_option
from lakestore.client.credentials import TLS, Credentials, token_in
from lakestore.client.profiles import SERVER_DEFAULT, SERVER_VARIABLE, Target, target

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

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
    source = context.get_parameter_source(parameter.name or "")
    if value is not None and source is click.core.ParameterSource.COMMANDLINE:
        context.meta.setdefault(_META, {})[parameter.name] = value


def _addressed(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if context.resilient_parsing:
        return value or SERVER_DEFAULT
    return target(value, context.meta.get(PROFILE_META)).server


def requested_target(address: str) -> Target:
    """The server of this command with credentials from options, profile and environment."""
    context = click.get_current_context(silent=True)
    said = {name: value for name, value in (context.meta.get(_META, {}) if context else {}).items() if value}
    tls: TLS | bool | None = None
    if files := {name.removeprefix("tls_"): said[name] for name in ("tls_ca", "tls_cert", "tls_key") if name in said}:
        tls = TLS(**files)
    elif "tls" in said:
        tls = said["tls"].lower() == "true"
    token = token_in(said["token_file"]) if "token_file" in said else None
    profile = context.meta.get(PROFILE_META) if context else None
    found = target(None, profile, token, tls)
    return found if found.server == address else target(address, profile, token, tls)


def named_token(context: click.Context) -> str | None:
    """The token in the file of `--token-file`; None if the option is absent."""
    file = context.meta.get(_META, {}).get("token_file")
    return token_in(file)() if file else None


def command_credentials(address: str) -> Credentials:
    """Credentials from this command's options, its profile and the environment."""
    return requested_target(address).credentials()


def server_option(command: _Command, profile: Callable[[Any], Any] = profile_option) -> _Command:
    """Adds the option `--server` (or LAKESTORE_SERVER), and the options of credentials and profile."""
    for name, what in _SHOWN.items():
        command = click.option(
            f"--{name}", expose_value=False, callback=_remembered, metavar="true|false" if name == "tls" else "FILE",
            envvar=f"LAKESTORE_{name.removeprefix('tls-').replace('-', '_').upper()}", help=what,
        )(command)  # fmt: skip
    command = profile(command)
    return click.option(
        "--server",
        callback=_addressed,
        show_default=SERVER_DEFAULT,
        metavar="HOST:PORT",
        help=f"Host and gRPC port, or several by commas; or in {SERVER_VARIABLE}, or a profile's.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Adds the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="The same as JSON.")(command)


def open_lake(server: str, *, by_profile: bool = False) -> Lake:
    """Open a lake; use it in a `with` block. Raises at once if no server answers. `by_profile`: reads go where the
    profile says, otherwise to the leader."""
    from lakestore.client.lake import Lake
    from lakestore.client.servers import connect

    asked = requested_target(server)
    reads = (by_profile and asked.reads) or "leader"
    lake = Lake(connect(server, asked.credentials(), reads=reads), server)
    try:
        lake.transport.greet()
    except BaseException:
        lake.close()
        raise
    return lake

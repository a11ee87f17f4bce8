"""Commands of profiles: login, logout, profiles."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from lakestore.cli.connection import json_option, named_token, requested_target, server_option
from lakestore.cli.output import emit, emit_json, emit_text
from lakestore.cli.profile_option import PROFILE_META, profile_option
from lakestore.client import profiles as known
from lakestore.client.credentials import TLS, credentials_for
from lakestore.errors import Invalid
from lakestore.model.terminal_text import terminal_text

_NAME_DEFAULT, _LOGIN = "default", "lakestore.login"


def _chosen(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Store the profile to create. If it exists, its server is the default of --server."""
    if value is None:
        return
    if not known.NAME.fullmatch(value):
        raise Invalid(f"{value!r} is not a profile name: letters, digits, and . _ - inside")
    context.meta[_LOGIN] = value
    if value in known.read_profiles().named:
        context.meta[PROFILE_META] = value


def _new_profile(command: Any) -> Any:
    return click.option(
        "--profile", expose_value=False, is_eager=True, callback=_chosen, metavar="NAME", help="Name to keep it under."
    )(command)


@click.command()
@partial(server_option, profile=_new_profile)
@json_option
@click.pass_context
def login(context: click.Context, server: str, as_json: bool) -> None:
    """Ask for your token, check it with the server, and store both under the name of --profile.

    The token is read from --token-file; otherwise from the terminal without echo, or from the first line of a pipe. It
    is stored in a file that only you can read. The server is stored in the profile. The first profile becomes the
    default.
    """
    name = context.meta.get(_LOGIN) or _NAME_DEFAULT
    file = known.file_of_profiles()
    known.read_profiles()  # an invalid profile file is reported before the user types a token
    token = named_token(context) or _typed(name, server)
    said = requested_target(server)
    _check(server, token, said.tls)
    token_file = Path("tokens") / name
    with known.edit_sections(file) as sections:
        known.write_token(file.parent / token_file, token)
        kept = {key: value for key, value in sections.profiles.get(name, {}).items() if key == "reads"}
        sections.profiles[name] = {"server": server, **_tls(said.tls), "token_file": str(token_file), **kept}
        sections.default = sections.default or name
    if as_json:
        emit_json({"profile": name, "server": server, "file": str(file), "default": sections.default == name})
    else:
        emit_text(f"profile {name} is kept in {file}: lakestore --profile {name} tables")


def _typed(name: str, server: str) -> str:
    if sys.stdin.isatty():
        token = str(click.prompt(terminal_text(f"Token for {server} (profile {name})"), hide_input=True, err=True))
    else:
        token = sys.stdin.readline()
    if not token.strip() or len(token.split()) > 1:
        raise Invalid("a token is one word: `lakestore token` makes it, and prints it once")
    return token.strip()


def _check(server: str, token: str, tls: TLS | bool | None) -> None:
    """Raise if the server refuses a token. The token is not stored."""
    from lakestore.client.lake import Lake
    from lakestore.client.servers import connect

    with Lake(connect(server, credentials_for(server, token, tls)), server) as lake:
        lake.transport.greet()
        lake.tables()


def _tls(tls: TLS | bool | None) -> dict[str, Any]:
    if tls is None or isinstance(tls, bool):
        return {} if tls is None else {"tls": tls}
    parts = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    return {"tls": {name: str(Path(path).absolute()) for name, path in parts.items() if path is not None}}


@click.command()
@profile_option
@json_option
@click.pass_context
def logout(context: click.Context, as_json: bool) -> None:
    """Remove the token of --profile, or of the default profile. The profile keeps its server."""
    found = known.read_profiles()
    name = context.meta.get(PROFILE_META) or os.environ.get(known.PROFILE_VARIABLE) or found.default
    if name is None:
        raise Invalid(f"there is no profile in {found.file}")
    found.of(name)
    with known.edit_sections(found.file) as sections:
        profile = known.profiles_of(found.file, sections).of(name)
        sections.profiles[name].pop("token_file", None)
    kept = found.file.parent / "tokens" / name
    removed = bool(known.NAME.fullmatch(name)) and profile.token_file == kept and kept.exists()
    if removed:
        kept.unlink()
    if as_json:
        emit_json({"profile": name, "removed": removed})
    else:
        emit_text(f"profile {name} has no token any more" if removed else f"profile {name} had no token of its own")


@click.command()
@json_option
def profiles(as_json: bool) -> None:
    """List the profiles: servers by name, as `lakestore login` stores them."""
    found = known.read_profiles()
    chosen = os.environ.get(known.PROFILE_VARIABLE) or found.default
    rows = [
        {
            "profile": each.name,
            "server": each.server,
            "tls": bool(each.tls),
            "token": None if each.token_file is None else str(each.token_file),
            "reads": each.reads,
            "default": each.name == chosen,
        }
        for each in found.named.values()
    ]
    emit(rows, as_json=as_json, empty=f"no profiles in {found.file}: lakestore login --profile NAME --server HOST:PORT")


COMMANDS = (login, logout, profiles)

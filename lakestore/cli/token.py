"""The command that makes a token, and prints it this one time: files hold its hash only."""

from __future__ import annotations

import secrets
from typing import Any

import click
import yaml

from lakestore.cli.connection import json_option
from lakestore.cli.output import emit_json
from lakestore.errors import Invalid

TOKEN_BYTES = 32


@click.command()
@click.argument("principal")
@click.option("--grant", "grants", multiple=True, metavar="RIGHTS:TABLES", help="As in read,write:shop.* ; may repeat.")
@click.option("--until", help="The day, or time, on which the token ends.")
@json_option
def token(principal: str, grants: tuple[str, ...], until: str | None, as_json: bool) -> None:
    """Make a token for PRINCIPAL, and the entry for the server's auth file; the file holds its hash alone."""
    from lakestore_server.access import principals

    made = principals.TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    kept = {"sha256": principals.hash_of(made), **({"until": until} if until else {})}
    entry = {principal: {"tokens": [kept], "grants": [_grant(text) for text in grants]}}
    principals.book_of({"principals": entry})
    if as_json:
        emit_json({"token": made, "principals": entry})
        return
    click.echo(f"# the token, shown this once:\n# {made}\n# under principals: in the file that `auth` names:")
    click.echo(yaml.safe_dump(entry, sort_keys=False).rstrip())


def _grant(text: str) -> dict[str, Any]:
    rights, colon, tables = text.partition(":")
    if not colon:
        raise Invalid(f"--grant {text} is not RIGHTS:TABLES, as in read,write:shop.*")
    return {"rights": rights.split(","), "tables": tables.split(",")}


COMMANDS = (token,)

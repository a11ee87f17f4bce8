"""The command that makes a token. It prints the token once, or writes it to a private file; the server stores a
hash.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import click
import yaml

from lakestore.cli.connection import json_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.errors import Invalid

TOKEN_BYTES = 32


@click.command()
@click.argument("principal")
@click.option("--grant", "grants", multiple=True, metavar="RIGHTS:TABLES", help="As in read,write:shop.* ; may repeat.")
@click.option("--until", help="The day, or time, on which the token ends.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A new file for the token, which is not printed.")
@json_option
def token(principal: str, grants: tuple[str, ...], until: str | None, token_file: Path | None, as_json: bool) -> None:
    """Make a token for PRINCIPAL, and an entry for the server's auth file that holds only its hash."""
    from lakestore_server.access import principals
    from lakestore_server.access.scram import ScramVerifier

    made = principals.TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    kept = {"sha256": principals.hash_of(made), "scram": ScramVerifier.of(principal, made).text()}
    kept |= {"until": until} if until else {}
    entry = {principal: {"tokens": [kept], "grants": [_grant(text) for text in grants]}}
    principals.book_of({"principals": entry})
    if token_file is not None:
        _write_new(token_file, made)
    if as_json:
        shown = {"token": made} if token_file is None else {"token_file": str(token_file)}
        emit_json({**shown, "principals": entry})
        return
    told = f"the token, shown this once:\n# {made}" if token_file is None else f"the token is in {token_file}"
    emit_text(f"# {told}\n# under principals: in the file that `auth` names:")
    emit_text(yaml.safe_dump(entry, sort_keys=False).rstrip())


def _write_new(file: Path, token: str) -> None:
    """Write the token to a new file that only its owner can read. Raises `Invalid`."""
    try:
        opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except FileExistsError as error:
        raise Invalid(f"{file} is there already: name a new file, or remove it") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"{file} cannot be made ({why}): name a file in a folder that is there") from error
    try:
        with opened:
            opened.write(token + "\n")
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        file.unlink(missing_ok=True)
        raise Invalid(f"{file} cannot be written ({error.strerror or error}): make room for it") from error


def _grant(text: str) -> dict[str, Any]:
    rights, colon, tables = text.partition(":")
    if not colon:
        raise Invalid(f"--grant {text} is not RIGHTS:TABLES, as in read,write:shop.*")
    return {"rights": rights.split(","), "tables": tables.split(",")}


COMMANDS = (token,)

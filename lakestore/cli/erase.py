"""The command `erase`, and the check of a certificate for `verify --erased`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import confirm, emit, emit_json, emit_text, size, yes_option
from lakestore.errors import Invalid

if TYPE_CHECKING:
    from lakestore.client.erasure import Erasure
    from lakestore.client.table import Table

_STEPS = {"rows": "finding and deleting rows", "lake": "rewriting the lake", "log": "rewriting the log"}


@click.command()
@click.argument("table")
@click.option("--where", help="The rows to erase, such as \"customer = 'ann'\".")
@click.option("--wait", is_flag=True, help="Return once the certificate is written.")
@click.option("--within", metavar="TIME", help="The deadline, such as 7d or 0s; by default the contract's, or 30d.")
@click.option("--why", default="", help="The reason, for the certificate.")
@click.option("--backup", "backups", multiple=True, metavar="DIR", help="A backup that the certificate names.")
@click.option("--certificate", metavar="FILE", help="Write the certificate to this new file; needs --wait.")
@click.option("--list", "lists", is_flag=True, help="Only list the erasures of TABLE.")
@yes_option
@server_option
@json_option
def erase(
    table: str,
    where: str | None,
    wait: bool,
    within: str | None,
    why: str,
    backups: tuple[str, ...],
    certificate: str | None,
    lists: bool,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Remove the bytes of the rows of TABLE that match from every file.

    Every version of the keys that match now, or matched at a version that is still kept, goes; of a log table every
    row that matches. Nothing brings them back. Without --wait the server goes on by itself.
    """
    if (where is None) != lists:
        raise Invalid("erase takes --where with a condition, or --list")
    if certificate is not None:
        if not wait:
            raise Invalid("--certificate needs --wait: the certificate is written at the end")
        if Path(certificate).exists():
            raise Invalid(f"{certificate} is there already: name another file")
    with open_lake(server) as lake:
        held = lake.table(table)
        if where is None:
            rows = [_row(each) for each in held.erasures()]
            emit(rows, as_json=as_json, empty=f"nothing of table {table} was erased")
            return
        if not yes:
            confirm(_question(held, where), yes=yes)
        about: dict[str, Any] = {"within": within, "why": why, "backups": backups}
        done = held.erase(where=where, wait=wait, on_progress=_Shown() if not as_json else None, **about)
    if certificate is not None:
        Path(certificate).write_text(json.dumps(done.certificate, indent=2) + "\n")
    _tell(done, certificate, as_json=as_json)


def _question(held: Table, where: str) -> str:
    """The sentence about the erasure that the user confirms."""
    name = held.definition.name
    if not held.definition.keyed:
        return f"{held.scan(where=where).count():,} rows of log table {name} match, and go for ever"
    count = held.delete(where=where, dry_run=True).result.deleted
    return f"{count:,} live rows of table {name} match, and all versions of their keys go for ever"


def _tell(done: Erasure, certificate: str | None, *, as_json: bool) -> None:
    if as_json:
        emit_json(asdict(done))
    elif not done.is_done:
        emit_text(
            f"erasure {done.id} of table {done.table} is asked for, and ends by {done.until}:"
            f" `lakestore erase {done.table} --list` shows it"
        )
    else:
        files = (done.certificate or {}).get("files", 0)
        where = f", in {certificate}" if certificate else ""
        what = f"{done.keys:,} keys of table {done.table} are erased, in {done.versions:,} versions"
        if not done.keys:  # of a log table
            what = f"{done.versions:,} rows of table {done.table} are erased"
        emit_text(f"{what}; {files:,} files were scanned (certificate {done.id}{where})")


def _row(held: Erasure) -> dict[str, Any]:
    return {
        "id": held.id,
        "step": held.step,
        "keys": held.keys,
        "versions": held.versions,
        "asked": held.asked_at,
        "until": held.until,
        "done": held.done_at,
        "held back by": "; ".join(held.held_back_by),
    }


class _Shown:
    """Says each new step, and each new reason to wait, once."""

    def __init__(self) -> None:
        self._said: tuple[str, tuple[str, ...]] = ("", ())

    def __call__(self, now: Erasure) -> None:
        if now.is_done or (now.step, now.held_back_by) == self._said:
            return
        self._said = now.step, now.held_back_by
        waits = f": waits for {'; '.join(now.held_back_by)}" if now.held_back_by else ""
        print(f"{_STEPS.get(now.step, now.step)}{waits}", file=sys.stderr)


def check_erased(file: str, server: str, *, as_json: bool) -> bool:
    """Scan again for the rows of a certificate, and say it. Whether they are nowhere."""
    try:
        certificate = json.loads(Path(file).read_text())
    except ValueError as error:
        raise Invalid(f"{file} is no certificate of an erasure") from error
    if not isinstance(certificate, dict):
        raise Invalid(f"{file} is no certificate of an erasure")
    with open_lake(server) as lake:
        found = lake.verify_erased(certificate)
    if as_json:
        emit_json(asdict(found))
    else:
        for each in found.findings:
            emit_text(f"lakestore: {each}", err=True)
        said = "the erased rows are nowhere" if not found.findings else f"{len(found.findings)} FINDINGS"
        emit_text(f"{found.files:,} files with {size(found.bytes)} were scanned: {said}", err=bool(found.findings))
    return not found.findings


COMMANDS = (erase,)

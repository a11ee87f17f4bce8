"""`lakestore journal move`: the journal of a data folder moves into a topic or a bucket, or back into files."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.cli.serve import config_option
from lakestore.cli.settings import config_of, journal_flag, journal_settings
from lakestore.errors import Invalid
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore_server.settings import Journal

FILES = "files"


@click.group()
def journal() -> None:
    """Move the journal of a data folder into a topic of Kafka or a bucket, or back into files."""


@journal.command()
@click.option(
    "--to",
    required=True,
    metavar="JOURNAL",
    help="`files`, or a new journal: kafka://host:port,host:port/topic or s3://bucket/prefix.",
)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="The data folder; no server runs on it.")
@config_option
@journal_flag
@json_option
def move(to: str, data: Path | None, config: Path | None, journal: str | None, as_json: bool) -> None:
    """Move the journal of a data folder. No server may run on it.

    Into a topic or a bucket: `lakestore init-journal` creates the journal, which must be new. Then the folder is the
    first server of the journal. Others start on empty folders.

    Into files: stop all servers of the journal first. The folder gets every commit of the journal, which ends: other
    servers of it stop, and their folders are of no use any more. --journal or the settings name it.

    Tokens, positions of consumers, producers and subscriptions stay valid. A command that was interrupted is run again.
    """
    into_files = to == FILES
    flags: dict[str, Any] = journal_settings(journal) if into_files else journal_settings(to, "--to")
    if journal and not into_files:
        raise click.UsageError("--journal names the journal that a move into files leaves: use it with --to files")
    settings = config_of(config, {"data": data, **flags}).settings()
    about = replace(settings.journal, keep_all=False)
    if about.kind == "file":
        raise Invalid(
            "name the journal that the folder leaves, as in --journal kafka://host:port/topic, or -c server.yaml"
        )
    with needs_extra("server", "lakestore journal move"):
        from lakestore_server import main as server
        from lakestore_server.operate.journal_move import Mover

    logging.getLogger("lakestore.index").addHandler(logging.NullHandler())
    mover = Mover(settings.data, partial(server.log_of, about), about.lease_seconds, limits=settings.limits)
    lsn = mover.into_files() if into_files else mover.into_log()
    if as_json:
        emit_json({"data": str(settings.data), "journal": FILES if into_files else to, "lsn": lsn})
    elif into_files:
        emit_text(
            f"{settings.data} has its journal in files from LSN {lsn} on: start it without --journal. The journal"
            f" {_name_of(about)} has ended: remove it and the folders of its other servers"
        )
    else:
        emit_text(f"{settings.data} has its journal in {to} from LSN {lsn} on: start it with --journal {to}")


def _name_of(journal: Journal) -> str:
    return journal.url if journal.kind == "object" else f"kafka://{journal.bootstrap}/{journal.topic}"


COMMANDS = (journal,)

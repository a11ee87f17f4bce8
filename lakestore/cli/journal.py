"""`lakestore journal move`: the journal of a data folder moves into a topic of Kafka, or back into files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from lakestore.cli.connection import json_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.cli.serve import config_option
from lakestore.cli.settings import config_of, journal_flag, journal_settings
from lakestore.errors import Invalid
from lakestore.release import needs_extra

FILES = "files"


@click.group()
def journal() -> None:
    """Move the journal of a data folder into a topic of Kafka, or back into files."""


@journal.command()
@click.option(
    "--to", required=True, metavar="JOURNAL", help="`files`, or a new topic: kafka://host:port,host:port/topic."
)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="The data folder; no server runs on it.")
@config_option
@journal_flag
@json_option
def move(to: str, data: Path | None, config: Path | None, journal: str | None, as_json: bool) -> None:
    """Move the journal of a data folder. No server may run on it.

    Into a topic: `lakestore init-journal` creates the topic, which must be new. Then the folder is the first server of
    the topic, and `lakestore backup` with `lakestore restore --replica` makes others.

    Into files: stop all servers of the topic first. The folder gets every commit of the topic. The topic ends: other
    servers of it stop, and their folders are of no use any more. --journal or the settings name the topic.

    Tokens, positions of consumers, producers and subscriptions stay valid. A command that was interrupted is run again.
    """
    into_files = to == FILES
    flags: dict[str, Any] = journal_settings(journal) if into_files else journal_settings(to, "--to")
    if journal and not into_files:
        raise click.UsageError("--journal names the topic that a move into files leaves: use it with --to files")
    settings = config_of(config, {"data": data, **flags}).settings()
    if settings.journal.kind == "object":
        raise Invalid(
            "a folder moves between files and a topic of Kafka only: for a bucket, begin with an empty folder"
        )
    if settings.journal.kind != "kafka":
        raise Invalid("name the topic that the folder leaves: --journal kafka://host:port/topic, or -c server.yaml")
    with needs_extra("server,kafka", "lakestore journal move"):
        from lakestore_server.journals import kafka_log
        from lakestore_server.operate.journal_move import Mover

    logging.getLogger("lakestore.index").addHandler(logging.NullHandler())
    about = settings.journal
    topic = kafka_log.topic_of(about.bootstrap, about.topic, about.options)
    mover = Mover(settings.data, lambda: kafka_log.KafkaLog(topic), about.lease_seconds, limits=settings.limits)
    lsn = mover.into_files() if into_files else mover.into_log()
    if as_json:
        emit_json({"data": str(settings.data), "journal": FILES if into_files else to, "lsn": lsn})
    elif into_files:
        emit_text(
            f"{settings.data} has its journal in files from LSN {lsn} on: start it without --journal. Topic"
            f" {topic.topic} has ended: remove it and the folders of its other servers"
        )
    else:
        emit_text(
            f"{settings.data} has its journal in topic {topic.topic} from LSN {lsn} on: start it with --journal {to}"
        )


COMMANDS = (journal,)

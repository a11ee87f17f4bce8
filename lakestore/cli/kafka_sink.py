"""`lakestore changes --to kafka`: options of the sink, and its run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lakestore.cli.output import Progress, emit_text
from lakestore.errors import Invalid
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.kafka.sink import SinkCounts

_Command = TypeVar("_Command", bound=Callable[..., Any])
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--to", {"type": click.Choice(["kafka"]), "help": "Write to Kafka, exactly once, instead of printing."}),
    ("--bootstrap", {"metavar": "HOST:PORT", "help": "A broker of Kafka."}),
    ("--topic", {"help": "Kafka topic, made if absent; with several tables it holds {table}."}),
    ("--name", {"help": "The sink's name, under which Kafka keeps its position; by default the topic's."}),
    ("--restart", {"is_flag": True, "help": "Begin at --start again, wherever the sink stands."}),
    ("--tombstones/--no-tombstones", {"default": True, "help": "A null value after each delete (Kafka); by default."}),
    (
        "--partitions",
        {"type": click.IntRange(min=1), "help": "Of a new topic; by default the table's buckets."},
    ),
    ("--kafka-option", {"multiple": True, "metavar": "K=V", "help": "A setting of librdkafka; may be repeated."}),
)


def sink_options(command: _Command) -> _Command:
    """Adds the options of a sink."""
    for name, said in reversed(_OPTIONS):
        command = click.option(name, **said)(command)
    return command


def check_unused(options: dict[str, Any]) -> None:
    """Refuse options of a sink in a command without one."""
    for name, value in (options | {"tombstones": not options["tombstones"]}).items():
        if value:
            option = "no-tombstones" if name == "tombstones" else name.replace("_", "-")
            raise Invalid(f"--{option} is an option of a sink: say --to kafka as well")


def run_sink(lake: Lake, tables: tuple[str, ...], until: str | None, options: dict[str, Any]) -> None:
    """Run a sink to its end. SIGTERM and SIGINT stop it after the current transaction."""
    with needs_extra("kafka", "Kafka"):
        from lakestore.kafka.client import options_of
        from lakestore.kafka.sink import KafkaSink
    if not options["bootstrap"] or not options["topic"]:
        raise Invalid("--to kafka needs --bootstrap HOST:PORT and --topic NAME")
    progress = Progress(f"{', '.join(tables)} → {options['topic']}")

    def shown(written: SinkCounts) -> None:
        progress.add(written.events - progress.rows)

    sink = KafkaSink(
        lake,
        tables,
        bootstrap=options["bootstrap"],
        topic=options["topic"],
        name=options["name"] or "",
        format=options["format"],
        start=options["start"],
        where=options["where"],
        restart=options["restart"],
        tombstones=options["tombstones"],
        partitions=options["partitions"] or 0,
        options=options_of(options["kafka_option"]),
        progress=shown,
        noted=lambda sentence: emit_text(sentence, err=True),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sink.stop())
    written = sink.run(until=until)
    progress.done()
    emit_text(f"token: {written.token}" if written.token else "no changes", err=True)

"""`lakestore init-bridge`: a first bridge.yaml for a topic that is there, or for all topics of a Debezium server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lakestore.cli.connection import json_option
from lakestore.cli.kafka_sink import kafka_library
from lakestore.cli.output import emit_json, emit_text
from lakestore.errors import Invalid, NotFound
from lakestore.loading.disk import naming
from lakestore.model import yaml_text
from lakestore.model.terminal_text import terminal_text

if TYPE_CHECKING:
    from lakestore.connectors.bridge.spec import SourceSpec
    from lakestore.connectors.bridge.survey.cluster import Cluster

SAMPLES = 1_000
SAMPLES_OF_MANY = 200
"""Records of each topic of a server."""


@click.command("init-bridge")
@click.argument("topic", required=False)
@click.option(
    "--prefix", metavar="PREFIX", help="All topics of the Debezium server of this topic.prefix instead of one."
)
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--registry", metavar="URL", help="A schema registry, for records that name schemas.")
@click.option("--table", help="The table's name; by default made from the topic's.")
@click.option("--kafka-option", "options", multiple=True, metavar="K=V", help="A setting of librdkafka; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; by default stdout.")
@json_option
def init_bridge(
    topic: str | None,
    prefix: str | None,
    bootstrap: str,
    registry: str | None,
    table: str | None,
    options: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write a first bridge.yaml for TOPIC, or for all topics of a PREFIX, from newest records or a registry."""
    with kafka_library():
        from lakestore.connectors.bridge.spec import RegistrySpec, SourceSpec
        from lakestore.connectors.bridge.survey.cluster import Cluster
        from lakestore.connectors.kafka_client import options_of
    if (topic is None) == (prefix is None):
        raise Invalid("name a topic, or the topics of a Debezium server by --prefix: one of the two")
    if prefix is not None and table:
        raise Invalid("--table is the table of one topic, and --prefix stands for many: leave --table out")
    if output is not None and output.exists():
        raise Invalid(f"{output} is there already: name another file, or remove it")
    source = SourceSpec("", bootstrap, "init-bridge", RegistrySpec(registry) if registry else None, options_of(options))
    with Cluster(source) as cluster:
        text = _of_server(cluster, source, prefix) if prefix else _of_topic(cluster, source, topic or "", table or "")
    if output is None and not as_json:
        emit_text(text, nl=False)
    if output is not None:
        with naming(output), output.open("x") as made:
            made.write(text)
        emit_text(
            f"{output} written: look at the key and the columns, then: lakestore bridge -f {output} --check", err=True
        )
    if as_json:
        emit_json({"file": None if output is None else str(output), "bridge": yaml_text.values(text)})


def _of_topic(cluster: Cluster, source: SourceSpec, topic: str, table: str) -> str:
    """The file of one topic."""
    from lakestore.connectors.bridge.survey.cluster import require_topic
    from lakestore.connectors.bridge.survey.first_file import first_file

    try:
        facts = cluster.described(topic)
    except NotFound as error:
        there = ", ".join(name for name in cluster.topics() if not name.startswith("__"))
        raise NotFound(f"there is no topic {topic!r} at {source.bootstrap}: there are {there or 'none'}") from error
    require_topic(facts, source.bootstrap)
    return first_file(source, cluster.sampled(facts, SAMPLES), table=table, choose=_chosen)


def _chosen(field: str, kind: str, odd: int, count: int) -> bool:
    """The answer of whoever sits at the terminal; without one the column takes everything as text."""
    if not sys.stdin.isatty():
        return False
    say = (
        f"{field} is no {kind} in {odd:,} of {count:,} samples. Make it {kind}, so that such records are dead letters?"
    )
    return click.confirm(terminal_text(say), default=False, err=True)


def _of_server(cluster: Cluster, source: SourceSpec, prefix: str) -> str:
    """The file of a Debezium server."""
    from lakestore.connectors.bridge.survey.cluster import require_topic
    from lakestore.connectors.bridge.survey.server_file import Topic, server_file

    found = []
    for name in cluster.topics():
        if name == prefix or name.startswith(f"{prefix}."):
            facts = cluster.described(name)
            require_topic(facts, source.bootstrap)
            found.append(Topic.of(cluster.sampled(facts, SAMPLES_OF_MANY), source))
    return server_file(source, prefix, found)


COMMANDS = (init_bridge,)

"""`lakestore init-bridge`: a first bridge.yaml for a topic that is there."""

from __future__ import annotations

from pathlib import Path

import click

from lakestore.cli.connection import json_option
from lakestore.cli.kafka_sink import kafka_library
from lakestore.cli.output import emit_json
from lakestore.errors import Invalid, NotFound
from lakestore.loading.disk import naming
from lakestore.model import yaml_text

SAMPLES = 1_000


@click.command("init-bridge")
@click.argument("topic")
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--registry", metavar="URL", help="A schema registry, for records that name schemas.")
@click.option("--table", help="The table's name; by default made from the topic's.")
@click.option("--kafka-option", "options", multiple=True, metavar="K=V", help="A setting of librdkafka; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; by default stdout.")
@json_option
def init_bridge(
    topic: str,
    bootstrap: str,
    registry: str | None,
    table: str | None,
    options: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write a first bridge.yaml for TOPIC from its newest records, or from a registry."""
    with kafka_library():
        from lakestore.connectors.bridge.spec import RegistrySpec, SourceSpec
        from lakestore.connectors.bridge.survey.cluster import Cluster, require_topic
        from lakestore.connectors.bridge.survey.first_file import first_file
        from lakestore.connectors.kafka_client import options_of
    if output is not None and output.exists():
        raise Invalid(f"{output} is there already: name another file, or remove it")
    source = SourceSpec("", bootstrap, "init-bridge", RegistrySpec(registry) if registry else None, options_of(options))
    with Cluster(source) as cluster:
        try:
            facts = cluster.described(topic)
        except NotFound as error:
            there = ", ".join(name for name in cluster.topics() if not name.startswith("__"))
            raise NotFound(f"there is no topic {topic!r} at {bootstrap}: there are {there or 'none'}") from error
        require_topic(facts, bootstrap)
        text = first_file(source, cluster.sampled(facts, SAMPLES), table=table or "")
    if output is None and not as_json:
        click.echo(text, nl=False)
    if output is not None:
        with naming(output), output.open("x") as made:
            made.write(text)
        click.echo(
            f"{output} written: look at the key and the columns, then: lakestore bridge -f {output} --check", err=True
        )
    if as_json:
        emit_json({"file": None if output is None else str(output), "bridge": yaml_text.values(text)})


COMMANDS = (init_bridge,)

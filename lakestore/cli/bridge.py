"""`lakestore bridge`: write Kafka topics to tables by a bridge.yaml, check it, plan it."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.apply import lines
from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit_json, emit_log, emit_text
from lakestore.errors import Invalid, NotFound
from lakestore.loading.reading import naming
from lakestore.model import yaml_text
from lakestore.model.terminal_text import terminal_text
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.kafka.bridge.assembly import TablePlan
    from lakestore.kafka.bridge.cluster import Cluster
    from lakestore.kafka.bridge.counts import Counts
    from lakestore.kafka.bridge.positions import AcceptedLoss
    from lakestore.kafka.bridge.spec import BridgeSpec, SourceSpec


SAMPLES = 1_000
SAMPLES_OF_MANY = 200
"""Samples of each topic if a server has many topics."""


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
    with needs_extra("kafka", "Kafka"):
        from lakestore.kafka.bridge.cluster import Cluster
        from lakestore.kafka.bridge.spec import RegistrySpec, SourceSpec
        from lakestore.kafka.client import options_of
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
    from lakestore.kafka.bridge.cluster import require_topic
    from lakestore.kafka.bridge.first_file import first_file

    try:
        facts = cluster.describe(topic)
    except NotFound as error:
        there = ", ".join(name for name in cluster.topics() if not name.startswith("__"))
        raise NotFound(f"there is no topic {topic!r} at {source.bootstrap}: there are {there or 'none'}") from error
    require_topic(facts, source.bootstrap)
    return first_file(source, cluster.sample(facts, SAMPLES), table=table, choose=_chosen)


def _chosen(field: str, kind: str, odd: int, count: int) -> bool:
    """The user's answer. Without a terminal the column becomes text, which takes every value."""
    if not sys.stdin.isatty():
        return False
    say = (
        f"{field} is no {kind} in {odd:,} of {count:,} samples. Make it {kind}, so that such records are dead letters?"
    )
    return click.confirm(terminal_text(say), default=False, err=True)


def _of_server(cluster: Cluster, source: SourceSpec, prefix: str) -> str:
    from lakestore.kafka.bridge.cluster import require_topic
    from lakestore.kafka.bridge.first_file import Topic, server_file

    found = []
    for name in cluster.topics():
        if name == prefix or name.startswith(f"{prefix}."):
            facts = cluster.describe(name)
            require_topic(facts, source.bootstrap)
            found.append(Topic.of(cluster.sample(facts, SAMPLES_OF_MANY), source))
    return server_file(source, prefix, found)


FAILED = 1
_LIVE_SECONDS, _LINE_SECONDS = 1.0, 10.0


@click.group(invoke_without_command=True)
@click.option("-f", "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="A bridge.yaml.")
@click.option("--check", is_flag=True, help="Only look at everything, samples too; exit code 1 if it would not run.")
@click.option("--plan", is_flag=True, help="Only show the tables that would be made or altered.")
@click.option("--once", is_flag=True, help="Read to the ends of the topics as of now, then exit.")
@click.option(
    "--accept-new-topic",
    "new",
    multiple=True,
    metavar="TOPIC",
    help="Read a topic that was deleted and created again, from its start position; may be repeated.",
)
@click.option(
    "--accept-loss",
    "lost",
    multiple=True,
    metavar="TOPIC",
    help="Skip records of a topic that retention deleted before they were read; may be repeated.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Port for GET /metrics; 0 picks a free one.")
@click.option("--all", "whole", is_flag=True, help="With --check: a line for each finding, not one for equal ones.")
@click.option("--samples", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Of each topic.")
@server_option
@json_option
@click.pass_context
def bridge(
    context: click.Context,
    path: Path | None,
    check: bool,
    plan: bool,
    once: bool,
    new: tuple[str, ...],
    lost: tuple[str, ...],
    samples: int,
    whole: bool,
    metrics_port: int | None,
    server: str,
    as_json: bool,
) -> int:
    """Write records of Kafka topics to tables, exactly once; docs/bridge.md describes the file."""
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        raise click.UsageError("Missing option '-f' / '--file'.", context)
    with needs_extra("kafka", "Kafka"):
        from lakestore.kafka.bridge import cluster, spec_file  # noqa: F401 (a missing library is told before the file)
        from lakestore.kafka.bridge.positions import AcceptedLoss
    if check + plan + once > 1:
        raise Invalid("say one of --check, --plan and --once")
    spec = spec_file.read(path)
    with open_lake(server) as lake:
        if check:
            return _check(spec, lake, samples, whole=whole, as_json=as_json)
        if plan:
            return _plan(spec, lake, samples, as_json=as_json)
        return _run(spec, lake, AcceptedLoss(new, lost), metrics_port, once=once, as_json=as_json)


def _run(
    spec: BridgeSpec, lake: Lake, accepted: AcceptedLoss, metrics_port: int | None, *, once: bool, as_json: bool
) -> int:
    from lakestore.kafka.bridge.bridge import Bridge, serve_metrics

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    emit_log("%(message)s")
    logging.getLogger("lakestore.bridge").setLevel(logging.INFO)
    # The library logs every connection attempt. Errors and the progress line report a failure once.
    logging.getLogger("lakestore.bridge.kafka").setLevel(logging.CRITICAL)
    logging.getLogger("lakestore.kafka").setLevel(logging.CRITICAL)
    progress = _Progress(f"bridge {spec.name}")
    running = Bridge(spec, lake, accepted=accepted, progress=progress.show)
    with serve_metrics(running.counts, metrics_port) as port:
        if metrics_port is not None:
            emit_text(f"metrics on http://127.0.0.1:{port}/metrics", err=True)
        try:
            counts = running.run(once=once, stop=stop)
        finally:
            progress.show(running.counts, last=True)
    if as_json:
        emit_json(counts.shown())
    return 0


class _Progress:
    """A line on stderr. On a terminal it is rewritten in place; otherwise a changed line is printed now and then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._live = sys.stderr.isatty()
        self._at, self._records = time.monotonic(), 0
        self._line = ""

    def show(self, counts: Counts, *, last: bool = False) -> None:
        now = time.monotonic()
        seconds = now - self._at
        if not last and seconds < (_LIVE_SECONDS if self._live else _LINE_SECONDS):
            return
        said = counts.shown()
        rate = (said["records"] - self._records) / max(seconds, 1e-3)
        self._at, self._records = now, said["records"]
        parts = [
            f"{said['records']:,} records",
            *([] if last else [f"{rate:,.0f} records/s", f"{sum(said['lag'].values()):,} behind"]),
            *([f"{sum(said['rejected'].values()):,} rejected"] if said["rejected"] else []),
            *(f"{count:,} {reason}" for reason, count in said["passed"].items()),
            *([f"waits: {said['waiting']}"] if said["waiting"] else []),
            *(f"topic {topic} is not read: {why}" for topic, why in said["halted"].items()),
        ]
        line = f"{self._what}: {', '.join(parts)}"
        if line == self._line and not last and not self._live:
            return
        self._line = line
        emit_text(line, err=True, nl=last or not self._live, live=self._live)


def _check(spec: BridgeSpec, lake: Lake, samples: int, *, whole: bool, as_json: bool) -> int:
    from lakestore.kafka.bridge import preflight

    found = preflight.rank_findings(list(preflight.check(spec, lake, samples)))
    if as_json:
        emit_json([{**asdict(each), "level": str(each.level)} for each in found])
    else:
        for line in preflight.lines(found, whole=whole):
            emit_text(line)
        emit_text(preflight.summary(found), err=True)
    return FAILED if any(each.level is preflight.Level.STOPS for each in found) else 0


def _plan(spec: BridgeSpec, lake: Lake, samples: int, *, as_json: bool) -> int:
    from lakestore.kafka.bridge.preflight import sample_topics
    from lakestore.model.table_file import yaml_of

    found = list(sample_topics(spec, lake, samples))
    planned = {table.after.name: table for each in found for table in each.planned}
    logs = {name: ways for each in found for name, ways in each.logs()}
    if as_json:
        emit_json([{**_as_data(table), "key_offer": logs.get(name)} for name, table in planned.items()])
        return 0
    for table in planned.values():
        if table.before is not None:
            emit_text(f"# {table.after.name}: {'to alter' if table.steps else 'nothing to do'}")
            for sign, text in lines(table.before, table.after):
                emit_text(f"#   {sign} {text}")
    for name, ways in logs.items():
        emit_text(f"# {name}: a log, for its change events have no key: each event is a row with its op")
        for text in ways.splitlines():
            emit_text(f"#   {text}")
    for each in found:
        if not each.planned:
            emit_text(f"# topic {each.facts.name} is empty: its first records decide the columns of its table")
    new = [table for table in planned.values() if table.before is None]
    if new:
        emit_text(yaml_of([table.wanted for table in new]), nl=False)
    return 0


def _as_data(table: TablePlan) -> dict[str, Any]:
    action = "create" if table.before is None else "alter" if table.steps else "nothing"
    differences = [f"{sign} {text}" for sign, text in lines(table.before, table.after)]
    return {"table": table.after.name, "action": action, "differences": differences}


COMMANDS = (bridge, init_bridge)

"""`lakestore bridge`: Kafka topics into tables, as a bridge.yaml says; checks and plans of it."""

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
from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.kafka_sink import kafka_library
from lakestore.cli.output import emit_json, emit_log, emit_text
from lakestore.cli.proposals import proposals
from lakestore.errors import Invalid

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.connectors.bridge.assembly import Planned
    from lakestore.connectors.bridge.lane.positions import Accepted
    from lakestore.connectors.bridge.lane.seen import Counts
    from lakestore.connectors.bridge.spec import BridgeSpec

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
    help="Read a topic that was deleted and made anew, from its start position on; may be repeated.",
)
@click.option(
    "--accept-loss",
    "lost",
    multiple=True,
    metavar="TOPIC",
    help="Go on behind records that retention has deleted before they were read; may be repeated.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Answer GET /metrics here; 0 picks a free port.")
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
    """Write records of Kafka topics to tables, exactly once; docs/bridge.md is about the file."""
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        raise click.UsageError("Missing option '-f' / '--file'.", context)
    with kafka_library():
        from lakestore.connectors.bridge.config import spec_file
        from lakestore.connectors.bridge.lane.positions import Accepted
    if check + plan + once > 1:
        raise Invalid("say one of --check, --plan and --once")
    spec = spec_file.read(path)
    with connected(server) as lake:
        if check:
            return _check(spec, lake, samples, whole=whole, as_json=as_json)
        if plan:
            return _plan(spec, lake, samples, as_json=as_json)
        return _run(spec, lake, Accepted(new, lost), metrics_port, once=once, as_json=as_json)


bridge.add_command(proposals)


def _run(
    spec: BridgeSpec, lake: Lake, accepted: Accepted, metrics_port: int | None, *, once: bool, as_json: bool
) -> int:
    from lakestore.connectors.bridge.lane.bridge import Bridge
    from lakestore.connectors.bridge.lane.metrics import served

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    emit_log("%(message)s")
    logging.getLogger("lakestore.bridge").setLevel(logging.INFO)
    # Each try to connect is a line of the library's; errors and the progress line say it once.
    logging.getLogger("lakestore.bridge.kafka").setLevel(logging.CRITICAL)
    logging.getLogger("lakestore.kafka").setLevel(logging.CRITICAL)
    progress = _Progress(f"bridge {spec.name}")
    running = Bridge(spec, lake, accepted=accepted, progress=progress.show)
    with served(running.counts, metrics_port) as port:
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
    """A line on stderr: in place on a terminal, else now and then if it is another than before."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._live = sys.stderr.isatty()
        self._at, self._records = time.monotonic(), 0
        self._line = ""

    def show(self, counts: Counts, *, last: bool = False) -> None:
        """Tell how far it is."""
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
    from lakestore.connectors.bridge.survey import findings
    from lakestore.connectors.bridge.survey.check import check

    found = findings.ranked(list(check(spec, lake, samples)))
    if as_json:
        emit_json([{**asdict(each), "level": str(each.level)} for each in found])
    else:
        for line in findings.lines(found, whole=whole):
            emit_text(line)
        emit_text(findings.summary(found), err=True)
    return FAILED if any(each.level is findings.Level.STOPS for each in found) else 0


def _plan(spec: BridgeSpec, lake: Lake, samples: int, *, as_json: bool) -> int:
    """Tables to create as a tables.yaml on stdout, the rest as comments: the text is one that `apply` takes."""
    from lakestore.connectors.bridge.survey.check import sampled
    from lakestore.model.table_file import written

    found = list(sampled(spec, lake, samples))
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
            emit_text(f"# topic {each.facts.name} is empty: the columns of its table are those of its first records")
    new = [table for table in planned.values() if table.before is None]
    if new:
        emit_text(written([table.wanted for table in new]), nl=False)
    return 0


def _as_data(table: Planned) -> dict[str, Any]:
    action = "create" if table.before is None else "alter" if table.steps else "nothing"
    differences = [f"{sign} {text}" for sign, text in lines(table.before, table.after)]
    return {"table": table.after.name, "action": action, "differences": differences}


COMMANDS = (bridge,)

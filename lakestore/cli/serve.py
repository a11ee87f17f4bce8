"""Commands that keep running: serve, tier, demo; and init-journal, which goes before the first of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit, emit_json, emit_log, emit_text
from lakestore.cli.settings import config_of, journal_flag, journal_settings, setting_flags
from lakestore.errors import Invalid, Stopped, Unavailable
from lakestore.limits import DEFAULT, TIERER_SECONDS_DEFAULT
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore.client.credentials import Credentials
    from lakestore.client.lake import Lake
    from lakestore_tiering.service import Outcome, Tierer

DEMO_SECONDS = 60
INPUT_END_SECONDS = 30.0
"""Time of a tierer beside a server to end after the server."""
ANNOUNCED = "lakestore serves gRPC on {grpc}, catalog and metrics on {scheme}://{http}"
"""Printed when the server's ports are open."""
_SQL_PORTS = {"postgres": ", Postgres on {postgres}", "flight": ", Flight SQL on {flight}"}


config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="LAKESTORE_CONFIG",
    help="A server.yaml; variables win over it, flags over both.",
)


@click.command()
@config_option
@click.option("--print-config", is_flag=True, help="Print every setting with its origin, and end.")
@journal_flag
@setting_flags
@json_option
def serve(config: Path | None, print_config: bool, journal: str | None, as_json: bool, **flags: Any) -> None:
    """Run the server until it is stopped.

    Every setting may be in the file or in a variable LAKESTORE_NAME; docs/settings.md lists them.
    """
    given = config_of(config, flags | journal_settings(journal))
    if print_config:
        emit_json(given.as_data()) if as_json else emit_text("\n".join(given.lines()))
        return
    settings = given.settings()
    with needs_extra("server", "lakestore serve"):
        from lakestore_server import main as server

    def announce(about: Mapping[str, str]) -> None:
        if as_json:
            click.echo(json.dumps(dict(about)))
        else:
            more = "".join(text for name, text in _SQL_PORTS.items() if name in about)
            emit_text((ANNOUNCED + more).format_map(about))

    server.serve(settings, announce)


@click.command("init-journal")
@config_option
@journal_flag
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Brokers that keep a copy; 1 for a trial.",
)
@json_option
def init_journal(config: Path | None, journal: str | None, replicas: int, as_json: bool) -> None:
    """Create the journal that several servers share, or check one that exists: a topic, or objects in a bucket."""
    values = config_of(config, journal_settings(journal)).values
    if values["journal.kind"] == "object":
        _init_objects(values["journal.url"], values["journal.options"], as_json=as_json)
        return
    with needs_extra("server,kafka", "lakestore init-journal"):
        from lakestore_server.journals import kafka_log

    about = kafka_log.topic_of(values["journal.bootstrap"], values["journal.topic"], values["journal.options"])
    is_new = kafka_log.Admin(about).create(replicas)
    kafka_log.KafkaLog(about).open("")
    if as_json:
        emit_json({"topic": about.topic, "bootstrap": about.bootstrap, "created": is_new})
    else:
        done = "is created" if is_new else "exists and has the right settings"
        emit_text(f"topic {about.topic} {done}; start servers with --journal kafka://{about.bootstrap}/{about.topic}")


def _init_objects(url: str, options: Sequence[str], *, as_json: bool) -> None:
    with needs_extra("server", "lakestore init-journal"):
        from lakestore_server.journals import object_log, object_store

    is_new = object_log.create(object_store.store_of(url, options), url)
    if as_json:
        emit_json({"url": url, "created": is_new})
    else:
        done = "is created" if is_new else "exists, and the store lets one put of a name win"
        emit_text(f"journal {url} {done}; start servers with --journal {url}")


@click.command()
@click.option("--master", help="Where Spark runs: local[*], spark://…, yarn, k8s://…  [default: local[*]]")
@click.option("--once", is_flag=True, help="One round for what is hot now, then exit.")
@click.option("--table", help="With --once: only this table.")
@click.option(
    "--epoch-seconds",
    type=click.IntRange(1, DEFAULT.lease_seconds),
    default=TIERER_SECONDS_DEFAULT,
    show_default=True,
    help="Seconds after which another tierer takes over from a silent one.",
)
@click.option("--until-input-ends", is_flag=True, hidden=True)  # lakestore serve --tier holds the other end
@server_option
@json_option
def tier(
    master: str | None,
    once: bool,
    table: str | None,
    epoch_seconds: int,
    until_input_ends: bool,
    server: str,
    as_json: bool,
) -> None:
    """Move rows into the lake, compact and expire there, with Spark; for ever, or once."""
    if table and not once:
        raise Invalid("--table goes with --once: the service tiers every table by its freshness")
    emit_log("%(asctime)s %(message)s")
    stop = stopped_by_signals()
    if until_input_ends:
        threading.Thread(target=_stop_with_input, args=(stop,), daemon=True).start()
    opened = open_lake(server) if once else _awaited_lake(server, stop)
    if opened is None:
        return
    with opened as lake:
        if table:
            lake.table(table)
        spark = _session(server, master, lake.transport.credentials)
        try:
            if once:
                with _tierer(lake, spark, epoch_seconds) as tierer:
                    emit([_round(each) for each in tierer.run_once(table)], as_json=as_json, empty="no tables yet")
                return
            emit_text(f"tiering {lake.address}; Ctrl-C ends it", err=True)
            while _tiered_by_one_leader(lake, spark, epoch_seconds, stop):
                emit_text(f"{lake.transport.address} leads now", err=True)
                spark = _session(server, master, lake.transport.credentials)
        finally:
            _end(spark)


def _stop_with_input(stop: threading.Event) -> None:
    """Stop when standard input ends, because its server has ended; at once if the orderly end takes too long."""
    while os.read(0, 4096):  # not by `sys.stdin`: Python aborts if it ends while a thread holds the lock of that
        pass
    stop.set()
    time.sleep(INPUT_END_SECONDS)
    os._exit(1)


AWAIT_SECONDS = 1.0
"""Pause between two attempts to reach a server that is not there yet."""


def _awaited_lake(server: str, stop: threading.Event) -> Lake | None:
    """The lake of a server that may start later than its tierer; None if the tierer is stopped before. A server that
    refuses the tierer is an error."""
    is_waiting = False
    while not stop.is_set():
        try:
            return open_lake(server)
        except Stopped:
            raise
        except Unavailable as error:
            if not is_waiting:
                emit_text(f"waiting for a server: {error.message}", err=True)
            is_waiting = True
        stop.wait(AWAIT_SECONDS)
    return None


def _tiered_by_one_leader(lake: Lake, spark: Any, epoch_seconds: int, stop: threading.Event) -> bool:
    """Tier until the end, or until another server leads. True if another one leads."""
    with _tierer(lake, spark, epoch_seconds) as tierer:
        tierer.run_forever(stop)
        return tierer.has_moved and not stop.is_set()


def _tierer(lake: Lake, spark: Any, epoch_seconds: int) -> Tierer:
    from lakestore_tiering.service import Tierer

    return Tierer(lake, spark, seconds=epoch_seconds)


def _end(spark: Any) -> None:
    from lakestore_tiering import iceberg_java

    iceberg_java.end(spark)


def _round(outcome: Outcome) -> dict[str, Any]:
    return {
        "table": outcome.table,
        "flushed": outcome.flushed.rows if outcome.flushed else 0,
        "died": outcome.flushed.deaths if outcome.flushed else 0,
        "compacted": outcome.compacted is not None,
        "expired": outcome.expired,
        "seconds": round(outcome.seconds, 1),
    }


def _session(server: str, master: str | None, credentials: Credentials) -> Any:
    from lakestore.spark import session

    spark = session(server, master=master, app="lakestore tier", credentials=credentials)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stopped_by_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        # Not set in the handler itself: the handler may interrupt this thread inside `stop.wait`, which holds the
        # event's lock.
        signal.signal(name, lambda *_: threading.Thread(target=stop.set, daemon=True).start())
    return stop


@click.command()
@click.option("--seconds", default=DEMO_SECONDS, show_default=True, help="How long the producer writes.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Keep logs and data here.")
@click.option("--keep", is_flag=True, help="Leave the server and its console open until Ctrl-C.")
@json_option
@click.pass_context
def demo(context: click.Context, seconds: int, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Run a complete example and check its results. Exit code 1 if anything differs."""
    with needs_extra("server,spark,kafka", "the demo"):
        from lakestore_demo import run

    answers = run(partial(emit_text, err=as_json), seconds=seconds, folder=folder, keep=keep)
    same = all(answers.values())
    if as_json:
        emit_json({"same": same, "answers": [{"about": about, "same": each} for about, each in answers.items()]})
    context.exit(0 if same else 1)


COMMANDS = (serve, init_journal, tier, demo)

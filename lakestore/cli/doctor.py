"""Commands for support: they examine a machine, its settings and a server."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import command_credentials, json_option, open_lake, server_option
from lakestore.cli.output import duration, emit, emit_json, emit_lines, emit_text, size
from lakestore.cli.settings import config_of
from lakestore.client.credentials import addresses_of
from lakestore.errors import Invalid, LakestoreError
from lakestore.loading.reading import naming
from lakestore.model.settings import SettingValues
from lakestore.model.times import text_of
from lakestore.release import RELEASE

if TYPE_CHECKING:
    from lakestore_server.doctor.visit import Finding
    from lakestore_server.settings import Settings


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rows", is_flag=True, help="Print the rows of journal frames and segments, one line of JSON each.")
@json_option
@click.pass_context
def inspect(context: click.Context, paths: tuple[Path, ...], rows: bool, as_json: bool) -> None:
    """Describe journal, segment, checkpoint and index files, or all of a data folder or a backup.

    The command reads bytes only: it changes nothing and needs no server. A damaged file is described up to the damage;
    the exit code is then 1.
    """
    from lakestore_server.operate.inspect.file import look

    damaged = False
    listed: list[dict[str, Any]] = []
    for path in paths:
        for found in look(path, rows=rows):
            damaged = damaged or bool(found.damage)
            if as_json:
                listed.append(found.as_dict())
                continue
            _show(found)
    if as_json:
        emit_json(listed)
    context.exit(1 if damaged else 0)


def _show(answer: Any) -> None:
    emit_text(f"{answer.kind} {answer.path}: {'DAMAGED' if answer.damage else 'whole'}")
    for name, value in answer.about.items():
        emit_text(f"  {name:22}{value}")
    if answer.parts:
        emit_text("")
        emit([{name: _plain(value) for name, value in part.items()} for part in answer.parts], as_json=False)
    for where, batch in answer.rows:
        emit_text(f"\n-- {where}")
        emit_lines(batch)
    for sentence in (*answer.unread, *answer.damage):
        emit_text(f"lakestore: {sentence}", err=True)
    emit_text("")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{name[:8]}…{name[name.rfind('/') :]} {of}" for name, of in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@click.command()
@click.argument("table", required=False)
@click.option("--erased", metavar="CERTIFICATE", help="Scan every file for the rows of an erasure instead.")
@click.option("--rows-only", is_flag=True, help="Compare row numbers and counts only, not the values of all columns.")
@click.option("--deep", is_flag=True, help="First read every stored byte of the server against its checksum.")
@server_option
@json_option
@click.pass_context
def verify(
    context: click.Context,
    table: str | None,
    erased: str | None,
    rows_only: bool,
    deep: bool,
    server: str,
    as_json: bool,
) -> None:
    """Check TABLE: log fold = index = lake + hot, per bucket, at one cut. Exit code 1 on a difference."""
    from lakestore.union.verify import verify as compare

    if (table is None) == (erased is None):
        raise Invalid("verify takes a TABLE, or --erased with a certificate")
    if erased is not None:
        from lakestore.cli.erase import check_erased

        context.exit(0 if check_erased(erased, server, as_json=as_json) else 1)
    assert table is not None

    with open_lake(server) as lake:
        lake.table(table)
        found = compare(lake.transport, table, values=not rows_only, deep=deep)
    rows: list[dict[str, Any]] = [
        {
            "bucket": check.bucket,
            "head": check.head,
            **{f"{name} rows": side.rows for name, side in check.sides.items()},
            "sum": f"{check.sides['read'].offsets:016x}",
            "same": check.same,
        }
        for check in found.buckets
    ]
    if as_json:
        emit_json({"table": table, "token": found.token, "same": found.same, "values": found.compared_values,
                   "bytes_checked": found.bytes_checked, "buckets": rows, "problems": found.problems()})  # fmt: skip
    else:
        if deep:
            emit_text(f"{table}: {size(found.bytes_checked)} checked, {len(found.damage) or 'nothing'} damaged")
        if rows:
            emit(rows, as_json=False)
        what = "rows and values" if found.compared_values else "rows"
        emit_text(f"{table}: {what} agree" if found.same else f"{table}: DIFFERENT", err=not found.same)
    for problem in found.problems():
        emit_text(f"lakestore: {problem}", err=True)
    context.exit(0 if found.same else 1)


@click.command()
@click.option("--accept", is_flag=True, help="Trust the machine's clock from now on, for deleting too.")
@server_option
@json_option
def clock(accept: bool, server: str, as_json: bool) -> None:
    """Show whether the server trusts its clock, and what waits for that.

    After a start or a jump the server trusts the clock once it has been steady for some minutes. Until then commits are
    stamped by the time since the last ones, and nothing is deleted because of its age. Check the machine's clock
    (`date`) before --accept: the server then deletes everything that this clock makes too old.
    """
    from lakestore.v1 import lakestore_pb2 as pb

    with open_lake(server) as lake:
        if accept:
            found = json.loads(lake.transport.accept_clock(pb.AcceptClockRequest()).clock)
        else:
            found = json.loads(lake.transport.status(pb.StatusRequest()).status).get("clock")
    if found is None:
        raise Invalid("the server is of an older release, which believes its clock as it is: run a newer one")
    if as_json:
        emit_json(found)
        return
    emit_text(f"{'state':12}{found['state']}, for {duration(found['seconds'])}")
    emit_text(f"{'time':12}{text_of(found['time_us'])}")
    emit_text(f"{'offset':12}{found['offset_seconds']:+,.3f} s: the machine's clock less this time")
    if found["holds"]:
        emit_text(f"{'waiting':12}{', '.join(found['holds'])}")
    if found["note"]:
        emit_text(f"\n{found['note']}")


HTTP_SECONDS = 10.0
METRICS_BYTES_MAX = 64 << 20
"""The most bytes of metrics in a bundle."""
_SCHEMES = ("http", "https")
_PORT = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}")
_SIGNS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED"}

_config = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="LAKESTORE_CONFIG",
    help="The server.yaml that a server runs with, or will.",
)
_data = click.option("--data", help="Folder of journal, index and segments, if no file says so.")
_warehouse = click.option("--warehouse", help="URI of the lake's files, if no file says so.")


@click.command()
@_config
@_data
@_warehouse
@click.option("--offline", is_flag=True, help="Ask no server.")
@server_option
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    config: Path | None,
    data: str | None,
    warehouse: str | None,
    offline: bool,
    server: str,
    as_json: bool,
) -> None:
    """Check this machine, the settings of a server, and a running server. Exit code 1 on a failure.

    With --config or --data: disk, syncs, memory, ports, certificate, rights and the object store are checked as a
    server would use them. Existing files stay unchanged: probes are new files and objects, removed afterwards.
    """
    found = list(_findings(_given(config, data, warehouse), None if offline else server))
    if as_json:
        emit_json([each.as_dict() for each in found])
    else:
        for each in found:
            emit_text(f"{_SIGNS[each.verdict]:8} {each.about:14} {each.found}")
            if each.remedy:
                emit_text(f"{'':8} {'':14} -> {each.remedy}")
    context.exit(1 if any(each.verdict == "failed" for each in found) else 0)


def _given(config: Path | None, data: str | None, warehouse: str | None) -> SettingValues[Settings] | None:
    if config is None and data is None and "LAKESTORE_DATA" not in os.environ:
        return None
    return config_of(config, {"data": data, "warehouse": warehouse})


def _findings(values: SettingValues[Settings] | None, server: str | None) -> Iterator[Finding]:
    from lakestore_server.doctor.visit import findings

    status, silence = _status(server) if server else (None, "")
    runs_here = status is not None
    settings = values.settings() if values else None
    for each in findings(settings):
        if not (runs_here and each.about.startswith("port of")):  # the running server has opened these ports
            yield each
    if server:
        yield from _of_server(server, status, silence)
        yield from _of_list(server)


def _status(server: str) -> tuple[dict[str, Any] | None, str]:
    from lakestore.v1 import lakestore_pb2 as pb

    try:
        with open_lake(server) as lake:
            found: dict[str, Any] = json.loads(lake.transport.status(pb.StatusRequest()).status)
            listens, _, port = str(found.get("http", "")).rpartition(":")
            if listens in ("0.0.0.0", "[::]"):  # noqa: S104 (it is compared, not bound)
                found["http"] = f"{lake.transport.address.rpartition(':')[0]}:{port}"
            return found, ""
    except LakestoreError as error:
        return None, error.message


def _of_server(server: str, status: dict[str, Any] | None, silence: str) -> Iterator[Finding]:
    from lakestore_server.doctor.visit import Finding

    if status is None:
        yield Finding("server", "warning", silence, "start one, or name it by --server; --offline asks none")
        return
    release, health = status.get("release", "?"), status.get("health", "?")
    same = release == RELEASE
    yield Finding(
        "server",
        "ok" if same and health == "serving" else "warning",
        f"{server} is {health}, release {release}",
        "" if same else f"this command is of release {RELEASE}: install the same one here and there",
    )
    failing = {name: duty for name, duty in status.get("duties", {}).items() if duty.get("failing")}
    if health != "serving":
        yield Finding("duties", "warning", ", ".join(failing) or health, "lakestore status tells why")
    clock = status.get("clock", {})
    sure = clock.get("state") in ("confirmed", "started")
    yield Finding(
        "clock",
        "ok" if sure else "warning",
        f"{clock.get('state')}, {clock.get('offset_seconds', 0):+.3f} s off the machine's",
        "" if sure else clock.get("note") or "lakestore clock tells what waits for it",
    )
    damage = [each for each in status.get("damage", ()) if isinstance(status["damage"], list)]
    yield Finding(
        "damage",
        "failed" if damage else "ok",
        "; ".join(damage) or "none known",
        "lakestore verify --deep, then restore from a backup (docs/operating.md)" if damage else "",
    )
    yield _catalog(status)


def _of_list(server: str) -> Iterator[Finding]:
    """A finding for each of several servers; none for a server alone."""
    from lakestore.client.servers import roles
    from lakestore_server.doctor.visit import Finding

    if len(addresses_of(server)) == 1:
        return
    for each in roles(server, command_credentials(server)):
        known = f"{each.role} in epoch {each.epoch}, LSN {each.lsn}"
        said = "; ".join([*([known] if each.role else []), *([each.problem] if each.problem else [])])
        remedy = "start it, or take it out of the list" if each.problem else ""
        yield Finding("one server", "warning" if each.problem else "ok", f"{each.address}: {said}", remedy)


def _url(status: dict[str, Any], path: str) -> str | None:
    """A URL on the server's HTTP port. None if the path leads elsewhere, for example to a file."""
    scheme, port = status.get("scheme", "http"), str(status.get("http", ""))
    return f"{scheme}://{port}{path}" if scheme in _SCHEMES and _PORT.fullmatch(port) else None


def _catalog(status: dict[str, Any]) -> Finding:
    from lakestore_server.doctor.visit import Finding

    url = _url(status, "/iceberg/v1/config")
    if url is None:
        return Finding("catalog", "warning", "the server names no HTTP port", "ask a server that you trust")
    try:
        with urllib.request.urlopen(url, timeout=HTTP_SECONDS) as answer:  # noqa: S310 (the scheme is the server's own)
            return Finding("catalog", "ok", f"{url} answers {answer.status}")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding("catalog", "ok", f"{url} asks for a token")
        return Finding("catalog", "failed", f"{url} answers {error.code}", "see the server's log")
    except (OSError, HTTPException) as error:
        remedy = "engines on this machine need the HTTP port: open it, or listen on another --host"
        return Finding("catalog", "failed", f"{url}: {getattr(error, 'reason', error)}", remedy)


@click.command("support-bundle")
@_config
@_data
@_warehouse
@click.option("--log", "logs", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A log file of the server; its last megabyte is taken. May be repeated.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The .tar.gz to write.")
@server_option
@json_option
@click.pass_context
def support_bundle(
    context: click.Context,
    config: Path | None,
    data: str | None,
    warehouse: str | None,
    logs: tuple[Path, ...],
    output: Path | None,
    server: str,
    as_json: bool,
) -> None:
    """Put everything that a supporter needs into one file, without rows, tokens, keys or passwords.

    It holds the doctor's findings, the settings with their origins, the server's status and metrics, the names and
    sizes of the data folder's files, and the ends of logs. It contains names of tables, columns, principals and hosts:
    look through it before you give it away.
    """
    from lakestore_server.doctor import bundle

    target = output or Path(f"lakestore-support-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    _check_new(target)
    given = _given(config, data, warehouse)
    status, silence = _status(server)
    parts = {
        "doctor.json": bundle.as_json([each.as_dict() for each in _findings(given, server)]),
        "settings.yaml": "\n".join(given.lines()) if given else "none were named\n",
        "status.json": bundle.as_json(status if status is not None else {"error": silence}),
        "metrics.txt": _metrics(status),
        "files.json": bundle.as_json(bundle.files(given.settings().data) if given else []),
        **{f"logs/{number}-{path.name}": bundle.end_of(path) for number, path in enumerate(logs)},
    }
    with naming(target):
        bundle.write(target, parts)
    if as_json:
        emit_json({"file": str(target), "parts": list(parts)})
    else:
        emit_text(f"{target}: {', '.join(parts)}; look through it before you give it away")
    context.exit(0)


def _check_new(target: Path) -> None:
    if target.is_dir():
        raise Invalid(f"{target} is a folder: name a file in it, such as {target / 'bundle.tar.gz'}")
    if target.exists():
        raise Invalid(f"{target} is there already: name another file, or remove it")


def _metrics(status: dict[str, Any] | None) -> str:
    if status is None:
        return "no server answered\n"
    url = _url(status, "/metrics")
    if url is None:
        return "the server names no HTTP port\n"
    try:
        with urllib.request.urlopen(url, timeout=HTTP_SECONDS) as answer:  # noqa: S310 (the scheme is the server's own)
            return str(answer.read(METRICS_BYTES_MAX).decode(errors="replace"))
    except (OSError, HTTPException) as error:
        return f"{url}: {getattr(error, 'reason', error)}\n"


COMMANDS: Iterable[click.Command] = (doctor, support_bundle, inspect, verify, clock)

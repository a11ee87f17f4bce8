"""Commands that show tables: tables, describe, status, files, producers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from lakestore.cli.connection import command_credentials, json_option, open_lake, server_option
from lakestore.cli.output import duration, emit, emit_json, emit_text, screen_width, size
from lakestore.errors import Invalid, Unavailable
from lakestore.loading.progress import summary
from lakestore.model.contract.contract import Contract
from lakestore.model.table import Table
from lakestore.model.times import text_of
from lakestore.model.ttl import span
from lakestore.wire import tracing

_DELETES = {"allow": "allowed", "ignore": "ignored", "refuse": "refused", "dead_letter": "dead letters"}
"""The option `deletes` in words."""


@click.command()
@click.option("--dropped", is_flag=True, help="Dropped tables that can be undropped, and for how long.")
@server_option
@json_option
def tables(dropped: bool, server: str, as_json: bool) -> None:
    """List the tables."""
    if dropped:
        _dropped(server, as_json=as_json)
        return
    with open_lake(server) as lake:
        found = [table.definition for table in lake.tables()]
    rows = [
        {
            "table": table.name,
            "primary key": ", ".join(table.primary_key) or None,
            "columns": len(table.columns),
            "buckets": table.buckets,
            "merge": str(table.merge) if table.keyed else None,
            "ttl": str(table.ttl) if table.ttl else None,
            "freshness": table.lake.freshness,
        }
        for table in found
    ]
    emit([table.as_dict() for table in found] if as_json else rows, as_json=as_json, empty="no tables yet")


def _dropped(server: str, *, as_json: bool) -> None:
    with open_lake(server) as lake:
        found = lake.dropped_tables()
    rows = [
        {
            "table": each.name,
            "dropped": each.dropped.isoformat(timespec="seconds"),
            "left": "its files are being removed" if each.until is None else duration(each.left.total_seconds()),
            "rows": each.rows,
            "disk": size(each.bytes),
            "id": each.uuid,
        }
        for each in found
    ]
    told = [{**asdict(each), "left": each.left.total_seconds()} for each in found]
    emit(told if as_json else rows, as_json=as_json, empty="no dropped tables are kept")


@click.command()
@click.argument("table")
@click.option("--at", metavar="POSITION", help="Columns and contract at a token or time; default: now.")
@server_option
@json_option
def describe(table: str, at: str | None, server: str, as_json: bool) -> None:
    """Show the columns, settings and contract of TABLE."""
    from lakestore.v1 import lakestore_pb2 as pb

    part: dict[str, Any] = {}
    with open_lake(server) as lake:
        found = lake.at(at).definition(table) if at else lake.table(table).definition
        if not (at or as_json):
            [part] = json.loads(lake.transport.status(pb.StatusRequest(tables=[table])).status)["tables"]
    if as_json:
        emit_json(found.as_dict())
        return
    keys = {name: str(i) for i, name in enumerate(found.primary_key, start=1)}
    columns = [
        {"column": c.name, "type": c.type, "null": not c.required, "key": keys.get(c.name, "")} for c in found.columns
    ]
    lines = {
        "table": found.name,
        "kind": "primary-key table" if found.keyed else "log table",
        "buckets": f"{found.buckets} by ({', '.join(found.bucket_key)})" if found.bucket_key else str(found.buckets),
        **(_keyed(found) if found.keyed else {}),
        "retention": f"{found.retention}, then only in the lake" if found.retention else "the whole log is kept",
        **_reads_from(part),
        "lake": f"freshness {found.lake.freshness}, format version {found.lake.format_version}",
        "partitioned by": ", ".join(found.lake.partition_by) or "-",
        "sorted by": _order(found),
        "schema version": str(found.schema_id),
        **(_contract_lines(found.contract, part) if found.contract else {}),
        "uuid": found.uuid,
    }
    emit_text("\n".join(f"{name:15}{value}" for name, value in lines.items()) + "\n")
    emit(columns, as_json=False)


def _order(table: Table) -> str:
    """The order of the rows in a lake file, for `describe`."""
    curve = f"Z-curve of {', '.join(table.lake.z_order_by)}" if table.lake.z_order_by else "-"
    return ", ".join(table.lake.sort_by) or curve


def _reads_from(part: dict[str, Any]) -> dict[str, str]:
    """The line of `describe` about the first readable position. Empty if the server is older."""
    if "reads_from_lsn" not in part:
        return {}
    since = part["reads_from_us"]
    shown = text_of(since)[:19].replace("T", " ") if since else f"LSN {part['reads_from_lsn']}"
    return {"readable from": f"{shown}, {part['reads_from_why']}"}


def _contract_lines(contract: Contract, part: dict[str, Any]) -> dict[str, str]:
    """The lines of `describe` about the contract, and how far it is kept by the status of the table."""
    by = f" by {contract.by}" if contract.by else ""
    why = f": {contract.why}" if contract.why else ""
    status = part.get("contract", {})  # an older server measures nothing
    return {
        "contract": f"version {contract.version}{by}, {text_of(contract.at_us)[:19].replace('T', ' ')}{why}",
        "owner": contract.owner.owner if contract.owner else "-",
        "rules": _rules_text(contract, status.get("violations", ())),
        "promises": "; ".join(map(promise_text, status.get("promises", ()))) or "-",
        "budget": "; ".join(map(budget_text, status.get("budget", ()))) or "-",
    }


def _rules_text(contract: Contract, violations: Sequence[dict[str, Any]]) -> str:
    """The number of rules, and the rows that broke some since the server's start."""
    actions = {"refuse": "refused", "dead_letter": "to the dead letters", "count": "counted"}
    rows = [f"{each['rule']} {each['rows']:,} {actions.get(each['action'], each['action'])}" for each in violations]
    return "; ".join([f"{len(contract.rules.at_write):,} at write", *rows])


def promise_text(figure: dict[str, Any]) -> str:
    """A promise as measured, in words."""
    if figure["unit"] == "s":
        said, bound = "not measured yet", f"{duration(figure['promised'])} promised"
        said = said if figure["measured"] is None else duration(figure["measured"])
    else:
        said = "not measured yet" if figure["measured"] is None else f"{figure['measured']:g} %"
        bound = f"{figure['promised']:g} % promised"
    return f"{figure['promise']} {said} ({bound}{', broken' if figure['met'] is False else ''})"


def _bound_text(part: str, value: float) -> str:
    if part == "snapshot_age":
        return duration(value)
    if part == "files":
        return f"{value:,.0f}"
    return f"{100 * value if part == 'delete_ratio' else value:.1f} %"


def budget_text(figure: dict[str, Any]) -> str:
    """A bound of a budget and what is there, in words."""
    part = figure["part"]
    used = "not counted yet" if figure["used"] is None else _bound_text(part, figure["used"])
    exceeded = ", exceeded" if figure["exceeded"] else ""
    return f"{part.replace('_', ' ')} {used} ({_bound_text(part, figure['bound'])} allowed{exceeded})"


def contract_line(part: dict[str, Any]) -> str:
    """The broken promises and the exceeded bounds of a table; empty if there are none."""
    status = part.get("contract", {})
    said = [promise_text(figure) for figure in status.get("promises", ()) if figure["met"] is False]
    said += [budget_text(figure) for figure in status.get("budget", ()) if figure["exceeded"]]
    return f"The contract of {part['name']} is not kept: {'; '.join(said)}" if said else ""


def _keyed(table: Table) -> dict[str, str]:
    skipped = ", rows that equal the live one are skipped" if table.skip_unchanged else ""
    lines = {
        "merge": f"{table.merge}{skipped}",
        "deletes": _DELETES[table.deletes],
        "rows expire": str(table.ttl) if table.ttl else "never",
    }
    if table.merge.engine == "versioned":
        lines["tombstones"] = f"kept for {span(table.tombstone_seconds)}"
    return lines


def _erasure_text(name: str, held: dict[str, Any]) -> str:
    """The progress of an erasure."""
    waits = f", waits for {'; '.join(held['held_back_by'])}" if held["held_back_by"] else ""
    return f"{name} loses rows by erasure {held['id']}, until {text_of(held['until_us'])} at the latest{waits}"


def _running_texts(part: dict[str, Any]) -> list[str]:
    """The progress of an erasure, and of a rescale or a branch, if there is one."""
    erasure, copy = part.get("erasure"), part.get("rescale")
    texts = [_erasure_text(part["name"], erasure)] if erasure else []
    return [*texts, _copy_text(part["name"], copy)] if copy else texts


def _copy_text(name: str, copy: dict[str, Any]) -> str:
    """The progress of a rescale or of a branch."""
    what = f"has the branch {copy['copy']}" if copy["kind"] else f"is being rescaled to {copy['buckets']} buckets"
    return (
        f"\nTable {name} {what}: {copy['done']:,} of {copy['offsets']:,} offsets are in its copy;"
        f" it waits for: {copy['waits']}"
    )


@click.command()
@click.argument("table", required=False)
@server_option
@json_option
def status(table: str | None, server: str, as_json: bool) -> None:
    """Show what is hot, what is tiered and how far behind, of TABLE or of all.

    If none of several servers leads, it shows what each one answers, and exits with 1.
    """
    found = _status_of(server, table, as_json=as_json)
    if as_json:
        emit_json(found)
        return
    parts, reports = found.pop("tables"), found.pop("reports", [])
    emit_text("\n".join(f"{name:16}{value}" for name, value in _server(found).items()) + "\n")
    emit([_table_row(part) for part in parts], as_json=False, empty="no tables yet")
    for report in reports:
        emit_text(f"\n{_report(report)}")
    for part in parts:
        if part.get("lake_ahead"):
            emit_text(f"\n{part['lake_ahead']}")
        for text in _running_texts(part):
            emit_text(text)
        if part.get("tier_failures"):
            emit_text(
                f"\nTable {part['name']} is not tiered, {part['tier_failures']} rounds in a row failed:"
                f" {part['tier_problem']}"
            )
        lines = (
            late_line(part, found["clock"]["time_us"]),
            running_line(part),
            _upkeep(part),
            contract_line(part),
        )
        for line in filter(None, lines):
            emit_text(f"\n{line}")


def late_line(part: dict[str, Any], now_us: int) -> str:
    """The lag of a table against its freshness; empty if the promise is kept."""
    seconds = (now_us - part["hot_since_us"]) / 1e6 if part.get("hot_since_us") else 0.0
    if seconds <= part["freshness_seconds"]:
        return ""
    return (
        f"Table {part['name']} is late: the oldest change that the lake lacks is {duration(seconds)} old, and its"
        f" freshness is {part['freshness']}"
    )


def running_line(part: dict[str, Any]) -> str:
    """The running round of a table; empty if there is none."""
    if not (running := part.get("round")):
        return ""
    tasks = f" ({running['tasks_done']:,} of {running['tasks']:,} tasks)" if running["tasks"] else ""
    changes = f" with {running['changes']:,} changes" if running["changes"] else ""
    return f"A round of {part['name']}{changes} runs for {duration(running['seconds'])}: it {running['step']}{tasks}"


def _upkeep(part: dict[str, Any]) -> str:
    """The debts of a table's upkeep; empty if there are none."""
    told = [
        f"{debt['duty'].replace('_', ' ')} {debt['count']:,}" + (f" ({debt['note']})" if debt["note"] else "")
        for debt in part.get("upkeep", ())
        if debt["count"]
    ]
    said = [f"Upkeep of {part['name']}: {', '.join(told)}"] if told else []
    return "; ".join([*said, *filter(None, [part.get("upkeep_slowed", "")])])


def _status_of(server: str, table: str | None = None, *, as_json: bool) -> dict[str, Any]:
    """The status of the server that leads. If none of several leads, or if they are servers of two lakes, it shows what
    each one answers and raises."""
    from lakestore.client.credentials import addresses_of
    from lakestore.client.servers import roles
    from lakestore.v1 import lakestore_pb2 as pb

    try:
        with open_lake(server) as lake:
            found: dict[str, Any] = json.loads(
                lake.transport.status(pb.StatusRequest(tables=[table] if table else [])).status
            )
    except (Unavailable, Invalid):
        if len(addresses_of(server)) > 1:
            emit([asdict(each) for each in roles(server, command_credentials(server))], as_json=as_json)
        raise
    return found


def _report(report: dict[str, Any]) -> str:
    said = f"{report['name']}: {report['records']:,} records, {report['lag']:,} behind, {report['rejected']:,} rejected"
    detail = tracing.detail_of(report["detail"])
    halted = [f"; topic {topic} is not read: {why}" for topic, why in detail.get("halted", {}).items()]
    unread = detail.get("unread", {})
    named = ", ".join(f"{name} ({count:,})" for name, count in sorted(unread.items(), key=lambda each: -each[1])[:10])
    lost = f"; {sum(unread.values()):,} values of fields that no column has: {named}" if unread else ""
    return " ".join(f"{said}, {duration(report['reported_seconds'])} ago{lost}{''.join(halted)}".split())


_FIRST = ("release", "health", "grpc", "http", "warehouse")
_ENTRIES = (("entries", "keys"), ("bytes_per_entry", "bytes_per_key"))
"""Names of the index's figures, each with the name in older releases."""


def _server(status: dict[str, Any]) -> dict[str, Any]:
    """The server's part of the status. An older server reports less."""
    plain = {name: value for name, value in status.items() if not name.endswith(("_seconds", "_bytes", "_failed"))}
    if scheme := plain.pop("scheme", ""):
        plain["http"] = f"{scheme}://{plain['http']}"
    shown = {name: plain.pop(name) for name in _FIRST if name in plain} | plain
    if index := status.get("index_size"):
        entries, each = (index.get(new, index.get(old, 0)) for new, old in _ENTRIES)
        shown["index_size"] = f"{entries:,} entries, {each} B each; files {size(index['file_bytes'])}"
    if "uptime_seconds" in status:
        shown["uptime"] = duration(status["uptime_seconds"])
        failed = f", {status['checkpoints_failed']} failed" if status["checkpoints_failed"] else ""
        shown["journal"] = f"{size(status['journal_bytes'])} since the checkpoint{_part_in(status.get('journal'))}"
        shown["checkpoint"] = f"{duration(status['checkpoint_age_seconds'])} ago{failed}"
        shown.pop("store", None)
        if stored := _stored_in(status.get("store")):
            shown["store"] = stored
        shown["disk"] = f"{size(status['disk_free_bytes'])} free"
    if memory := status.get("memory"):
        shown["memory"] = (
            f"at most {size(memory['settings_bytes'])} by settings and {size(memory['tables_bytes'])} by tables,"
            f" of {size(memory['machine_bytes'])};"
            f" {memory['mapped_files']:,} of {memory['mapped_files_max']:,} mapped files"
        )
    if duties := status.get("duties"):
        shown["duties"] = _duties(duties)
    if presented := status.get("presented"):
        shown["presented"] = _presented(presented)
    if queries := status.get("queries"):
        shown["queries"] = _queries(queries)
    if clock := status.get("clock"):
        shown["clock"] = clock["note"] or clock["state"]
    return shown


def _stored_in(store: dict[str, Any] | None) -> str:
    """The checkpoints in a store; empty without one."""
    if not store or not store["url"]:
        return ""
    newest = f"checkpoint at LSN {store['lsn']}" if store["lsn"] >= 0 else "no checkpoint of this server's yet"
    behind = f", behind for {duration(store['behind_seconds'])}" if store["behind_seconds"] else ""
    problem = f": {store['problem']}" if store["problem"] else ""
    return f"{store['url']}: {newest}{behind}{problem}"


def _part_in(journal: dict[str, Any] | None) -> str:
    """This server's part in a journal that others share."""
    if not journal or journal["kind"] == "file":
        return ""
    if journal["role"] == "leader":
        return f"; leader in epoch {journal['epoch']}"
    return f"; follows {journal['leader'] or 'nobody'} in epoch {journal['epoch']}, {journal['lag_ms']:,} ms behind"


@click.command()
@server_option
@json_option
def replicas(server: str, as_json: bool) -> None:
    """Show the servers that share the journal.

    Exits with 1 if none of them leads: then it shows what each of the given addresses answers.
    """
    journal = _status_of(server, as_json=as_json)["journal"]
    emit(journal["replicas"], as_json=as_json, empty="the journal is in files, and its server is alone")
    if journal["replicas"] and all(each["role"] != "leader" for each in journal["replicas"]):
        raise SystemExit(1)


def _duties(status: dict[str, Any]) -> str:
    bad = [
        f"{name} {state['state']}, {state['failures']:,} failures{': ' * bool(state['error'])}{state['error']}"
        for name, state in status.items()
        if state["state"] != "ok"
    ]
    return "; ".join(bad) or f"all {len(status)} ok"


def _queries(status: dict[str, Any]) -> str:
    parts = []
    for door, ended in status["ended"].items():
        failed = sum(count for outcome, count in ended.items() if outcome != "ok")
        keyed = f" ({status['keyed'][door]:,} by key)" if status["keyed"].get(door) else ""
        parts.append(f"{door} {ended.get('ok', 0):,} answered{keyed}, {failed:,} failed")
    processes = ", ".join(f"{count:,} {state}" for state, count in status["processes"].items() if count)
    parts += [f"processes: {processes}"] * bool(processes)
    return "; ".join(parts) or "nobody has asked"


def _presented(status: dict[str, Any]) -> str:
    if not status["presented"] and not status["files"]:
        return "nothing, as nobody has asked"
    loads = status["loads_new"] + status["loads_kept"] + status["loads_not_modified"]
    return (
        f"{status['cuts']:,} cuts of {status['tables']:,} tables, {status['files']:,} files, {size(status['bytes'])};"
        f" {loads:,} loads, {status['presented']:,} presented in {duration(status['seconds'])}, the last in"
        f" {status['last_seconds'] * 1e3:,.0f} ms, 95% in {status['p95_seconds'] * 1e3:,.0f} ms"
    )


def _table_row(part: dict[str, Any]) -> dict[str, Any]:
    behind = part["last_commit_us"] - part["tiered_commit_us"]
    return {
        "table": part["name"],
        "rows": part["rows"],
        "changes": sum(part["head"]),
        "stored": part.get("stored_rows", sum(part["head"])),
        "hot": part["hot"],
        "behind": _behind(part, behind / 1e6),
        "freshness": part["freshness"],
        "log start": _log_start(part),
        "held by": ", ".join(part.get("held_by") or []) or "-",
        "segments": part["segments"],
        "snapshot": str(part["snapshot_id"] or "-"),
    }


def _log_start(part: dict[str, Any]) -> str:
    if not part.get("log_start_lsn"):
        return "-"
    return text_of(part["log_start_us"])[:19].replace("T", " ")


def _behind(part: dict[str, Any], seconds: float) -> str:
    if not part["hot"]:
        return "-"
    return f"{seconds:,.1f} s" if part["tiered_commit_us"] else "never tiered"


@click.command()
@click.argument("table")
@server_option
@json_option
def files(table: str, server: str, as_json: bool) -> None:
    """List the files of TABLE in the lake."""
    from lakestore.union import lake_snapshot as cold
    from lakestore.union.plan import newest

    with open_lake(server) as lake:
        scan = newest(lake.transport.plan, table)
    found = cold.files(scan.metadata_location, scan.snapshot_id) if scan.in_lake else []
    if as_json:
        snapshot = {"snapshot_id": scan.snapshot_id, "metadata_location": scan.metadata_location}
        emit_json({**snapshot, "hot": scan.hot_rows, "files": [asdict(file) for file in found]})
        return
    rows = [{"content": f.content, "rows": f.rows, "size": size(f.bytes), "path": _tail(f.path)} for f in found]
    emit(rows, as_json=False, empty="no files in the lake yet")
    data = [f for f in found if f.content == "data"]
    emit_text(
        f"{len(data)} data files, {sum(f.rows for f in data):,} rows, {size(sum(f.bytes for f in found))}; "
        f"{len(found) - len(data)} delete files; {scan.hot_rows:,} changes not tiered yet"
    )


def _tail(path: str) -> str:
    return path if screen_width() is None else path.split("/data/", 1)[-1]


@click.command()
@click.option(
    "--drop",
    metavar="NAME",
    help="Forget this producer and its progress; a process that still writes under it gets an error.",
)
@click.option(
    "--registers",
    metavar="PREFIX",
    is_flag=False,
    flag_value="",
    help="List registers instead: positions in other systems, all or those with a prefix.",
)
@click.option(
    "--drop-registers",
    metavar="PREFIX",
    help="Forget the registers with this prefix and their values; a process that still moves one gets an error.",
)
@server_option
@json_option
def producers(drop: str | None, registers: str | None, drop_registers: str | None, server: str, as_json: bool) -> None:
    """List the named producers, their owners, when they were last used, and their progress."""
    if registers is not None or drop_registers is not None:
        _registers(registers, drop_registers, server, as_json=as_json)
        return
    with open_lake(server) as lake:
        if drop:
            lake.drop_producer(drop)
        found = lake.producers()
    rows = [
        {
            "producer": held.name,
            "owner": held.owner,
            "used": held.used.isoformat(timespec="seconds"),
            "commits": held.last_sequence,
            "progress": summary(held.progress),
        }
        for held in found
    ]
    emit([asdict(held) for held in found] if as_json else rows, as_json=as_json, empty="no named producers yet")


def _registers(prefix: str | None, dropped: str | None, server: str, *, as_json: bool) -> None:
    if dropped == "":
        raise click.UsageError("--drop-registers takes the beginning of the names to forget, and not an empty one")
    with open_lake(server) as lake:
        if dropped is not None:
            lake.drop_registers(held.name for held in lake.list_registers(dropped))
        found = lake.list_registers(prefix or "")
    rows = [{"register": held.name, "owner": held.owner, "commit": held.moved, "value": held.value} for held in found]
    emit([asdict(held) for held in found] if as_json else rows, as_json=as_json, empty="no registers yet")


COMMANDS = (tables, describe, status, replicas, files, producers)

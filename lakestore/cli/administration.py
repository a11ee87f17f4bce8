"""Commands that create, change and remove tables and databases. A command that loses data says so and asks first."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, confirm, emit, emit_json, emit_text, yes_option
from lakestore.errors import Invalid, NotFound
from lakestore.model.names import rows_text
from lakestore.model.outside_values import shown_name

if TYPE_CHECKING:
    from lakestore.client.administration import DeleteProgress, RescaleProgress
    from lakestore.client.lake import Lake
    from lakestore.client.table import Table

_LAKE = (
    "freshness",
    "target_file_bytes",
    "snapshots",
    "snapshot_seconds",
    "upkeep_percent",
    "upkeep_files",
    "committers",
    "partition_by",
    "sort_by",
    "z_order_by",
)


def _said(done: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(done)
    else:
        emit_text(sentence)


def _pair(text: str, sign: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not (found and name.strip() and value.strip()):
        raise Invalid(f"{option} takes NAME{sign}VALUE, and not {text!r}")
    return name.strip(), value.strip()


def _column(text: str) -> tuple[str, str, bool]:
    name, _, kind = text.strip().partition(" ")
    kind = kind.strip()
    required = kind.lower().endswith(" not null")
    kind = kind[: -len(" not null")].strip() if required else kind
    if not kind:
        raise Invalid(f"a column is its name and type, such as 'id int64 not null', and not {text!r}")
    return name, kind, required


def _value(text: str) -> Any:
    """Parse a value as JSON if possible; otherwise it is text."""
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "none" else text


def _options(settings: tuple[str, ...]) -> dict[str, Any]:
    """Options from `--set`. Lake options are nested; `ttl` may be written as COLUMN:AFTER."""
    options: dict[str, Any] = {}
    lake: dict[str, Any] = {}
    for text in settings:
        name, said = _pair(text, "=", "--set")
        value = _value(said)
        if name == "ttl" and isinstance(value, str):
            column, after = _pair(value, ":", "--set ttl=")
            value = {"column": column, "after": after}
        if name.removeprefix("lake.") in _LAKE or name.startswith("lake."):
            lake[name.removeprefix("lake.")] = value
        else:
            options[name] = value
    return {**options, **({"lake": lake} if lake else {})}


@click.command()
@click.argument("table")
@click.option("--column", "columns", multiple=True, metavar="'NAME TYPE [not null]'", help="A column; in order.")
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="A column of the primary key; in order.")
@click.option("--like", metavar="TABLE", help="Columns, key and options of this table.")
@click.option("--buckets", type=click.IntRange(1), help="Buckets; 4 unless given.")
@click.option("--merge", help="Merge engine for rows whose key exists, such as upsert, partial or versioned(seq).")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option, such as retention=7d.")
@server_option
@json_option
def create(
    table: str,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    like: str | None,
    buckets: int | None,
    merge: str | None,
    settings: tuple[str, ...],
    server: str,
    as_json: bool,
) -> None:
    """Create TABLE from columns, or like another table. Without --key it is a log table."""
    import pyarrow as pa

    from lakestore.model.types import arrow_type

    if bool(columns) == bool(like):
        raise Invalid("a table is created of --column, once for each, or --like another table: say one of them")
    if like and (keys or merge or settings):
        raise Invalid("--like takes key, merge engine and options of the other table: leave these out, or alter later")
    with open_lake(server) as lake:
        if like:
            source = lake.table(like).definition
            made = lake.create(replace(source, name=table, uuid="", buckets=buckets or source.buckets))
        else:
            parted = [_column(text) for text in columns]
            required = {name for name, _, is_required in parted if is_required} | set(keys)
            schema = pa.schema([pa.field(n, arrow_type(kind), nullable=n not in required) for n, kind, _ in parted])
            options = _options(settings) | ({"merge": merge} if merge else {})
            made = lake.create_table(table, schema, primary_key=list(keys) or None, buckets=buckets or 4, **options)
    kind = f"key {', '.join(made.definition.primary_key)}" if made.definition.keyed else "log table"
    count = len(made.definition.columns)
    _said(made.definition.as_dict(), f"table {table} is there: {count} columns, {kind}", as_json=as_json)


@click.command()
@click.argument("table")
@click.option("--now", is_flag=True, help="Remove it at once, without a time to undrop; also if it was dropped before.")
@click.option("--id", "uuid", default="", metavar="UUID", help="Id of the table, if several of the name were dropped.")
@yes_option
@server_option
@json_option
def drop(table: str, now: bool, uuid: str, yes: bool, server: str, as_json: bool) -> None:
    """Drop TABLE. `undrop` restores it for a day, or for as long as the server's limits say."""
    with open_lake(server) as lake:
        rows, is_there = _rows(lake, table, uuid, dropped=now)
        lost = "for good, with its files in the lake" if now else "until it is undropped, or its time is over"
        which = "table" if is_there else "the dropped table"
        confirm(f"{which} {table} and its {rows_text(rows)} go {lost}", yes=yes)
        token = lake.drop_table(table, purge=now, uuid=uuid)
        kept = [each for each in lake.dropped_tables() if each.name == table and each.until is not None]
    until = None if now or not kept else kept[0].until
    way = f"; `lakestore undrop {table}` has it back until {until:%Y-%m-%d %H:%M} UTC" if until else ""
    _said({"table": table, "token": token, "until": until}, f"table {table} is dropped{way}", as_json=as_json)


def _be(rows: int) -> str:
    return "is" if rows == 1 else "are"


def _rows(lake: Lake, table: str, uuid: str, *, dropped: bool) -> tuple[int, bool]:
    """Live rows, and whether the table still has its name. Raises `NotFound`."""
    from lakestore.v1 import lakestore_pb2 as pb

    named = {each.name: each for each in lake.tables()}
    if table in named and uuid in ("", named[table].definition.uuid):
        [part] = json.loads(lake.transport.status(pb.StatusRequest(tables=[table])).status)["tables"]
        return int(part["rows"]), True
    if dropped:
        kept = [each for each in lake.dropped_tables() if each.name == table and uuid in ("", each.uuid)]
        if kept:
            return kept[0].rows, False
    raise NotFound(f"there is no table {shown_name(table)}")


@click.command()
@click.argument("table")
@click.option("--as", "as_name", default="", metavar="NAME", help="A new name for it.")
@click.option("--id", "uuid", default="", metavar="UUID", help="Id of the table, if several of the name were dropped.")
@server_option
@json_option
def undrop(table: str, as_name: str, uuid: str, server: str, as_json: bool) -> None:
    """Restore the dropped TABLE; `lakestore tables --dropped` lists the candidates."""
    with open_lake(server) as lake:
        made = lake.undrop(table, uuid=uuid, as_name=as_name)
    _said({"table": made.name, "uuid": made.definition.uuid}, f"table {made.name} is there again", as_json=as_json)


@click.command()
@click.argument("table")
@click.argument("new_name")
@server_option
@json_option
def rename(table: str, new_name: str, server: str, as_json: bool) -> None:
    """Rename TABLE to NEW_NAME, also into another database. Rights follow names."""
    with open_lake(server) as lake:
        made = lake.table(table).rename(new_name)
    told = "who names it by the old one is told the new one"
    done = {"table": made.name, "before": table, "uuid": made.definition.uuid}
    _said(done, f"table {table} is {made.name} now; {told}", as_json=as_json)


_WAITS = {
    "rows": "the copy follows the table",
    "lake": "the copy has all rows and waits for its first round into the lake: run `lakestore tier`",
    "subscription": "the copy has all rows and waits: a shared subscription names buckets, drop it first",
}


@click.command()
@click.argument("table")
@click.option("--buckets", type=click.IntRange(min=1), help="The new number of buckets.")
@click.option("--abort", is_flag=True, help="Stop the running rescale, and remove its copy.")
@click.option("--no-wait", is_flag=True, help="Return once the copy has begun.")
@server_option
@json_option
def rescale(table: str, buckets: int | None, abort: bool, no_wait: bool, server: str, as_json: bool) -> None:
    """Give TABLE another number of buckets while reads and writes go on.

    The server fills a copy, follows the table's changes, and swaps the copy in one commit. The copy continues without
    this command, also after a restart of the server.
    """
    if abort == (buckets is not None):
        raise Invalid("name the new number of --buckets, or --abort to stop a running rescale")
    with open_lake(server) as lake:
        held = lake.table(table)
        before = held.definition.buckets
        if buckets is None:
            held.stop_rescale()
            done = {"table": table, "buckets": before, "aborted": True}
            _said(done, f"the rescale of table {table} is stopped; it has {before} buckets", as_json=as_json)
            return
        progress = Progress("copy")
        waits = ""

        def shown(now: RescaleProgress) -> None:
            nonlocal waits
            progress.add(now.done - progress.rows)
            if now.waits != waits and now.waits != "rows":
                emit_text(_WAITS.get(now.waits, now.waits), err=True)
            waits = now.waits

        held.rescale(buckets, wait=not no_wait, on_progress=shown)
    done = {"table": table, "buckets": buckets, "before": before, "swapped": not no_wait}
    sentence = f"table {table} has {buckets} buckets now; it had {before}"
    if no_wait:
        sentence = f"a copy of table {table} with {buckets} buckets has begun: see `lakestore status {table}`"
    _said(done, sentence, as_json=as_json)


def _branch(held: Table, into: str, at: str | None, buckets: int, *, no_wait: bool, as_json: bool) -> None:
    """Begin a branch, and wait until it is filled."""
    progress = Progress("branch")
    held.replay(
        into,
        at=at,
        buckets=buckets,
        wait=not no_wait,
        on_progress=lambda now: progress.add(now.done - progress.rows),
    )
    done = {"table": held.name, "branch": into, "at": at, "filled": not no_wait}
    follows = f"has the rows of {at}" if at else "follows it"
    state = f"has begun: see `lakestore status {held.name}`" if no_wait else f"is filled and {follows}"
    _said(done, f"branch {into} of table {held.name} {state}", as_json=as_json)


def _difference(held: Table, sample: int, *, as_json: bool) -> None:
    """Print what a swap would change."""
    told = held.replay_difference(sample=sample)
    if as_json:
        emit_json(asdict(told))
        return
    emit_text(
        f"a swap changes {rows_text(told.changed)} of table {told.table}, removes {told.removed:,} and adds"
        f" {told.added:,}; {told.same:,} are the same in branch {told.branch}"
    )
    for pair in told.sample:
        emit_text(f"- {shown_row(pair.table)}\n+ {shown_row(pair.branch)}")
    emit_text(f"swap it with: lakestore replay {told.table} --swap --reviewed {told.token}")


def shown_row(row: dict[str, Any] | None) -> str:
    """A row in one line."""
    return "no row" if row is None else ", ".join(f"{name}={value!r}" for name, value in row.items())


@click.command()
@click.argument("table")
@click.option("--into", metavar="NAME", help="Fill a branch of this name.")
@click.option("--at", metavar="POSITION", help="Fill it with the rows at a token or time; else it follows TABLE.")
@click.option("--buckets", type=click.IntRange(min=1), help="Buckets of the branch; as TABLE unless given.")
@click.option("--no-wait", is_flag=True, help="Return once the branch has begun.")
@click.option("--diff", is_flag=True, help="Print how many rows a swap changes, removes and adds, and some of them.")
@click.option("--sample", type=click.IntRange(0), default=10, show_default=True, help="Rows of each kind for --diff.")
@click.option("--swap", is_flag=True, help="Put the branch into the place of TABLE.")
@click.option("--reviewed", metavar="TOKEN", help="Swap only if nothing was written since the --diff of this token.")
@click.option("--drop", is_flag=True, help="Remove the branch.")
@server_option
@json_option
def replay(
    table: str,
    into: str | None,
    at: str | None,
    buckets: int | None,
    no_wait: bool,
    diff: bool,
    sample: int,
    swap: bool,
    reviewed: str | None,
    drop: bool,
    server: str,
    as_json: bool,
) -> None:
    """Fill a branch of TABLE, compare it with TABLE, and swap it into its place.

    A branch is a table with the rows of TABLE at a position, or one that follows TABLE. Correct rows in it, look at the
    difference, and swap it in one commit.
    """
    if [into is not None, diff, swap, drop].count(True) != 1:
        raise Invalid("name one of --into NAME, --diff, --swap and --drop")
    if into is None and (at is not None or buckets is not None or no_wait):
        raise Invalid("--at, --buckets and --no-wait go with --into")
    if reviewed is not None and not swap:
        raise Invalid("--reviewed goes with --swap")
    with open_lake(server) as lake:
        held = lake.table(table)
        if into is not None:
            _branch(held, into, at, buckets or 0, no_wait=no_wait, as_json=as_json)
        elif diff:
            _difference(held, sample, as_json=as_json)
        elif swap:
            token = held.swap_replay(reviewed)
            _said({"table": table, "token": token}, f"table {table} has the rows of its branch now", as_json=as_json)
        else:
            held.drop_replay()
            _said({"table": table, "dropped": True}, f"the branch of table {table} is removed", as_json=as_json)


@click.command()
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@yes_option
@server_option
@json_option
def truncate(table: str, dry_run: bool, yes: bool, server: str, as_json: bool) -> None:
    """Remove all rows of TABLE from log and lake. This cannot be undone."""
    with open_lake(server) as lake:
        held = lake.table(table)
        cost = held.truncate(check_only=True)
        names = ", ".join(cost.subscriptions)
        told = f"; subscriptions are told, and are to be reset: {names}" if names else ""
        if not dry_run:
            confirm(f"all {rows_text(cost.rows)} of table {table} go for good{told}", yes=yes)
            cost = held.truncate()
    done = {"table": table, "rows": cost.rows, "subscriptions": list(cost.subscriptions), "token": cost.token or None}
    verb = "would go" if dry_run else f"{_be(cost.rows)} gone"
    _said(done, f"{rows_text(cost.rows)} of table {table} {verb}{told}", as_json=as_json)


@click.command()
@click.argument("table")
@click.option("--where", required=True, help="The rows to delete, such as \"created_at < '2020-01-01'\".")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@yes_option
@server_option
@json_option
def delete(table: str, where: str, dry_run: bool, yes: bool, server: str, as_json: bool) -> None:
    """Delete the rows of TABLE that match a condition now; primary-key tables only.

    A row that is rewritten meanwhile stays. If the command is interrupted, run it again to delete the rest.
    """
    progress = Progress("delete")

    def shown(now: DeleteProgress) -> None:
        progress.add(now.looked_at - progress.rows)

    with open_lake(server) as lake:
        held = lake.table(table)
        if dry_run or not yes:
            token = held.delete(where=where, dry_run=True, on_progress=shown)
        if not dry_run:
            if not yes:
                confirm(
                    f"{rows_text(token.result.deleted)} of table {table} {_be(token.result.deleted)} deleted", yes=yes
                )
            progress.rows = 0
            token = held.delete(where=where, on_progress=shown)
    count = token.result.deleted
    done = {"table": table, "deleted": 0 if dry_run else count, "matched": count, "token": str(token)}
    verb = "would be deleted" if dry_run else f"{_be(count)} deleted"
    _said(done, f"{rows_text(count)} of table {table} {verb}", as_json=as_json)


@click.command()
@click.argument("table")
@click.option("--add", "added", multiple=True, metavar="'NAME TYPE [not null]'", help="A new column.")
@click.option("--rename", "renamed", multiple=True, metavar="OLD=NEW", help="Another name for a column.")
@click.option("--widen", "widened", multiple=True, metavar="COLUMN=TYPE", help="A wider type for a column.")
@click.option("--drop", "dropped", multiple=True, metavar="COLUMN", help="Drop a column with what it holds.")
@click.option("--optional", multiple=True, metavar="COLUMN", help="Let a required column be null.")
@click.option("--default", "defaults", multiple=True, metavar="COLUMN=VALUE", help="Value of rows that name none.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option, such as retention=7d or none.")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the audit of a table with a contract.")
@click.option("--dry-run", is_flag=True, help="Only say whether it could be done.")
@yes_option
@server_option
@json_option
def alter(
    table: str,
    added: tuple[str, ...],
    renamed: tuple[str, ...],
    widened: tuple[str, ...],
    dropped: tuple[str, ...],
    optional: tuple[str, ...],
    defaults: tuple[str, ...],
    settings: tuple[str, ...],
    why: str,
    dry_run: bool,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Change columns and options of TABLE in one commit. Existing rows are not rewritten."""
    import pyarrow as pa

    from lakestore.client.administration import steps_of
    from lakestore.model.types import arrow_type

    columns = {name: pa.field(name, arrow_type(kind), nullable=not req) for name, kind, req in map(_column, added)}
    steps = steps_of(
        add=columns,
        rename=dict(_pair(text, "=", "--rename") for text in renamed),
        widen={name: arrow_type(kind) for name, kind in (_pair(text, "=", "--widen") for text in widened)},
        drop=list(dropped),
        optional=list(optional),
        default={name: _value(value) for name, value in (_pair(text, "=", "--default") for text in defaults)},
        **_options(settings),
    )
    if not steps:
        raise Invalid("nothing to change: say --add, --rename, --widen, --drop, --optional, --default or --set")
    with open_lake(server) as lake:
        held = lake.table(table).definition
        made = lake.alter(held, steps, check_only=True)
        if not dry_run:
            if dropped:
                confirm(f"what columns {', '.join(dropped)} of table {table} hold is lost to readers", yes=yes)
            made = lake.alter(held, steps, why=why)
    verb = "could be altered" if dry_run else "is altered"
    _said(made.as_dict(), f"table {table} {verb}: schema version {made.schema_id}", as_json=as_json)


@click.command()
@click.option("--create", "created", metavar="NAME", help="Make an empty one; a table makes its own.")
@click.option("--drop", "dropped", metavar="NAME", help="Remove one that has no table.")
@server_option
@json_option
def databases(created: str | None, dropped: str | None, server: str, as_json: bool) -> None:
    """List the databases, after creating or removing one."""
    with open_lake(server) as lake:
        if created:
            lake.create_database(created)
        if dropped:
            lake.drop_database(dropped)
        found = lake.databases()
    rows = [{"database": name, "tables": count} for name, count in found.items()]
    emit(rows, as_json=as_json, empty="no databases yet")


COMMANDS = (create, drop, undrop, rename, rescale, replay, truncate, delete, alter, databases)

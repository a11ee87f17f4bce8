"""Commands that move rows: write, read, changes, lookup, sql."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from lakestore.cli import json_lines, row_files
from lakestore.cli import output as shown
from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.kafka_sink import check_unused, sink_options, written_to_kafka
from lakestore.cli.output import Progress, emit, emit_json, emit_lines
from lakestore.errors import Fenced, Invalid, NotFound

if TYPE_CHECKING:
    from lakestore.client.changes import ChangeBatch
    from lakestore.client.lake import Lake
    from lakestore.client.table import Table

SHOWN_ROWS = 50
_FORMATS = click.Choice(["parquet", "csv", "jsonl", "arrow"])
_EVENTS = click.Choice(["json", "debezium", "debezium-schema"])


@click.command()
@click.argument("table")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--key", "keys", multiple=True, help="Primary-key column of a table made by this command; may be repeated."
)
@click.option("--buckets", default=4, show_default=True, help="Buckets of a table made by this command.")
@click.option("--create", is_flag=True, help="Make the table if it is absent; --key says so too.")
@click.option(
    "--delete", is_flag=True, help="The rows are keys to delete; with columns to empty (partial) or versions."
)
@server_option
@json_option
def write(
    table: str, file: Path, keys: tuple[str, ...], buckets: int, create: bool, delete: bool, server: str, as_json: bool
) -> None:
    """Write FILE, or a folder of Parquet files, to TABLE.

    Parquet, CSV, JSON lines and Arrow files are told by their names. Rows go in commits of 100,000. An absent TABLE
    is made from the file's columns with --key (primary-key table) or --create (log table). The token of the last
    commit goes to stdout: `read --at` it to see exactly this state.

    Columns that FILE does not name have their default; in partial and aggregate tables they keep their values, and
    each line of JSON may name others.
    """
    paths = row_files.files_of(file)
    with connected(server) as lake:
        target = _target(lake, table, paths[0], keys, buckets, create)
        progress = Progress(f"{table} ← {file.name}")
        token = _written(target, paths, progress, delete=delete)
        progress.done()
    if as_json:
        emit_json({"table": table, "rows": progress.rows, "token": token})
    else:
        click.echo(token)


def _target(lake: Lake, name: str, path: Path, keys: tuple[str, ...], buckets: int, create: bool) -> Table:
    try:
        return lake.table(name)
    except NotFound as error:
        if not keys and not create:
            raise NotFound(
                f"table {name} does not exist: give --key COLUMN to make a primary-key table, --create for a log table"
            ) from error
    return lake.create_table(name, schema=row_files.schema_of(path), primary_key=list(keys), buckets=buckets)


def _written(target: Table, paths: list[Path], progress: Progress, *, delete: bool) -> str:
    definition = target.definition
    token: Any = ""
    with target.writer() as writer:
        put = writer.delete if delete else writer.upsert if definition.keyed else writer.append
        for path in paths:
            for rows in row_files.changes_of(path, definition, delete=delete):
                put(rows)
                progress.add(len(rows))
        token = writer.flush()
    return str(token or "")


@click.command()
@click.argument("table")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; its name says the format."
)
@click.option("--columns", help="Names with commas between; also __bucket, __offset, __timestamp.")
@click.option("--where", help="A condition in SQL: \"amount > 10 AND customer = 'x'\".")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: read exactly there.")
@click.option("--require-freshness", help="A span such as 60s: fail if what is read is older (docs/time.md).")
@click.option("--require-complete-through", help="A time: fail if what is read is not complete through it.")
@click.option("--limit", type=click.IntRange(min=0), help="No more rows than this.")
@click.option("--count", is_flag=True, help="Only the number of rows.")
@click.option("--explain", is_flag=True, help="Read, and say what was read and spared in place of the rows.")
@click.option("--format", "kind", type=_FORMATS, help="Of what goes to stdout; a short table otherwise.")
@server_option
@json_option
def read(
    table: str,
    output: Path | None,
    columns: str | None,
    where: str | None,
    at: str | None,
    require_freshness: str | None,
    require_complete_through: str | None,
    limit: int | None,
    count: bool,
    explain: bool,
    kind: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Read TABLE: the lake and what is newer, as one."""
    names = [name.strip() for name in columns.split(",")] if columns else None
    with connected(server) as lake:
        target = lake.table(table)
        required = {"require_freshness": require_freshness, "require_complete_through": require_complete_through}
        scan = target.scan(columns=names, where=where, at=at, **required)
        if explain:
            made = scan.explain()
            emit_json(made.as_dict()) if as_json else click.echo(made)
            return
        if count:
            found = scan.count()
            emit_json({"rows": found}) if as_json else click.echo(found)
            return
        chosen = row_files.kind_of(output) if output else kind or ("jsonl" if as_json else None)
        if chosen is None:
            _show(scan.to_batches(), SHOWN_ROWS if limit is None else limit)
            return
        stream = scan.to_reader()
        progress = Progress(f"{table} → {output.name if output else 'stdout'}")
        with row_files.Output(output, chosen, stream.schema) as sink:
            for batch in _limited(stream, limit):
                sink.write(batch)
                progress.add(batch.num_rows)
        if output:
            progress.done()


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _show(batches: Iterator[pa.RecordBatch], limit: int) -> None:
    """The first rows as a table, and whether there are more."""
    rows: list[dict[str, Any]] = []
    for batch in _limited(batches, limit + 1):
        rows += batch.to_pylist()
    emit(rows[:limit], as_json=False, empty="no rows")
    if len(rows) > limit:
        click.echo(f"… more rows: --limit N, --count, or -o FILE (shown {limit})", err=True)


@click.command()
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    help="earliest (what the log still has), latest, snapshot (all rows, then changes), a token, or a time such as"
    " 2026-11-20T10:00Z (UTC where it names no zone).",
)
@click.option("--until", default="now", show_default=True, help="now, a token or a time that has been.")
@click.option(
    "--where",
    help="Only the rows that match, such as amount > 10: one that comes to match is +I, one that ceases to -D.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on for ever.")
@click.option("--before-images", is_flag=True, help="Also -U: the row as it was before an update.")
@click.option(
    "--subscription",
    help="Go on where this named subscription stands, a new one at --start; what was shown is acknowledged.",
)
@click.option("--shared", is_flag=True, help="Share the subscription with others: read some of its buckets at a time.")
@click.option("--member", help="What this consumer is called among those that share the subscription.")
@click.option("--format", "kind", type=_EVENTS, help="One JSON object a line: rows, or Debezium's events.")
@sink_options
@server_option
@json_option
def changes(
    tables: tuple[str, ...],
    start: str,
    until: str,
    where: str | None,
    follow: bool,
    before_images: bool,
    subscription: str | None,
    shared: bool,
    member: str | None,
    kind: str | None,
    server: str,
    as_json: bool,
    **sink: Any,
) -> None:
    """Show the changes of TABLE in order; the token to go on from comes on stderr.

    With --to kafka they are written to a Kafka topic, exactly once: it goes on where it stopped, whatever stopped it.
    """
    end = None if follow else until
    with connected(server) as lake:
        if sink["to"]:
            if subscription or shared or member:
                raise Invalid("--to kafka has its own subscription: leave out --subscription, --shared and --member")
            sink |= {"start": start, "where": where, "format": "json" if as_json else kind or "debezium"}
            written_to_kafka(lake, tables, end, sink)
            return
        check_unused(sink)
        if (shared or member) and not (shared and subscription):
            raise Invalid("--shared and --member are for a subscription: say --subscription NAME --shared")
        show = _shower(lake, tables, "json" if as_json else kind)
        before_images = before_images or (kind or "").startswith("debezium")
        stream = lake.changes(
            tables,
            start,
            until=end,
            before_images=before_images,
            where=where,
            subscription=subscription,
            shared=shared,
            member=member,
        )
        any_shown = False
        for batch in stream:
            any_shown = True
            show(batch)
            if follow or subscription:
                # Shown before it is acknowledged: a line that is still buffered would be lost with this process.
                sys.stdout.flush()
            if subscription:
                _acknowledge(batch, shared=shared)
    if not any_shown:
        click.echo("no changes", err=True)
    # The tokens of a shared subscription acknowledge batches only: no stream can start at them.
    if stream.token and not shared:
        click.echo(f"token: {stream.token}", err=True)


def _acknowledge(batch: ChangeBatch, *, shared: bool) -> None:
    """Acknowledge a batch.

    If another consumer has taken some of its buckets over, their changes are shown there again, and the stream goes on.
    """
    try:
        batch.ack()
    except Fenced as error:
        if not shared:
            raise
        click.echo(str(error), err=True)


def _shower(lake: Lake, tables: tuple[str, ...], kind: str | None) -> Callable[[ChangeBatch], None]:
    """The printer of a batch of changes."""
    if len(tables) > 1 and not (kind or "").startswith("debezium"):
        raise Invalid("changes of several tables are told apart by --format debezium or --to kafka: name one table")
    if kind == "json":
        return lambda batch: emit_lines(batch.to_arrow())
    if kind is None:
        return lambda batch: click.echo(shown.table(batch.to_pylist())) if len(batch) else None
    from lakestore.connectors.events import Encoder

    encoder = Encoder(lake, kind)

    def show(batch: ChangeBatch) -> None:
        for events in encoder.events(batch):
            click.echo(b"\n".join(events.values.to_pylist()))

    return show


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--columns", help="Names with commas between; also __bucket, __offset, __timestamp.")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: the rows as they were there.")
@server_option
@json_option
def lookup(table: str, key: tuple[str, ...], columns: str | None, at: str | None, server: str, as_json: bool) -> None:
    """Look up rows of TABLE by KEY: a value, or values of a key of several columns with commas between.

    The first columns alone, the bucket key among them, give all rows that begin so, in key order.
    """
    names = [name.strip() for name in columns.split(",")] if columns else None
    with connected(server) as lake:
        target = lake.table(table)
        found = target.lookup(_keys(target.definition.key_schema, key), columns=names, at=at)
    emit_lines(found) if as_json else emit(found.to_pylist(), as_json=False, empty="no such key")


def _keys(key: pa.Schema, texts: tuple[str, ...]) -> pa.Table:
    if not len(key):
        raise Invalid("the table has no primary key: read it with a condition instead")
    split = [text.split(",") if len(key) > 1 else [text] for text in texts]
    schema = pa.schema([key.field(i) for i in range(min(len(split[0]), len(key)))])
    for parts, text in zip(split, texts, strict=True):
        if len(parts) > len(key):
            raise Invalid(f"key {text!r} has {len(parts)} values; the primary key is ({', '.join(key.names)})")
        if len(parts) != len(schema):
            raise Invalid(f"key {text!r} has {len(parts)} values, {texts[0]!r} has {len(schema)}: give all as many")

    try:
        arrays = [_key_column([parts[i] for parts in split], field.type) for i, field in enumerate(schema)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise Invalid(f"a key does not fit the primary key ({', '.join(schema.names)}): {error}") from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _key_column(texts: list[str], kind: pa.DataType) -> pa.Array:
    """A key column of texts as they are printed: Arrow reads all types but times, and bytes, which are hex."""
    if json_lines.by_hand(kind):
        return pa.array([json_lines.python_value(text, kind) for text in texts], kind)
    return pa.array(texts).cast(kind)


@click.command()
@click.argument("text")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; its name says the format."
)
@click.option("--format", "kind", type=_FORMATS, help="Of what goes to stdout; a short table otherwise.")
@click.option("--external-access", is_flag=True, help="The query may read files and addresses too.")
@click.option("--explain", is_flag=True, help="Run it, and say what was read of each table in place of the rows.")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: read all tables exactly there.")
@click.option("--require-freshness", help="A span such as 60s: fail if what is read is older (docs/time.md).")
@click.option("--require-complete-through", help="A time: fail if what is read is not complete through it.")
@server_option
@json_option
def sql(
    text: str,
    at: str | None,
    require_freshness: str | None,
    require_complete_through: str | None,
    output: Path | None,
    kind: str | None,
    external_access: bool,
    explain: bool,
    server: str,
    as_json: bool,
) -> None:
    """Run one query over tables at one cut: lakestore sql "SELECT count(*) FROM shop.orders"."""
    with connected(server) as lake:
        required = {"require_freshness": require_freshness, "require_complete_through": require_complete_through}
        result = lake.sql(text, at=at, external_access=external_access, **required)
    if explain:
        emit_json([read.as_dict() for read in result.reads]) if as_json else click.echo(result.explain())
        return
    found = result.to_arrow()
    chosen = row_files.kind_of(output) if output else kind or ("jsonl" if as_json else None)
    if chosen is None:
        _show(iter(found.to_batches()), SHOWN_ROWS)
        return
    with row_files.Output(output, chosen, found.schema) as sink:
        for batch in found.to_batches():
            sink.write(batch)


COMMANDS = (write, read, changes, lookup, sql)

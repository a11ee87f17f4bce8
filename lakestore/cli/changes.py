"""The command that shows the changes of tables, or writes them to files or a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from click.core import ParameterSource

from lakestore.cli import output as shown
from lakestore.cli import row_files
from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.kafka_sink import check_unused, run_sink, sink_options
from lakestore.cli.output import confirm, emit, emit_json, emit_text, yes_option
from lakestore.cli.rows import chosen_kind, names_in, output_options
from lakestore.client.subscription import Member, Subscription
from lakestore.errors import Fenced, Invalid, NotFound
from lakestore.model.outside_values import shown_name

if TYPE_CHECKING:
    from lakestore.client.changes import ChangeBatch
    from lakestore.client.lake import Lake


def _members(subscription: Subscription) -> str:
    if not subscription.shared:
        return "alone"
    return ", ".join(map(_member, subscription.members)) or "shared, nobody now"


def _member(member: Member) -> str:
    away = ", away" if member.away else ""
    return f"{member.name} ({len(member.buckets)} buckets, {member.behind} behind{away})"


@click.group(invoke_without_command=True)
@click.option("--drop", metavar="NAME", help="Forget this subscription; the log that it kept may go.")
@server_option
@json_option
@click.pass_context
def subscriptions(context: click.Context, drop: str | None, server: str, as_json: bool) -> None:
    """List the named subscriptions, their lag, and the consumers that share them."""
    if context.invoked_subcommand is not None:
        return
    with open_lake(server) as lake:
        if drop:
            lake.drop_subscription(drop)
        found = lake.subscriptions()
    rows = [
        {
            "subscription": held.name,
            "tables": ", ".join(held.tables),
            "behind": held.behind,
            "acked": held.acked.isoformat(timespec="seconds"),
            "reads": "nothing: reset it" if held.expired else "its snapshot" if held.snapshot else "changes",
            "members": _members(held),
        }
        for held in found
    ]
    emit([asdict(held) for held in found] if as_json else rows, as_json=as_json, empty="no subscriptions yet")


@subscriptions.command()
@click.argument("name")
@click.option("--to", required=True, metavar="POSITION", help="earliest, latest, snapshot, a time or a token.")
@yes_option
@server_option
@json_option
def reset(name: str, to: str, yes: bool, server: str, as_json: bool) -> None:
    """Set the position of subscription NAME, forward or back. Running consumers are told and continue there."""
    with open_lake(server) as lake:
        held = {each.name: each for each in lake.subscriptions()}.get(name)
        if held is None:
            raise NotFound(f"there is no subscription {shown_name(name)}")
        confirm(f"subscription {name} leaves its place, {held.behind:,} changes behind, for {to}", yes=yes)
        token = lake.reset_subscription(name, to)
        (now,) = [each for each in lake.subscriptions() if each.name == name]
    if as_json:
        emit_json({"subscription": name, "token": token, "behind": now.behind})
    else:
        emit_text(f"subscription {name} is {now.behind:,} changes behind now")


EVENTS = ("debezium", "debezium-schema")
_SHOWN_AS = click.Choice(["json", *EVENTS, *row_files.KINDS])


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
@click.option("--member", help="Name of this consumer of a shared subscription.")
@click.option("--columns", help="Names with commas between; a key comes along.")
@output_options
@click.option("--format", "kind", type=_SHOWN_AS, help="Rows (json is jsonl), or Debezium's events, one for each line.")
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
    columns: str | None,
    output: Path | None,
    rows_per_file: int | None,
    kind: str | None,
    server: str,
    as_json: bool,
    **sink: Any,
) -> None:
    """Show the changes of TABLE in order. The token to continue from is printed on stderr.

    With --to kafka the changes are written to a Kafka topic, exactly once. The same command continues where an earlier
    run stopped.
    """
    end = None if follow else until
    with open_lake(server) as lake:
        if sink["to"]:
            if subscription or shared or member or output:
                raise Invalid("--to kafka has its own subscription: leave out --subscription, --shared, --member, -o")
            sink |= {"start": start, "where": where, "format": "json" if as_json else kind or "debezium"}
            run_sink(lake, tables, end, sink)
            return
        check_unused(sink)
        _check(output, subscription, member, follow=follow, shared=shared)
        chosen = _format(kind, output, as_json=as_json)
        before_images = before_images or (chosen or "").startswith("debezium")
        _say_ignored_start(lake, subscription)
        stream = lake.changes(
            tables,
            start,
            until=end,
            before_images=before_images,
            where=where,
            columns=_with_keys(lake, tables, names_in(columns)),
            subscription=subscription,
            shared=shared,
            member=member,
        )
        last = None
        with _shower(lake, tables, chosen, output, rows_per_file) as show:
            for batch in stream:
                last = batch
                show(batch)
                if follow or subscription:
                    # Changes are flushed before they are acknowledged; a buffered line would be lost with this process.
                    sys.stdout.flush()
                if subscription and output is None:
                    _acknowledge(batch, shared=shared)
        if subscription and output is not None and last is not None:
            _acknowledge(last, shared=shared)  # the files are complete now
    if last is None:
        emit_text("no changes", err=True)
    # Tokens of a shared subscription only acknowledge batches. No stream can start at one.
    if stream.token and not shared:
        emit_text(f"token: {stream.token}", err=True)


def _with_keys(lake: Lake, tables: Sequence[str], columns: list[str] | None) -> list[str] | None:
    if columns is None:
        return None
    found = [lake.table(table).definition for table in tables]
    keys = dict.fromkeys(name for each in found for name in each.primary_key if name not in columns)
    return [*(name for name in keys if all(name in each.schema.names for each in found)), *columns]


def _check(output: Path | None, subscription: str | None, member: str | None, *, follow: bool, shared: bool) -> None:
    if (shared or member) and not (shared and subscription):
        raise Invalid("--shared and --member are for a subscription: say --subscription NAME --shared")
    if output is not None and (follow or shared):
        raise Invalid("-o is for changes that end, and of one reader: leave out --follow and --shared")


def _say_ignored_start(lake: Lake, subscription: str | None) -> None:
    """Warn if --start is ignored because the subscription has a position."""
    given = click.get_current_context().get_parameter_source("start") is ParameterSource.COMMANDLINE
    if subscription and given and any(held.name == subscription for held in lake.subscriptions()):
        emit_text(
            f"subscription {subscription} has its own position, so --start is ignored; set it with"
            f" `lakestore subscriptions reset {subscription} --to POSITION`",
            err=True,
        )


def _acknowledge(batch: ChangeBatch, *, shared: bool) -> None:
    """Acknowledge a batch. Buckets that another consumer has taken over are shown there again."""
    try:
        batch.ack()
    except Fenced as error:
        if not shared:
            raise
        emit_text(str(error), err=True)


def _format(kind: str | None, output: Path | None, *, as_json: bool) -> str | None:
    """The output format; None: a table for people."""
    kind = "jsonl" if kind == "json" or (kind is None and as_json) else kind
    return kind if kind in EVENTS else chosen_kind(output, kind)


@contextmanager
def _shower(
    lake: Lake, tables: tuple[str, ...], kind: str | None, output: Path | None, rows_per_file: int | None
) -> Iterator[Callable[[ChangeBatch], None]]:
    if len(tables) > 1 and kind not in EVENTS:
        raise Invalid("changes of several tables are told apart by --format debezium or --to kafka: name one table")
    if kind is None:
        yield lambda batch: emit_text(shown.table(batch.to_pylist())) if len(batch) else None
        return
    from lakestore.kafka.events import Encoder

    encoder = Encoder(lake, kind) if kind in EVENTS else None

    def show(batch: ChangeBatch) -> None:
        if encoder is None:
            for rows in batch.to_arrow().to_batches():
                sink.write(rows)
            return
        for events in encoder.events(batch):
            sink.write(pa.record_batch([events.values], names=[row_files.LINES]))

    with row_files.Output(output, row_files.LINES if encoder else kind, rows_per_file=rows_per_file) as sink:
        yield show


COMMANDS = (changes, subscriptions)

"""Commands that make an Iceberg table one of ours, and one of ours a plain Iceberg table."""

from __future__ import annotations

import time

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, confirm, emit_json, emit_text, yes_option
from lakestore.errors import Invalid
from lakestore.model.names import rows_text

OWN_CATALOG = "lake"


def _source(text: str) -> str:
    """The table without the name of the server's own catalog."""
    parts = text.split(".")
    if len(parts) == 3 and parts[0] == OWN_CATALOG:
        return ".".join(parts[1:])
    if len(parts) not in (2, 3):
        raise Invalid(f"{text} is not CATALOG.database.table; {OWN_CATALOG} is the server's own catalog")
    return text


@click.command()
@click.argument("source", metavar="CATALOG.DATABASE.TABLE")
@click.option("--as", "name", required=True, metavar="NAME", help="The name that it has then, such as shop.orders.")
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="A column of the primary key; repeatable.")
@click.option("--log", "is_log", is_flag=True, help="Make it a log table, which has no key.")
@click.option("--buckets", default=4, show_default=True, type=click.IntRange(1), help="Buckets of the table.")
@server_option
@json_option
def adopt(
    source: str, name: str, keys: tuple[str, ...], is_log: bool, buckets: int, server: str, as_json: bool
) -> None:
    """Make an Iceberg table of a catalog one of ours, without rewriting its data.

    A run that was killed goes on when it is started again. docs/adopting.md describes it.
    """
    if bool(keys) == is_log:
        raise Invalid("say the columns of the primary key with --key, or --log for a table without one")
    progress: dict[str, tuple[Progress, list[int]]] = {}

    def tell(stage: str, done: int, total: int) -> None:
        if stage not in progress:
            # A run that goes on has not done the rows before.
            what = {"rows": "rows indexed", "numbers": "rows numbered"}[stage]
            progress[stage] = Progress(f"{what}, of {rows_text(total)}"), [0]
        shown, last = progress[stage]
        shown.add(done - last[0])
        last[0] = done

    began = time.monotonic()
    with open_lake(server) as lake:
        table = lake.adopt(_source(source), name, primary_key=keys, buckets=buckets, tell=tell)
        rows = table.scan().count()
    for shown, _ in progress.values():
        shown.done()
    done = {"table": name, "uuid": table.definition.uuid, "rows": rows, "seconds": round(time.monotonic() - began, 1)}
    if as_json:
        emit_json(done)
    else:
        emit_text(f"table {name} has the {rows_text(rows)} of {source}; no data file was rewritten")


@click.command()
@click.argument("table")
@click.option("--to", default="", metavar="NAME", help="Its name as a plain table; default: the same.")
@yes_option
@server_option
@json_option
def release(table: str, to: str, yes: bool, server: str, as_json: bool) -> None:
    """Make TABLE a plain Iceberg table of the catalog; its log and its index are removed.

    Its rows must be in the lake: run `lakestore tier --once --table TABLE` before.
    """
    with open_lake(server) as lake:
        held = lake.table(table)
        confirm(f"log, index, change stream and subscriptions of {table} end, its lake stays", yes=yes)
        kept = lake.release(held.name, to=to)
    name = to or table
    if as_json:
        emit_json({"table": name, "columns": kept})
    else:
        told = f"; it keeps the columns {', '.join(kept)}, by which it is partitioned or sorted" if kept else ""
        emit_text(f"{name} is a plain Iceberg table of the catalog now{told}")


COMMANDS = (adopt, release)

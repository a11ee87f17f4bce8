"""The command `freshness price`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import duration, emit, emit_json, emit_text, size
from lakestore.errors import Invalid


@click.group()
def freshness() -> None:
    """The cost of a lake that is as fresh as a table promises."""


@freshness.command()
@click.argument("table")
@server_option
@json_option
def price(table: str, server: str, as_json: bool) -> None:
    """Estimate what each freshness of TABLE would cost in an hour, from its last rounds.

    The lake remembers as many rounds as the table keeps snapshots. docs/operating.md says how the numbers are computed.
    """
    from lakestore.model.freshness_price import BANDS, priced
    from lakestore.union.past_rounds import remembered
    from lakestore.union.plan import newest
    from lakestore.union.table_keys import read_folders

    with open_lake(server) as lake:
        scan = newest(lake.transport.plan, table)
        if not scan.in_lake:
            raise Invalid(
                f"table {table} has no rounds yet: let `lakestore tier` run beside its usual load for a while"
            )
        with closing(read_folders(lake.transport, [scan])):
            rounds, rewrites = remembered(scan.metadata_location)
    own = scan.table.lake.freshness_seconds
    rate, prices = priced(rounds, rewrites, sorted({*BANDS, own}))
    if as_json:
        load = {"table": table, "freshness": own, "rewrites": len(rewrites), **asdict(rate)}
        emit_json({**load, "prices": [asdict(each) for each in prices]})
        return
    emit_text(
        f"{table} had {rate.changes:,.1f} changes a second in {rate.rounds} rounds and {len(rewrites)} compactions,"
        f" over {duration(rate.seconds)}; an hour like that would cost:"
    )
    rows = [
        {
            "freshness": f"{duration(each.freshness)}{' (now)' if each.freshness == own else ''}",
            "age at most": duration(each.age),
            "rounds": f"{each.rounds:,.0f}",
            "files": f"{each.files:,.0f}",
            "requests": f"{each.requests:,.0f}",
            "written": size(each.bytes),
            "compaction": duration(each.rewrite_seconds),
            "rewritten": size(each.rewrite_bytes),
        }
        for each in prices
    ]
    emit(rows, as_json=False)


COMMANDS = (freshness,)

"""The command that proves: verify."""

from __future__ import annotations

from typing import Any

import click

from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.output import emit, emit_json, emit_text, size


@click.command()
@click.argument("table")
@click.option("--rows-only", is_flag=True, help="Compare row numbers and counts only, not the values of all columns.")
@click.option("--deep", is_flag=True, help="First read every stored byte of the server against its checksum.")
@server_option
@json_option
@click.pass_context
def verify(context: click.Context, table: str, rows_only: bool, deep: bool, server: str, as_json: bool) -> None:
    """Check TABLE: log fold = index = lake + hot, per bucket, at one cut. The exit code is 1 if not."""
    from lakestore.union.verify import verify as compare

    with connected(server) as lake:
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


COMMANDS = (verify,)

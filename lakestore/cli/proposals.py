"""`lakestore bridge proposals`: changes of tables that a bridge proposes, for somebody to decide about."""

from __future__ import annotations

from typing import Any

import click

from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.output import emit, emit_json, emit_text

_SHOWN = ("id", "table", "topic", "state", "proposed_at", "change")


@click.group()
def proposals() -> None:
    """List, approve and reject the changes of tables that a bridge proposes."""


@proposals.command("list")
@click.argument("table", required=False)
@server_option
@json_option
def list_proposals(table: str | None, server: str, as_json: bool) -> None:
    """List the proposals of TABLE, or of all tables, the oldest first."""
    from lakestore.connectors.bridge.drift import proposals as stored

    with connected(server) as lake:
        found = stored.listed(lake, table or "")
    rows = found if as_json else [{name: each[name] for name in _SHOWN} for each in found]
    emit(rows, as_json=as_json, empty="no proposals")


@proposals.command()
@click.argument("proposal", metavar="ID")
@server_option
@json_option
def approve(proposal: str, server: str, as_json: bool) -> None:
    """Change the table as proposal ID says; then replay what waits: lakestore dlq replay."""
    _decide(proposal, server, as_json=as_json, approve=True)


@proposals.command()
@click.argument("proposal", metavar="ID")
@server_option
@json_option
def reject(proposal: str, server: str, as_json: bool) -> None:
    """Leave the table as it is; proposal ID is not made again."""
    _decide(proposal, server, as_json=as_json, approve=False)


def _decide(proposal: str, server: str, *, as_json: bool, approve: bool) -> None:
    from lakestore.connectors.bridge.drift import proposals as stored

    with connected(server) as lake:
        row: dict[str, Any] = stored.decide(lake, proposal, approve=approve)
    if as_json:
        emit_json(row)
        return
    emit_text(f"{row['state']}: table {row['table']}: {row['change']}")
    if approve:
        emit_text(f"replay what waits for it: lakestore dlq replay {row['table']} --code waits-for-proposal")

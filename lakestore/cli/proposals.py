"""`lakestore who` and `lakestore proposals`: owners of tables, and changes that wait for their decision."""

from __future__ import annotations

import dataclasses

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit, emit_json, emit_text

_SHOWN = ("id", "table", "proposed_by", "topic", "state", "proposed_at", "change")
_DECISION = ("at", "principal", "action", "what", "outcome", "version", "why")
_why = click.option("--why", default="", metavar="TEXT", help="The reason, for the audit.")


@click.group()
def proposals() -> None:
    """List, approve and reject changes of tables that wait for an approver."""


@proposals.command("list")
@click.argument("table", required=False)
@server_option
@json_option
def list_proposals(table: str | None, server: str, as_json: bool) -> None:
    """List the proposals of TABLE, or of all tables, oldest first."""
    with open_lake(server) as lake:
        found = lake.proposals(table or "")
    rows = found if as_json else [{name: each[name] for name in _SHOWN} for each in found]
    emit(rows, as_json=as_json, empty="no proposals")


@proposals.command()
@click.argument("proposal", metavar="ID")
@_why
@server_option
@json_option
def approve(proposal: str, why: str, server: str, as_json: bool) -> None:
    """Change the table by proposal ID. Then replay its dead letters: lakestore dlq replay."""
    _decide(proposal, why, server, as_json=as_json, approve=True)


@proposals.command()
@click.argument("proposal", metavar="ID")
@_why
@server_option
@json_option
def reject(proposal: str, why: str, server: str, as_json: bool) -> None:
    """Keep the table unchanged. Proposal ID is not made again."""
    _decide(proposal, why, server, as_json=as_json, approve=False)


def _decide(proposal: str, why: str, server: str, *, as_json: bool, approve: bool) -> None:
    with open_lake(server) as lake:
        row = lake.approve(proposal, why=why) if approve else lake.reject(proposal, why=why)
    if as_json:
        emit_json(row)
        return
    emit_text(f"{row['state']}: table {row['table']}: {row['change']}")
    if approve:
        emit_text(f"replay what waits for it: lakestore dlq replay {row['table']} --code waits-for-proposal")


@click.command("who")
@click.argument("table")
@server_option
@json_option
def show_owner(table: str, server: str, as_json: bool) -> None:
    """Show owner, delegates, approvers, contract version and the last ten decisions of TABLE."""
    with open_lake(server) as lake:
        found = lake.who(table)
    if as_json:
        emit_json(dataclasses.asdict(found))
        return
    emit_text(f"owner: {found.owner or 'nobody'}")
    emit_text(f"delegates: {', '.join(found.delegates) or 'none'}")
    emit_text(f"approvers: {', '.join(found.approvers) or 'none'}")
    emit_text(f"contract: {f'version {found.version}' if found.version else 'none'}")
    if found.decisions is None:
        emit_text("decisions: they need the right 'read' on lakestore.audit")
        return
    rows = [{name: each[name] for name in _DECISION} for each in found.decisions]
    emit(rows, as_json=False, empty="no decisions")


COMMANDS = (proposals, show_owner)

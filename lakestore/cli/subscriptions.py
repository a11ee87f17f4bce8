"""Commands about named subscriptions: list, drop, reset."""

from __future__ import annotations

from dataclasses import asdict

import click

from lakestore.cli.asked import confirm, yes_option
from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.output import emit, emit_json, emit_text
from lakestore.client.subscription import Member, Subscription
from lakestore.errors import NotFound
from lakestore.model.typed import shown_name


def _members(held: Subscription) -> str:
    if not held.shared:
        return "alone"
    return ", ".join(map(_member, held.members)) or "shared, nobody now"


def _member(member: Member) -> str:
    away = ", away" if member.away else ""
    return f"{member.name} ({len(member.buckets)} buckets, {member.behind} behind{away})"


@click.group(invoke_without_command=True)
@click.option("--drop", metavar="NAME", help="Forget this one; what it held of the log may go.")
@server_option
@json_option
@click.pass_context
def subscriptions(context: click.Context, drop: str | None, server: str, as_json: bool) -> None:
    """List the named subscriptions, how far behind they are, and who shares their buckets."""
    if context.invoked_subcommand is not None:
        return
    with connected(server) as lake:
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
    """Set the position of subscription NAME, forth or back; who reads it is told, and goes on from there."""
    with connected(server) as lake:
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


COMMANDS = (subscriptions,)

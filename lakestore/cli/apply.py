"""`lakestore apply`: change tables to match a file. `--plan` shows the changes."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.errors import NeedsApproval
from lakestore.evolution import LAKE_SETTABLE, to_json
from lakestore.model import table_file
from lakestore.model.columns import Column, LakeOptions
from lakestore.model.merge_engines import UPSERT
from lakestore.model.table import Table
from lakestore.model.table_changes import TableChange, changes_of, check_drops
from lakestore.model.ttl import span

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

PENDING = 3
"""Exit code of `--plan` if there are changes, and of changes that wait for an approval."""
Line = tuple[str, str]
"""A sign (+ ~ -) and a text."""


@click.command()
@click.option(
    "-f", "--file", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="A tables.yaml."
)
@click.option("--plan", is_flag=True, help=f"Only show the difference; exit code {PENDING} when there is any.")
@click.option(
    "--allow-drop", "allowed", multiple=True, metavar="DB.TABLE.COLUMN", help="Drop this column; may be repeated."
)
@server_option
@json_option
def apply(path: Path, plan: bool, allowed: tuple[str, ...], server: str, as_json: bool) -> int:
    """Create or evolve tables to match a file; docs/tables.md describes the file.

    The whole file is checked before the first change. A change that the table's contract leaves to an
    approver becomes a proposal, with exit code 3. Tables that the file does not name are left alone. A column is
    renamed by `renamed_from:` in the file, and dropped only if --allow-drop names it.
    """
    wanted = table_file.parse(path.read_text(), path.name)
    with open_lake(server) as lake:
        there = {table.name: table.definition for table in lake.tables()}
        return make_changes(lake, changes_of(wanted, there), allowed, plan=plan, as_json=as_json)


def make_changes(
    lake: Lake, changes: Sequence[TableChange], allowed: Sequence[str], *, plan: bool, as_json: bool
) -> int:
    """Show the changes and make them unless `plan`. Every one is checked by the server first. Returns the exit code."""
    for change in changes:
        lake.make_change(change, check_only=True)
    if not as_json:
        _show(changes, allowed if plan else None)
    if not plan:
        check_drops(changes, allowed)
    answers = {} if plan else {change.after.name: _made(lake, change) for change in changes}
    waiting = {name: error for name, error in answers.items() if error is not None}
    if as_json:
        emit_json([_as_data(change, waiting.get(change.after.name)) for change in changes])
    else:
        emit_text(_summary(changes, plan=plan, waiting=len(waiting)))
        for error in waiting.values():
            emit_text(error.message)
    pending = any(change.action != "nothing" for change in changes)
    return PENDING if (plan and pending) or waiting else 0


def _made(lake: Lake, change: TableChange) -> NeedsApproval | None:
    """Make a change; the error of one that became a proposal."""
    try:
        lake.make_change(change)
    except NeedsApproval as error:
        return error
    return None


def _show(changes: Sequence[TableChange], allowed: Sequence[str] | None) -> None:
    """Print the changes. With `allowed` also the options that they need."""
    for change in changes:
        emit_text(f"{change.after.name}: {_headline(change)}")
        for sign, text in lines(change.before, change.after):
            emit_text(f"  {sign} {text}")
        for name in change.drops():
            if allowed is not None and name not in allowed:
                emit_text(f"    needs --allow-drop {name}")


def _headline(change: TableChange) -> str:
    table = change.after
    if change.before is None:
        kind = f"primary key {', '.join(table.primary_key)}" if table.keyed else "log"
        by = "" if table.bucket_key == table.primary_key else f" by {', '.join(table.bucket_key)}"
        return f"new table, {kind}, {table.buckets} buckets{by}"
    if not change.steps:
        return "nothing to do"
    renewed = table.schema_id != change.before.schema_id
    return f"schema version {change.before.schema_id} → {table.schema_id}" if renewed else "options"


def _summary(changes: Sequence[TableChange], *, plan: bool, waiting: int) -> str:
    actions = [change.action for change in changes]
    numbers = {"create": actions.count("create"), "alter": actions.count("alter") - waiting, "wait": waiting}
    said = {"create": "to create" if plan else "created", "alter": "to alter" if plan else "altered"}
    said["wait"] = "waiting for an approval"
    counts = [f"{number} {said[action]}" for action, number in numbers.items() if number]
    return ", ".join(counts) if counts else "nothing to do"


def _as_data(change: TableChange, waiting: NeedsApproval | None) -> dict[str, Any]:
    differences = [f"{sign} {text}" for sign, text in lines(change.before, change.after)]
    steps = json.loads(to_json(change.steps))
    proposal = {"proposal": waiting.proposal} if waiting else {}
    return {"table": change.after.name, "action": change.action, "differences": differences, "steps": steps, **proposal}


def lines(before: Table | None, after: Table) -> Iterator[Line]:
    """The difference between two definitions, line by line."""
    old = {column.id: column for column in before.columns} if before else {}
    new = {column.id for column in after.columns}
    for i, column in enumerate(after.columns):
        if before is None or column.id not in old:
            last = before is None or all(other.id not in old for other in after.columns[i:])
            place = "" if last else f", after {after.columns[i - 1].name}" if i else ", first"
            yield "+", f"{column.name} {_described(column, fresh=before is not None)}{place}"
        else:
            yield from _changed(old[column.id], column)
    for column in old.values():
        if column.id not in new:
            yield "-", f"{column.name} {column.type}, with what it holds"
    if before is None:
        yield from _settings(after)
    else:
        yield from _order(before, after)
        yield from _changed_settings(before, after)
    yield from _contract(before, after)


def _changed_settings(before: Table, after: Table) -> Iterator[Line]:
    was_said = dict(_options(before))
    for name, text in _options(after):
        if was_said[name] != text:
            yield "~", f"{name}: {was_said[name]} → {text}"
    for name in LAKE_SETTABLE:
        was, becomes = getattr(before.lake, name), getattr(after.lake, name)
        if was != becomes:
            yield "~", f"{name}: {_listed(was)} → {_listed(becomes)}"


def _settings(table: Table) -> Iterator[Line]:
    if table.merge != UPSERT:
        yield "+", f"merge: {table.merge}"
    plain = dict(_options(Table("", ())))
    for name, text in _options(table):
        if text != plain[name]:
            yield "+", f"{name}: {text}"
    usual = LakeOptions()
    for field in fields(LakeOptions):
        value = getattr(table.lake, field.name)
        if value != getattr(usual, field.name):
            yield "+", f"lake {field.name}: {_listed(value)}"


def _listed(value: Any) -> Any:
    return ", ".join(value) or "none" if isinstance(value, tuple) else value


def _options(table: Table) -> Iterator[tuple[str, str]]:
    yield "retention", str(table.retention or "all")
    yield "deletes", table.deletes
    yield "skip_unchanged", "yes" if table.skip_unchanged else "no"
    yield "ttl", str(table.ttl or "never")
    yield "tombstone_ttl", span(table.tombstone_seconds)


def _described(column: Column, *, fresh: bool) -> str:
    required = ", required" if column.required else ""
    default = f", default {column.default!r}" if column.default is not None else ""
    part = " for new rows" if fresh and default and column.initial is None else ""
    return f"{column.type}{required}{default}{part}"


def _changed(old: Column, new: Column) -> Iterator[Line]:
    if old.name != new.name:
        yield "~", f"{old.name}: called {new.name} from now on"
    if old.type != new.type:
        yield "~", f"{new.name}: {old.type} → {new.type}"
    if old.required != new.required:
        yield "~", f"{new.name}: may be null from now on"
    if old.default != new.default:
        yield "~", f"{new.name}: {'no default' if new.default is None else f'default {new.default!r}'} for new rows"


def _contract(before: Table | None, after: Table) -> Iterator[Line]:
    """The contract, and the lines of its document that differ."""
    old, new = before.contract if before else None, after.contract
    texts = [contract.document.splitlines() if contract else list[str]() for contract in (old, new)]
    if old is None and new is not None:
        yield "+", f"contract: {new.object}, {len(texts[1])} lines"
    elif old is not None and new is None:
        yield "-", f"contract: version {old.version}"
    elif old is not None and new is not None and (old.document, old.object) != (new.document, new.object):
        yield "~", f"contract: version {old.version} → {old.version + 1}"
        for line in itertools.islice(difflib.unified_diff(texts[0], texts[1], n=0, lineterm=""), 2, None):
            if line[:1] in ("+", "-"):
                yield line[0], f"  {line[1:].rstrip()}"


def _order(before: Table, after: Table) -> Iterator[Line]:
    kept = {column.id for column in before.columns} & {column.id for column in after.columns}
    orders = [[column.id for column in table.columns if column.id in kept] for table in (before, after)]
    if orders[0] != orders[1]:
        yield "~", f"order: {', '.join(column.name for column in after.columns)}"


COMMANDS = (apply,)

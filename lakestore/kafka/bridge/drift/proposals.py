"""Proposals: changes of a table that wait for a person's decision, stored in a table next to it.

A proposal refers to the table at its time. An approval supersedes open proposals that change the same columns, and
proposals whose steps no longer apply. If records still need a change, it is proposed again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestore import evolution
from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.kafka.bridge.drift.differences import Change
from lakestore.model.nested_fields import tree
from lakestore.model.table_file import WantedColumn, WantedTable
from lakestore.model.types import arrow_type, type_name

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.client.table import Table

SUFFIX = "__proposals"
PROPOSED, APPROVED, REJECTED, SUPERSEDED = "proposed", "approved", "rejected", "superseded"
_COLUMNS = ("id", "bridge", "topic", "change", "steps", "state")
_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in _COLUMNS),
        pa.field("proposed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("decided_at", pa.timestamp("us", tz="UTC")),
    ]
)


def table_of(table: str) -> str:
    """The name of the proposals' table."""
    return table + SUFFIX


def propose(lake: Lake, table: str, bridge: str, topic: str, change: Change, now: datetime) -> str:
    """Store a proposal unless it exists, and return its state."""
    found = _made(lake, table)
    id = change.id(table)
    row = _row(lake, found.name, id)
    if row is None or row["state"] == SUPERSEDED:
        said = (id, bridge, topic, change.words, evolution.to_json(change.steps), PROPOSED)
        row = {**dict(zip(_COLUMNS, said, strict=True)), "proposed_at": now, "decided_at": None}
        found.upsert(pa.Table.from_pylist([row], _SCHEMA))
    return str(row["state"])


def list_proposals(lake: Lake, table: str = "") -> list[dict[str, Any]]:
    """The proposals of a table, or of all tables, oldest first; each with its `table`."""
    names = [each.name for each in lake.tables() if each.name.endswith(SUFFIX)]
    rows: list[dict[str, Any]] = []
    for name in names:
        whole = name.removesuffix(SUFFIX)
        if not table or whole == table:
            rows += [
                {"table": whole, **row} for row in lake.table(name).scan(list(_SCHEMA.names)).to_arrow().to_pylist()
            ]
    return sorted(rows, key=lambda row: (row["proposed_at"], row["id"]))


def decide(lake: Lake, id: str, *, approve: bool, now: datetime | None = None) -> dict[str, Any]:
    """Approve a proposal and alter its table, or reject it. Returns the proposal afterwards.

    An approved proposal does not change any more. A rejected one can be approved later.
    """
    row = next((row for row in list_proposals(lake) if row["id"] == id), None)
    if row is None:
        raise NotFound(f"there is no proposal {id!r}: see `lakestore bridge proposals list`")
    table = row.pop("table")
    state = APPROVED if approve else REJECTED
    if row["state"] == APPROVED:
        if not approve:
            raise Conflict(f"proposal {id} is approved, and its table is changed: alter {table} back, if so meant")
        return {"table": table, **row}
    if approve:
        steps = evolution.from_json(row["steps"])
        if not steps:
            raise Invalid(f"proposal {id} has no steps that would settle it: {row['change']}")
        if row["state"] == SUPERSEDED:
            raise _stale(id, table)
        target = lake.table(table)
        if not _is_done(target, steps):
            try:
                target.alter(*steps)
            except Invalid as error:
                _store(lake, table, [row | {"state": SUPERSEDED, "decided_at": now or datetime.now(UTC)}])
                raise _stale(id, table) from error
        _supersede(lake, table, row, now or datetime.now(UTC))
    row |= {"state": state, "decided_at": now or datetime.now(UTC)}
    _store(lake, table, [row])
    return {"table": table, **row}


def _store(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    lake.table(table_of(table)).upsert(pa.Table.from_pylist(rows, _SCHEMA))


def _stale(id: str, table: str) -> Conflict:
    return Conflict(
        f"proposal {id} is about an earlier state of table {table} and is superseded: replay the dead letters that wait"
        f" (lakestore dlq replay {table} --code waits-for-proposal), and what they still need is proposed again"
    )


def _supersede(lake: Lake, table: str, approved: dict[str, Any], now: datetime) -> None:
    columns = _columns(approved)
    stale = []
    for row in list_proposals(lake, table):
        row.pop("table")
        if row["id"] != approved["id"] and row["state"] == PROPOSED and _columns(row) & columns:
            stale.append(row | {"state": SUPERSEDED, "decided_at": now})
    if stale:
        _store(lake, table, stale)


def _columns(row: dict[str, Any]) -> set[str]:
    steps = evolution.from_json(row["steps"])
    return {name for step in steps for name in (getattr(step, "name", ""), getattr(step, "to", "")) if name}


def _is_done(table: Table, steps: list[evolution.Step]) -> bool:
    columns = {path: part for column in table.definition.columns for path, part in tree(column).with_paths()}
    for step in steps:
        if isinstance(step, evolution.AddColumn | evolution.WidenColumn):
            if step.name not in columns or columns[step.name].kind != arrow_type(step.type):
                return False
        elif isinstance(step, evolution.RenameColumn):
            if step.to not in columns:
                return False
        elif isinstance(step, evolution.MakeOptional) and (step.name in columns and columns[step.name].required):
            return False
    return True


def _made(lake: Lake, table: str) -> Table:
    name = table_of(table)
    try:
        return lake.table(name)
    except NotFound:
        columns = tuple(WantedColumn(each.name, type_name(each.type, each.name), not each.nullable) for each in _SCHEMA)
        definition = WantedTable(name, columns, {"primary_key": ["id"], "buckets": 1}).definition()
        try:
            return lake.create(definition)
        except Conflict:  # another process made it
            return lake.table(name)


def _row(lake: Lake, name: str, id: str) -> dict[str, Any] | None:
    rows = lake.table(name).lookup([{"id": id}]).to_pylist()
    return rows[0] if rows else None

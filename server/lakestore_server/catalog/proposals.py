"""Proposals: alterations that wait for an approver. One place for all doors: clients, files, bridges, other engines.

- A proposal is a row of `lakestore.proposals`. Only these verbs write it, in one commit with what it is about: an
  approval is in the commit that alters the table, so a lost answer or a second approval changes nothing twice.
- A proposal refers to the table at its time. An approval supersedes open proposals that change the same columns, and a
  proposal whose steps no longer apply. Whoever still needs the change proposes it again.
- A rejected proposal can be approved later, and is not made again. An approved one does not change any more.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakestore import evolution
from lakestore.errors import Conflict, Denied, Invalid, NeedsApproval, NotFound
from lakestore.evolution import AddColumn, MakeOptional, RenameColumn, Step, WidenColumn
from lakestore.model.nested_fields import tree
from lakestore.model.system_tables import PROPOSALS
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import owners, tables
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.owners import Decision
from lakestore_server.catalog.system_tables import make_system_tables
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import IndexEntries
from lakestore_server.commit.system_rows import put_rows
from lakestore_server.read import rows as reads
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

PROPOSED, APPROVED, REJECTED, SUPERSEDED = "proposed", "approved", "rejected", "superseded"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Decided:
    """The rows that a decision wrote, and their index entries."""

    rows: Sequence[Row]
    entries: IndexEntries


class Proposals:
    """The verbs of proposals. Thread-safe: one decision at a time."""

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine, self._catalog = engine, catalog
        self._lock = threading.Lock()

    def propose(self, table: Table, steps: Sequence[Step], by: Decision, said: pb.Proposal) -> NeedsApproval:
        """Store a proposal unless it is there, and return the error that names it."""
        with self._lock:
            make_system_tables(self._engine, self._catalog)
            text = evolution.to_json(steps)
            id = hashlib.sha256(f"{_origin(table)}\n{text}".encode()).hexdigest()[:12]
            row = next((row for row in _rows(self._engine.view) if row["id"] == id), None)
            if row is None or row["state"] == SUPERSEDED or (row["state"] == APPROVED and not _is_done(table, steps)):
                row = {"id": id, "table_uuid": _origin(table), "table": table.name, "steps": text, "state": PROPOSED}
                row |= {"bridge": said.bridge, "topic": said.topic, "change": said.change or owners.words_of(steps)}
                row |= {"proposed_by": by.name, "decided_by": "", "why": by.why, "decided_at": None}
                self._write(table, [row], by)
            return _needs_approval(table, row)

    def list_proposals(self, request: pb.ListProposalsRequest) -> pb.ListProposalsAnswer:
        """The proposals of a table, or of all tables, oldest first, under the tables' present names."""
        found = [row for row in _shown(self._engine.view) if request.table in ("", row["table"])]
        return pb.ListProposalsAnswer(proposals=map(_entry, found))

    def decide(self, request: pb.DecideProposalRequest) -> pb.ProposalEntry:
        """Approve a proposal and alter its table, or reject it; returns the proposal afterwards."""
        with self._lock:
            row = next((row for row in _shown(self._engine.view) if row["id"] == request.proposal), None)
            if row is None or row["table"] != request.table:
                raise NotFound(
                    f"there is no proposal {request.proposal!r} of table {request.table}: see `lakestore proposals"
                    " list`"
                )
            table = self._engine.view.named(request.table).table
            action = owners.APPROVAL if request.approve else "reject"
            by = Decision.of_caller(action, f"proposal {row['id']}: {row['change']}", request.why)
            self._check_approver(table, by)
            if row["state"] == APPROVED:
                if not request.approve:
                    raise Conflict(
                        f"proposal {row['id']} is approved, and its table is changed: alter {table.name} back, if so"
                        " meant"
                    )
                return _entry(row)
            steps = evolution.from_json(row["steps"])
            if request.approve:
                self._check_open(row, steps)
                return _entry(self._approve(table, row, steps, by))
            self._write(table, [row | {"state": REJECTED, "decided_by": by.name, "why": by.why}], by)
            return _entry(row | {"state": REJECTED, "decided_by": by.name, "why": by.why})

    def _check_approver(self, table: Table, by: Decision) -> None:
        if by.name and not owners.is_approver(table, by.principal):
            owner = owners.owner_of(table)
            if owner is not None:
                verdict = owners.OwnerDenied(
                    f"{by.name} is no approver of table {table.name}: {', '.join(owner.all_approvers)} decide about its"
                    " columns",
                    table,
                    by,
                )
                owners.write_refusal(self._engine, verdict)
                raise verdict
            if not by.principal.may("admin", table.name):
                raise Denied(
                    f"{by.name} has no right 'admin' on {table.name}, which has no owner: ask the server's operator"
                )

    @staticmethod
    def _check_open(row: Row, steps: Sequence[Step]) -> None:
        if not steps:
            raise Invalid(f"proposal {row['id']} has no steps that would settle it: {row['change']}")
        if row["state"] == SUPERSEDED:
            raise _stale(row)

    def _approve(self, table: Table, row: Row, steps: list[Step], by: Decision) -> Row:
        made = row | {"state": APPROVED, "decided_by": by.name, "why": by.why}
        columns = _columns(steps)
        others = [
            each | {"state": SUPERSEDED}
            for each in _shown(self._engine.view)
            if each["table"] == table.name
            and each["id"] != row["id"]
            and each["state"] == PROPOSED
            and _columns(evolution.from_json(each["steps"])) & columns
        ]
        if _is_done(table, steps):
            steps = []
        try:
            self._write(table, [made, *others], by, steps)
        except Invalid as error:
            if isinstance(error, owners.PolicyRefused):
                raise
            self._write(table, [row | {"state": SUPERSEDED}], by)
            raise _stale(row) from error
        return made

    def _write(self, table: Table, rows: Sequence[Row], by: Decision, steps: Sequence[Step] = ()) -> None:
        """Write proposals, and alter their table, in one commit."""

        def plan(state: State, record: CommitRecord) -> _Decided:
            held = state.view.meant(table.name, table.uuid)
            if steps:
                tables.add_alteration(self._engine.limits, state, record, held, steps, by)
            else:
                by.add(state.view, record, held.table)
            now = pa.scalar(record.clock_us, pa.timestamp("us", tz="UTC")).as_py()
            for row in rows:
                row["proposed_at"] = row.get("proposed_at") or now
                row["decided_at"] = None if row["state"] == PROPOSED else now
            entries = put_rows(state.view, record, PROPOSALS, rows, self._engine.index)
            return _Decided(rows, entries)

        owners.decided(self._engine, plan, lambda decided: decided.entries)


def _needs_approval(table: Table, row: Row) -> NeedsApproval:
    owner = owners.owner_of(table)
    who = f" ({', '.join(owner.all_approvers)})" if owner else ""
    said = f"was rejected by {row['decided_by'] or 'somebody'}; an approver{who} can still approve it"
    if row["state"] != REJECTED:
        said = f"waits for an approver{who}"
    error = NeedsApproval(
        f"table {table.name} was not changed: proposal {row['id']} ({row['change']}) {said}, with `lakestore proposals"
        f" approve {row['id']}`"
    )
    error.proposal, error.state = row["id"], row["state"]
    return error


def _stale(row: Row) -> Conflict:
    return Conflict(
        f"proposal {row['id']} is about an earlier state of table {row['table']} and is superseded: replay the dead"
        f" letters that wait (lakestore dlq replay {row['table']} --code waits-for-proposal), and what they still need"
        " is proposed again"
    )


def _origin(table: Table) -> str:
    """The uuid of the table before its first rescale: proposals stay with the table."""
    return (*table.former, table.uuid)[0]


def _entry(row: Row) -> pb.ProposalEntry:
    return pb.ProposalEntry(table=row["table"], row=orjson.dumps(row).decode())


def _shown(view: View) -> list[Row]:
    """The proposals of tables that exist, under the tables' present names, oldest first."""
    names = {_origin(view.tables[uuid].table): name for name, uuid in view.names.items()}
    rows = [row | {"table": names[row["table_uuid"]]} for row in _rows(view) if row["table_uuid"] in names]
    return sorted(rows, key=lambda row: (row["proposed_at"], row["id"]))


def _rows(view: View) -> Iterator[Row]:
    uuid = view.names.get(PROPOSALS)
    held: TableState | None = view.tables[uuid] if uuid else None
    for log in held.logs if held else ():
        dead = reads.dead_of(log, 0, log.head)
        for part in reads.live_at(log, 0, log.head, dead):
            assert held is not None
            yield from part.batch.select(held.table.schema.names).to_pylist()


def _columns(steps: Sequence[Step]) -> set[str]:
    return {name for step in steps for name in (getattr(step, "name", ""), getattr(step, "to", "")) if name}


def _is_done(table: Table, steps: Sequence[Step]) -> bool:
    """Whether the table is already as the steps would make it."""
    columns = {path: part for column in table.columns for path, part in tree(column).with_paths()}
    added = {step.name for step in steps if isinstance(step, AddColumn)}
    for step in steps:
        if isinstance(step, AddColumn | WidenColumn):
            if step.name not in columns or columns[step.name].kind != arrow_type(step.type):
                return False
        elif isinstance(step, RenameColumn):
            if step.to not in columns or (step.name in columns and step.name not in added):
                return False
        elif isinstance(step, MakeOptional):
            if step.name in columns and columns[step.name].required:
                return False
        elif not isinstance(step, evolution.DropColumn) or step.name in columns:
            return False
    return True

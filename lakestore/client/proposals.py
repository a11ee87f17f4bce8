"""Proposals and owners of tables: the client's side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakestore.errors import Denied, Invalid, NeedsApproval, NotFound
from lakestore.evolution import Step
from lakestore.model.contract.ownership import Ownership
from lakestore.model.system_tables import AUDIT
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb

if TYPE_CHECKING:
    from lakestore.client.connection import Connection
    from lakestore.client.lake import Lake

DECISIONS = 10
"""Decisions that `who` shows."""


def described(said: Mapping[str, str]) -> pb.Proposal:
    """A proposal's `bridge`, `topic` and `change` as a message."""
    return pb.Proposal(bridge=said.get("bridge", ""), topic=said.get("topic", ""), change=said.get("change", ""))


def propose(connection: Connection, table: Table, steps: Sequence[Step], said: pb.Proposal) -> NeedsApproval:
    """Store steps as a proposal unless it is there. Returns the error that names it and its state."""
    said.only = True
    try:
        connection.alter_table(table, steps, proposal=said)
    except NeedsApproval as error:
        return error
    raise Invalid("the server altered the table and stored no proposal: run it with this release")


def list_proposals(connection: Connection, table: str = "") -> list[dict[str, Any]]:
    """The proposals of a table, or of all tables, oldest first."""
    answer = connection.transport.list_proposals(pb.ListProposalsRequest(table=table))
    return [_row(entry) for entry in answer.proposals]


def decide(connection: Connection, id: str, *, approve: bool, why: str = "") -> dict[str, Any]:
    """Approve a proposal, which alters its table in the same commit, or reject it. Returns the proposal afterwards."""
    table = next((row["table"] for row in list_proposals(connection) if row["id"] == id), None)
    if table is None:
        raise NotFound(f"there is no proposal {id!r}: see `lakestore proposals list`")
    request = pb.DecideProposalRequest(table=table, proposal=id, approve=approve, why=why)
    answer = _row(connection.transport.decide_proposal(request))
    connection.forget_definitions([table])
    return answer


def _row(entry: pb.ProposalEntry) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(entry.row)
    times = {name: datetime.fromisoformat(row[name]) for name in ("proposed_at", "decided_at") if row[name]}
    return row | times


@dataclass(frozen=True, slots=True)
class OwnerReport:
    """The principals that decide about a table, and what was decided."""

    table: str
    owner: str
    """Empty for a table without an owner."""
    delegates: tuple[str, ...]
    approvers: tuple[str, ...]
    version: int
    """The version of the contract; 0 without one."""
    decisions: list[dict[str, Any]] | None
    """The last ten rows of `lakestore.audit` about the table, newest first; None without the right to read them."""


def owner_report(lake: Lake, name: str) -> OwnerReport:
    """Owner, delegates, approvers, version and the last ten decisions of a table."""
    table = lake.table(name).definition
    owner = (table.contract.owner if table.contract else None) or Ownership("")
    version = table.contract.version if table.contract else 0
    return OwnerReport(name, owner.owner, owner.delegates, owner.approvers, version, _decisions(lake, table))


def _decisions(lake: Lake, table: Table) -> list[dict[str, Any]] | None:
    uuids = ", ".join(f"'{uuid}'" for uuid in (table.uuid, *table.former))
    try:
        rows = lake.table(AUDIT).scan(where=f"table_uuid IN ({uuids})").to_arrow().to_pylist()
    except Denied:
        return None
    except NotFound:  # no table has had a contract
        return []
    last = sorted(enumerate(rows), key=lambda each: (each[1]["at"], each[0]))[-DECISIONS:]
    return [row for _, row in reversed(last)]

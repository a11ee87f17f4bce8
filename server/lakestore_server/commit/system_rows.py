"""Rows that the server itself writes into system tables.

- A row about an operation is in the operation's record: `add_rows`. Both are durable, or neither.
- A duty writes rows in commits of their own: `append_rows`, `upsert_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.errors import Internal
from lakestore.limits import WIDEST
from lakestore.model.system_tables import AUDIT
from lakestore.model.table import Table
from lakestore_server.commit.build import store_as_is
from lakestore_server.commit.draft import Draft, TableDraft
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import IndexEntries, Request, TableChange, index_keys
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

Row = Mapping[str, Any]


def add_decision(
    view: View,
    record: CommitRecord,
    table: Table,
    *,
    principal: str,
    action: str,
    what: str,
    why: str = "",
    outcome: str = "done",
    version: int | None = None,
) -> None:
    """Add a row of `lakestore.audit` about a table to a commit; its time is the commit's. `view` is the state before
    the commit, and `principal` is empty in an embedded server."""
    row = {"at": record.clock_us, "principal": principal, "table": table.name, "table_uuid": table.uuid}
    row |= {"action": action, "what": what, "why": why, "outcome": outcome, "version": version}
    add_rows(view, record, AUDIT, [row])


def add_rows(view: View, record: CommitRecord, name: str, rows: Sequence[Row]) -> None:
    """Add rows of a system log to a commit that begins at `view`. The commit may have rows of this log already."""
    state = _state(view, name)
    log = TableDraft(Draft(record, 0, 0), state)
    log.follow(record.rows)
    batch = pa.RecordBatch.from_pylist(list(rows), schema=state.table.storage_schema)
    born = np.arange(log.next[0], log.next[0] + batch.num_rows, dtype=np.int64)
    log.add(0, batch, born, born[:0])


def put_rows(view: View, record: CommitRecord, name: str, rows: Sequence[Row], index: Index) -> IndexEntries:
    """Add rows of a keyed system table to a commit that begins at `view`; returns their index entries. Called on the
    commit loop."""
    state = _state(view, name)
    change, draft = _change(state.table, rows), Draft(record, 0, 0)
    index.check(table_prefix(state.table.number))
    store_as_is(TableDraft(draft, state), change, np.zeros(len(rows), dtype=np.bool_), index)
    return draft.entries


def append_rows(engine: Engine, name: str, rows: Sequence[Row]) -> None:
    """Write rows of a system log in a commit of their own."""

    def plan(state: State, record: CommitRecord) -> None:
        add_rows(state.view, record, name, rows)

    if rows:
        engine.operate(plan)


def upsert_rows(engine: Engine, name: str, rows: Sequence[Row]) -> None:
    """Write rows of a keyed system table in a commit of their own. A row that is equal to the live one is no change."""
    _write_rows(engine, name, rows, delete=False)


def delete_rows(engine: Engine, name: str, rows: Sequence[Row]) -> None:
    """Delete rows of a keyed system table by their keys, in a commit of their own."""
    _write_rows(engine, name, rows, delete=True)


def _write_rows(engine: Engine, name: str, rows: Sequence[Row], *, delete: bool) -> None:
    if not rows:
        return
    request = Request((_change(_state(engine.view, name).table, rows, delete=delete),))
    engine.submit(request)
    request.answer.result()


def _change(table: Table, rows: Sequence[Row], *, delete: bool = False) -> TableChange:
    wanted = table.primary_key if delete else [column.name for column in table.columns]
    batch = pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in wanted} for row in rows], schema=table.storage_schema
    )
    given = frozenset(table.column(name).id for name in wanted)
    buckets = np.zeros(batch.num_rows, dtype=np.int32)
    keys = index_keys(table, batch, WIDEST.key_bytes)
    return TableChange(table, batch, buckets, keys, delete=delete, given=given)


def _state(view: View, name: str) -> TableState:
    uuid = view.names.get(name)
    if uuid is None or not view.tables[uuid].table.is_system:
        raise Internal(f"system table {name} is missing, though a contract needs it")
    return view.tables[uuid]

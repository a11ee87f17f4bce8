"""Deletes of rows that were read before: each applies only if this row is still live when it is committed.

A row that was rewritten meanwhile stays. The merge engine does not apply: the row is removed whole, and a `versioned`
table remembers the row's own version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict
from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.rows.live_sum import moved
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import Completion
from lakestore_server.index.collisions import Entries, FoundKeys, KeyQuery, resolved
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import IndexKeys, encoded
from lakestore_server.read import plan
from lakestore_server.state.chunk import CHANGE, DELETE, PREV
from lakestore_server.state.commit_record import CommitRecord, RowsPart
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, stored_schema

Ints = npt.NDArray[np.int64]
BATCH_ROWS = 8192
"""Deletes of one commit: few next to what producers send, because it goes between their commits."""
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of a bucket in one version of the table."""

    offsets: Ints
    batch: pa.RecordBatch
    """The columns that a delete carries."""

    def take(self, rows: npt.NDArray[np.bool_] | Ints) -> FoundRows:
        mask = pa.array(rows)
        batch = self.batch.filter(mask) if rows.dtype == np.bool_ else self.batch.take(mask)
        return FoundRows(self.offsets[rows], batch)


def carried(table: Table) -> Sequence[Column]:
    """The columns that a delete carries: the key, and the version columns of a `versioned` table."""
    return [table.column(name) for name in (*table.primary_key, *table.merge.version)]


def live(engine: Engine, table: Table, rows: FoundRows) -> npt.NDArray[np.bool_]:
    """Which of the rows are live."""
    if not len(rows.offsets):
        return np.zeros(0, dtype=np.bool_)
    asked = _asked(engine, table, rows)
    _, found = plan.of_keys(engine, table.name, lambda _: asked, uuid=table.uuid)
    return np.asarray(found == rows.offsets)


def commits(state: TableState, bucket: int, rows: FoundRows, bytes_max: int) -> Iterator[FoundRows]:
    """The rows of each commit; readers are shown them as they were."""
    ends, at = np.cumsum(state.logs[bucket].sizes(rows.offsets)), 0
    while at < len(ends):
        before = int(ends[at - 1]) if at else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        first, at = at, min(max(fitting, at + 1), at + BATCH_ROWS)
        yield rows.take(np.arange(first, at))


def delete(
    engine: Engine, table: Table, bucket: int, rows: FoundRows, holds: Callable[[Table], bool] = lambda _: True
) -> tuple[int, Completion[Entries | None]]:
    """One commit of deletes on the commit loop; waits for room like a bulk load. Returns the number of rows and the
    commit. `Conflict` if the table was altered or truncated since, or the rule of the deletes no longer `holds`."""
    asked = _asked(engine, table, rows)

    def plan(state: State, record: CommitRecord) -> Entries | None:
        held = state.view.by_uuid(table.uuid)
        same = (held.table.schema_id, held.table.number) == (table.schema_id, table.number)
        if not (same and holds(held.table)):
            raise Conflict(f"table {table.name} was altered meanwhile")
        found = resolved(held, asked, engine.index.find)
        still = np.flatnonzero(found.values == rows.offsets)
        if not len(still):
            return None
        part, entries = _deletes(held, bucket, rows.take(still), found, still)
        record.rows.append(part)
        return entries

    engine.await_room()
    done = engine.operate(plan, lambda made: [(made.keys, made.values)] if made else [])
    return (len(done.result.keys) if done.result else 0), done


def _asked(engine: Engine, table: Table, rows: FoundRows) -> KeyQuery:
    columns = [rows.batch.column(name) for name in table.primary_key]
    prefix = table_prefix(table.number)
    return KeyQuery(encoded(columns, prefix), lambda: columns)


def _deletes(
    held: TableState, bucket: int, rows: FoundRows, found: FoundKeys, places: Ints
) -> tuple[RowsPart, Entries]:
    """The stored deletes of rows, and their index entries."""
    table, at, count = held.table, held.logs[bucket].at_head, len(rows.offsets)
    schema = stored_schema(table)
    there = {
        CHANGE: pa.array(np.full(count, DELETE, dtype=np.int8)),
        PREV: pa.array(rows.offsets),
        **{name: rows.batch.column(name) for name in rows.batch.schema.names},
    }
    arrays = [there[field.name] if field.name in there else pa.nulls(count, field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    live_sum = moved(at.live_sum, _NONE, rows.offsets)
    entries = _entries(held, bucket, found.keys.take(places), found)
    live_rows, slots = at.live_rows - count, entries.named(0, count)
    part = RowsPart(table.uuid, bucket, at.end, batch, live_sum, live_rows, table.schema_id, slots)
    return part, entries


def _entries(held: TableState, bucket: int, slotted: IndexKeys, found: FoundKeys) -> Entries:
    """Index entries of deletes; tombstones in a table that remembers them."""
    head, count = held.logs[bucket].head, len(slotted)
    offsets = np.arange(head, head + count, dtype=np.int64)
    deletes, remembers = np.ones(count, dtype=np.bool_), held.table.merge.engine == "versioned"
    return Entries.of(slotted, offsets, deletes, bucket, found.links, remembers=remembers)

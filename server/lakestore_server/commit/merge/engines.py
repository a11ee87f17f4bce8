"""Merge engines: what a change makes of the rows that are there. Values in, values out; no loop over rows.

Rows of a change that have one key are folded into one, but for plain upserts, which follow one another. One record
for each key comes out, or none. Each row sent is counted once: `folded` are all rows of a key but one, and that one
is inserted, updated, deleted, not_found, ignored or unchanged; of deletes of an `upsert` table all but the first
find nothing. A delete that names a version leaves a record for a key without a row as well: readers are not shown it,
it counts as not_found, and its version is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.merge_engines import REST, Function
from lakestore.model.table import Table
from lakestore_server.arrays.equal_rows import equal_rows
from lakestore_server.arrays.grouping import Groups, Ints, Stack
from lakestore_server.arrays.integers import integers
from lakestore_server.commit.merge.aggregates import Overflow, aggregated, members
from lakestore_server.commit.merge.current_rows import Columns, CurrentRows
from lakestore_server.commit.merge.kept import filled
from lakestore_server.commit.merge.versions import AgainstHeld, CameIn
from lakestore_server.commit.request import Change
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE

Flags = npt.NDArray[np.bool_]
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Merged:
    """The records to store."""

    batch: pa.RecordBatch
    """In the storage schema, sorted by bucket."""
    keys: Ints
    """The number of each record's key; a record of a key that comes again follows the key's earlier record."""
    change: npt.NDArray[np.int8]
    not_found: int = 0
    """Deletes of keys without a row, whether they leave a record or not."""
    ignored: int = 0
    unchanged: int = 0
    folded: int = 0


def merged(change: Change, table: Table, found: CurrentRows) -> Merged:
    """The records that a change of a primary-key table comes to."""
    rows = change.batch.num_rows
    if change.delete and table.deletes == "ignore":
        return _none(change, ignored=rows)
    if change.delete:
        return _deleted(change, table, found)
    if table.merge.engine == "upsert" and not change.insert:
        return _upserted(change, table, found)
    if change.insert or table.merge.engine == "first_row":
        return _inserted(change, table, found)
    folded = rows - found.count
    if table.merge.engine == "versioned":
        came_in = CameIn.of(change, table, found)
        keys = np.flatnonzero(came_in.last >= 0)
        batch = filled(change, found, came_in.last[keys], came_in.rows)
        return _put(table, found, batch, keys, ignored=found.count - len(keys), folded=folded)
    old = _NONE if change.batch.num_rows == 0 else np.flatnonzero(found.alive)
    if table.merge.engine == "partial":
        batch = _updated(change, table, found, old)
    else:
        batch = _aggregated(change, table, found.groups, old, found.rows(old, _not_key(table)))
    return _put(table, found, batch, np.arange(found.count), folded=folded)


def _none(change: Change, *, ignored: int = 0) -> Merged:
    return Merged(change.batch.slice(0, 0), _NONE, np.empty(0, dtype=np.int8), ignored=ignored)


def _not_key(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.name not in table.primary_key]


def _named(change: Change, table: Table) -> list[str]:
    """The columns beside the key that the rows name."""
    return [c.name for c in table.columns if c.id in change.given and c.name not in table.primary_key]


def _taken(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    if len(rows) == batch.num_rows and (rows[1:] > rows[:-1]).all():
        return batch
    return batch.take(pa.array(rows))


def _put(
    table: Table, found: CurrentRows, batch: pa.RecordBatch, keys: Ints, *, ignored: int = 0, folded: int = 0
) -> Merged:
    """New rows of some keys, less those that equal the old ones where the table skips them."""
    alive = found.alive[keys]
    unchanged = 0
    if table.skip_unchanged and alive.any():
        there = np.flatnonzero(alive)
        old = found.rows(keys[there], _not_key(table))
        new = _taken(batch, there)
        same = equal_rows(((new.column(name), column) for name, column in old.items()), len(there))
        if same.any():
            kept = np.ones(len(keys), dtype=np.bool_)
            kept[there[same]] = False
            unchanged = int(same.sum())
            batch, keys, alive = batch.filter(pa.array(kept)), keys[kept], alive[kept]
    change = np.where(alive, UPDATE, INSERT).astype(np.int8)
    return Merged(batch, keys, change, ignored=ignored, unchanged=unchanged, folded=folded)


def _upserted(change: Change, table: Table, found: CurrentRows) -> Merged:
    """Each row replaces the one before it, of the change or of the table."""
    groups = found.groups
    if change.marks.kept:
        change = replace(change, batch=filled(change, found, np.arange(change.batch.num_rows)))
    before = groups.before
    alive = (before >= 0) | found.alive[groups.of]
    kept = np.ones(len(groups.of), dtype=np.bool_)
    if table.skip_unchanged and alive.any():
        in_table = np.flatnonzero((before < 0) & alive)
        old = found.rows(groups.of[in_table], _not_key(table))
        kept[in_table] = ~_same(change.batch, in_table, old)
        repeated = np.flatnonzero(before >= 0)
        earlier = change.batch.take(pa.array(before[repeated]))
        kept[repeated] = ~_same(change.batch, repeated, {name: earlier.column(name) for name in _not_key(table)})
    rows = np.flatnonzero(kept)
    kinds = np.where(alive[rows], UPDATE, INSERT).astype(np.int8)
    return Merged(_taken(change.batch, rows), groups.of[rows], kinds, unchanged=len(kept) - len(rows))


def _same(batch: pa.RecordBatch, rows: Ints, old: Columns) -> Flags:
    new = _taken(batch, rows)
    return equal_rows(((new.column(name), column) for name, column in old.items()), len(rows))


def _inserted(change: Change, table: Table, found: CurrentRows) -> Merged:
    """The first row of each key that has none; of `versioned`, the first that is not older than a remembered delete."""
    groups = found.groups
    going, first = ~found.alive, groups.first
    if table.merge.engine == "versioned":
        rows = np.flatnonzero(~AgainstHeld.of(change, table, found).lower)[::-1]
        first = np.full(found.count, -1, dtype=np.int64)
        first[groups.of[rows]] = rows  # of several rows of a key the last assignment stands, which is its first row
        going &= first >= 0
    keys = np.flatnonzero(going)
    firsts = first[keys]
    batch = _taken(change.batch, firsts)
    if table.merge.engine == "aggregate":
        alone = Groups.by(np.arange(len(keys)))
        batch = _aggregated(replace(change, batch=batch), table, alone, _NONE, found.rows(_NONE, _not_key(table)))
    kinds = np.full(len(keys), INSERT, dtype=np.int8)
    return Merged(batch, keys, kinds, ignored=found.count - len(keys), folded=change.batch.num_rows - found.count)


def _updated(change: Change, table: Table, found: CurrentRows, old: Ints) -> pa.RecordBatch:
    """`partial`: the last row of each key, with what it does not name as it is."""
    batch = _taken(change.batch, found.groups.last)
    named = set(_named(change, table))
    kept = [name for name in _not_key(table) if name not in named]
    if not len(old) or not kept:
        return batch
    rows = found.rows(old, kept)
    place = np.arange(found.count) + len(old)
    place[old] = np.arange(len(old))
    whole = len(old) == found.count
    columns = {
        name: rows[name] if whole else pa.concat_arrays([rows[name], batch.column(name)]).take(pa.array(place))
        for name in kept
    }
    return _replaced(batch, columns)


def _replaced(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    arrays = [columns.get(name, batch.column(i)) for i, name in enumerate(batch.schema.names)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _aggregated(change: Change, table: Table, groups: Groups, old: Ints, rows: Columns) -> pa.RecordBatch:
    """One row of each key, by the functions of the columns; `rows` are the old ones, of the keys `old`."""
    stack = Stack.of_rows(old, groups)
    order = pa.array(stack.order)
    firsts = pa.array(stack.starts)
    functions = dict(table.merge.functions)
    named = set(_named(change, table))
    made: Columns = {}
    for name in _not_key(table):
        function = functions.get(name, Function(REST))
        column = pa.concat_arrays([rows[name], change.batch.column(name)]) if len(old) else change.batch.column(name)
        if function.name == "count":
            made[name] = _counted(table, name, groups, old, rows[name], change)
        elif function.name == "distinct_count":
            continue
        elif name not in named:
            made[name] = column.take(order).take(firsts)
        else:
            made[name] = _by(function, column.take(order), stack, table, name, change, groups)
    for name, function in functions.items():
        if function.name == "distinct_count":
            made[name] = pa.array(members(made[function.argument]))
    return _replaced(_taken(change.batch, groups.first), made)


def _by(
    function: Function, column: pa.Array, stack: Stack, table: Table, name: str, change: Change, groups: Groups
) -> pa.Array:
    try:
        return aggregated(function, column, stack)
    except Overflow as error:
        raise _overflow(table, name, change, groups, error) from error


def _overflow(table: Table, name: str, change: Change, groups: Groups, error: Overflow) -> Invalid:
    row = int(groups.first[error.key])
    key = {part: change.batch.column(part)[row].as_py() for part in table.primary_key}
    return Invalid(f"table {table.name}, column {name!r}, key {key}: {error.problem}")


def _counted(table: Table, name: str, groups: Groups, old: Ints, rows: pa.Array, change: Change) -> pa.Array:
    kind = table.column(name).arrow.type
    counts = np.bincount(groups.of, minlength=len(groups.first))
    counts[old] += integers(pc.fill_null(rows, 0))
    wrong = np.flatnonzero(counts > np.iinfo(kind.to_pandas_dtype()).max)
    if len(wrong):
        error = Overflow(int(wrong[0]), f"the count does not fit into {kind}")
        raise _overflow(table, name, change, groups, error)
    return pa.array(counts.astype(kind.to_pandas_dtype()))


def _deleted(change: Change, table: Table, found: CurrentRows) -> Merged:
    groups = found.groups
    again = change.batch.num_rows - found.count
    folds = table.merge.folds
    missing = found.count - int(found.alive.sum()) + (0 if folds else again)
    folded = again if folds else 0
    keys = np.flatnonzero(found.alive)
    named = _named(change, table)
    if table.merge.engine == "partial" and named and len(keys):
        part = _emptied(change, table, found, keys, named)
        return _counting(part, not_found=missing, folded=folded)
    ignored = 0
    if table.merge.engine == "versioned" and named:
        last = CameIn.of(change, table, found).last
        keys = np.flatnonzero(last >= 0)
        batch = _taken(change.batch, last[keys])
        ignored = int((found.alive & (last < 0)).sum())
    else:
        batch = _taken(change.batch, groups.first[keys])
        if table.merge.engine == "versioned" and len(keys):
            batch = _replaced(batch, found.rows(keys, table.merge.version))
    kinds = np.full(len(keys), DELETE, dtype=np.int8)
    return Merged(batch, keys, kinds, not_found=missing, ignored=ignored, folded=folded)


def _counting(part: Merged, *, not_found: int, folded: int) -> Merged:
    return Merged(part.batch, part.keys, part.change, not_found, part.ignored, part.unchanged, folded)


def _emptied(change: Change, table: Table, found: CurrentRows, keys: Ints, named: list[str]) -> Merged:
    """`partial`: the named columns become null, and rows go in which no other one holds a value."""
    kept = [name for name in _not_key(table) if name not in named]
    old = found.rows(keys, kept)
    gone = np.ones(len(keys), dtype=np.bool_)
    for column in old.values():
        gone &= pc.is_null(column).to_numpy(zero_copy_only=False)
    batch = _replaced(_taken(change.batch, found.groups.first[keys]), old)
    unchanged = np.zeros(len(keys), dtype=np.bool_)
    if table.skip_unchanged and not gone.all():
        before = found.rows(keys, named)
        unchanged = ~gone & equal_rows(((batch.column(name), before[name]) for name in named), len(keys))
    kinds = np.where(gone, DELETE, UPDATE).astype(np.int8)
    stays = np.flatnonzero(~unchanged)
    return Merged(_taken(batch, stays), keys[stays], kinds[stays], unchanged=int(unchanged.sum()))

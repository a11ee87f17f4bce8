"""Merge engines: the records that a change makes of the existing rows. Values in, values out; no loop over rows.

- Rows of one key in a change are folded into one, except plain upserts, which follow one another. One record for each
  key comes out, or none.
- Each sent row is counted once. `folded` counts all rows of a key but one, which is inserted, updated, deleted,
  not_found, ignored or unchanged. Of deletes in an `upsert` table all but the first are not_found.
- A delete with a version leaves a tombstone even for a key without a row: readers do not see it, it counts as
  not_found, and its version is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, LakestoreError
from lakestore.limits import MERGED_BYTES_MAX
from lakestore.model.merge_engines import REST, Function
from lakestore.model.table import Table
from lakestore.rows.bitmaps import opened
from lakestore_server.arrays.equal_rows import equal_rows
from lakestore_server.arrays.grouping import Groups, Ints, Stack
from lakestore_server.arrays.integers import AnyNumbers, bounds, column_of, integers
from lakestore_server.commit import request
from lakestore_server.commit.draft import ABSENT, RequestRefused, TableDraft
from lakestore_server.commit.merge.current_rows import Columns, CurrentRows, RowSource, runs
from lakestore_server.commit.merge.kept_columns import baseless, filled
from lakestore_server.commit.merge.versions import CameIn, VersionComparison
from lakestore_server.commit.request import TableChange
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.collisions import Entries, FoundKeys
from lakestore_server.index.entry import FLAG, is_live
from lakestore_server.index.key_index import Index
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE
from lakestore_server.state.view import stored_schema

_EXACT = float(1 << 62)
"""The largest sum that fits into 64 bits, with room for the error of a float."""


class Overflow(Exception):
    """A value that its column cannot hold."""

    def __init__(self, key: int, problem: str) -> None:
        super().__init__(problem)
        self.key, self.problem = key, problem


@dataclass(frozen=True, slots=True)
class Valid:
    """The non-null values of a column, key by key."""

    values: pa.Array
    rows: Ints
    """Positions of the values."""
    starts: Ints
    """The first position of each key that has one."""
    keys: Ints
    count: int
    """Number of keys, with and without values."""

    @staticmethod
    def from_stack(column: pa.Array, stack: Stack) -> Valid:
        count = len(stack.starts)
        if not column.null_count:
            return Valid(column, np.arange(len(column)), stack.starts, np.arange(count), count)
        rows = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
        keys, starts = np.unique(stack.of[rows], return_index=True)
        return Valid(column.take(pa.array(rows)), rows, starts, keys, count)

    @property
    def ends(self) -> Ints:
        """The last position of each key that has one."""
        return np.append(self.starts, len(self.rows))[1:] - 1

    def spread(self, made: pa.Array) -> pa.Array:
        """A column for all keys from one value for each key that has one."""
        if len(self.keys) == self.count:
            return made
        place = np.full(self.count, -1, dtype=np.int64)
        place[self.keys] = np.arange(len(self.keys))
        return made.take(pa.array(place, mask=place < 0))


def aggregated(function: Function, column: pa.Array, stack: Stack) -> pa.Array:
    """One value for each key, for all but the counting functions; the column is in the order of the stack."""
    if function.name == "first":
        return column.take(pa.array(stack.starts))
    if function.name == "last":
        return column.take(pa.array(stack.ends))
    valid = Valid.from_stack(column, stack)
    if not len(valid.keys):
        return pa.nulls(valid.count, column.type)
    if function.name == "last_non_null":
        return valid.spread(valid.values.take(pa.array(valid.ends)))
    return valid.spread(_FUNCTIONS[function.name](valid, function))


def _sum(valid: Valid, _: Function) -> pa.Array:
    return _folded(valid, np.add, lambda size: float(size.max()) * int((valid.ends - valid.starts).max() + 1))


def _product(valid: Valid, _: Function) -> pa.Array:
    return _folded(valid, np.multiply, lambda size: float(np.multiply.reduceat(size, valid.starts).max()))


def _folded(valid: Valid, ufunc: np.ufunc, reach: Callable[[npt.NDArray[np.float64]], float]) -> pa.Array:
    """Exact sums or products; `reach` estimates their greatest size from the sizes of the values."""
    kind = valid.values.type
    if pa.types.is_floating(kind):
        floats = valid.values.to_numpy(zero_copy_only=False).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return pa.array(ufunc.reduceat(floats, valid.starts).astype(kind.to_pandas_dtype()))
    values = integers(valid.values)
    if values.dtype != object:
        with np.errstate(over="ignore"):
            if not reach(np.abs(values.astype(np.float64))) < _EXACT:
                values = values.astype(object)
    made: AnyNumbers = ufunc.reduceat(values, valid.starts)
    if ufunc is np.multiply and pa.types.is_decimal(kind) and kind.scale:
        made = _rescaled(made, valid.ends - valid.starts, kind.scale)
    low, high = bounds(kind)
    wrong = np.flatnonzero((made < low) | (made > high))
    if len(wrong):
        what = "product" if ufunc is np.multiply else "sum"
        raise Overflow(int(valid.keys[wrong[0]]), f"the {what} does not fit into {kind}")
    return column_of(made, kind)


def _rescaled(products: AnyNumbers, times: Ints, scale: int) -> AnyNumbers:
    """Products of unscaled decimals with the scale of one of them, rounded half up."""
    often, which = np.unique(times, return_inverse=True)
    divisors = np.array([10 ** (scale * int(n)) for n in often], dtype=object)[which]
    sizes = np.abs(products.astype(object))
    return np.asarray(np.where(products < 0, -1, 1) * ((2 * sizes + divisors) // (2 * divisors)))


def _max(valid: Valid, _: Function) -> pa.Array:
    return _extreme(valid, np.maximum, np.fmax)


def _min(valid: Valid, _: Function) -> pa.Array:
    return _extreme(valid, np.minimum, np.fmin)


def _extreme(valid: Valid, ufunc: np.ufunc, float_ufunc: np.ufunc) -> pa.Array:
    """Minimum or maximum. NaN is neither: it stays only if there is no number."""
    kind = valid.values.type
    if pa.types.is_floating(kind):
        return pa.array(float_ufunc.reduceat(valid.values.to_numpy(zero_copy_only=False), valid.starts))
    if not pa.types.is_string(kind):
        return column_of(ufunc.reduceat(integers(valid.values), valid.starts), kind)
    order = pc.sort_indices(valid.values).to_numpy().astype(np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return valid.values.take(pa.array(order[ufunc.reduceat(rank, valid.starts)]))


def _joined(valid: Valid, function: Function) -> pa.Array:
    offsets = pa.array(np.append(valid.starts, len(valid.rows)).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, valid.values)
    lengths = np.add.reduceat(pc.binary_length(valid.values).to_numpy().astype(np.int64), valid.starts)
    _check_lengths(valid, lengths)
    return pc.binary_join(lists, function.argument or ",")


def _check_lengths(valid: Valid, lengths: Ints) -> None:
    wrong = np.flatnonzero(lengths > MERGED_BYTES_MAX)
    if len(wrong):
        at = int(wrong[0])
        size = int(lengths[at])
        raise Overflow(int(valid.keys[at]), f"the value comes to {size} bytes, more than {MERGED_BYTES_MAX}")


def _united(valid: Valid, _: Function) -> pa.Array:
    data: list[bytes] = valid.values.to_pylist()
    made: list[bytes] = []
    for first, last in zip(valid.starts.tolist(), valid.ends.tolist(), strict=True):
        whole = data[first]
        if last > first:
            union = opened(whole)
            size = len(union)
            for part in data[first + 1 : last + 1]:
                union |= opened(part)
            if len(union) > size:
                whole = union.serialize()
        made.append(whole)
    _check_lengths(valid, np.fromiter(map(len, made), dtype=np.int64, count=len(made)))
    return pa.array(made, pa.binary())


def members(bitmaps: pa.Array) -> Ints:
    """The size of each bitmap; null has none."""
    sizes = [0 if data is None else len(opened(data)) for data in bitmaps.to_pylist()]
    return np.array(sizes, dtype=np.int64)


_FUNCTIONS: dict[str, Callable[[Valid, Function], Any]] = {
    "sum": _sum,
    "product": _product,
    "max": _max,
    "min": _min,
    "bool_and": _min,
    "bool_or": _max,
    "string_list": _joined,
    "bitmap": _united,
}


Flags = npt.NDArray[np.bool_]
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The records to store."""

    batch: pa.RecordBatch
    """In the storage schema, sorted by bucket."""
    keys: Ints
    """The number of each record's key. A second record of a key follows the key's first record."""
    change: npt.NDArray[np.int8]
    not_found: int = 0
    """Deletes of keys without a row, with or without a tombstone."""
    ignored: int = 0
    unchanged: int = 0
    folded: int = 0


def merged(change: TableChange, table: Table, found: CurrentRows) -> MergeResult:
    """The records that a change of a keyed table makes."""
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
        came_in = CameIn.judge(change, table, found)
        keys = np.flatnonzero(came_in.last >= 0)
        batch = filled(change, found, came_in.last[keys], came_in.rows)
        return _put(table, found, batch, keys, ignored=found.count - len(keys), folded=folded)
    old = _NONE if change.batch.num_rows == 0 else np.flatnonzero(found.alive)
    if table.merge.engine == "partial":
        batch = _updated(change, table, found, old)
    else:
        batch = _aggregated(change, table, found.groups, old, found.rows(old, _not_key(table)))
    return _put(table, found, batch, np.arange(found.count), folded=folded)


def _none(change: TableChange, *, ignored: int = 0) -> MergeResult:
    return MergeResult(change.batch.slice(0, 0), _NONE, np.empty(0, dtype=np.int8), ignored=ignored)


def _not_key(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.name not in table.primary_key]


def _named(change: TableChange, table: Table) -> list[str]:
    return [c.name for c in table.columns if c.id in change.given and c.name not in table.primary_key]


def _taken(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    if len(rows) == batch.num_rows and (rows[1:] > rows[:-1]).all():
        return batch
    return batch.take(pa.array(rows))


def _put(
    table: Table, found: CurrentRows, batch: pa.RecordBatch, keys: Ints, *, ignored: int = 0, folded: int = 0
) -> MergeResult:
    """New rows of some keys, without rows that equal the old ones if the table skips them."""
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
    return MergeResult(batch, keys, change, ignored=ignored, unchanged=unchanged, folded=folded)


def _upserted(change: TableChange, table: Table, found: CurrentRows) -> MergeResult:
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
    return MergeResult(_taken(change.batch, rows), groups.of[rows], kinds, unchanged=len(kept) - len(rows))


def _same(batch: pa.RecordBatch, rows: Ints, old: Columns) -> Flags:
    new = _taken(batch, rows)
    return equal_rows(((new.column(name), column) for name, column in old.items()), len(rows))


def _inserted(change: TableChange, table: Table, found: CurrentRows) -> MergeResult:
    """The first row of each key without a row; for `versioned`, the first that is not older than a tombstone."""
    groups = found.groups
    going, first = ~found.alive, groups.first
    if table.merge.engine == "versioned":
        rows = np.flatnonzero(~VersionComparison.judge(change, table, found).lower)[::-1]
        first = np.full(found.count, -1, dtype=np.int64)
        first[groups.of[rows]] = rows  # of several rows of a key the last assignment stays, which is its first row
        going &= first >= 0
    keys = np.flatnonzero(going)
    firsts = first[keys]
    batch = _taken(change.batch, firsts)
    if table.merge.engine == "aggregate":
        alone = Groups.by(np.arange(len(keys)))
        batch = _aggregated(replace(change, batch=batch), table, alone, _NONE, found.rows(_NONE, _not_key(table)))
    kinds = np.full(len(keys), INSERT, dtype=np.int8)
    return MergeResult(batch, keys, kinds, ignored=found.count - len(keys), folded=change.batch.num_rows - found.count)


def _updated(change: TableChange, table: Table, found: CurrentRows, old: Ints) -> pa.RecordBatch:
    """`partial`: the last row of each key, with unnamed columns unchanged."""
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


def _aggregated(change: TableChange, table: Table, groups: Groups, old: Ints, rows: Columns) -> pa.RecordBatch:
    """One row of each key by the columns' functions; `rows` are the old rows of the keys `old`."""
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
    function: Function, column: pa.Array, stack: Stack, table: Table, name: str, change: TableChange, groups: Groups
) -> pa.Array:
    try:
        return aggregated(function, column, stack)
    except Overflow as error:
        raise _overflow(table, name, change, groups, error) from error


def _overflow(table: Table, name: str, change: TableChange, groups: Groups, error: Overflow) -> Invalid:
    row = int(groups.first[error.key])
    key = {part: change.batch.column(part)[row].as_py() for part in table.primary_key}
    return Invalid(f"table {table.name}, column {name!r}, key {key}: {error.problem}")


def _counted(table: Table, name: str, groups: Groups, old: Ints, rows: pa.Array, change: TableChange) -> pa.Array:
    kind = table.column(name).arrow.type
    counts = np.bincount(groups.of, minlength=len(groups.first))
    counts[old] += integers(pc.fill_null(rows, 0))
    wrong = np.flatnonzero(counts > np.iinfo(kind.to_pandas_dtype()).max)
    if len(wrong):
        error = Overflow(int(wrong[0]), f"the count does not fit into {kind}")
        raise _overflow(table, name, change, groups, error)
    return pa.array(counts.astype(kind.to_pandas_dtype()))


def _deleted(change: TableChange, table: Table, found: CurrentRows) -> MergeResult:
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
        last = CameIn.judge(change, table, found).last
        keys = np.flatnonzero(last >= 0)
        batch = _taken(change.batch, last[keys])
        ignored = int((found.alive & (last < 0)).sum())
    else:
        batch = _taken(change.batch, groups.first[keys])
        if table.merge.engine == "versioned" and len(keys):
            batch = _replaced(batch, found.rows(keys, table.merge.version))
    kinds = np.full(len(keys), DELETE, dtype=np.int8)
    return MergeResult(batch, keys, kinds, not_found=missing, ignored=ignored, folded=folded)


def _counting(part: MergeResult, *, not_found: int, folded: int) -> MergeResult:
    return MergeResult(part.batch, part.keys, part.change, not_found, part.ignored, part.unchanged, folded)


def _emptied(change: TableChange, table: Table, found: CurrentRows, keys: Ints, named: list[str]) -> MergeResult:
    """`partial`: the named columns become null; a row is removed if no other column holds a value."""
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
    return MergeResult(_taken(batch, stays), keys[stays], kinds[stays], unchanged=int(unchanged.sum()))


class MergedChanges:
    """The changes of one table, each merged into the existing rows."""

    def __init__(self, table: TableDraft) -> None:
        self._draft, self._table = table, table.table
        self._remembers = self._table.merge.engine == "versioned"
        record = table.draft.record
        self._old = RowSource(table.state, record.lsn, record.time_us, self._claim)

    def _claim(self, nbytes: int) -> None:
        self._draft.draft.claim(nbytes, self._table.name)

    def run(self, changes: Sequence[TableChange], index: Index) -> None:
        whole = self._draft.found(changes, index)
        places_of, values = whole.keys.places(), whole.values
        at = 0
        for sent in changes:
            part = slice(at, at + len(sent.keys))
            at = part.stop
            yield_point()
            change, mine, known = self._based(sent, places_of[part], whole.part(part), values)
            groups = Groups.by(mine)
            places = mine[groups.first]
            found = self._found(groups, change.buckets[groups.first], values[places])
            try:
                made = merged(change, self._table, found)
            except LakestoreError as error:
                raise RequestRefused(change, error) from error
            except pa.ArrowException as error:
                problem = Invalid(f"table {self._table.name}: the rows cannot be merged: {error}")
                raise RequestRefused(change, problem) from error
            yield_point()
            try:
                request.check_row_sizes(made.batch, self._table, self._draft.draft.message_bytes, merged=True)
            except Invalid as error:
                raise RequestRefused(change, error) from error
            after = self._numbered(change, groups, made, values[places], known)
            values[places[made.keys]] = after

    def _based(
        self, change: TableChange, mine: Ints, known: FoundKeys, values: Ints
    ) -> tuple[TableChange, Ints, FoundKeys]:
        """(change, places of its keys, keys) without the rows that have nothing to keep. These rows refuse the commit
        in the end; later changes are judged as if they had not been sent."""
        if not change.marks.kept:
            return change, mine, known
        groups = Groups.by(mine)
        found = self._found(groups, change.buckets[groups.first], values[mine[groups.first]])
        rows = baseless(change, self._table, found)
        if not len(rows):
            return change, mine, known
        self._draft.draft.baseless.append((change, rows))
        left = np.delete(np.arange(len(mine)), rows)
        return change.taken(left), mine[left], known.taken(left)

    def _found(self, groups: Groups, buckets: npt.NDArray[np.int32], values: Ints) -> CurrentRows:
        alive, offsets = is_live(values), values & ~FLAG
        remembered = np.zeros(len(values), dtype=np.bool_)
        if self._remembers and (flagged := np.flatnonzero(values >= FLAG)).size:
            remembered[flagged] = self._old.holds(buckets[flagged], offsets[flagged])

        def rows(keys: Ints, names: Sequence[str]) -> dict[str, pa.Array]:
            return self._old.take(buckets[keys], offsets[keys], names)

        def times(keys: Ints) -> Ints:
            return self._old.times(buckets[keys], offsets[keys])

        return CurrentRows(groups, alive, remembered, rows, times, self._claim)

    def _numbered(self, change: TableChange, groups: Groups, made: MergeResult, values: Ints, known: FoundKeys) -> Ints:
        """Store the records; returns each record's value for the index."""
        rows = groups.first[made.keys]
        buckets = change.buckets[rows]
        offset = np.empty(len(rows), dtype=np.int64)
        for bucket, first, last in runs(buckets):
            offset[first:last] = self._draft.next[bucket] + np.arange(last - first)
        prev = np.where(is_live(values), values, ABSENT)[made.keys]
        before = Groups.by(made.keys).before
        prev = np.where(before >= 0, offset[before], prev)
        stored = pa.RecordBatch.from_arrays(
            [pa.array(made.change), pa.array(prev), *made.batch.columns], schema=stored_schema(self._table)
        )
        deletes = made.change == DELETE
        whole = len(rows) == len(known.keys) and groups.distinct
        keys = known.keys if whole else known.keys.take(rows)
        entries = Entries.of(keys, offset, deletes, buckets, known.links, remembers=self._remembers)
        for bucket, first, last in runs(buckets):
            superseded = prev[first:last]
            born, died = offset[first:last][~deletes[first:last]], superseded[superseded != ABSENT]
            batch, slots = stored.slice(first, last - first), entries.named(first, last)
            self._old.add(self._draft.add(bucket, batch, born, died, slots))
        shown = ~deletes | (prev != ABSENT)
        self._draft.draft.results[id(change)] = replace(
            self._draft.counted(made.change[shown], not_found=made.not_found),
            ignored=made.ignored,
            unchanged=made.unchanged,
            folded=made.folded,
        )
        if len(keys):
            self._draft.draft.entries.append((keys, entries.values))
        return np.where(deletes, offset | FLAG if self._remembers else ABSENT, offset)

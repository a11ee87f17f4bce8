"""Kept columns: a row takes a kept column's value from the row before it, of the change or of the table. No loop
over rows.

The row before a row is the last accepted row of its key. A row that keeps a column without a row before it has nothing
to keep: its commit is refused with the numbers of all these rows, judged as if none of them had been sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import ChangeRows, NothingToKeep
from lakestore.model.table import Table
from lakestore_server.arrays import flat_batch
from lakestore_server.arrays.grouping import Groups, Ints
from lakestore_server.commit.draft import RequestRefused
from lakestore_server.commit.merge.current_rows import CurrentRows, taken_at
from lakestore_server.commit.merge.versions import VersionComparison
from lakestore_server.commit.request import Request, TableChange

Flags = npt.NDArray[np.bool_]
_NONE: Ints = np.empty(0, dtype=np.int64)


def baseless(change: TableChange, table: Table, found: CurrentRows) -> Ints:
    """The rows of a change that have nothing to keep, ascending."""
    of, count = found.groups.of, change.batch.num_rows
    keeps = np.zeros(count, dtype=np.bool_)
    for kept in change.marks.kept:
        keeps |= kept.rows
    wanting = keeps & ~found.alive[of]
    if not wanting.any():
        return _NONE
    comes = np.ones(count, dtype=np.bool_)
    if table.merge.engine == "versioned":
        against = VersionComparison.judge(change, table, found)
        comes = ~(against.lower | against.late)
    whole = np.flatnonzero(comes & ~keeps)[::-1]
    first = np.full(found.count, count, dtype=np.int64)
    first[of[whole]] = whole
    return np.flatnonzero(wanting & comes & (np.arange(count) < first[of]))


def refusal(group: Sequence[Request], baseless: Sequence[tuple[TableChange, Ints]]) -> RequestRefused:
    """The refusal of the first request of a group with rows that have nothing to keep; later requests are judged again
    without it."""
    rows = {id(change): found for change, found in baseless}
    request = next(each for each in group if any(id(change) in rows for change in each.changes))
    told = []
    for number, change in enumerate(request.changes):
        if id(change) in rows:
            sent = np.sort(change.marks.sent_rows(rows[id(change)]))
            told.append(ChangeRows(number, change.table.name, tuple(sent.tolist())))
    first = next(change for change in request.changes if id(change) in rows)
    return RequestRefused(first, NothingToKeep.of(told))


def filled(change: TableChange, found: CurrentRows, rows: Ints, came_in: Flags | None = None) -> pa.RecordBatch:
    """Some rows of a change, ascending, with their kept columns; by default all rows are accepted."""
    batch = change.batch if len(rows) == change.batch.num_rows else change.batch.take(pa.array(rows))
    columns = list(batch.columns)
    names = {column.id: column.name for column in change.table.columns}
    for kept in change.marks.kept:
        places = np.flatnonzero(kept.rows[rows])
        if not len(places):
            continue
        keeping = rows[places]
        sources = _sources(found.groups, kept.rows, came_in)[keeping]
        for name, values in _values(change.batch, found, [names[each] for each in kept.columns], keeping, sources):
            at = batch.schema.get_field_index(name)
            columns[at] = _with_values(columns[at], places, values)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _sources(groups: Groups, keeps: Flags, came_in: Flags | None) -> Ints:
    """For each row the last row of its key, itself included, that is accepted and does not keep; -1 for none."""
    brings = ~keeps if came_in is None else came_in & ~keeps
    rows = np.arange(len(keeps), dtype=np.int64)
    if groups.distinct:
        return np.where(brings, rows, -1)
    order = np.argsort(groups.of, kind="stable")
    of = groups.of[order]
    begins = np.maximum.accumulate(np.where(np.append(True, of[1:] != of[:-1]), rows, 0))
    last = np.maximum.accumulate(np.where(brings[order], rows, -1))
    found = np.empty(len(keeps), dtype=np.int64)
    found[order] = np.where(last >= begins, order[last], -1)
    return found


def _values(
    batch: pa.RecordBatch, found: CurrentRows, names: Sequence[str], kept: Ints, sources: Ints
) -> Iterator[tuple[str, pa.Array]]:
    """(column, its values in the rows `kept`), from the rows `sources` of the change or from the table."""
    in_table, in_change = np.flatnonzero(sources < 0), np.flatnonzero(sources >= 0)
    keys, place = np.unique(found.groups.of[kept[in_table]], return_inverse=True)
    old = found.rows(keys, names)
    if len(place) > len(keys):
        found.claim(_bytes(old, names, place))
    found.claim(_bytes({name: batch.column(name) for name in names}, names, sources[in_change]))
    back = np.argsort(np.concatenate([in_table, in_change]))
    for name in names:
        values = taken_at(old[name], place)
        if len(in_change):
            later = batch.column(name).take(pa.array(sources[in_change]))
            values = pa.concat_arrays([values, later]).take(pa.array(back))
        yield name, values


def _bytes(columns: dict[str, pa.Array], names: Sequence[str], rows: Ints) -> int:
    taken = pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))
    return int(flat_batch.of_rows(taken, rows).sum())


def _with_values(column: pa.Array, places: Ints, values: pa.Array) -> pa.Array:
    """The column with these values at some places, which are ascending."""
    if len(places) == len(column):
        return values
    if pa.types.is_nested(column.type):
        at = np.arange(len(column))
        at[places] = len(column) + np.arange(len(places))
        return pa.concat_arrays([column, values]).take(pa.array(at))
    mask = np.zeros(len(column), dtype=np.bool_)
    mask[places] = True
    return pc.replace_with_mask(column, pa.array(mask), values)

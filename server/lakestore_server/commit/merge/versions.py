"""`versioned`: the rows of a change that are accepted. Values in, values out; no loop over rows.

Rows of a key follow one another. A row is accepted unless its version is lower than the version before it, of the
change or of the table, tombstones included. With `within` this holds for neighbours with an equal `within`; a row with
another `within` is accepted by arrival. So the current row always has the `within` of the row before, and runs of equal
values are judged one by one: only a key's first run is compared with the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.model.table import Table
from lakestore_server.arrays.equal_rows import equal
from lakestore_server.arrays.grouping import Ints
from lakestore_server.arrays.integers import integers
from lakestore_server.commit.merge.current_rows import CurrentRows, taken_at
from lakestore_server.commit.request import TableChange

Flags = npt.NDArray[np.bool_]
_ROOM = 1 << 62


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """Rows of a change compared with the table's rows and tombstones of their keys."""

    lower: Flags
    """The version is lower than the stored one, with an equal `within`."""
    late: Flags
    """The stored row has another `within` and was committed at or after the row's own time."""

    @staticmethod
    def judge(change: TableChange, table: Table, found: CurrentRows) -> VersionComparison:
        lower, late = np.zeros((2, change.batch.num_rows), dtype=np.bool_)
        held = found.alive | found.remembered
        keys = np.flatnonzero(held)
        if not len(keys):
            return VersionComparison(lower, late)
        merge, of = table.merge, found.groups.of
        old = found.rows(keys, merge.version)
        rows = np.flatnonzero(held[of])
        place = (np.cumsum(held) - 1)[of[rows]]
        lower[rows] = integers(change.batch.column(merge.column))[rows] < integers(old[merge.column])[place]
        if merge.within:
            same = equal(taken_at(change.batch.column(merge.within), rows), taken_at(old[merge.within], place))
            lower[rows] &= same
            as_of = change.marks.as_of
            if as_of is not None and len(others := rows[~same]):
                asked, back = np.unique(of[others], return_inverse=True)
                late[others] = found.times(asked)[back] >= as_of[others]
        return VersionComparison(lower, late)


@dataclass(frozen=True, slots=True)
class CameIn:
    """The outcome."""

    rows: Flags
    """Whether each row is accepted."""
    last: Ints
    """The last accepted row of each key; -1 for none."""

    @staticmethod
    def judge(change: TableChange, table: Table, found: CurrentRows) -> CameIn:
        groups, against = found.groups, VersionComparison.judge(change, table, found)
        if groups.distinct:
            rows = ~(against.lower | against.late)
            return CameIn(rows, np.where(rows, groups.first, -1))
        order = np.argsort(groups.of, kind="stable")
        order = order[~against.late[order]] if against.late.any() else order
        comes = _in_runs(change.batch, table, groups.of, order, against.lower)
        rows = np.zeros(len(groups.of), dtype=np.bool_)
        rows[order] = comes
        last = np.full(found.count, -1, dtype=np.int64)
        last[groups.of[order[comes]]] = order[comes]
        return CameIn(rows, last)


def _in_runs(batch: pa.RecordBatch, table: Table, of: Ints, order: Ints, lower: Flags) -> Flags:
    """Which of these rows, sorted by key, are accepted."""
    if not len(order):
        return np.zeros(0, dtype=np.bool_)
    begins_key = _begins(of[order])
    begins_run = begins_key.copy()
    if table.merge.within:
        begins_run |= _begins(_codes(batch.column(table.merge.within))[order])
    run = np.cumsum(begins_run) - 1
    in_first_run = run == run[begins_key][np.cumsum(begins_key) - 1]
    highest = _reaches_highest(integers(batch.column(table.merge.column))[order], run)
    return np.asarray(highest & ~(in_first_run & lower[order]))


def _begins(values: npt.NDArray[np.int64]) -> Flags:
    return np.append(True, values[1:] != values[:-1])


def _codes(column: pa.Array) -> Ints:
    if pa.types.is_string(column.type):
        column = column.dictionary_encode().indices
    return integers(column)


def _reaches_highest(values: Ints, run: Ints) -> Flags:
    """Whether each value is at least as high as all earlier ones in its run; runs are numbered in sequence."""
    low, runs = int(values.min()), int(run[-1]) + 1
    span = int(values.max()) - low + 1
    if span * runs > _ROOM:
        values = np.unique(values, return_inverse=True)[1]
        low, span = 0, len(values)
    reached = run * span + (values - low)
    return np.asarray(reached == np.maximum.accumulate(reached))

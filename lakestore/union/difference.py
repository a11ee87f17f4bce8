"""The difference of a table and its branch: a union read of both at one cut, compared by hashes of rows.

- Rows are compared by their values: where and when a row was committed does not count.
- A keyed table's rows are matched by key. A log table's rows are counted: of two equal rows and one, one row is more.
- Two 64-bit hashes of each row are held in memory, 16 bytes a row. A second pass reads the values of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict
from lakestore.rows import row_hash
from lakestore.rows.distinct import distinct
from lakestore.rows.row_hash import Hashes
from lakestore.union import arrow
from lakestore.union.cut import Cut, Transport
from lakestore.union.plan import TableScan

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row of the table and the row of the same key in the branch; None if there is none. Rows of log tables have no
    pair."""

    table: dict[str, Any] | None
    branch: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows that a swap would change, remove and add."""

    table: str
    branch: str
    token: str
    """The cut of the comparison. A swap takes it as `reviewed`."""
    same: int
    """Rows that both have."""
    changed: int
    """Keys with other values in the branch."""
    removed: int
    """Rows that only the table has: a swap removes them."""
    added: int
    """Rows that only the branch has: a swap adds them."""
    sample: tuple[RowPair, ...]
    """Some rows that differ."""

    @property
    def is_empty(self) -> bool:
        """Whether the two have the same rows."""
        return not (self.changed or self.removed or self.added)


@dataclass(frozen=True, slots=True)
class _Side:
    """The hashes of the rows of a table: of their keys, and of all values."""

    keys: Hashes
    rows: Hashes


def difference(transport: Transport, table: str, branch: str, *, sample: int = 10) -> Difference:
    """Compare a table with its branch at one cut, and read up to `sample` differing rows of each kind."""
    with Cut(transport, [table, branch]) as cut:
        before, after = cut.plan.scan(table), cut.plan.scan(branch)
        if before.table.columns != after.table.columns or before.table.primary_key != after.table.primary_key:
            raise Conflict(f"tables {table} and {branch} have other columns or another key: they cannot be compared")
        mine, theirs = _side(cut, before), _side(cut, after)
        if before.table.keyed:
            removed, added, changed = _keyed(mine, theirs)
        else:
            removed, added = _more(mine.rows, theirs.rows), _more(theirs.rows, mine.rows)
            changed = np.zeros(0, dtype=np.uint64)
        wanted = [distinct(keys)[:sample] for keys in (changed, removed, added)]
        pairs = _pairs(cut, before, after, wanted, sample)
        same = len(mine.rows) - len(changed) - len(removed)
        return Difference(table, branch, cut.token, same, len(changed), len(removed), len(added), pairs)


def _hashed(cut: Cut, scan: TableScan) -> Iterator[tuple[pa.RecordBatch, _Side]]:
    """The rows with their hashes. The rows of a log table are their own keys."""
    names = scan.table.selected(None)
    for batch in arrow.execute(cut, scan, names):
        if batch.num_rows:
            columns = {name: row_hash.column(batch.column(name)) for name in names}
            rows = row_hash.hashes(list(columns.values()))
            keys = row_hash.hashes([columns[name] for name in scan.table.primary_key]) if scan.table.keyed else rows
            yield batch, _Side(keys, rows)


def _side(cut: Cut, scan: TableScan) -> _Side:
    sides = [side for _, side in _hashed(cut, scan)]
    none = [np.zeros(0, dtype=np.uint64)]
    return _Side(np.concatenate([s.keys for s in sides] or none), np.concatenate([s.rows for s in sides] or none))


def _keyed(mine: _Side, theirs: _Side) -> tuple[Hashes, Hashes, Hashes]:
    """Keys that only the first side has, keys that only the second side has, and keys with other values."""
    left = mine.keys[~np.isin(mine.rows, theirs.rows)]
    right = theirs.keys[~np.isin(theirs.rows, mine.rows)]
    return left[~np.isin(left, right)], right[~np.isin(right, left)], left[np.isin(left, right)]


def _more(mine: Hashes, theirs: Hashes) -> Hashes:
    """The hashes that the first side has more often, as often as it has more."""
    values, counts = np.unique(mine, return_counts=True)
    others, other_counts = np.unique(theirs, return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    counts[here] -= other_counts[there]
    return np.repeat(values, np.maximum(counts, 0))


def _pairs(cut: Cut, before: TableScan, after: TableScan, wanted: Sequence[Hashes], sample: int) -> tuple[RowPair, ...]:
    """The rows of these keys: with other values, only before, only after."""
    changed, removed, added = wanted
    if not sum(map(len, wanted)):
        return ()
    mine = _values(cut, before, np.concatenate([changed, removed]))
    theirs = _values(cut, after, np.concatenate([changed, added]))
    both = [RowPair(mine.get(key), theirs.get(key)) for key in changed.tolist()]
    gone = [RowPair(mine[key], None) for key in removed.tolist()]
    new = [RowPair(None, theirs[key]) for key in added.tolist()]
    return (*both[:sample], *gone[:sample], *new[:sample])


def _values(cut: Cut, scan: TableScan, keys: Hashes) -> dict[int, dict[str, Any]]:
    """A row of each of these keys."""
    rows: dict[int, dict[str, Any]] = {}
    for batch, side in _hashed(cut, scan):
        if len(rows) == len(keys):
            break
        at = np.flatnonzero(np.isin(side.keys, keys))
        if len(at):
            rows.update(zip(side.keys[at].tolist(), batch.take(pa.array(at)).to_pylist(), strict=True))
    return rows

"""The existing rows of a table for a commit: rows of its log, and rows that the commit itself has added so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore_server.arrays.grouping import Groups, Ints
from lakestore_server.state.bucket_log import BucketLog, Needed, Shown
from lakestore_server.state.chunk import CHANGE
from lakestore_server.state.commit_record import RowsPart
from lakestore_server.state.view import TableState

Buckets = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Columns = dict[str, pa.Array]


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """The rows of a change's keys before the change."""

    groups: Groups
    alive: Flags
    """Whether each key has a row."""
    remembered: Flags
    """Whether each key has no row but a tombstone."""
    rows: Callable[[Ints, Sequence[str]], Columns]
    """Some columns of the rows or tombstones of some keys, which are ascending."""
    times: Callable[[Ints], Ints]
    """Commit times in microseconds of the rows or tombstones of some keys, which are ascending."""
    claim: Callable[[int], None]
    """Called with a number of bytes before they are copied."""

    @property
    def count(self) -> int:
        return len(self.alive)


class RowSource:
    """Rows by bucket and offset, in the table's current version."""

    def __init__(self, state: TableState, lsn: int, time_us: int, claim: Callable[[int], None]) -> None:
        """`claim` is called with a number of bytes before they are copied."""
        self._state, self._lsn, self._time_us, self._claim = state, lsn, time_us, claim
        self._logs = list(state.logs)
        self._parts: list[list[RowsPart]] = [[] for _ in state.logs]

    def add(self, part: RowsPart) -> None:
        """Add rows of the commit; they are read only if a later change of it has their keys."""
        self._parts[part.bucket].append(part)

    def take(self, buckets: Buckets, offsets: Ints, names: Sequence[str]) -> Columns:
        """Some columns of the rows at these offsets, in order; buckets are ascending."""
        table = self._state.table
        fields = [table.storage_schema.field(name) for name in names]
        found: list[list[pa.Array]] = []
        for bucket, first, last in runs(buckets):
            log = self._log(bucket, int(offsets[first:last].max()))
            taken = log.take(offsets[first:last], self._shown(names), self._needed(names), self._claim)
            found.append(taken.columns)
        if not found:
            return {field.name: pa.array([], field.type) for field in fields}
        if len(found) == 1:
            return dict(zip(names, found[0], strict=True))
        return {name: pa.concat_arrays(parts) for name, parts in zip(names, zip(*found, strict=True), strict=True)}

    def times(self, buckets: Buckets, offsets: Ints) -> Ints:
        """Commit times in microseconds of the records at these offsets; buckets are ascending."""
        found = np.empty(len(offsets), dtype=np.int64)
        for bucket, first, last in runs(buckets):
            log = self._log(bucket, int(offsets[first:last].max()))
            found[first:last] = log.times_at(offsets[first:last])
        return found

    def holds(self, buckets: Buckets, offsets: Ints) -> npt.NDArray[np.bool_]:
        """For each offset, whether its record is still stored."""
        there = np.zeros(len(offsets), dtype=np.bool_)
        for bucket, first, last in runs(buckets):
            log = self._log(bucket, int(offsets[first:last].max()))
            there[first:last] = log.holds(offsets[first:last])
        return there

    def _log(self, bucket: int, offset: int) -> BucketLog:
        log = self._logs[bucket]
        if offset >= log.head:
            for part in self._parts[bucket]:
                log = log.append(part.chunk(self._lsn, self._time_us))
            self._logs[bucket], self._parts[bucket] = log, []
        return log

    def _shown(self, names: Sequence[str]) -> Shown:
        versions, table = self._state.versions, self._state.table

        def shown(batch: pa.RecordBatch, schema_id: int) -> pa.RecordBatch:
            columns = versions.projection(schema_id, table).named(batch, names)
            return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

        return shown

    def _needed(self, names: Sequence[str]) -> Needed:
        stored = self._state.versions.stored_names(self._state.table, names)
        return lambda schema_id: [CHANGE, *stored(schema_id)]  # a batch without columns would lose its length


def taken_at(column: pa.Array, places: Ints) -> pa.Array:
    """The values at these places; the column itself if that is all of it."""
    whole = len(places) == len(column) and bool((places[1:] > places[:-1]).all())
    return column if whole else column.take(pa.array(places))


def runs(buckets: Buckets) -> list[tuple[int, int, int]]:
    """(bucket, first row, row after the last) of each run of sorted buckets."""
    if not len(buckets):
        return []
    cuts = np.flatnonzero(buckets[1:] != buckets[:-1]) + 1
    starts = [0, *cuts.tolist()]
    return [(int(buckets[a]), a, b) for a, b in zip(starts, [*starts[1:], len(buckets)], strict=True)]

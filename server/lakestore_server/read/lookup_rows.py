"""Rows at offsets of a table, in their order and with the columns that are asked for: as many as an answer may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.model.columns import LAKE_BUCKET, LAKE_TIMESTAMP, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore_server.arrays import row_sizes
from lakestore_server.read import rows as reads
from lakestore_server.state.bucket_log import in_order
from lakestore_server.state.chunk import CHANGE
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that lie in one piece of one bucket."""

    bucket: int
    schema_id: int
    """The version that they are stored in."""
    batch: pa.RecordBatch
    """The piece, with the columns that are needed."""
    places: Ints
    """Places of the rows in the answer."""
    rows: Ints
    """Places of the rows in the batch."""

    def taken(self) -> pa.RecordBatch:
        """The rows alone."""
        if len(self.rows) == 1:
            return self.batch.slice(int(self.rows[0]), 1)
        return self.batch.take(pa.array(self.rows))


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The version and the columns in which rows are shown."""

    state: TableState
    target: Table
    """The version in which the rows are shown."""
    columns: Sequence[str]
    """Names of columns in that version, system columns among them."""
    stored: Callable[[int], list[str]]
    """Schema version to the stored columns that the shown ones need."""

    @staticmethod
    def of(state: TableState, target: Table, columns: Sequence[str]) -> AnswerShape:
        """These columns of a version."""
        user = [name for name in columns if name not in SYSTEM_TYPES]
        stored = state.versions.stored_names(target, user) if user else lambda _: []
        return AnswerShape(state, target, columns, stored)

    def located(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Located:
        """The rows at (bucket, offset) pairs, piece by piece."""
        return Located(self, offsets, list(self._parts(buckets, offsets)))

    def _parts(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Iterator[_Part]:
        names: dict[int, list[str]] = {}
        for bucket in np.unique(buckets) if len(buckets) != 1 else buckets:
            here = np.flatnonzero(buckets == bucket)
            for places, piece, rows in self.state.logs[int(bucket)].located(offsets[here]):
                version = piece.schema_id
                wanted = names.get(version) or names.setdefault(version, [CHANGE, *self.stored(version)])
                batch = piece.load(wanted).select(wanted)
                yield _Part(int(bucket), version, batch, here[places], rows)


@dataclass(frozen=True, slots=True)
class Located:
    """Rows that were found, piece by piece."""

    shape: AnswerShape
    offsets: Ints
    parts: Sequence[_Part]

    def fitting(self, bytes_max: int) -> int:
        """The number of first rows that take at most so many bytes together; at least one."""
        if len(self.offsets) <= 1:
            return len(self.offsets)
        sizes = np.empty(len(self.offsets), dtype=np.int64)
        for part in self.parts:
            sizes[part.places] = row_sizes.of_rows(part.batch, part.rows)
        return max(int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")), 1)

    def rows(self, count: int) -> pa.RecordBatch:
        """The first rows, in the order in which they were asked for."""
        parts = self.parts if count == len(self.offsets) else list(_first(self.parts, count))
        if not parts:
            fields = self.shape.target.read_schema(list(self.shape.columns))
            return pa.RecordBatch.from_pylist([], schema=pa.schema([field.with_nullable(True) for field in fields]))
        alike: dict[tuple[int, int], list[_Part]] = {}
        by_bucket = LAKE_BUCKET in self.shape.columns
        for part in parts:
            alike.setdefault((part.schema_id, part.bucket if by_bucket else 0), []).append(part)
        shown = [self._shown(same) for same in alike.values()]
        places = [part.places for same in alike.values() for part in same]
        if len(shown) == 1:
            return in_order(shown[0], places[0] if len(places) == 1 else np.concatenate(places))
        return in_order(pa.concat_batches(shown), np.concatenate(places))

    def _shown(self, parts: Sequence[_Part]) -> pa.RecordBatch:
        """The rows of some pieces of one version."""
        shape, first = self.shape, parts[0]
        taken = [part.taken() for part in parts]
        batch = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        offsets = self.offsets[first.places if len(parts) == 1 else np.concatenate([part.places for part in parts])]
        times = np.zeros(len(offsets), dtype=np.int64)
        if LAKE_TIMESTAMP in shape.columns:
            logs = shape.state.logs
            times = np.concatenate([logs[part.bucket].times_at(self.offsets[part.places]) for part in parts])
        rows = reads.Rows(batch, offsets, times, batch.column(0).to_numpy(), first.schema_id)
        projection = shape.state.versions.projection(first.schema_id, shape.target)
        return reads.project(projection, rows, shape.columns, first.bucket)


def _first(parts: Sequence[_Part], count: int) -> Iterator[_Part]:
    """The parts, without rows that are not among the first."""
    for part in parts:
        kept = part.places < count
        if kept.any():
            yield replace(part, places=part.places[kept], rows=part.rows[kept])

"""Rows at offsets of a table, in their order and with the columns that are asked for: as many as an answer may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.schema import LAKE_TIMESTAMP, SYSTEM_TYPES, Table
from lakestore.server import reads, row_bytes
from lakestore.server.bucket import CHANGE, Piece, in_order
from lakestore.server.state import TableState

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that lie in one piece of one bucket."""

    bucket: int
    piece: Piece
    places: Ints
    """Of the rows in the answer."""
    rows: Ints
    """In the piece."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What rows are shown as."""

    state: TableState
    target: Table
    """The version they are shown in."""
    columns: Sequence[str]
    """Its names, system columns among them."""
    stored: Callable[[int], list[str]]
    """Version to the stored columns that these need."""

    @staticmethod
    def of(state: TableState, target: Table, columns: Sequence[str]) -> Shape:
        """These columns of a version."""
        user = [name for name in columns if name not in SYSTEM_TYPES]
        stored = state.versions.stored_names(target, user) if user else lambda _: []
        return Shape(state, target, columns, stored)

    def at(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> pa.RecordBatch:
        """The rows at (bucket, offset) pairs, in their order."""
        shown, places = [], []
        for part in _parts(self.state, buckets, offsets):
            shown.append(self._shown(part, offsets[part.places]))
            places.append(part.places)
        if not shown:
            fields = self.target.read_schema(list(self.columns))
            return pa.RecordBatch.from_pylist([], schema=pa.schema([field.with_nullable(True) for field in fields]))
        if len(shown) == 1:
            return in_order(shown[0], places[0])
        return in_order(pa.concat_batches(shown), np.concatenate(places))

    def fitting(self, buckets: npt.NDArray[np.int32], offsets: Ints, bytes_max: int) -> int:
        """How many of these rows, from the first on, take no more than that together; at least one."""
        if len(offsets) <= 1:
            return len(offsets)
        sizes = np.empty(len(offsets), dtype=np.int64)
        for part in _parts(self.state, buckets, offsets):
            batch = part.piece.load(self._names(part.piece))
            columns = [batch.column(name) for name in self._names(part.piece)]
            sizes[part.places] = row_bytes.of_rows(columns, part.rows)
        return max(int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")), 1)

    def _names(self, piece: Piece) -> list[str]:
        return [CHANGE, *self.stored(piece.schema_id)]

    def _shown(self, part: _Part, offsets: Ints) -> pa.RecordBatch:
        batch = part.piece.load(self._names(part.piece)).select(self._names(part.piece))
        one = len(part.rows) == 1
        batch = batch.slice(int(part.rows[0]), 1) if one else batch.take(pa.array(part.rows))
        log = self.state.logs[part.bucket]
        times = log.times_at(offsets) if LAKE_TIMESTAMP in self.columns else np.zeros(len(offsets), dtype=np.int64)
        change = batch.column(0).to_numpy()
        rows = reads.Rows(batch, offsets, times, change, part.piece.schema_id)
        shape = self.state.versions.projection(part.piece.schema_id, self.target)
        return reads.project(shape, rows, self.columns, part.bucket)


def _parts(state: TableState, buckets: npt.NDArray[np.int32], offsets: Ints) -> Iterator[_Part]:
    for bucket in np.unique(buckets) if len(buckets) != 1 else buckets:
        here = np.flatnonzero(buckets == bucket)
        for places, piece, rows in state.logs[int(bucket)].located(offsets[here]):
            yield _Part(int(bucket), piece, here[places], rows)


def bounded(shape: Shape, buckets: npt.NDArray[np.int32], offsets: Ints, bytes_max: int, *, whole: bool) -> int:
    """As `Shape.fitting`; `Invalid` where all of them are wanted and they do not fit."""
    count = shape.fitting(buckets, offsets, bytes_max)
    if whole and count < len(offsets):
        raise Invalid(
            f"the rows of these keys take more than {bytes_max} bytes: ask for fewer keys or columns, or with a newer"
            " client, which takes the answer in parts"
        )
    return count

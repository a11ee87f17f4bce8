"""Rows at offsets of a table, in their order and with the columns that are asked for: as many as an answer may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.model.columns import LAKE_BUCKET, LAKE_TIMESTAMP, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore_server.read import rows as reads
from lakestore_server.state.bucket_log import in_order
from lakestore_server.state.chunk import CHANGE
from lakestore_server.state.fetch import Fetched, Pick, fetched
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]


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

    @property
    def is_change_shown(self) -> bool:
        """Whether the kind of a row's record is."""
        return "__change" in self.columns

    def wanted(self, version: int) -> list[str]:
        """The stored columns to read of a version; one at least, which tells the number of rows."""
        stored = self.stored(version)
        return [CHANGE, *stored] if self.is_change_shown or not stored else stored

    @staticmethod
    def of(state: TableState, target: Table, columns: Sequence[str]) -> AnswerShape:
        """These columns of a version."""
        user = [name for name in columns if name not in SYSTEM_TYPES]
        stored = state.versions.stored_names(target, user) if user else lambda _: []
        return AnswerShape(state, target, columns, stored)

    def located(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Located:
        """The rows at (bucket, offset) pairs."""
        return Located(self, offsets, list(self._picks(buckets, offsets)))

    def _picks(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Iterator[Pick]:
        for bucket in np.unique(buckets) if len(buckets) != 1 else buckets:
            here = np.flatnonzero(buckets == bucket)
            for places, piece, rows in self.state.logs[int(bucket)].located(offsets[here]):
                yield Pick(int(bucket), piece, here[places], rows)


class Located:
    """Rows that were found, of which as many are read as an answer holds."""

    def __init__(self, shape: AnswerShape, offsets: Ints, picks: Sequence[Pick]) -> None:
        self._shape, self.offsets, self._picks = shape, offsets, picks

    @cached_property
    def _every(self) -> Sequence[Fetched]:
        return list(self._fetched(self._picks))

    def _fetched(self, picks: Sequence[Pick]) -> Iterator[Fetched]:
        """The rows of these picks: those of one version together, and of one bucket where the answer tells it."""
        alike: dict[tuple[int, int], list[Pick]] = {}
        by_bucket = LAKE_BUCKET in self._shape.columns
        for pick in picks:
            alike.setdefault((pick.piece.schema_id, pick.bucket if by_bucket else 0), []).append(pick)
        for (version, _), same in alike.items():
            yield from fetched(same, self._shape.wanted(version))

    def fitting(self, bytes_max: int) -> int:
        """The number of first rows that take at most so many bytes together; at least one."""
        if len(self.offsets) <= 1:
            return len(self.offsets)
        sizes = np.empty(len(self.offsets), dtype=np.int64)
        for each in self._every:
            sizes[_places(each.picks)] = each.sizes()
        return max(int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")), 1)

    def rows(self, count: int) -> pa.RecordBatch:
        """The first rows, in the order in which they were asked for."""
        every = self._every if count == len(self.offsets) else list(self._fetched(list(_first(self._picks, count))))
        if not every:
            fields = self._shape.target.read_schema(list(self._shape.columns))
            return pa.RecordBatch.from_pylist([], schema=pa.schema([field.with_nullable(True) for field in fields]))
        shown = [self._shown(each) for each in every]
        places = _places([pick for each in every for pick in each.picks])
        return in_order(shown[0] if len(shown) == 1 else pa.concat_batches(shown), places)

    def _shown(self, fetched: Fetched) -> pa.RecordBatch:
        """Rows of one version as the answer shows them."""
        shape, picks = self._shape, fetched.picks
        batch, places = fetched.batch(), _places(picks)
        times = np.zeros(len(places), dtype=np.int64)
        if LAKE_TIMESTAMP in shape.columns:
            logs = shape.state.logs
            times = np.concatenate([logs[pick.bucket].times_at(self.offsets[pick.places]) for pick in picks])
        version = picks[0].piece.schema_id
        change = batch.column(0).to_numpy() if shape.is_change_shown else np.zeros(len(places), dtype=np.int8)
        rows = reads.Rows(batch, self.offsets[places], times, change, version)
        return reads.project(
            shape.state.versions.projection(version, shape.target), rows, shape.columns, picks[0].bucket
        )


def _places(picks: Sequence[Pick]) -> Ints:
    return picks[0].places if len(picks) == 1 else np.concatenate([pick.places for pick in picks])


def _first(picks: Sequence[Pick], count: int) -> Iterator[Pick]:
    """The picks, without rows that are not among the first."""
    for pick in picks:
        kept = pick.places < count
        if kept.any():
            yield pick.among(kept)

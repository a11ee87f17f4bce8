"""Rows that lie in many pieces, as one batch: few rows of many pieces are gathered at once, others piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore_server.arrays import flat_batch
from lakestore_server.arrays.flat_batch import FlatBatch
from lakestore_server.arrays.gather import Gathered, Plan
from lakestore_server.state.chunk import Ints, StoredBatch

PIECES_MIN, ROWS_MAX = 4, 512
"""Gathering pays from so many pieces on, and up to so many rows of each on average."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Rows in one piece of a bucket."""

    bucket: int
    piece: StoredBatch
    places: Ints
    """Places of the rows in the answer."""
    rows: Ints
    """Places of the rows in the piece."""

    def among(self, kept: npt.NDArray[np.bool_]) -> Pick:
        """Some of the rows."""
        return replace(self, places=self.places[kept], rows=self.rows[kept])


class Fetched(Protocol):
    """Rows that were found, and are not copied yet."""

    @property
    def picks(self) -> Sequence[Pick]:
        """The picks, in the order of `batch`."""

    def sizes(self) -> Ints:
        """The bytes of each row."""

    def batch(self) -> pa.RecordBatch:
        """The rows."""


def fetched(picks: Sequence[Pick], names: Sequence[str] | None) -> Sequence[Fetched]:
    """The rows of picks of one schema version, with these stored columns, by default all."""
    flat = [pick for pick in picks if pick.piece.flat is not None]
    if len(flat) < PIECES_MIN or sum(len(pick.rows) for pick in flat) > ROWS_MAX * len(flat):
        return [_Single(pick, names) for pick in picks]
    parts = [pick.piece.flat() for pick in flat if pick.piece.flat is not None]
    schema = parts[0].batch.schema
    names = schema.names if names is None else names
    if not Plan.is_plain(schema, names):
        return [_Single(pick, names) for pick in picks]
    return [_many(flat, parts, Plan(schema, names)), *(_Single(pick, names) for pick in picks if not pick.piece.flat)]


def _many(picks: Sequence[Pick], parts: Sequence[FlatBatch], plan: Plan) -> Fetched:
    gathered = plan.gather(parts, [len(pick.rows) for pick in picks], np.concatenate([pick.rows for pick in picks]))
    return _Many(picks, gathered)


@dataclass(frozen=True, slots=True)
class _Many:
    """Rows of many pieces."""

    picks: Sequence[Pick]
    gathered: Gathered

    def sizes(self) -> Ints:
        """The bytes of each row."""
        return self.gathered.sizes()

    def batch(self) -> pa.RecordBatch:
        """The rows."""
        return self.gathered.batch()


class _Single:
    """Rows of one piece."""

    def __init__(self, pick: Pick, names: Sequence[str] | None) -> None:
        self.picks = (pick,)
        self._rows = pick.rows
        batch = pick.piece.load_rows(pick.rows, names)
        self._batch = batch if names is None else batch.select(names)

    def sizes(self) -> Ints:
        """The bytes of each row."""
        return flat_batch.of_rows(self._batch, self._rows)

    def batch(self) -> pa.RecordBatch:
        """The rows."""
        if len(self._rows) == 1:
            return self._batch.slice(int(self._rows[0]), 1)
        return self._batch.take(pa.array(self._rows))

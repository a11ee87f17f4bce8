"""The least and greatest values of columns in pieces of the log, computed when a condition first needs them.

A piece only loses rows, and its ranges still cover the rest. Offsets and times need no cache, because they are
ascending. The cache is bounded; a piece without a range is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model import times
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET, LAKE_TIMESTAMP, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows.condition import Skip
from lakestore.rows.ranges import Range, may_meet
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import StoredBatch
from lakestore_server.state.view import Versions

RANGES_KEPT = 65_536
ROWS_MIN = 512
"""A smaller piece is filtered as fast as its ranges are looked up."""
TEXT_MAX = 128
"""Characters or bytes of a cached value."""
_UNKNOWN = Range()
_TIMES = -1
"""Stands for the commit times instead of a column's id."""
Key = tuple[str, int, int, int, int, int]


class PieceRanges:
    """The most recently used ranges. Thread-safe."""

    def __init__(self, most: int = RANGES_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._ranges: OrderedDict[Key, Range] = OrderedDict()

    def range_of(self, key: Key, made: Callable[[], Range]) -> Range:
        """The cached range of a key, or the result of `made`."""
        with self._lock:
            if key in self._ranges:
                self._ranges.move_to_end(key)
                return self._ranges[key]
        found = made()
        with self._lock:
            self._ranges[key] = found
            while len(self._ranges) > self._most:
                self._ranges.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class PiecePruning:
    """A condition on the rows of one bucket, shown in one version."""

    skip: Skip
    ranges: PieceRanges
    log: BucketLog
    bucket: int
    versions: Versions
    shown: Table

    def may_meet(self, piece: StoredBatch) -> bool:
        """Whether a row of the piece can meet the condition."""
        return piece.end - piece.start < ROWS_MIN or may_meet(self.skip, lambda name: self._range(piece, name))

    def _range(self, piece: StoredBatch, name: str) -> Range:
        if name in SYSTEM_TYPES:
            return self._system(piece, name)
        column = self.shown.column(name)
        stored = next((c for c in self.versions.numbered(piece.schema_id).columns if c.id == column.id), None)
        if stored is None or not _comparable(stored.arrow.type, column.arrow.type):
            return _UNKNOWN
        key = self.shown.uuid, self.bucket, piece.start, piece.end, piece.schema_id, column.id
        return self.ranges.range_of(key, lambda: _range_of(piece.load([stored.name]).column(stored.name)))

    def _system(self, piece: StoredBatch, name: str) -> Range:
        if name == LAKE_OFFSET:
            return Range(piece.start, piece.end - 1, 0)
        if name == LAKE_BUCKET:
            return Range(self.bucket, self.bucket, 0)
        if name != LAKE_TIMESTAMP or piece.left is not None:
            return _UNKNOWN
        key = self.shown.uuid, self.bucket, piece.start, piece.end, piece.schema_id, _TIMES
        return self.ranges.range_of(key, lambda: self._times(piece))

    def _times(self, piece: StoredBatch) -> Range:
        ends = self.log.times_at(np.array([piece.start, piece.end - 1], dtype=np.int64))
        low, high = (times.moment_of(int(us)) for us in ends)
        return Range(low, high, 0)


def _comparable(stored: pa.DataType, shown: pa.DataType) -> bool:
    """Whether Python values of the stored type compare like values of the shown type."""
    t = pa.types
    both = (stored, shown)
    return stored == shown or all(map(t.is_integer, both)) or all(map(t.is_decimal, both))


def _range_of(column: pa.Array) -> Range:
    try:
        found: dict[str, Any] = pc.min_max(column).as_py()
    except (pa.ArrowNotImplementedError, ValueError, OverflowError):
        return _UNKNOWN  # Nested values have no order, and Python has no years beyond 9999.
    low, high = found["min"], found["max"]
    if isinstance(high, str | bytes) and max(len(low), len(high)) > TEXT_MAX:
        low = high = None
    return Range(low, high, column.null_count, len(column))

"""Value ranges of columns in lake files, read from manifests and Parquet footers.

Bounds may be in an older, narrower type of the column, and other engines may truncate them; a truncated bound still
encloses the values. A bound that cannot be decoded is treated as unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.iceberg.manifests import File
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.decimals import from_unscaled_value
from lakestore.model.table import Table
from lakestore.model.types import is_bytes
from lakestore.rows.ranges import OffsetSet, OffsetsFrom, Range

Hidden = Mapping[int, OffsetSet] | Mapping[int, OffsetsFrom]
_UNKNOWN = Range()
_DAYS, _MICROS = (4,), (8,)


@dataclass(frozen=True, slots=True)
class Fields:
    """Columns of a table by their field ids in the lake."""

    ids: Mapping[str, int]
    kinds: Mapping[str, pa.DataType]

    @staticmethod
    def of(table: Table, names: Iterable[str]) -> Fields:
        """These columns of a table; system columns are allowed."""
        wanted = list(dict.fromkeys(names))
        ids = {name: LAKE_FIELD_IDS.get(name) or table.column(name).id for name in wanted}
        kinds = {name: SYSTEM_TYPES.get(name) or table.column(name).arrow.type for name in wanted}
        return Fields(ids, kinds)

    def of_file(self, file: File, name: str) -> Range:
        """The range of a column in a data file, from its manifest entry."""
        number, kind, metrics = self.ids[name], self.kinds[name], file.metrics
        low, high = metrics.lower.get(number), metrics.upper.get(number)
        nulls, rows = metrics.nulls.get(number), metrics.values.get(number)
        if low is None or high is None:
            return Range(None, None, nulls, rows)
        return Range(bound(low, kind), bound(high, kind), nulls, rows)


def bound(data: bytes, kind: pa.DataType) -> Any:
    """Decodes a bound in Iceberg's single-value encoding to a Python value of the column's type; None if it cannot
    be decoded.
    """
    t = pa.types
    try:
        if t.is_integer(kind):
            return int.from_bytes(data, "little", signed=True)
        if t.is_decimal(kind):
            return from_unscaled_value(int.from_bytes(data, "big", signed=True), kind.scale)
        if t.is_string(kind):
            return data.decode()
        if is_bytes(kind):
            return data
        if t.is_boolean(kind):
            return data != b"\0"
        if t.is_date(kind) and len(data) in _DAYS:
            return date(1970, 1, 1) + timedelta(days=int.from_bytes(data, "little", signed=True))
        if t.is_timestamp(kind) and len(data) in _MICROS:
            begin = datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None)
            return begin + timedelta(microseconds=int.from_bytes(data, "little", signed=True))
    except (ValueError, OverflowError, ArithmeticError):
        return None
    return None


class GroupRanges:
    """Value ranges of columns in the row groups of one Parquet file."""

    def __init__(self, metadata: pq.FileMetaData, names: Mapping[str, str], kinds: Mapping[str, pa.DataType]) -> None:
        """`names` maps our columns to the file's columns. A column that the file lacks has no range."""
        self._metadata, self._kinds = metadata, kinds
        first = metadata.row_group(0) if metadata.num_row_groups else None
        paths = {first.column(place).path_in_schema: place for place in range(first.num_columns)} if first else {}
        self._places = {name: paths[names[name]] for name in kinds if names.get(name) in paths}

    def of(self, group: int, name: str) -> Range:
        """The range of a column in a row group."""
        if name not in self._places:
            return _UNKNOWN
        row_group = self._metadata.row_group(group)
        found = row_group.column(self._places[name]).statistics
        if found is None:
            return _UNKNOWN
        nulls = found.null_count if found.has_null_count else None
        if not found.has_min_max:
            return Range(None, None, nulls, row_group.num_rows)
        kind = self._kinds[name]
        return Range(_known(found.min, kind), _known(found.max, kind), nulls, row_group.num_rows)


def _known(value: Any, kind: pa.DataType) -> Any:
    """A Parquet statistic as a value of the column's type; None if it has another type."""
    t = pa.types
    if t.is_timestamp(kind):
        return value if isinstance(value, datetime) and (value.tzinfo is None) == (kind.tz is None) else None
    if t.is_boolean(kind) or t.is_integer(kind):
        return value if isinstance(value, bool if t.is_boolean(kind) else int) else None
    wanted: type | None = None
    if t.is_date(kind):
        wanted = date
    elif t.is_decimal(kind):
        wanted = Decimal
    elif t.is_string(kind):
        wanted = str
    elif is_bytes(kind):
        wanted = bytes
    return value if wanted is not None and isinstance(value, wanted) else None


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The lowest and highest `__bucket` and `__offset` of a data file; None if its metrics lack them."""

    buckets: tuple[int, int] | None
    offsets: tuple[int, int] | None

    @staticmethod
    def of(file: File) -> RowNumbers:
        """The numbers of a file, from its manifest entry."""

        def pair(field: int, code: str) -> tuple[int, int] | None:
            low, high = file.metrics.lower.get(field), file.metrics.upper.get(field)
            if low is None or high is None:
                return None
            return struct.unpack(code, low)[0], struct.unpack(code, high)[0]

        return RowNumbers(pair(LAKE_FIELD_IDS[LAKE_BUCKET], "<i"), pair(LAKE_FIELD_IDS[LAKE_OFFSET], "<q"))

    @property
    def bucket(self) -> int | None:
        """The bucket of all rows if there is only one; else None."""
        return self.buckets[0] if self.buckets and self.buckets[0] == self.buckets[1] else None

    def near(self, dead: Hidden) -> Hidden:
        """The dead rows that can be in this file."""
        found = {bucket: offsets for bucket, offsets in dead.items() if self._may_hold(bucket, offsets)}
        return found  # type: ignore[return-value]

    def _may_hold(self, bucket: int, offsets: OffsetSet | OffsetsFrom) -> bool:
        if self.buckets is not None and not self.buckets[0] <= bucket <= self.buckets[1]:
            return False
        if self.offsets is None:
            return True
        low, high = self.offsets
        return len(offsets.below(high + 1)) > len(offsets.below(low))


def dead_mask(buckets: np.ndarray | int, offsets: np.ndarray, dead: Hidden) -> np.ndarray:
    """Marks the dead rows. `buckets` is one bucket number per row, or one number for all rows."""
    if isinstance(buckets, int):
        return dead[buckets].contains(offsets) if buckets in dead else np.zeros(len(offsets), dtype=np.bool_)
    gone = np.zeros(len(offsets), dtype=np.bool_)
    for bucket in np.flatnonzero(np.bincount(buckets)).tolist() if len(buckets) else []:
        if bucket in dead:
            own = buckets == bucket
            gone[own] = dead[bucket].contains(offsets[own])
    return gone

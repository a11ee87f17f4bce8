"""Conditions held against ranges of values: the least and the greatest value of a column in a run of rows.

Files, row groups and pieces of the log know such ranges. A run that cannot meet the condition is not read; in a run of
which every row meets it, rows are counted without being read. Bounds may lie beyond the values, as cut texts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lakestore.errors import Invalid
from lakestore.rows.condition import AllOf, AnyOf, Comparison, Skip

Offsets = npt.NDArray[np.int64]
_LOW = np.int64(0xFFFFFFFF)
_FLAGS_SPAN_MIN, _FLAGS_SPAN_MAX = 1 << 16, 1 << 28
_EMPTY: Offsets = np.empty(0, dtype=np.int64)


class OffsetsFrom:
    """All offsets from one on, asked like an `OffsetSet`."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset, whether it is `start` or later."""
        return np.asarray(offsets >= self.start)

    def below(self, end: int) -> range:
        """The members smaller than `end`."""
        return range(self.start, end)


class OffsetSet:
    """An immutable set of offsets with fast bulk membership."""

    __slots__ = ("_flags", "values")

    def __init__(self, values: Offsets) -> None:
        self.values = values
        """Sorted and distinct."""
        self._flags: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def of(parts: Iterable[Offsets]) -> OffsetSet:
        """The union of arrays in any order."""
        arrays = [part for part in parts if len(part)]
        if not arrays:
            return OffsetSet(_EMPTY)
        return OffsetSet(np.unique(np.concatenate(arrays)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes in memory once the set was asked."""
        return int(self.values.nbytes) + (self._span + 2 if self._is_flagged else 0)

    @property
    def _span(self) -> int:
        return int(self.values[-1] - self.values[0]) if len(self.values) else 0

    @property
    def _is_flagged(self) -> bool:
        """Whether a flag for each offset between its ends is worth its memory."""
        return self._span < min(_FLAGS_SPAN_MAX, _FLAGS_SPAN_MIN + 64 * len(self.values))

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset, whether it is in the set."""
        if not len(self.values):
            return np.zeros(len(offsets), dtype=np.bool_)
        first, last = int(self.values[0]), int(self.values[-1])
        if not self._is_flagged:
            at = np.minimum(np.searchsorted(self.values, offsets), len(self.values) - 1)
            return np.asarray(self.values[at] == offsets)
        if self._flags is None:
            flags = np.zeros(last - first + 2, dtype=np.bool_)
            flags[self.values - first] = True
            self._flags = flags
        inside = (offsets >= first) & (offsets <= last)
        return np.asarray(self._flags[np.where(inside, offsets - first, last - first + 1)])

    def below(self, end: int) -> Offsets:
        """The members smaller than `end`, sorted."""
        return self.values[: int(np.searchsorted(self.values, end))]

    def encode(self) -> list[tuple[int, bytes]]:
        """(high 32 bits, roaring bitmap of the low 32 bits) pairs."""
        highs = self.values >> 32
        return [
            (int(high), BitMap((self.values[highs == high] & _LOW).astype(np.uint32)).serialize())
            for high in np.unique(highs)
        ]

    @staticmethod
    def decode(runs: Iterable[tuple[int, bytes]]) -> OffsetSet:
        """The set that `encode` wrote."""
        parts = [
            np.frombuffer(BitMap.deserialize(data).to_array(), dtype=np.uint32).astype(np.int64) | (high << 32)
            for high, data in runs
        ]
        return OffsetSet(np.concatenate(parts) if parts else _EMPTY)


OVERHEAD_BYTES = 64 << 10
"""Room for everything in a message but its rows: their schema, names, and the commit around them."""


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces of at most so many bytes; a single row may be larger."""
    if batch.nbytes <= bytes_max or batch.num_rows < 2:
        yield batch
        return
    yield from _halves(_unfolded(batch), bytes_max)


def _halves(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= bytes_max or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halves(batch.slice(0, middle), bytes_max)
    yield from _halves(batch.slice(middle), bytes_max)


def _unfolded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in layouts whose slices have bytes of their own, unlike those of dictionaries and views."""
    arrays = [_plain(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def check_row(table: str, batch: pa.RecordBatch, row: int, message_bytes: int) -> None:
    """`Invalid` if a single row, the `row`th that was given, has no room in a message."""
    if batch.num_rows == 1 and batch.nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"table {table}: row {row} takes {batch.nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: raise message_bytes at the server, or keep large values elsewhere"
        )


def check_commit(nbytes: int, message_bytes: int) -> None:
    """`Invalid` if the rows of one commit, which go together or not at all, have no room in a message."""
    if nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"the rows of this commit take {nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: write them in several commits, as table.writer() does by itself, or"
            " raise message_bytes at the server"
        )


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one column in a run of rows; None for what nobody knows."""

    low: Any = None
    """No value is less."""
    high: Any = None
    """No value is greater."""
    nulls: int | None = None
    """The number of rows without a value."""
    rows: int | None = None
    """The number of rows."""

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return self.nulls is not None and self.nulls == self.rows

    @property
    def is_full(self) -> bool:
        """Whether every row has a value."""
        return self.nulls == 0


Ranges = Callable[[str], Range]
"""The range of a column by its name."""


def may_meet(skip: Skip, ranges: Ranges, also: Callable[[Comparison], bool] | None = None) -> bool:
    """Whether a row of the run can meet the condition; `also` says what else is known of a comparison."""
    if isinstance(skip, AllOf):
        return all(may_meet(part, ranges, also) for part in skip.parts)
    if isinstance(skip, AnyOf):
        return any(may_meet(part, ranges, also) for part in skip.parts)
    if not isinstance(skip, Comparison):
        return True
    return _may(skip, ranges(skip.column)) and (also is None or also(skip))


def all_meet(skip: Skip, ranges: Ranges) -> bool:
    """Whether it is certain that every row of the run meets the condition."""
    if isinstance(skip, AllOf):
        return all(all_meet(part, ranges) for part in skip.parts)
    if isinstance(skip, AnyOf):
        return any(all_meet(part, ranges) for part in skip.parts)
    return isinstance(skip, Comparison) and _must(skip, ranges(skip.column))


def _may(test: Comparison, range_: Range) -> bool:
    if test.sign == "is null":
        return not range_.is_full
    if range_.is_empty:
        return False
    low, high = range_.low, range_.high
    if test.sign == "is not null" or low is None or high is None:
        return True
    return _MAY[test.sign](low, high, test.values)


def _must(test: Comparison, range_: Range) -> bool:
    if test.sign == "is null":
        return range_.is_empty
    if not range_.is_full:
        return False
    if test.sign == "is not null":
        return True
    low, high = range_.low, range_.high
    return low is not None and high is not None and _MUST[test.sign](low, high, test.values)


_Test = Callable[[Any, Any, tuple[Any, ...]], bool]
_MAY: dict[str, _Test] = {
    "=": lambda low, high, values: bool(low <= values[0] <= high),
    "!=": lambda low, high, values: not low == values[0] == high,
    "<": lambda low, high, values: bool(low < values[0]),
    "<=": lambda low, high, values: bool(low <= values[0]),
    ">": lambda low, high, values: bool(high > values[0]),
    ">=": lambda low, high, values: bool(high >= values[0]),
    "in": lambda low, high, values: any(low <= value <= high for value in values),
    "starts with": lambda low, high, values: bool(high >= values[0]) and low[: len(values[0])] <= values[0],
}
_MUST: dict[str, _Test] = {
    "=": lambda low, high, values: bool(low == values[0] == high),
    "!=": lambda low, high, values: bool(values[0] < low or values[0] > high),
    "<": lambda low, high, values: bool(high < values[0]),
    "<=": lambda low, high, values: bool(high <= values[0]),
    ">": lambda low, high, values: bool(low > values[0]),
    ">=": lambda low, high, values: bool(low >= values[0]),
    "in": lambda low, high, values: low == high and low in values,
    "starts with": lambda low, high, values: low.startswith(values[0]) and high.startswith(values[0]),
}

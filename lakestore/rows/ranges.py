"""Compares conditions with ranges: the least and the greatest value of a column in a run of rows.

Files, row groups and pieces of the log have ranges. A run that cannot meet the condition is not read. If every row of a
run meets it, the rows are counted without being read. Bounds may be wider than the values, for example shortened texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lakestore.errors import Invalid
from lakestore.rows.condition import AllOf, AnyOf, Comparison, Skip
from lakestore.rows.distinct import distinct

Offsets = npt.NDArray[np.int64]
_LOW = np.int64(0xFFFFFFFF)
_FLAGS_SPAN_MIN, _FLAGS_SPAN_MAX = 1 << 16, 1 << 28
_EMPTY: Offsets = np.empty(0, dtype=np.int64)


class OffsetsFrom:
    """All offsets from `start`, with the methods of `OffsetSet`."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Mask of the offsets that are `start` or later."""
        return np.asarray(offsets >= self.start)

    def below(self, end: int) -> range:
        """The members below `end`."""
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
        return OffsetSet(distinct(np.concatenate(arrays)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes in memory after the first question."""
        return int(self.values.nbytes) + (self._span + 2 if self._is_flagged else 0)

    @property
    def _span(self) -> int:
        return int(self.values[-1] - self.values[0]) if len(self.values) else 0

    @property
    def _is_flagged(self) -> bool:
        """True if a flag for each offset between the ends is worth its memory."""
        return self._span < min(_FLAGS_SPAN_MAX, _FLAGS_SPAN_MIN + 64 * len(self.values))

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Mask of the offsets that are in the set."""
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
        """The members below `end`, sorted."""
        return self.values[: int(np.searchsorted(self.values, end))]

    def encode(self) -> list[tuple[int, bytes]]:
        """(high 32 bits, roaring bitmap of the low 32 bits) pairs."""
        highs = self.values >> 32
        return [(int(high), _bitmap(self.values[highs == high] & _LOW).serialize()) for high in np.unique(highs)]

    @staticmethod
    def decode(runs: Iterable[tuple[int, bytes]]) -> OffsetSet:
        """The set from the pairs of `encode`."""
        parts = [
            np.frombuffer(BitMap.deserialize(data).to_array(), dtype=np.uint32).astype(np.int64) | (high << 32)
            for high, data in runs
        ]
        return OffsetSet(np.concatenate(parts) if parts else _EMPTY)


def _bitmap(values: Offsets) -> BitMap:
    """pyroaring reads an `array` as memory, but an array of NumPy number by number."""
    return BitMap(array("I", values.astype(np.uint32).tobytes()))


OVERHEAD_BYTES = 64 << 10
"""Bytes of a message that are reserved for the schema, names and the commit around the rows."""


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split the rows into pieces of at most `bytes_max`, in order. A single row may be larger."""
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
    """Unfold dictionaries and views, so that each slice has bytes of its own."""
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
    """Raises `Invalid` if a single row is too large for a message. `row` is its number in the caller's rows."""
    if batch.num_rows == 1 and batch.nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"table {table}: row {row} takes {batch.nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: raise message_bytes at the server, or keep large values elsewhere"
        )


def check_commit(nbytes: int, message_bytes: int) -> None:
    """Raises `Invalid` if the rows of one commit are too large for a message. A commit cannot be split."""
    if nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"the rows of this commit take {nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: write them in several commits, as table.writer() does by itself, or"
            " raise message_bytes at the server"
        )


@dataclass(frozen=True, slots=True)
class Range:
    """The bounds of one column in a run of rows. None means unknown."""

    low: Any = None
    """No value is less."""
    high: Any = None
    """No value is greater."""
    nulls: int | None = None
    """The number of nulls."""
    rows: int | None = None
    """The number of rows."""

    @property
    def is_empty(self) -> bool:
        """True if no row has a value."""
        return self.nulls is not None and self.nulls == self.rows

    @property
    def is_full(self) -> bool:
        """True if every row has a value."""
        return self.nulls == 0


Ranges = Callable[[str], Range]
"""Returns the range of a column by name."""


def may_meet(skip: Skip, ranges: Ranges, also: Callable[[Comparison], bool] | None = None) -> bool:
    """True if a row of the run may meet the condition. `also` is a further test of a comparison."""
    if isinstance(skip, AllOf):
        return all(may_meet(part, ranges, also) for part in skip.parts)
    if isinstance(skip, AnyOf):
        return any(may_meet(part, ranges, also) for part in skip.parts)
    if not isinstance(skip, Comparison):
        return True
    return _may(skip, ranges(skip.column)) and (also is None or also(skip))


def all_meet(skip: Skip, ranges: Ranges) -> bool:
    """True if every row of the run certainly meets the condition."""
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

"""Aggregate functions over the rows of each key, one column at a time: pure, and without a loop over rows.

Only bitmaps are united one by one. Sums and products are exact; what a column cannot hold is an `Overflow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.limits import MERGED_BYTES_MAX
from lakestore.model.merge_engines import Function
from lakestore.rows.bitmaps import opened
from lakestore_server.arrays.grouping import Ints, Stack
from lakestore_server.arrays.integers import Numbers, bounds, column_of, integers

_EXACT = float(1 << 62)
"""The largest sum that 64 bits hold, with room for the error of a float."""


class Overflow(Exception):
    """A value that its column cannot hold."""

    def __init__(self, key: int, problem: str) -> None:
        super().__init__(problem)
        self.key, self.problem = key, problem


@dataclass(frozen=True, slots=True)
class Valid:
    """The values of a column that are not null, key by key."""

    values: pa.Array
    rows: Ints
    """Their places."""
    starts: Ints
    """The first place of each key that has one."""
    keys: Ints
    """The keys that have a value."""
    count: int
    """Number of keys, with and without values."""

    @staticmethod
    def of(column: pa.Array, stack: Stack) -> Valid:
        """A column in the order of the stack."""
        count = len(stack.starts)
        if not column.null_count:
            return Valid(column, np.arange(len(column)), stack.starts, np.arange(count), count)
        rows = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
        keys, starts = np.unique(stack.of[rows], return_index=True)
        return Valid(column.take(pa.array(rows)), rows, starts, keys, count)

    @property
    def ends(self) -> Ints:
        """The last place of each key that has one."""
        return np.append(self.starts, len(self.rows))[1:] - 1

    def spread(self, made: pa.Array) -> pa.Array:
        """A value for each key that has one as a column for all keys."""
        if len(self.keys) == self.count:
            return made
        place = np.full(self.count, -1, dtype=np.int64)
        place[self.keys] = np.arange(len(self.keys))
        return made.take(pa.array(place, mask=place < 0))


def aggregated(function: Function, column: pa.Array, stack: Stack) -> pa.Array:
    """One value for each key, of all but the counting functions; the column is in the order of the stack."""
    if function.name == "first":
        return column.take(pa.array(stack.starts))
    if function.name == "last":
        return column.take(pa.array(stack.ends))
    valid = Valid.of(column, stack)
    if not len(valid.keys):
        return pa.nulls(valid.count, column.type)
    if function.name == "last_non_null":
        return valid.spread(valid.values.take(pa.array(valid.ends)))
    return valid.spread(_FUNCTIONS[function.name](valid, function))


def _sum(valid: Valid, _: Function) -> pa.Array:
    return _folded(valid, np.add, lambda size: float(size.max()) * int((valid.ends - valid.starts).max() + 1))


def _product(valid: Valid, _: Function) -> pa.Array:
    return _folded(valid, np.multiply, lambda size: float(np.multiply.reduceat(size, valid.starts).max()))


def _folded(valid: Valid, ufunc: np.ufunc, reach: Callable[[npt.NDArray[np.float64]], float]) -> pa.Array:
    """Exact sums or products; `reach` gives what they may come to at most, from the sizes of the values."""
    kind = valid.values.type
    if pa.types.is_floating(kind):
        floats = valid.values.to_numpy(zero_copy_only=False).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return pa.array(ufunc.reduceat(floats, valid.starts).astype(kind.to_pandas_dtype()))
    values = integers(valid.values)
    if values.dtype != object:
        with np.errstate(over="ignore"):
            if not reach(np.abs(values.astype(np.float64))) < _EXACT:
                values = values.astype(object)
    made: Numbers = ufunc.reduceat(values, valid.starts)
    if ufunc is np.multiply and pa.types.is_decimal(kind) and kind.scale:
        made = _rescaled(made, valid.ends - valid.starts, kind.scale)
    low, high = bounds(kind)
    wrong = np.flatnonzero((made < low) | (made > high))
    if len(wrong):
        what = "product" if ufunc is np.multiply else "sum"
        raise Overflow(int(valid.keys[wrong[0]]), f"the {what} does not fit into {kind}")
    return column_of(made, kind)


def _rescaled(products: Numbers, times: Ints, scale: int) -> Numbers:
    """Products of unscaled decimals with the scale of one of them, rounded half up."""
    often, which = np.unique(times, return_inverse=True)
    divisors = np.array([10 ** (scale * int(n)) for n in often], dtype=object)[which]
    sizes = np.abs(products.astype(object))
    return np.asarray(np.where(products < 0, -1, 1) * ((2 * sizes + divisors) // (2 * divisors)))


def _max(valid: Valid, _: Function) -> pa.Array:
    return _extreme(valid, np.maximum, np.fmax)


def _min(valid: Valid, _: Function) -> pa.Array:
    return _extreme(valid, np.minimum, np.fmin)


def _extreme(valid: Valid, ufunc: np.ufunc, float_ufunc: np.ufunc) -> pa.Array:
    """NaN is neither: it stays only where there is no number."""
    kind = valid.values.type
    if pa.types.is_floating(kind):
        return pa.array(float_ufunc.reduceat(valid.values.to_numpy(zero_copy_only=False), valid.starts))
    if not pa.types.is_string(kind):
        return column_of(ufunc.reduceat(integers(valid.values), valid.starts), kind)
    order = pc.sort_indices(valid.values).to_numpy().astype(np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return valid.values.take(pa.array(order[ufunc.reduceat(rank, valid.starts)]))


def _joined(valid: Valid, function: Function) -> pa.Array:
    offsets = pa.array(np.append(valid.starts, len(valid.rows)).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, valid.values)
    lengths = np.add.reduceat(pc.binary_length(valid.values).to_numpy().astype(np.int64), valid.starts)
    _check_lengths(valid, lengths)
    return pc.binary_join(lists, function.argument or ",")


def _check_lengths(valid: Valid, lengths: Ints) -> None:
    wrong = np.flatnonzero(lengths > MERGED_BYTES_MAX)
    if len(wrong):
        at = int(wrong[0])
        size = int(lengths[at])
        raise Overflow(int(valid.keys[at]), f"the value comes to {size} bytes, more than {MERGED_BYTES_MAX}")


def _united(valid: Valid, _: Function) -> pa.Array:
    data: list[bytes] = valid.values.to_pylist()
    made: list[bytes] = []
    for first, last in zip(valid.starts.tolist(), valid.ends.tolist(), strict=True):
        whole = data[first]
        if last > first:
            union = opened(whole)
            size = len(union)
            for part in data[first + 1 : last + 1]:
                union |= opened(part)
            if len(union) > size:
                whole = union.serialize()
        made.append(whole)
    _check_lengths(valid, np.fromiter(map(len, made), dtype=np.int64, count=len(made)))
    return pa.array(made, pa.binary())


def members(bitmaps: pa.Array) -> Ints:
    """The number of numbers in each bitmap; null holds none."""
    sizes = [0 if data is None else len(opened(data)) for data in bitmaps.to_pylist()]
    return np.array(sizes, dtype=np.int64)


_FUNCTIONS: dict[str, Callable[[Valid, Function], Any]] = {
    "sum": _sum,
    "product": _product,
    "max": _max,
    "min": _min,
    "bool_and": _min,
    "bool_or": _max,
    "string_list": _joined,
    "bitmap": _united,
}

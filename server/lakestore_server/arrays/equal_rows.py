"""Equality of two columns row by row: null equals null, NaN equals NaN, nested values are compared by parts.

-0.0 differs from 0.0, because a reader sees which of them was written.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore_server.arrays.grouping import Ints

Flags = npt.NDArray[np.bool_]


def equal_rows(pairs: Iterable[tuple[pa.Array, pa.Array]], count: int) -> Flags:
    """For each of `count` rows, whether all pairs of columns are equal there."""
    same = np.ones(count, dtype=np.bool_)
    for a, b in pairs:
        if not same.any():
            break
        same &= equal(a, b)
    return same


def equal(a: pa.Array, b: pa.Array) -> Flags:
    """For each row, whether two columns of one type are equal there."""
    valid_a, valid_b = _valid(a), _valid(b)
    same: Flags = valid_a == valid_b
    both = np.flatnonzero(valid_a & valid_b)
    if len(both) < len(same):
        place = pa.array(both)
        a, b = a.take(place), b.take(place)
    same[both] = _values(a, b)
    return same


def _valid(column: pa.Array) -> Flags:
    if not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False))


def _values(a: pa.Array, b: pa.Array) -> Flags:
    """`equal` of columns without nulls."""
    kind = a.type
    if pa.types.is_struct(kind):
        return equal_rows(zip(a.flatten(), b.flatten(), strict=True), len(a))
    if pa.types.is_map(kind):
        return _lists(a, b, [(a.keys, b.keys), (a.items, b.items)])
    if pa.types.is_list(kind):
        return _lists(a, b, [(a.values, b.values)])
    same: Flags = np.array(pc.equal(a, b).to_numpy(zero_copy_only=False))
    if pa.types.is_floating(kind):
        left, right = (column.to_numpy(zero_copy_only=False) for column in (a, b))
        same &= np.signbit(left) == np.signbit(right)
        same |= np.isnan(left) & np.isnan(right)
    return same


def _lists(a: pa.Array, b: pa.Array, elements: list[tuple[pa.Array, pa.Array]]) -> Flags:
    """Whether lists or maps are equally long and have equal elements; `elements` are those elements."""
    starts_a, lengths_a = _extent(a)
    starts_b, lengths_b = _extent(b)
    same: Flags = lengths_a == lengths_b
    lengths = np.where(same, lengths_a, 0)
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    at_a = pa.array(np.repeat(starts_a, lengths) + within)
    at_b = pa.array(np.repeat(starts_b, lengths) + within)
    equal_elements = equal_rows(((x.take(at_a), y.take(at_b)) for x, y in elements), len(within))
    wrong = np.concatenate([[0], np.cumsum(~equal_elements)])
    return np.asarray(same & (wrong[ends] == wrong[ends - lengths]))


def _extent(lists: pa.Array) -> tuple[Ints, Ints]:
    """(first element, length) of each list."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets)

"""Arrow columns of numbers, dates, times, booleans and decimals as integers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

AnyNumbers = npt.NDArray[Any]
"""Integers of 64 bits, or Python integers if they do not fit."""
_MASK = (1 << 64) - 1


def integers(column: pa.Array) -> AnyNumbers:
    """The integers of a column without nulls."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _unscaled(column)
    if pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)


def column_of(values: AnyNumbers, kind: pa.DataType) -> pa.Array:
    """The column from which `integers` made its values."""
    if pa.types.is_decimal(kind):
        return _decimals(values, kind)
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(np.bool_))
    if pa.types.is_date32(kind):
        return pa.array(values.astype(np.int32)).view(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values.astype(np.int64)).view(kind)
    return pa.array(values.astype(kind.to_pandas_dtype()))


def bounds(kind: pa.DataType) -> tuple[int, int]:
    """The lowest and highest integer of a column type."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


def _unscaled(column: pa.Array) -> AnyNumbers:
    words = np.frombuffer(column.buffers()[1], dtype="<i8").reshape(-1, 2)[column.offset : column.offset + len(column)]
    low, high = words[:, 0], words[:, 1]
    if (high == low >> 63).all():
        return low.copy()
    return np.asarray(high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object))


def _decimals(values: AnyNumbers, kind: pa.DataType) -> pa.Array:
    words = np.empty((len(values), 2), dtype=np.uint64)
    if values.dtype == object:
        words[:, 0] = (values & _MASK).astype(np.uint64)
        words[:, 1] = ((values >> 64) & _MASK).astype(np.uint64)
    else:
        words[:, 0], words[:, 1] = values.view(np.uint64), (values >> 63).view(np.uint64)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(words.tobytes())])

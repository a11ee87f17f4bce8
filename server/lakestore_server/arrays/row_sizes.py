"""The bytes of chosen rows of a column, told from its offsets before anything is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]


def of_rows(batch: pa.RecordBatch, rows: Ints) -> Ints:
    """The bytes of each of these rows over all columns."""
    widths = [_width(kind) for kind in batch.schema.types]
    total = np.full(len(rows), sum(widths), dtype=np.int64)
    for i, width in enumerate(widths):
        if not width:
            total += _between(batch.column(i), rows, rows + 1)
    return total


def _width(kind: pa.DataType) -> int:
    """The bytes of every value of a primitive type; 0 for others."""
    return max(kind.bit_width // 8, 1) if pa.types.is_primitive(kind) else 0


def _between(column: pa.Array, starts: Ints, ends: Ints) -> Ints:
    """The bytes of [start, end) of a column, for each pair."""
    kind = column.type
    if pa.types.is_struct(kind):
        total = np.zeros(len(starts), dtype=np.int64)
        for i in range(kind.num_fields):
            total += _between(column.field(i), starts, ends)
        return total
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        offsets = _offsets(column)
        values = pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"]) if pa.types.is_map(kind) else None
        inner = column.values if values is None else values
        return 4 * (ends - starts) + _between(inner, offsets[starts], offsets[ends])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = _offsets(column)
        return np.asarray(4 * (ends - starts) + offsets[ends] - offsets[starts])
    if pa.types.is_null(kind):
        return np.zeros(len(starts), dtype=np.int64)
    return np.asarray((ends - starts) * max(kind.bit_width // 8, 1))


def _offsets(column: pa.Array) -> npt.NDArray[Any]:
    """The begin of each row's values, and the end of the last ones."""
    raw = column.buffers()[1]
    if raw is None or not raw.size:
        return np.zeros(len(column) + 1, dtype=np.int64)
    every = np.frombuffer(raw, dtype=np.int32)
    return every[column.offset : column.offset + len(column) + 1]

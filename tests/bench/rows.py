"""Rows as the peers' page describes them, of random values; and such of regular ones, which compress."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("count", pa.int32()),
        ("at", pa.timestamp("us")),
    ]
)
"""bigint, 16 characters, double, int, timestamp: 44 bytes."""
ROWS_MAX = 100_000
_NAMES = pa.array([f"name-{i:011d}" for i in range(ROWS_MAX)])
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", dtype=np.uint8)


@cache
def _pool() -> list[pa.Array]:
    """Random values of all columns but the first."""
    chance, count = np.random.default_rng(15), 2 * ROWS_MAX
    ends = pa.py_buffer(np.arange(0, 16 * count + 1, 16, dtype=np.int32))
    return [
        pa.StringArray.from_buffers(count, ends, pa.py_buffer(_LETTERS[chance.integers(0, len(_LETTERS), 16 * count)])),
        pa.array(chance.standard_normal(count)),
        pa.array(chance.integers(-(1 << 27), 1 << 27, count).astype(np.int32)),
        pa.array(chance.integers(0, 1 << 50, count), pa.timestamp("us")),
    ]


def rows(ids: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows with these ids, at most `ROWS_MAX`, and random values, others than those of the next such batch."""
    count = len(ids)
    at = int(ids[0]) * 7919 % ROWS_MAX if count else 0
    return pa.record_batch([pa.array(ids), *(column.slice(at, count) for column in _pool())], schema=SCHEMA)


def regular_rows(ids: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows with these ids, at most `ROWS_MAX`, and values that follow one another."""
    count = len(ids)
    numbers = np.arange(count)
    return pa.record_batch(
        [
            pa.array(ids),
            _NAMES.slice(0, count),
            pa.array(numbers * 0.5),
            pa.array(numbers.astype(np.int32)),
            pa.array(numbers, pa.timestamp("us")),
        ],
        schema=SCHEMA,
    )

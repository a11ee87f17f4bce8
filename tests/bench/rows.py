"""Rows as the peers' page describes them."""

from __future__ import annotations

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
_NAMES = pa.array([f"name-{i:011d}" for i in range(100_000)])


def rows(ids: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows with these ids, at most 100,000."""
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

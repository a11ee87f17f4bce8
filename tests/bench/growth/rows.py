"""Rows of five columns whose values a compressor cannot shorten, and keys that are spread over all 64 bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.bench.rows import SCHEMA

BATCH_ROWS = 10_000
ROW_BYTES = 44
"""bigint 8, 16 characters, double 8, int 4, timestamp 8: the values alone, without offsets of texts or validity."""
_POOL = 256
_MIX = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))
Ids = npt.NDArray[np.int64]


def keys(numbers: Ids) -> Ids:
    """The keys of the numbers 0, 1, 2, …: all different and in random order, by splitmix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _MIX[0]
    for shift, factor in zip(_SHIFTS, _MIX[1:], strict=False):
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _SHIFTS[2]
    return mixed.view(np.int64)


class Rows:
    """Batches of random rows; values come again after 2.5 million rows, keys never."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._pool = [self._values() for _ in range(_POOL)]
        self._next = 0

    def _values(self) -> list[pa.Array]:
        letters = (self._chance.integers(0, 64, 16 * BATCH_ROWS, np.uint8) + 48).tobytes()
        ends = pa.py_buffer(np.arange(0, 16 * BATCH_ROWS + 1, 16, dtype=np.int32))
        return [
            pa.StringArray.from_buffers(BATCH_ROWS, ends, pa.py_buffer(letters)),
            pa.array(self._chance.random(BATCH_ROWS)),
            pa.array(self._chance.integers(-(1 << 31), 1 << 31, BATCH_ROWS).astype(np.int32)),
            pa.array(self._chance.integers(0, 1 << 52, BATCH_ROWS), pa.timestamp("us")),
        ]

    def of(self, numbers: Ids) -> pa.RecordBatch:
        """Rows with the keys of these numbers, at most a batch."""
        self._next = (self._next + 1) % _POOL
        values = [column.slice(0, len(numbers)) for column in self._pool[self._next]]
        return pa.record_batch([pa.array(keys(numbers)), *values], schema=SCHEMA)

    def uniform(self, known: int, count: int = BATCH_ROWS) -> pa.RecordBatch:
        """Rows of keys drawn evenly of the first so many."""
        return self.of(self._chance.integers(0, known, count))

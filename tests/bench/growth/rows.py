"""Rows of five columns whose values a compressor cannot shorten, and keys that are spread over all their bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.bench.rows import SCHEMA

BATCH_ROWS = 10_000
_VALUE_BYTES = 36
"""16 characters, double 8, int 4, timestamp 8: the values alone, without offsets of texts or validity."""
UUID_CHARS = 36
_HEX = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), dtype=np.uint8).reshape(256, 2)
_HEX_PLACES = [place for place in range(UUID_CHARS) if place not in (8, 13, 18, 23)]
_OTHER_HALF = 1 << 40
_POOL = 256
_MIX = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))
Ids = npt.NDArray[np.int64]


def mixed_numbers(numbers: Ids) -> Ids:
    """All different and in random order for the numbers 0, 1, 2, …, by splitmix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _MIX[0]
    for shift, factor in zip(_SHIFTS, _MIX[1:], strict=False):
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _SHIFTS[2]
    return mixed.view(np.int64)


def uuids(numbers: Ids) -> pa.Array:
    """The texts of random UUIDs, version 4, one for each number."""
    halves = np.empty((len(numbers), 2), dtype=np.int64)
    halves[:, 0], halves[:, 1] = mixed_numbers(numbers), mixed_numbers(numbers + _OTHER_HALF)
    octets = halves.view(np.uint8)
    octets[:, 6] = octets[:, 6] & 0x0F | 0x40
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    letters = np.full((len(numbers), UUID_CHARS), ord("-"), dtype=np.uint8)
    letters[:, _HEX_PLACES] = _HEX[octets].reshape(len(numbers), -1)
    ends = np.arange(0, UUID_CHARS * len(numbers) + 1, UUID_CHARS, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of key."""

    of: Callable[[Ids], pa.Array]
    """The keys of the numbers 0, 1, 2, …"""
    schema: pa.Schema
    key_bytes: int

    @property
    def row_bytes(self) -> int:
        """The values of a row with its key."""
        return self.key_bytes + _VALUE_BYTES


NUMBER, UUID = "number", "uuid"
KINDS: Mapping[str, Kind] = {
    NUMBER: Kind(lambda numbers: pa.array(mixed_numbers(numbers)), SCHEMA, 8),
    UUID: Kind(uuids, SCHEMA.set(0, pa.field(SCHEMA.field(0).name, pa.string())), UUID_CHARS),
}


class Rows:
    """Batches of random rows; values come again after 2.5 million rows, keys never."""

    def __init__(self, seed: int, kind: str = NUMBER) -> None:
        self._kind = KINDS[kind]
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
        return pa.record_batch([self._kind.of(numbers), *values], schema=self._kind.schema)

    def uniform(self, known: int, count: int = BATCH_ROWS) -> pa.RecordBatch:
        """Rows of keys drawn evenly of the first so many."""
        return self.of(self._chance.integers(0, known, count))

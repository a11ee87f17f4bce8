"""The filter that hides dead offsets from the lake side: bitmaps in a scalar subquery.

Where most chunks of offsets hold a dead one, one array of bits holds all buckets, each from a multiple of `stride`
words: looking a row up is one array access. Else the offsets of a bucket are cut into chunks of 2^shift: `slots`
gives, for each chunk of each bucket, its place among the chunks that hold a dead offset, or null; `words` holds the
bits of those alone. Catalyst pushes filters and columns through it into the Iceberg scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.offsets import OffsetSet

SHIFTS = range(8, 21)
"""Candidates for the log2 of a chunk: 256 offsets to a million, whichever takes the least memory."""
_WORD_BITS_LOG2 = 6
_SLOT_BYTES = 4
FLAT_BYTES = 4 << 20
"""Bytes up to which one bit for every offset is kept, however few of them are set."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Dead offsets of all buckets of a table, one bit for every offset."""

    stride: int
    """Number of words of a bucket."""
    words: npt.NDArray[np.int64]

    @staticmethod
    def bytes_for(ends: list[int]) -> int:
        """Bytes of the bits for buckets that end at these offsets."""
        return len(ends) * ((max(ends) >> _WORD_BITS_LOG2) + 1) * 8

    @staticmethod
    def of(dead: Mapping[int, OffsetSet], ends: list[int]) -> Bits:
        """The bits of each bucket's dead offsets, which lie below the bucket's end."""
        stride = (max(ends) >> _WORD_BITS_LOG2) + 1
        flags = np.zeros((len(ends), stride << _WORD_BITS_LOG2), dtype=np.uint8)
        for bucket, offsets in dead.items():
            flags[bucket, offsets.values] = 1
        return Bits(stride, np.packbits(flags, axis=1, bitorder="little").view("<i8").ravel())

    def alive(self, spark: SparkSession) -> Column:
        """The condition that a lake row is not dead."""
        held = spark.createDataFrame(pa.table({"words": _list(self.words)}))
        at = sf.col(LAKE_BUCKET) * sf.lit(self.stride) + sf.shiftright(sf.col(LAKE_OFFSET), _WORD_BITS_LOG2).cast("int")
        word = sf.get(held.select("words").scalar(), at)
        return sf.getbit(word, sf.col(LAKE_OFFSET).bitwiseAND(sf.lit(63)).cast("int")) == 0


def alive(spark: SparkSession, dead: Mapping[int, OffsetSet], ends: list[int]) -> Column:
    """The condition that a lake row is not dead, in the form that suits these offsets."""
    chunked = min(_bytes(dead, ends, shift) for shift in SHIFTS)
    if Bits.bytes_for(ends) <= max(2 * chunked, FLAT_BYTES):
        return Bits.of(dead, ends).alive(spark)
    return Bitmaps.of(dead, ends).alive(spark)


@dataclass(frozen=True, slots=True)
class Bitmaps:
    """Dead offsets of all buckets of a table, in chunks."""

    shift: int
    """Log2 of the offsets in a chunk."""
    starts: npt.NDArray[np.int32]
    """Per bucket, the place of its first chunk in `slots`."""
    slots: npt.NDArray[np.int32]
    """Per chunk, its place among the chunks in `words`, or -1 for a chunk without dead offsets."""
    words: npt.NDArray[np.int64]
    """The bits of the chunks."""

    @staticmethod
    def of(dead: Mapping[int, OffsetSet], ends: list[int]) -> Bitmaps:
        """Bitmaps of each bucket's dead offsets, which lie below the bucket's end."""
        shift = min(SHIFTS, key=lambda candidate: _bytes(dead, ends, candidate))
        counts = [(end >> shift) + 1 for end in ends]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        slots = np.full(starts[-1], -1, dtype=np.int32)
        chunks: list[npt.NDArray[np.int64]] = []
        for bucket, offsets in dead.items():
            used, place = np.unique(offsets.values >> shift, return_inverse=True)
            slots[starts[bucket] + used] = np.arange(len(used), dtype=np.int32) + len(chunks)
            chunks.extend(_words(offsets.values, place, len(used), shift))
        words = np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64)
        return Bitmaps(shift, starts[:-1], slots, words)

    def alive(self, spark: SparkSession) -> Column:
        """The condition that a lake row is not dead."""
        held = self._frame(spark)
        start = sf.get(held.select("starts").scalar(), sf.col(LAKE_BUCKET))
        slot = start + sf.shiftright(sf.col(LAKE_OFFSET), self.shift)
        chunk = sf.get(held.select("slots").scalar(), slot.cast("int"))
        low = self.shift - _WORD_BITS_LOG2
        inside = sf.shiftright(sf.col(LAKE_OFFSET), _WORD_BITS_LOG2).bitwiseAND(sf.lit((1 << low) - 1))
        word = sf.get(held.select("words").scalar(), (sf.shiftleft(chunk, low) + inside).cast("int"))
        bit = sf.getbit(word, sf.col(LAKE_OFFSET).bitwiseAND(sf.lit(63)))
        return (chunk < 0) | (bit == 0)

    def _frame(self, spark: SparkSession) -> DataFrame:
        columns = {"starts": _list(self.starts), "slots": _list(self.slots), "words": _list(self.words)}
        return spark.createDataFrame(pa.table(columns))


def _list(values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values))


def _bytes(dead: Mapping[int, OffsetSet], ends: list[int], shift: int) -> int:
    used = sum(1 + int(np.count_nonzero(np.diff(offsets.values >> shift))) for offsets in dead.values())
    return (used << shift) // 8 + sum(end >> shift for end in ends) * _SLOT_BYTES


def _words(
    offsets: npt.NDArray[np.int64], place: npt.NDArray[np.int64], count: int, shift: int
) -> list[npt.NDArray[np.int64]]:
    flags = np.zeros((count, 1 << shift), dtype=np.uint8)
    flags[place, offsets & ((1 << shift) - 1)] = 1
    bits = np.packbits(flags, axis=1, bitorder="little").view("<i8")
    return list(bits)

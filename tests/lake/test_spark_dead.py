"""The bitmaps of dead offsets, in arithmetic and in Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakestore.rows.offsets import OffsetSet
from lakestore_spark.dead_filter import SHIFTS, Bitmaps, Bits

ENDS = [100, 0, 5_000_000]
DEAD = st.sets(st.integers(0, 99)), st.sets(st.integers(0, 4_999_999), max_size=50)


def sets(first: set[int], last: set[int]) -> dict[int, OffsetSet]:
    return {b: OffsetSet(np.array(sorted(v), dtype=np.int64)) for b, v in ((0, first), (2, last)) if v}


def is_dead(bitmaps: Bitmaps, bucket: int, offset: int) -> bool:
    chunk = bitmaps.slots[bitmaps.starts[bucket] + (offset >> bitmaps.shift)]
    if chunk < 0:
        return False
    word = bitmaps.words[(chunk << (bitmaps.shift - 6)) + ((offset >> 6) & ((1 << (bitmaps.shift - 6)) - 1))]
    return bool((int(word) >> (offset & 63)) & 1)


@given(*DEAD)
def test_bitmaps_hold_exactly_the_dead(first: set[int], last: set[int]) -> None:
    bitmaps = Bitmaps.of(sets(first, last), ENDS)
    assert bitmaps.shift in SHIFTS
    assert {offset for offset in range(100) if is_dead(bitmaps, 0, offset)} == first
    near = {max(0, min(offset + step, 4_999_999)) for offset in last for step in (-64, -1, 0, 1, 64)}
    assert {offset for offset in near if is_dead(bitmaps, 2, offset)} == last


def test_far_and_few_dead_take_little_memory() -> None:
    bitmaps = Bitmaps.of(sets(set(), {0, 1_000_000_000}), [10, 0, 1_000_000_001])
    assert bitmaps.words.nbytes + bitmaps.slots.nbytes < 1 << 18


@pytest.mark.parametrize("form", [Bits, Bitmaps])
def test_spark_hides_the_dead_of_every_bucket(spark: SparkSession, form: type[Bits] | type[Bitmaps]) -> None:
    random = np.random.default_rng(1)
    ends = [100_000, 1, 70_000]
    dead = {b: OffsetSet(np.unique(random.integers(0, ends[b], ends[b] // 10 + 1))) for b in range(3)}
    buckets = np.repeat(np.arange(3, dtype=np.int32), ends)
    offsets = np.concatenate([np.arange(end, dtype=np.int64) for end in ends])
    frame = spark.createDataFrame(pa.table({"__bucket": buckets, "__offset": offsets}))
    got = frame.where(form.of(dead, ends).alive(spark)).toArrow()
    expected = {(b, o) for b in range(3) for o in np.setdiff1d(np.arange(ends[b]), dead[b].values)}
    assert set(zip(got["__bucket"].to_pylist(), got["__offset"].to_pylist(), strict=True)) == expected

"""Keys as bytes keep order and identity; the bucket hash is for ever."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.rows import keys

PREFIX = b"\x00\x00\x00\x07"

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 1, 1))),
    (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.uint8(), st.integers(0, 2**8 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.time64("us"), st.times()),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
]


@given(st.data())
def test_keys_of_a_few_rows_are_those_of_many(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    values = [data.draw(st.lists(strategy, min_size=7, max_size=7)) for _, strategy in kinds]
    beyond = [column * (keys.FEW_ROWS_MAX // 7 + 1) for column in values]
    many = [pa.array(column, kind) for column, (kind, _) in zip(beyond, kinds, strict=True)]
    few = [column.slice(2, 5) for column in many]
    assert keys.encode(few, PREFIX) == keys.encode(many, PREFIX)[2:7]
    assert keys.buckets(few, 7).tolist() == keys.buckets(many, 7)[2:7].tolist()


@pytest.mark.parametrize("kind", range(len(TYPES)))
def test_one_column_keeps_order(kind: int) -> None:
    arrow, values = TYPES[kind]

    @given(st.lists(values, min_size=2, max_size=20, unique=True))
    def check(found: list[Any]) -> None:
        encoded = keys.encode([pa.array(found, type=arrow)], PREFIX)
        assert all(key.startswith(PREFIX) for key in encoded)
        by_key = [value for _, value in sorted(zip(encoded, found, strict=True), key=lambda pair: pair[0])]
        assert by_key == sorted(found, key=lambda v: v.encode() if isinstance(v, str) else v)

    check()


@given(st.lists(st.tuples(st.binary(max_size=4), st.integers(-3, 3), st.binary(max_size=4)), unique=True, min_size=2))
def test_composite_keys_differ_and_keep_order(found: list[tuple[bytes, int, bytes]]) -> None:
    columns = [
        pa.array([a for a, _, _ in found], pa.binary()),
        pa.array([b for _, b, _ in found], pa.int32()),
        pa.array([c for _, _, c in found], pa.binary()),
    ]
    encoded = keys.encode(columns, PREFIX)
    assert len(set(encoded)) == len(found)
    assert [row for _, row in sorted(zip(encoded, found, strict=True))] == sorted(found)


def test_keys_of_sliced_columns_are_the_same() -> None:
    for kind, value in ((pa.binary(3), b"abc"), (pa.time64("us"), 5), (pa.uint16(), 60_000)):
        whole = pa.array([value, value, value], kind)
        assert keys.encode([whole.slice(1, 1)], PREFIX) == keys.encode([pa.array([value], kind)], PREFIX)


def test_long_keys_of_fixed_size_fit_the_index_and_differ() -> None:
    long = pa.array([bytes(1_999) + bytes([i]) for i in range(50)], pa.binary(2_000))
    for columns in ([long], [long, pa.array(range(50))]):
        encoded = keys.encode(columns, PREFIX)
        assert max(map(len, encoded)) <= keys.INDEX_KEY_BYTES_MAX
        assert len(set(encoded)) == 50


def test_long_keys_fit_the_index_and_differ() -> None:
    long = ["x" * 2000 + str(i) for i in range(50)]
    encoded = keys.encode([pa.array(long)], PREFIX)
    assert max(map(len, encoded)) <= keys.INDEX_KEY_BYTES_MAX
    assert len(set(encoded)) == 50


@given(st.integers(1, 23), st.integers(0, 2**32))
def test_murmur3_is_the_known_one(width: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 256, (5, width), dtype=np.uint8)
    assert keys.murmur3(matrix).tolist() == [mmh3.hash(row.tobytes(), signed=False) for row in matrix]


def test_buckets_are_golden() -> None:
    assert keys.buckets([pa.array([0, 1, 2, -1, 34, 2**40], pa.int64())], 16).tolist() == GOLDEN_INT64
    assert keys.buckets([pa.array(["", "a", "iceberg", "lakestore"])], 16).tolist() == GOLDEN_STRING
    days = [datetime.date(1970, 1, 1), datetime.date(2026, 11, 20)]
    assert keys.buckets([pa.array(days)], 16).tolist() == GOLDEN_DATE
    amounts = pa.array([Decimal("0.00"), Decimal("-1.50")], pa.decimal128(12, 2))
    assert keys.buckets([amounts], 16).tolist() == GOLDEN_DECIMAL
    both = [pa.array([1, 2], pa.int64()), pa.array(["a", "b"])]
    assert keys.buckets(both, 16).tolist() == GOLDEN_BOTH


def test_buckets_and_bytes_of_later_types_are_golden() -> None:
    golden: list[tuple[pa.DataType, list[Any], list[int]]] = [
        (pa.uint8(), [0, 1, 200, 255], [7, 11, 0, 13]),
        (pa.uint16(), [0, 1, 60_000], [6, 0, 5]),
        (pa.uint32(), [0, 1, 2**32 - 1], [14, 4, 0]),
        (pa.time64("us"), [datetime.time(), datetime.time(23, 59, 59, 999_999)], [2, 7]),
        (pa.binary(4), [b"abcd", bytes(4)], [10, 14]),
    ]
    for kind, values, found in golden:
        assert keys.buckets([pa.array(values, kind)], 16).tolist() == found, kind
    columns = [pa.array([200], pa.uint16()), pa.array([1], pa.time64("us")), pa.array([b"ab"], pa.binary(2))]
    assert keys.encode(columns, b"") == [b"\x00\xc8" + b"\x80" + bytes(6) + b"\x01" + b"ab"]


GOLDEN_INT64 = [2, 11, 7, 6, 7, 14]
GOLDEN_STRING = [0, 2, 9, 1]
GOLDEN_DATE = [7, 13]
GOLDEN_DECIMAL = [1, 10]
GOLDEN_BOTH = [11, 4]

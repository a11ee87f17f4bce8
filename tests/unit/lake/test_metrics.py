"""Figures of a file's columns: bounds are certain, in the bytes that PyIceberg reads, and nothing else is said."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.types import BinaryType, PrimitiveType, StringType

from lakestore.iceberg.values import metrics
from tests.support.seeds import examples
from tests.unit.lake.test_partitions import EXACT, KINDS, column, field, iceberg


def held(kind: str, value: Any) -> Any:
    """A value as PyIceberg reads it from a bound."""
    if kind.startswith("decimal"):
        return Decimal(value).scaleb(-KINDS[kind][0].scale, EXACT)
    return value


def key(value: Any) -> Any:
    """Floats ordered as Iceberg's readers do: -0.0 before 0.0."""
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_bounds_hold_every_value(kind: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.lists(st.none() | KINDS[kind][1], max_size=8), max_size=3))
    values = [value for part in parts for value in part]
    chunks = pa.chunked_array([column(kind, part) for part in parts], KINDS[kind][0])
    found = metrics(pa.table([chunks], schema=pa.schema([field("x", 7, KINDS[kind][0])])))
    known = [held(kind, value) for value in values if value is not None]
    nans = [value for value in known if isinstance(value, float) and math.isnan(value)]
    certain = [value for value in known if not (isinstance(value, float) and math.isnan(value))]
    assert (found.values, found.nulls) == ({7: len(values)}, {7: len(values) - len(known)})
    assert found.nans == ({7: len(nans)} if kind in ("float", "double") else {})
    assert (7 in found.lower) == bool(certain)
    if not certain:
        assert not found.upper
        return
    reader = BinaryType() if kind == "uuid" else iceberg(kind)
    assert isinstance(reader, PrimitiveType)
    low = from_bytes(reader, found.lower[7])
    assert key(low) <= min(map(key, certain))
    assert not (nans and found.upper), "NaN is above every number"
    if not isinstance(reader, StringType | BinaryType):
        assert bool(found.upper) == (not nans)
        assert low == min(certain)
    if found.upper:
        high = from_bytes(reader, found.upper[7])
        assert key(high) >= max(map(key, certain))
        if isinstance(reader, StringType | BinaryType):
            assert len(high) <= 16


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
        ("a" * 15 + "\ud7ff" + "x", "a" * 15 + "\ue000"),
        ("\U0010ffff" * 17, None),
    ],
)
def test_an_upper_bound_that_is_cut_is_raised(text: str, upper: str | None) -> None:
    found = metrics(pa.table([pa.array([text])], schema=pa.schema([field("x", 1, pa.string())])))
    assert found.lower == {1: text[:16].encode()}
    assert found.upper == ({} if upper is None else {1: upper.encode()})


def test_bytes_are_cut_and_raised() -> None:
    schema = pa.schema([field("b", 1, pa.binary()), field("f", 2, pa.binary(17))])
    found = metrics(pa.table([pa.array([b"\xff" * 16 + b"x"]), pa.array([b"y" * 17], pa.binary(17))], schema=schema))
    assert found.lower == {1: b"\xff" * 16}
    assert found.upper == {}
    assert found.nulls == {1: 0, 2: 0}


def test_zero_is_bound_by_the_zero_that_is_further_out() -> None:
    schema = pa.schema([field("f", 1, pa.float32()), field("d", 2, pa.float64())])
    found = metrics(pa.table([pa.array([0.0], pa.float32()), pa.array([-0.0])], schema=schema))
    assert (found.lower[1], found.lower[2]) == (struct.pack("<f", -0.0), struct.pack("<d", -0.0))
    assert (found.upper[1], found.upper[2]) == (struct.pack("<f", 0.0), struct.pack("<d", 0.0))


def test_narrow_types_are_those_of_the_lake() -> None:
    kinds = [pa.int8(), pa.uint16(), pa.uint32(), pa.time64("us"), pa.timestamp("us", "UTC"), pa.date32()]
    schema = pa.schema([field(str(kind), number, kind) for number, kind in enumerate(kinds)])
    held = [pa.array([1], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind) for kind in kinds]
    found = metrics(pa.table(held, schema=schema))
    assert [len(found.lower[number]) for number in range(len(kinds))] == [4, 4, 8, 8, 8, 4]


def test_columns_without_ids_and_nested_ones_have_no_figures() -> None:
    schema = pa.schema([pa.field("a", pa.int64()), field("l", 1, pa.list_(pa.int64()))])
    found = metrics(pa.table([[1], [[1]]], schema=schema))
    assert not any((found.lower, found.upper, found.values, found.nulls, found.nans))

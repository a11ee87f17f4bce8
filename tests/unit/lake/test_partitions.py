"""Partition values: each transform gives what PyIceberg's gives, and rows of one partition come together."""

from __future__ import annotations

import math
import struct
import uuid
from datetime import date
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType

from lakestore.errors import Invalid
from lakestore.iceberg.transforms import groups, transformed
from lakestore.iceberg.values import decimal_bytes
from tests.support.seeds import examples

EXACT = Context(prec=60)
DAYS, TIMES = st.integers(-700_000, 700_000), st.integers(-6 * 10**16, 6 * 10**16)
"""As far as Python's own dates reach, by which PyIceberg counts."""
NEAR = st.integers(-3 * 86_400_000_000, 3 * 86_400_000_000)
INTS, LONGS = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(-300, 300)


def decimals(precision: int) -> st.SearchStrategy[int]:
    """Those whose lower half of 64 bits is small are where a remainder is borrowed from the upper one."""
    wide = st.builds(lambda high, low: (high << 64) + low, SMALL, st.integers(0, 20))
    return st.integers(-(10**precision) + 1, 10**precision - 1) | SMALL | (wide if precision > 30 else SMALL)


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), INTS | SMALL),
    "long": (pa.int64(), LONGS | SMALL),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "date": (pa.date32(), DAYS | SMALL),
    "time": (pa.time64("us"), st.integers(0, 86_399_999_999)),
    "timestamp": (pa.timestamp("us"), TIMES | NEAR),
    "timestamptz": (pa.timestamp("us", "UTC"), TIMES | NEAR),
    "timestamp_ns": (pa.timestamp("ns"), LONGS),
    "timestamptz_ns": (pa.timestamp("ns", "UTC"), LONGS),
    "string": (pa.string(), st.text()),
    "binary": (pa.binary(), st.binary()),
    "fixed[5]": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "uuid": (pa.binary(16), st.binary(min_size=16, max_size=16)),
    "decimal(9, 2)": (pa.decimal128(9, 2), decimals(9)),
    "decimal(18, 0)": (pa.decimal128(18, 0), decimals(18)),
    "decimal(37, 20)": (pa.decimal128(37, 20), decimals(37)),
}
"""Iceberg type to the Arrow type, and the numbers, texts or bytes that its values are."""
TRANSFORMS = ("identity", "bucket[16]", "bucket[7]", "truncate[10]", "truncate[1]", "year", "month", "day", "hour")


def iceberg(kind: str) -> IcebergType:
    return Schema.model_validate({"fields": [{"id": 1, "name": "x", "type": kind, "required": False}]}).find_type("x")


PAIRS = [(kind, text) for kind in KINDS for text in TRANSFORMS if parse_transform(text).can_transform(iceberg(kind))]


def column(kind: str, values: list[Any]) -> pa.Array:
    arrow = KINDS[kind][0]
    if pa.types.is_decimal(arrow):
        return pa.array([None if v is None else Decimal(v).scaleb(-arrow.scale, EXACT) for v in values], arrow)
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int32() if pa.types.is_date32(arrow) else pa.int64()).view(arrow)
    return pa.array(values, arrow)


def by_pyiceberg(kind: str, transform: str, value: Any) -> Any:
    """The result of PyIceberg's transform as a manifest has it."""
    if value is None:
        return None
    arrow, function = KINDS[kind][0], parse_transform(transform).transform(iceberg(kind))
    if pa.types.is_decimal(arrow):
        result = function(Decimal(value).scaleb(-arrow.scale, EXACT))
        if not isinstance(result, Decimal):
            return result
        return int(result.scaleb(arrow.scale, EXACT)).to_bytes(decimal_bytes(arrow.precision), "big", signed=True)
    result = function(uuid.UUID(bytes=value) if kind == "uuid" else value)
    if isinstance(result, uuid.UUID):
        return result.bytes
    if transform.startswith("truncate") and isinstance(result, int):
        wrap = 1 << arrow.bit_width - 1
        return (result + wrap) % (2 * wrap) - wrap  # as Java's numbers, which go round at their ends
    return result


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(("kind", "transform"), PAIRS)
@settings(max_examples=examples(15))
@given(data=st.data())
def test_a_transform_is_icebergs(kind: str, transform: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind][1], min_size=1, max_size=20))
    wanted = [by_pyiceberg(kind, transform, value) for value in values]
    found = transformed(column(kind, values), transform, kind).to_pylist()
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True)), (values, found, wanted)
    sliced = transformed(column(kind, [None, *values, None])[1:-1], transform, kind).to_pylist()
    assert all(same(one, other) for one, other in zip(found, sliced, strict=True))


def field(name: str, number: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


def spec(*fields: tuple[str, int]) -> dict[str, Any]:
    said = [
        {"source-id": source, "transform": transform, "name": f"p{place}", "field-id": 1000 + place}
        for place, (transform, source) in enumerate(fields)
    ]
    return {"spec-id": 3, "fields": said}


SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "n", "type": "long", "required": False},
        {"id": 2, "name": "s", "type": "string", "required": False},
        {"id": 3, "name": "f", "type": "double", "required": False},
        {
            "id": 4,
            "name": "in",
            "required": False,
            "type": {"type": "struct", "fields": [{"id": 5, "name": "d", "type": "date", "required": False}]},
        },
    ],
}
FIELDS = pa.schema(
    [
        field("n", 1, pa.int64()),
        field("s", 2, pa.string()),
        field("f", 3, pa.float64()),
        field("in", 4, pa.struct([field("d", 5, pa.date32())])),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-20, 20),
        "s": st.none() | st.sampled_from(["", "a", "ab", "abc", "ä𝔘x"]),
        "f": st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5]),
        "in": st.none() | st.fixed_dictionaries({"d": st.none() | st.dates()}),
    }
)


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    chunks=st.integers(1, 4),
    fields=st.lists(
        st.sampled_from(
            [("bucket[3]", 1), ("truncate[10]", 1), ("truncate[2]", 2), ("identity", 3), ("year", 5), ("void", 2)]
        ),
        min_size=1,
        unique=True,
    ),
)
def test_rows_of_one_partition_come_together(
    rows: list[dict[str, Any]], chunks: int, fields: list[tuple[str, int]]
) -> None:
    made = pa.concat_tables(pa.Table.from_pylist(rows[at::chunks], schema=FIELDS) for at in range(chunks))
    found = groups(made, spec(*fields), SCHEMA)
    seen: list[int] = []
    keys: list[str] = []
    for values, numbers in found:
        own = list(range(made.num_rows)) if numbers is None else numbers.tolist()
        assert own == sorted(own)
        seen += own
        keys.append(repr(values))
        for number in own:
            alone, _ = groups(made.slice(number, 1), spec(*fields), SCHEMA)[0]
            assert repr(alone) == repr(values)
    assert sorted(seen) == list(range(made.num_rows))
    assert len(set(keys)) == len(keys)


def test_values_are_those_of_manifests() -> None:
    rows = pa.Table.from_pylist([{"n": -1, "s": "ä𝔘x", "f": -0.0, "in": {"d": date(1969, 12, 31)}}], FIELDS)
    every = spec(("truncate[10]", 1), ("truncate[2]", 2), ("identity", 3), ("month", 5), ("identity", 5), ("void", 1))
    ((values, numbers),) = groups(rows, every, SCHEMA)
    assert repr(values) == repr({"p0": -10, "p1": "ä𝔘", "p2": -0.0, "p3": -1, "p4": -1, "p5": None})
    assert numbers is None
    assert groups(rows, spec(), SCHEMA) == [({}, None)]
    assert groups(rows.slice(0, 0), every, SCHEMA) == []


@pytest.mark.parametrize(
    ("transform", "source", "said"),
    [
        ("zorder", 1, "'zorder' is not known"),
        ("bucket[0]", 1, r"'bucket\[0\]' is not known"),
        ("bucket[4]", 3, "'bucket' has no values of type 'double'"),
        ("truncate[4]", 5, "'truncate' has no values of type 'date'"),
        ("hour", 5, "'hour' has no values of type 'date'"),
        ("day", 1, "'day' has no values of type 'long'"),
        ("identity", 9, "field id 9, which the schema does not have"),
        ("identity", 4, "field id 4, which the schema does not have"),
    ],
)
def test_a_transform_that_iceberg_has_not_is_refused(transform: str, source: int, said: str) -> None:
    rows = pa.Table.from_pylist([{"n": 1}], FIELDS)
    with pytest.raises(Invalid, match=said):
        groups(rows, spec((transform, source)), SCHEMA)


def test_a_column_that_the_rows_have_not_is_named() -> None:
    with pytest.raises(Invalid, match="no column with the field id 2"):
        groups(pa.table([pa.array([1])], schema=pa.schema([field("n", 1, pa.int64())])), spec(("identity", 2)), SCHEMA)

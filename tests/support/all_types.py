"""A column of every type, nested ones too, and random values for them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lakestore.model import types

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    "binary": st.binary(max_size=6),
    "fixed(5)": st.binary(min_size=5, max_size=5),
    "date": st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1)),
    "time": st.times(),
    "timestamp": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)),
    "timestamptz": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    "decimal(20,3)": st.decimals(-(10**16), 10**16, places=3),
}
NESTED = [
    "list<int8>",
    "list<uint32 not null>",
    "list<list<time>>",
    "struct<a: int8, b: struct<c: uint16 not null, d: fixed(5)>>",
    "struct<`odd name`: decimal(20,3) not null, l: list<timestamptz>>",
    "map<string, int16>",
    "map<date, list<struct<a: uint8, t: time>> not null>",
    "list<map<uint16, binary>>",
]
FIELDS = {f"c{i}": name for i, name in enumerate([*SCALARS, *NESTED])}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *((name, types.arrow_type(kind)) for name, kind in FIELDS.items())]
)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of one of our Arrow types, without null."""
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({part.name: value(part) for part in kind})
    if pa.types.is_list(kind):
        return st.lists(value(kind.value_field), max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(values(kind.key_type), value(kind.item_field), max_size=3).map(lambda m: list(m.items()))
    return SCALARS[types.type_name(kind, "")]


def value(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a field; null among them where it may be."""
    return st.one_of(st.none(), values(field.type)) if field.nullable else values(field.type)


def rows(ids: list[int]) -> st.SearchStrategy[pa.Table]:
    """A table with these ids and random values in the other columns."""
    columns = [st.just(ids), *(st.lists(value(f), min_size=len(ids), max_size=len(ids)) for f in list(SCHEMA)[1:])]
    return st.tuples(*columns).map(
        lambda made: pa.table([pa.array(v, f.type) for v, f in zip(made, SCHEMA, strict=True)], schema=SCHEMA)
    )

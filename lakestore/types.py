"""The types a user may declare: each one's name here, its Arrow type and its type in the lake."""

from __future__ import annotations

import re

import pyarrow as pa

from lakestore.errors import Invalid

_SIMPLE: dict[str, tuple[pa.DataType, str]] = {
    "bool": (pa.bool_(), "boolean"),
    "int8": (pa.int8(), "int"),
    "int16": (pa.int16(), "int"),
    "int32": (pa.int32(), "int"),
    "int64": (pa.int64(), "long"),
    "float32": (pa.float32(), "float"),
    "float64": (pa.float64(), "double"),
    "string": (pa.string(), "string"),
    "binary": (pa.binary(), "binary"),
    "date": (pa.date32(), "date"),
    "timestamp": (pa.timestamp("us"), "timestamp"),
    "timestamptz": (pa.timestamp("us", tz="UTC"), "timestamptz"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type that columns of this declared type have on every path."""
    if name in _SIMPLE:
        return _SIMPLE[name][0]
    match = _DECIMAL.fullmatch(name)
    if not match:
        raise Invalid(f"type {name!r} is not known")
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise Invalid(f"type {name!r} has not 1 to 38 digits, of which at most all are behind the point")
    return pa.decimal128(precision, scale)


def iceberg_type(name: str) -> str:
    """The Iceberg type of the column in the lake."""
    return _SIMPLE[name][1] if name in _SIMPLE else name.replace(",", ", ").replace("  ", " ")


def type_name(arrow: pa.DataType, column: str) -> str:
    """The declared type for an Arrow type a user handed in, or `Invalid`."""
    if pa.types.is_dictionary(arrow):
        return type_name(arrow.value_type, column)
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamptz"
    if pa.types.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return "string"
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return "binary"
    if pa.types.is_date64(arrow):
        return "date"
    for name, (own, _) in _SIMPLE.items():
        if own == arrow:
            return name
    raise Invalid(f"column {column!r} has type {arrow}, which tables do not store")

"""Iceberg's primitive types, and the two forms of their values: in Avro, and as single-value bytes.

1. Partition values have Avro's form: a date is a number of days, a time a number of microseconds, a decimal its
   unscaled number in bytes of fixed width.
2. Bounds of columns and partition summaries are single-value bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Hashable, Mapping, MutableSet
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.iceberg.field_ids import id_of

CUT_CHARS = 16
"""A bound keeps this many characters of a text, or bytes of a binary value."""
_CODE_POINT_MAX, _SURROGATE, _BEHIND_SURROGATES = 0x10FFFF, 0xD800, 0xE000
_BOOL, _INT, _LONG, _FLOAT, _DOUBLE = (struct.Struct(code).pack for code in ("<?", "<i", "<q", "<f", "<d"))
Pack = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a file's columns, by field id. Nothing is known of a column that is not listed."""

    lower: Mapping[int, bytes] = field(default_factory=dict)
    """Bounds in single-value encoding."""
    upper: Mapping[int, bytes] = field(default_factory=dict)
    nulls: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    """Number of all values, with nulls and NaNs."""
    nans: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Bytes in the file."""


def metrics(rows: pa.Table) -> Metrics:
    """The metrics of rows in the types of the lake, whose fields carry field ids. Nested columns have none."""
    made: dict[str, dict[int, Any]] = {name: {} for name in ("lower", "upper", "nulls", "values", "nans")}
    for place, one in enumerate(rows.schema):
        number = id_of(one)
        if number is None or pa.types.is_nested(one.type):
            continue
        column = rows.column(place)
        made["values"][number], made["nulls"][number] = len(column), column.null_count
        if pa.types.is_floating(one.type):
            column, made["nans"][number] = _without_nan(column)
        for side, bound in zip(("lower", "upper"), _bounds(column), strict=True):
            if bound is not None and not (side == "upper" and made["nans"].get(number)):
                made[side][number] = bound
    return Metrics(**made)


def _without_nan(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    unknown = pc.fill_null(pc.is_nan(column), False)
    count = int(pc.sum(unknown).as_py() or 0)
    return (column.filter(pc.invert(unknown)) if count else column), count


def _bounds(column: pa.ChunkedArray) -> tuple[bytes | None, bytes | None]:
    """The least and the greatest value as single-value bytes; None for a type without bounds or without values."""
    t, kind = pa.types, column.type
    plain = _plain(kind)
    if plain is not None:
        return _ends(column if plain == kind else column.cast(plain), *_PACKED[plain.id])
    if t.is_decimal(kind):
        return _ends(column, _unscaled, _unscaled)
    if t.is_string(kind) or t.is_large_string(kind):
        return _ends(column, lambda value: value[:CUT_CHARS].encode(), _raised_text)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return _ends(column, lambda value: value[:CUT_CHARS], _raised_bytes)
    if t.is_fixed_size_binary(kind) and kind.byte_width <= CUT_CHARS:
        return _ends(column, bytes, bytes)
    return None, None


def _ends(column: pa.ChunkedArray, low: Pack, high: Pack) -> tuple[bytes | None, bytes | None]:
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return (None, None) if least is None else (low(least), high(most))


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """The type whose numbers are packed as single-value bytes of `kind`."""
    t = pa.types
    if t.is_boolean(kind) or kind in (pa.float32(), pa.float64(), pa.int32(), pa.int64()):
        return kind
    if t.is_date32(kind) or kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
        return pa.int32()
    return pa.int64() if t.is_timestamp(kind) or t.is_time64(kind) or kind == pa.uint32() else None


_PACKED: Mapping[int, tuple[Pack, Pack]] = {
    pa.bool_().id: (_BOOL, _BOOL),
    pa.int32().id: (_INT, _INT),
    pa.int64().id: (_LONG, _LONG),
    pa.float32().id: (lambda value: _FLOAT(low_zero(value)), lambda value: _FLOAT(high_zero(value))),
    pa.float64().id: (lambda value: _DOUBLE(low_zero(value)), lambda value: _DOUBLE(high_zero(value))),
}


def _unscaled(value: Decimal) -> bytes:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return unscaled_bytes(-number if sign else number)


def _raised_text(value: str) -> bytes | None:
    """An upper bound of a text in at most `CUT_CHARS` characters; None if there is none."""
    if len(value) <= CUT_CHARS:
        return value.encode()
    kept = value[:CUT_CHARS].rstrip(chr(_CODE_POINT_MAX))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return (kept[:-1] + chr(_BEHIND_SURROGATES if following == _SURROGATE else following)).encode()


def _raised_bytes(value: bytes) -> bytes | None:
    """An upper bound of bytes in at most `CUT_CHARS` bytes; None if there is none."""
    if len(value) <= CUT_CHARS:
        return value
    kept = value[:CUT_CHARS].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


Json = Mapping[str, Any]
Value = bool | int | float | str | bytes | None

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
_AVRO: Mapping[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
}
_STRUCTS: Mapping[str, struct.Struct] = {
    "boolean": struct.Struct("<?"),
    "int": struct.Struct("<i"),
    "date": struct.Struct("<i"),
    "long": struct.Struct("<q"),
    "time": struct.Struct("<q"),
    "timestamp": struct.Struct("<q"),
    "timestamptz": struct.Struct("<q"),
    "timestamp_ns": struct.Struct("<q"),
    "timestamptz_ns": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "double": struct.Struct("<d"),
}
_UUID_BYTES = 16


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; None for another type."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def fixed_of(kind: str) -> int | None:
    """Number of bytes of a fixed type; None for another type."""
    match = _FIXED.fullmatch(kind)
    return int(match[1]) if match else None


@lru_cache(maxsize=64)
def decimal_bytes(precision: int) -> int:
    """The fewest bytes that hold every decimal of a precision."""
    largest: int = 10**precision
    return (largest.bit_length() + 8) // 8


def fitted(kind: str, value: Value) -> Value:
    """A partition value in the width of a type. A decimal from before its column was widened has fewer bytes."""
    if not (isinstance(value, bytes) and (decimal := decimal_of(kind))):
        return value
    size = decimal_bytes(decimal[0])
    return value if len(value) == size else unscaled(value).to_bytes(size, "big", signed=True)


def unscaled(value: bytes) -> int:
    """The unscaled number of a decimal, from any number of bytes."""
    return int.from_bytes(value, "big", signed=True)


def partition_key(value: Any) -> Hashable:
    """A key to compare partition values by. Never compare the values themselves.

    - A decimal's key is its unscaled number, because files from before its column was widened have fewer bytes.
    - NaN equals NaN. -0.0 and 0.0 are two partitions, as in Iceberg.
    - Binary values that differ only in leading zero bytes share a key. A reader that skips files by keys may open one
      file too many; it never skips one that it needs.
    """
    if isinstance(value, bytes):
        return unscaled(value)
    return value.hex() if isinstance(value, float) else value


def avro_type(kind: str, number: int, names: MutableSet[str]) -> Any:
    """The Avro type of a partition field's values. `names` collects the named types of one schema.

    Avro allows a name to repeat an earlier definition, but some readers do not support it. So every definition is
    written out, with the field's id in its name if the usual name is taken.
    """
    if kind in _AVRO:
        return _AVRO[kind]
    if decimal := decimal_of(kind):
        size = decimal_bytes(decimal[0])
        made = {"logicalType": "decimal", "precision": decimal[0], "scale": decimal[1]}
        return _fixed(f"decimal_{decimal[0]}_{decimal[1]}", size, number, names) | made
    if kind == "uuid":
        return _fixed("uuid_fixed", _UUID_BYTES, number, names) | {"logicalType": "uuid"}
    if (width := fixed_of(kind)) is not None:
        return _fixed(f"fixed_{width}", width, number, names)
    raise Invalid(f"values of type {kind!r} partition no table")


def _fixed(name: str, size: int, number: int, names: MutableSet[str]) -> dict[str, Any]:
    own = f"{name}_r{number}" if name in names else name
    names.add(own)
    return {"type": "fixed", "name": own, "size": size}


def single_value(kind: str, value: Any) -> bytes:
    """The single-value bytes of a value."""
    packed = _STRUCTS.get(kind)
    if packed is not None:
        return packed.pack(value)
    if isinstance(value, str):
        return value.encode()
    if decimal_of(kind):
        return unscaled_bytes(value if isinstance(value, int) else unscaled(value))
    return bytes(value)


def low_zero(value: float) -> float:
    """A lower bound: -0.0 for both zeros. Python and Arrow treat them as equal, Java orders -0.0 below 0.0."""
    return value or -0.0


def high_zero(value: float) -> float:
    """An upper bound: 0.0 for both zeros."""
    return value or 0.0


def bounds(kind: str, values: Collection[Any]) -> tuple[bytes | None, bytes | None]:
    """Bounds of values as single-value bytes; None without values. `values` has no null and no NaN."""
    if not values:
        return None, None
    order = order_of(kind)
    low, high = min(values, key=order), max(values, key=order)
    if kind in ("float", "double"):
        low, high = low_zero(low), high_zero(high)
    return single_value(kind, low), single_value(kind, high)


def order_of(kind: str) -> Callable[[Any], Any]:
    """The sort key of values of a type. The key of a decimal is its unscaled number."""
    if not decimal_of(kind):
        return lambda value: value
    return unscaled


def unscaled_bytes(value: int) -> bytes:
    """An unscaled decimal in the fewest bytes, big-endian."""
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def types_of(schema: Json) -> dict[int, Any]:
    """Field id to type, for the fields of a schema at every depth."""
    found: dict[int, Any] = {}
    todo: list[Any] = [schema]
    while todo:
        kind = todo.pop()
        if not isinstance(kind, Mapping):
            continue
        for number, inner in _inner(kind):
            found[number] = inner
            todo.append(inner)
    return found


def _inner(kind: Json) -> list[tuple[int, Any]]:
    if kind["type"] == "struct":
        return [(field["id"], field["type"]) for field in kind["fields"]]
    if kind["type"] == "list":
        return [(kind["element-id"], kind["element"])]
    return [(kind["key-id"], kind["key"]), (kind["value-id"], kind["value"])]


def source_of(field: Json) -> int:
    """The id of the column that a partition field comes from."""
    return int(field["source-ids"][0] if field.get("source-ids") else field["source-id"])


def result_type(transform: str, source: str) -> str:
    """The type of a transform's results, by the type of its column."""
    if transform.startswith("bucket") or transform in ("year", "month", "hour"):
        return "int"
    return "date" if transform == "day" else source


def partition_types(spec: Json, schema: Json) -> dict[str, tuple[int, str]]:
    """Partition field to its id and type. A column that the schema no longer has counts as an int."""
    types = types_of(schema)
    return {
        field["name"]: (field["field-id"], result_type(field["transform"], types.get(source_of(field), "int")))
        for field in spec["fields"]
    }

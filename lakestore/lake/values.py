"""Iceberg's primitive types and the values of partition fields: in Avro, and as single-value bytes.

A value is the manifest's own: an int is the days of a date and the microseconds of a time, bytes are a decimal's
unscaled number of fixed width, a uuid or a fixed. Single-value bytes are those of bounds and partition summaries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Hashable, Mapping, MutableSet
from functools import lru_cache
from typing import Any

from lakestore.errors import Invalid

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
    """Precision and scale of a decimal type; None of any other."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def fixed_of(kind: str) -> int | None:
    """The bytes of a fixed type; None of any other."""
    match = _FIXED.fullmatch(kind)
    return int(match[1]) if match else None


@lru_cache(maxsize=64)
def decimal_bytes(precision: int) -> int:
    """The least bytes that hold every decimal of a precision."""
    largest: int = 10**precision
    return (largest.bit_length() + 8) // 8


def fitted(kind: str, value: Value) -> Value:
    """A partition value in the form of a type: decimals of a column that was widened since have fewer bytes."""
    if not (isinstance(value, bytes) and (decimal := decimal_of(kind))):
        return value
    size = decimal_bytes(decimal[0])
    return value if len(value) == size else unscaled(value).to_bytes(size, "big", signed=True)


def unscaled(value: bytes) -> int:
    """A decimal's number of its bytes, however many."""
    return int.from_bytes(value, "big", signed=True)


def partition_key(value: Any) -> Hashable:
    """A key of a partition value that files of every version of a table share: never compare the values themselves.

    A decimal is its unscaled number, because files from before a widening have fewer bytes. NaN is equal to itself, and
    zeros of both signs are two partitions, as in Iceberg. Binaries that differ in leading zero bytes only share a key:
    a reader that skips by keys opens such a file for nothing, and misses none.
    """
    if isinstance(value, bytes):
        return unscaled(value)
    return value.hex() if isinstance(value, float) else value


def avro_type(kind: str, number: int, names: MutableSet[str]) -> Any:
    """The Avro type of a partition field's values; `names` gathers the named types of one schema.

    Avro lets a name stand for a type that was defined before, but not every reader knows of it: each definition has
    a name of its own, by the field's id where the usual one is taken.
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
    """The bytes that bounds have for a value of a type."""
    packed = _STRUCTS.get(kind)
    if packed is not None:
        return packed.pack(value)
    if isinstance(value, str):
        return value.encode()
    if decimal_of(kind):
        return unscaled_bytes(value if isinstance(value, int) else unscaled(value))
    return bytes(value)


def low_zero(value: float) -> float:
    """A lower bound, -0.0 for a zero of either sign: Python and Arrow hold both equal, Java orders -0.0 below 0.0."""
    return value or -0.0


def high_zero(value: float) -> float:
    """An upper bound, 0.0 for a zero of either sign."""
    return value or 0.0


def bounds(kind: str, values: Collection[Any]) -> tuple[bytes | None, bytes | None]:
    """Bounds of some values of a type as single-value bytes, without null and NaN among them; None for no value."""
    if not values:
        return None, None
    order = order_of(kind)
    low, high = min(values, key=order), max(values, key=order)
    if kind in ("float", "double"):
        low, high = low_zero(low), high_zero(high)
    return single_value(kind, low), single_value(kind, high)


def order_of(kind: str) -> Callable[[Any], Any]:
    """The key by which values of a type are sorted: a decimal's bytes are a number."""
    if not decimal_of(kind):
        return lambda value: value
    return unscaled


def unscaled_bytes(value: int) -> bytes:
    """An unscaled decimal in the fewest bytes, big-endian."""
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def types_of(schema: Json) -> dict[int, Any]:
    """Field id to type of every field of a schema, at every depth."""
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
    """The type of a transform's results for a column of a type."""
    if transform.startswith("bucket") or transform in ("year", "month", "hour"):
        return "int"
    return "date" if transform == "day" else source


def partition_types(spec: Json, schema: Json) -> dict[str, tuple[int, str]]:
    """Partition field to its id and type; a column that the schema no longer has counts as an int."""
    types = types_of(schema)
    return {
        field["name"]: (field["field-id"], result_type(field["transform"], types.get(source_of(field), "int")))
        for field in spec["fields"]
    }

"""Types of a contract and declared types of Lakestore: from one to the other, and back.

- A type that a contract does not settle is an error with the line of the column, never a guess that loses values.
- `logicalTypeOptions.format` and `timezone` win over `physicalType`, which wins over `logicalType`.
- A part is `not null` where the contract says `required: true`; the key of a map always is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.contract.document import Entry, column_name
from lakestore.model.types import arrow_type, list_of, map_of, parts, type_name

_PHYSICAL = {
    "bool": "bool, boolean, bit, logical",
    "int16": "tinyint, byteint, smallint, int2, int16, short, smallserial, uint8",
    "int32": "int, integer, int4, int32, mediumint, serial, uint16",
    "int64": "bigint, int8, int64, long, bigserial, uint32",
    "float32": "real, float4, float32",
    "float64": "double, float, float8, float64, double precision",
    "string": "string, text, str, varchar, char, character, character varying, nvarchar, nchar, varchar2, nvarchar2,"
    " bpchar, clob, uuid, enum, json, jsonb, xml",
    "binary": "binary, varbinary, bytea, blob, bytes",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp, datetime, datetime2, smalldatetime, timestamp_ntz, timestamp without time zone",
    "timestamptz": "timestamptz, timestamp_tz, timestamp_ltz, datetimeoffset, timestamp with time zone",
}
PHYSICAL = {name: ours for ours, text in _PHYSICAL.items() for name in text.split(", ")}
"""Physical types of other systems without their parameters, and the declared type that holds every value. `int8` has
eight bytes in PostgreSQL and one byte elsewhere, so it becomes int64."""
_DECIMALS = ("decimal", "numeric", "number", "dec")
_INTEGERS = {
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
}
_FLOATS = {"f32": "float32", "f64": "float64"}
_LOGICAL = {
    "string": "string",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "integer": "int64",
    "number": "float64",
    "boolean": "bool",
}
_ELEMENTS = {
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
    "int8": "int8",
    "uint8": "uint8",
}
_PARAMETERS = re.compile(r"[(\[].*$")


def type_of(column: Entry) -> str:
    """The declared type of a column of a contract. Raises `Invalid` with the line of what cannot be honoured."""
    return type_name(_arrow(column), column_name(column))


def _arrow(column: Entry) -> pa.DataType:
    logical = column.text("logicalType")
    if logical in _NESTED and (made := _NESTED[logical](column)) is not None:
        return made
    if not logical and column.field("properties"):
        return _struct(column)
    format_name = _formatted(column, logical)
    if format_name:
        return arrow_type(format_name)
    physical = column.field("physicalType")
    if physical is not None and (named := _physical(column, physical)):
        return arrow_type(_with_zone(column, named))
    if logical in _LOGICAL:
        return arrow_type(_with_zone(column, _LOGICAL[logical]))
    if logical == "object":
        raise column.error("is an object without properties: list them, or say physicalType: string")
    if logical == "array":
        raise column.error("is an array without items: say their logicalType under items")
    said = f", and physicalType {column.text('physicalType')!r} is not known" if physical else ""
    raise column.error(f"has no logicalType that tells its type{said}")


def _struct(column: Entry) -> pa.DataType | None:
    fields = column.listed("properties")
    if not fields:
        return None
    return pa.struct([pa.field(column_name(part), _arrow(part), nullable=not is_required(part)) for part in fields])


def _list(column: Entry) -> pa.DataType | None:
    items = column.field("items")
    return list_of(_arrow(items), required=is_required(items)) if items else None


def _map(column: Entry) -> pa.DataType:
    pair = column.field("map")
    key, value = (pair.field("key"), pair.field("value")) if pair else (None, None)
    if key is None or value is None:
        raise column.error("is a map without map.key and map.value")
    return map_of(_arrow(key), _arrow(value), required=is_required(value))


def _vector(column: Entry) -> pa.DataType:
    options = column.field("logicalTypeOptions")
    element = options.text("elementType", "float32") if options else "float32"
    if element not in _ELEMENTS:
        raise column.error(f"is a vector of {element}, which no type of a table holds")
    return list_of(arrow_type(_ELEMENTS[element]), required=True)


_NESTED: Mapping[str, Callable[[Entry], pa.DataType | None]] = {
    "object": _struct,
    "array": _list,
    "map": _map,
    "vector": _vector,
}


def is_required(column: Entry) -> bool:
    """Whether the contract says that a value is never null."""
    flag = column.field("required")
    if flag is not None and not isinstance(flag.value, bool):
        raise flag.error("is true or false")
    return bool(flag and flag.value)


def _formatted(column: Entry, logical: str) -> str:
    """The type that the options of a logical type settle; empty if they do not."""
    options = column.field("logicalTypeOptions")
    said = options.field("format") if options else None
    if said is None or logical not in ("integer", "number", "string"):
        return ""
    if logical == "string":
        return "binary" if said.value == "binary" else ""
    if _PARAMETERS.sub("", column.text("physicalType").lower()).strip() in _DECIMALS:
        return ""  # an exact type loses nothing
    known = _INTEGERS if logical == "integer" else _FLOATS
    if said.value in known:
        return known[said.value]
    if logical == "integer":
        raise said.error(
            f"is {said.value}; integers of a table are {', '.join(_INTEGERS)}: say physicalType: decimal(20,0)"
        )
    return ""


def _physical(column: Entry, physical: Entry) -> str:
    if not isinstance(physical.value, str):
        raise physical.error("is a text")
    text = " ".join(physical.value.lower().split())
    base = " ".join(_PARAMETERS.sub("", text).split()) + (text[text.index(")") + 1 :] if ")" in text else "")
    if base in _DECIMALS:
        digits = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", text)
        if digits is None:
            raise physical.error(
                f"is {physical.value} without digits: say decimal(p,s), or float64 if it may be inexact"
            )
        return _checked(physical, f"decimal({digits[1]},{digits[2] or 0})")
    if base in PHYSICAL:
        return PHYSICAL[base]
    return _checked(physical, text) if base == "fixed" else ""


def _checked(physical: Entry, text: str) -> str:
    try:
        arrow_type(text)
    except Invalid as error:
        raise physical.error(f"is not a type of a table: {error.message}") from error
    return text


def _with_zone(column: Entry, name: str) -> str:
    options = column.field("logicalTypeOptions")
    zone = options.field("timezone") if options else None
    if zone is None or name not in ("timestamp", "timestamptz"):
        return name
    return "timestamptz" if zone.value is True else "timestamp"


_OF_SCALAR: Mapping[str, dict[str, Any]] = {
    "bool": {"logicalType": "boolean"},
    **{name: {"logicalType": "integer", "logicalTypeOptions": {"format": said}} for said, name in _INTEGERS.items()},
    **{name: {"logicalType": "number", "logicalTypeOptions": {"format": said}} for said, name in _FLOATS.items()},
    "string": {"logicalType": "string"},
    "binary": {"logicalType": "string", "logicalTypeOptions": {"format": "binary"}},
    "date": {"logicalType": "date"},
    "time": {"logicalType": "time"},
    "timestamp": {"logicalType": "timestamp", "logicalTypeOptions": {"timezone": False}},
    "timestamptz": {"logicalType": "timestamp", "logicalTypeOptions": {"timezone": True}},
}


def fields_of(kind: pa.DataType) -> dict[str, Any]:
    """The fields of a contract's column that `type_of` reads as this type."""
    inner = parts(kind)
    if pa.types.is_struct(kind):
        return {"logicalType": "object", "properties": [{"name": part.name, **_part(part)} for part in inner]}
    if pa.types.is_list(kind):
        return {"logicalType": "array", "items": _part(inner[0])}
    if pa.types.is_map(kind):
        return {"logicalType": "map", "map": {"key": fields_of(kind.key_type), "value": _part(inner[1])}}
    name = type_name(kind, "")
    if name in _OF_SCALAR:
        return copy.deepcopy(_OF_SCALAR[name])  # YAML writes an object that occurs twice as an alias
    logical = "number" if pa.types.is_decimal(kind) else "string"
    return {"logicalType": logical, "physicalType": name}


def _part(part: pa.Field) -> dict[str, Any]:
    return fields_of(part.type) | ({} if part.nullable else {"required": True})

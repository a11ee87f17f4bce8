"""Postgres types of Arrow types, both ways.

- Every Arrow type of a table or of a DuckDB result has one Postgres type; bignum is refused with a sentence.
- A list of scalars is an array. Struct, map, union and a list of them are jsonb.
- A type that loses its name in Postgres (nanoseconds, bits) is text, and `notice` has the sentence for the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakestore.errors import Invalid

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID, JSON = 16, 17, 18, 19, 20, 21, 23, 25, 26, 114
FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR, DATE, TIME, TIMESTAMP = 700, 701, 705, 1042, 1043, 1082, 1083, 1114
TIMESTAMPTZ, INTERVAL, TIMETZ, NUMERIC, UUID, JSONB = 1184, 1186, 1266, 1700, 2950, 3802
VARIABLE = -1
"""Size of a type whose values differ in length."""
NUMERIC_DIGITS_MAX = 1000
_MODIFIER_HEADER = 4

_TYPES: dict[int, tuple[str, int, int]] = {
    BOOL: ("bool", 1, 1000),
    BYTEA: ("bytea", VARIABLE, 1001),
    CHAR: ("char", 1, 1002),
    NAME: ("name", 64, 1003),
    INT2: ("int2", 2, 1005),
    INT4: ("int4", 4, 1007),
    INT8: ("int8", 8, 1016),
    OID: ("oid", 4, 1028),
    FLOAT4: ("float4", 4, 1021),
    FLOAT8: ("float8", 8, 1022),
    NUMERIC: ("numeric", VARIABLE, 1231),
    TEXT: ("text", VARIABLE, 1009),
    BPCHAR: ("bpchar", VARIABLE, 1014),
    VARCHAR: ("varchar", VARIABLE, 1015),
    DATE: ("date", 4, 1182),
    TIME: ("time", 8, 1183),
    TIMETZ: ("timetz", 12, 1270),
    TIMESTAMP: ("timestamp", 8, 1115),
    TIMESTAMPTZ: ("timestamptz", 8, 1185),
    INTERVAL: ("interval", 16, 1187),
    UUID: ("uuid", 16, 2951),
    JSON: ("json", VARIABLE, 199),
    JSONB: ("jsonb", VARIABLE, 3807),
}
"""Oid -> name, size in bytes, oid of the array type."""
ELEMENTS = {array: oid for oid, (_, _, array) in _TYPES.items()}
"""Oid of an array type -> oid of its elements."""

NUMERIC_ARROW = pa.decimal128(38, 10)
"""A numeric parameter whose value is not known yet. The value itself keeps its own scale."""
_PARAMETERS: dict[int, pa.DataType] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    CHAR: pa.string(),
    NAME: pa.string(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    OID: pa.uint32(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    NUMERIC: NUMERIC_ARROW,
    TEXT: pa.string(),
    BPCHAR: pa.string(),
    VARCHAR: pa.string(),
    DATE: pa.date32(),
    TIME: pa.time64("us"),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    INTERVAL: pa.month_day_nano_interval(),
    UUID: pa.uuid(),
    JSON: pa.json_(),
    JSONB: pa.json_(),
}
OID_ARROW = pa.opaque(pa.uint32(), "oid", "postgres")
CHAR_ARROW = pa.opaque(pa.string(), "char", "postgres")
"""Results and parameters of queries of the catalog that Postgres calls oid and "char"."""


@dataclass(frozen=True, slots=True)
class PostgresType:
    """The type fields of a column in RowDescription."""

    oid: int
    size: int
    """Bytes of a value; -1 if they differ."""
    modifier: int
    """Precision and scale of a numeric; -1 without."""
    name: str


def postgres_type(field: pa.Field) -> PostgresType:
    """The Postgres type of a result's column; `Invalid` with a sentence if its values have no form in Postgres."""
    kind = field.type
    oid = _oid(kind, field.name)
    name, size, array = _TYPES[ELEMENTS.get(oid, oid)]
    if oid != array:
        return PostgresType(oid, size, modifier(kind), name)
    return PostgresType(oid, VARIABLE, modifier(kind.value_type), f"_{name}")


def arrow_type(oid: int) -> pa.DataType | None:
    """The Arrow type of a parameter; None for `unknown` and for types that parameters cannot have."""
    element = ELEMENTS.get(oid)
    if element is not None:
        inner = _PARAMETERS.get(element)
        return None if inner is None else pa.list_(inner)
    return _PARAMETERS.get(oid)


def type_name(oid: int) -> str:
    """The name in pg_type, such as `int4` or `_int4`; the number if the type is unknown here."""
    if oid in ELEMENTS:
        return f"_{_TYPES[ELEMENTS[oid]][0]}"
    return _TYPES[oid][0] if oid in _TYPES else str(oid)


def notice(field: pa.Field) -> str | None:
    """One sentence if the column's values arrive as text because Postgres has no type for them."""
    kind = field.type
    is_array = is_list(kind)
    if is_array:
        kind = kind.value_type
    what = _texts(kind)
    if what is None or (is_array and is_nested(kind)):
        return None
    return f"column {field.name!r} has {what}; its values are sent as text"


def _texts(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return "timestamps in nanoseconds, which Postgres does not have"
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return "times in nanoseconds, which Postgres does not have"
    if opaque_name(kind) == "bit":
        return "bits of differing number"
    return None


def opaque_name(kind: pa.DataType) -> str | None:
    """DuckDB's name of a type that Arrow does not have, such as `hugeint`; None for other types."""
    return str(kind.type_name) if isinstance(kind, pa.OpaqueType) else None


def of_catalog(kind: pa.DataType) -> pa.DataType:
    """The type of a result or parameter of a query that reads the catalog: there a uint32 is an oid, and an ENUM is a
    "char"."""
    if kind == pa.uint32():
        return OID_ARROW
    if pa.types.is_dictionary(kind):
        return CHAR_ARROW
    return pa.list_(of_catalog(kind.value_type)) if pa.types.is_list(kind) else kind


def as_catalog(column: pa.Array) -> pa.Array:
    """A column of such a query, in its type there."""
    kind = of_catalog(column.type)
    if kind == column.type:
        return column
    if pa.types.is_list(kind):
        children = [as_catalog(column.values)]
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=children)
    return pa.ExtensionArray.from_storage(kind, column.cast(kind.storage_type))


def is_json(kind: pa.DataType) -> bool:
    """Whether the values are texts that are JSON."""
    return isinstance(kind, pa.JsonType)


def is_list(kind: pa.DataType) -> bool:
    """Whether the values are lists. A list view is none: neither DuckDB nor a table has one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_nested(kind: pa.DataType) -> bool:
    """Whether a value has parts, so that a list of them is jsonb."""
    return bool(is_list(kind) or is_json(kind) or pa.types.is_nested(kind))


def modifier(kind: pa.DataType) -> int:
    """The `atttypmod` of a decimal; -1 for other types."""
    if not pa.types.is_decimal(kind) or kind.precision > NUMERIC_DIGITS_MAX:
        return -1
    return (int(kind.precision) << 16 | (int(kind.scale) & 0x7FF)) + _MODIFIER_HEADER


def _oid(kind: pa.DataType, column: str) -> int:
    if is_json(kind):
        return JSONB
    if is_list(kind):
        return JSONB if is_nested(kind.value_type) else _TYPES[_oid(kind.value_type, column)][2]
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_union(kind):
        return JSONB
    if isinstance(kind, pa.UuidType):
        return UUID
    if isinstance(kind, pa.Bool8Type):
        return BOOL
    named = opaque_name(kind)
    if named is not None:
        return _opaque(named, column)
    if pa.types.is_dictionary(kind):
        return _oid(kind.value_type, column)
    return _scalar(kind, column)


def _opaque(named: str, column: str) -> int:
    oid = _OPAQUE.get(named)
    if oid is None:
        raise Invalid(f"column {column!r} has the type {named}, which Postgres does not have; cast it to VARCHAR")
    return oid


_OPAQUE = {"hugeint": NUMERIC, "uhugeint": NUMERIC, "bit": TEXT, "time_tz": TIMETZ, "oid": OID, "char": CHAR}
_BY_ARROW: dict[pa.DataType, int] = {
    pa.null(): TEXT,
    pa.bool_(): BOOL,
    pa.int8(): INT2,
    pa.int16(): INT2,
    pa.uint8(): INT2,
    pa.int32(): INT4,
    pa.uint16(): INT4,
    pa.int64(): INT8,
    pa.uint32(): INT8,
    pa.uint64(): NUMERIC,
    pa.float16(): FLOAT4,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.string_view(): TEXT,
    pa.binary(): BYTEA,
    pa.large_binary(): BYTEA,
    pa.binary_view(): BYTEA,
    pa.date32(): DATE,
    pa.date64(): DATE,
    pa.time32("s"): TIME,
    pa.time32("ms"): TIME,
    pa.time64("us"): TIME,
    pa.month_day_nano_interval(): INTERVAL,
}


def _scalar(kind: pa.DataType, column: str) -> int:
    oid = _BY_ARROW.get(kind)
    if oid is not None:
        return oid
    if pa.types.is_timestamp(kind):
        return TEXT if kind.unit == "ns" else TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    if pa.types.is_time64(kind):
        return TEXT
    if pa.types.is_decimal(kind):
        return NUMERIC
    if pa.types.is_duration(kind):
        return INTERVAL
    if pa.types.is_fixed_size_binary(kind):
        return BYTEA
    raise Invalid(f"column {column!r} has the type {kind}, which Postgres does not have; cast it to VARCHAR")

"""Kinds of fields as Kafka Connect and Debezium name them, and the Arrow types that columns of them have.

A kind comes from the `schema` part of JSON records, or, where these bring none, from the Arrow types of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date", "io.debezium.time.IsoDate")
TIMES = {
    "io.debezium.time.Time": 1_000_000,
    "org.apache.kafka.connect.data.Time": 1_000_000,
    "io.debezium.time.MicroTime": 1_000,
    "io.debezium.time.NanoTime": 1,
    "io.debezium.time.IsoTime": 1_000,
}
"""Times of a day without a zone, to nanoseconds of their unit."""
TIMESTAMPS = {
    "io.debezium.time.Timestamp": 1_000_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000_000,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1,
    "io.debezium.time.IsoTimestamp": 1_000,
}
"""Timestamps without a zone, to nanoseconds of their unit."""
ZONED = "io.debezium.time.ZonedTimestamp"
ANY = "any"
"""The wire type of values that stay as they came, for the casts of columns: times without a schema. Days alone are made
dates, for those casts take numbers for milliseconds."""
DIGITS_MAX = 38
_SIMPLE: dict[str, pa.DataType] = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """The meaning of a field, whatever form its values are written in."""

    wire: str
    """A type of Kafka Connect: int64, string, struct, array, map and so on."""
    name: str = ""
    """Debezium's or Connect's semantic name."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[tuple[str, Kind], ...] = ()
    """Members of a struct."""
    item: Kind | None = None
    """Elements of an array, values of a map."""
    key: Kind | None = None
    """Keys of a map."""
    target: pa.DataType | None = None
    """The declared column's type, where records bring no schema."""
    unit: str = ""
    """Form of a declared decimal that comes as text: base64 or text; empty: as each value shows."""
    default: Any = field(default=None, compare=False)
    """The column's default as JSON has it; None: none, or null."""

    def child(self, name: str) -> Kind | None:
        """A field of a struct."""
        return dict(self.fields).get(name)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of columns of this kind."""
        if self.target is not None:
            return self.target
        if self.wire == "struct" and self.name != VARIABLE_DECIMAL:
            return pa.struct([pa.field(name, part.type) for name, part in self.fields])
        if self.wire == "array" and self.item:
            return pa.list_(self.item.type)
        if self.wire == "map" and self.item and self.key:
            return pa.map_(self.key.type, self.item.type)
        return self._leaf()

    def _leaf(self) -> pa.DataType:
        if self.name == DECIMAL:
            return self._decimal()
        if self.name == VARIABLE_DECIMAL:
            return pa.string()
        if self.name in DATES:
            return pa.date32()
        if self.name in TIMES:
            return pa.time64("us")
        if self.name in TIMESTAMPS:
            return pa.timestamp("us")
        return pa.timestamp("us", tz="UTC") if self.name == ZONED else _SIMPLE.get(self.wire, pa.string())

    def _decimal(self) -> pa.DataType:
        precision = _whole(self.parameters.get("connect.decimal.precision"), DIGITS_MAX)
        precision = max(precision - min(self.scale, 0), self.scale, 1)
        return pa.decimal128(precision, max(self.scale, 0)) if precision <= DIGITS_MAX else pa.string()

    @property
    def scale(self) -> int:
        """Digits behind the point of a decimal; negative ones stand for zeros before it."""
        if self.target is not None and pa.types.is_decimal(self.target):
            return int(self.target.scale)
        return _whole(self.parameters.get("scale"), 0)


def struct(**fields: Kind) -> Kind:
    """A struct of named kinds."""
    return Kind("struct", fields=tuple(fields.items()))


def from_connect(schema: Mapping[str, Any]) -> Kind:
    """The kind that the `schema` part of a JSON record, or a part of it, tells. Unknown types are texts."""
    wire = str(schema.get("type", "string"))
    parameters = schema.get("parameters")
    said = {key: str(value) for key, value in parameters.items()} if isinstance(parameters, Mapping) else {}
    parts = schema.get("fields")
    listed = parts if isinstance(parts, list) else []
    return Kind(
        wire,
        str(schema.get("name") or ""),
        said,
        tuple((str(part.get("field", "")), from_connect(part)) for part in listed if isinstance(part, Mapping)),
        _part(schema.get("items", schema.get("values"))) if wire in ("array", "map") else None,
        _part(schema.get("keys")) if wire == "map" else None,
        default=schema.get("default"),
    )


def _part(schema: Any) -> Kind:
    return from_connect(schema) if isinstance(schema, Mapping) else Kind("string")


def from_arrow(field: pa.Field, unit: str = "") -> Kind:
    """The kind of a declared column."""
    kind, t = field.type, pa.types
    if t.is_struct(kind):
        return Kind("struct", fields=tuple((part.name, from_arrow(part)) for part in kind))
    if t.is_list(kind) or t.is_large_list(kind):
        return Kind("array", item=from_arrow(kind.value_field, unit))
    if t.is_map(kind):
        return Kind("map", item=from_arrow(kind.item_field), key=from_arrow(kind.key_field))
    if t.is_temporal(kind):
        return Kind(ANY, DATES[0] if t.is_date(kind) else "")
    return Kind(_wire(kind), target=kind, unit=unit)


def _wire(kind: pa.DataType) -> str:
    t = pa.types
    if t.is_integer(kind):
        return "int64"
    if t.is_floating(kind):
        return "double"
    return "boolean" if t.is_boolean(kind) else "string"


def _whole(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise

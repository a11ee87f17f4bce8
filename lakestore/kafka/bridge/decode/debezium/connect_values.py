"""Converts values of Kafka Connect and Debezium to Arrow: times, decimals, bytes, lists, structs.

A value that does not fit its kind is a fault of its row, reported with a path. The other rows of the block are
converted.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.framing import spans
from lakestore.kafka.bridge.records import Ints
from lakestore.model.decimals import from_unscaled_value
from lakestore.rows.casting import ARROW, mask, null_mask

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
"""Names of times of day without a zone; value: nanoseconds in the unit."""
TIMESTAMPS = {
    "io.debezium.time.Timestamp": 1_000_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000_000,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1,
    "io.debezium.time.IsoTimestamp": 1_000,
}
"""Names of timestamps without a zone; value: nanoseconds in the unit."""
ZONED = "io.debezium.time.ZonedTimestamp"
ANY = "any"
"""Wire type of values that are left as they are for the column casts: times without a schema. Only days become
dates, because the casts read numbers as milliseconds.
"""
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
    """The meaning of a field, independent of how its values are written."""

    wire: str
    """A type of Kafka Connect, such as int64, string, struct, array or map."""
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[tuple[str, Kind], ...] = ()
    item: Kind | None = None
    key: Kind | None = None
    target: pa.DataType | None = None
    """Type of the declared column if the records bring no schema."""
    unit: str = ""
    """Encoding of a declared decimal that arrives as text: base64 or text. If empty, each value is inspected."""
    default: Any = field(default=None, compare=False)
    """The column's default as JSON; None for no default or null."""

    def child(self, name: str) -> Kind | None:
        return dict(self.fields).get(name)

    @property
    def type(self) -> pa.DataType:
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
        """Digits after the decimal point. A negative scale means trailing zeros before the point."""
        if self.target is not None and pa.types.is_decimal(self.target):
            return int(self.target.scale)
        return _whole(self.parameters.get("scale"), 0)


def struct(**fields: Kind) -> Kind:
    """A struct kind with these fields."""
    return Kind("struct", fields=tuple(fields.items()))


def from_connect(schema: Mapping[str, Any]) -> Kind:
    """The kind of a JSON record's `schema` part, or of a piece of it. An unknown type is a text."""
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


_DIGITS_MAX = 38
_WIDTH = 16
SCALE_MAX = 100_000
"""The most zeros that a formatted decimal gets. A message may name any 32-bit scale."""


def decode_base64(texts: pa.StringArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """Decode base64. Returns the bytes, null for a null or invalid text, and a mask of the invalid texts."""
    values = [None if text is None else _of_text(text) for text in texts.to_pylist()]
    raw = pa.array(values, pa.binary())
    return raw, pc.and_(raw.is_null(), texts.is_valid())


def _of_text(text: str) -> bytes | None:
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    return raw if len(text) == -(-len(raw) // 3) * 4 else None  # the library accepts too much padding


def wide_decimals(raw: pa.BinaryArray, scale: int) -> tuple[pa.Array, pa.BooleanArray]:
    """Decimals of 38 digits from big-endian bytes, and a mask of the values that are too wide and null."""
    count = len(raw)
    filled = raw.fill_null(b"\0") if raw.null_count else raw
    offsets, data = spans(filled)
    lengths = np.diff(offsets)
    wide = (lengths > _WIDTH) | (lengths == 0)
    rows = np.flatnonzero(~wide)
    first = np.zeros(count, np.uint8)
    first[rows] = data[offsets[:-1][rows]]
    made = np.where((first >= 128)[:, None], np.uint8(255), np.uint8(0)).repeat(_WIDTH, axis=1)
    for place in range(_WIDTH):
        at = rows[lengths[rows] > place]
        made[at, place] = data[offsets[1:][at] - 1 - place]
    words = made.view("<u8").reshape(count, 2)
    wide |= _over(words)
    buffer = pa.py_buffer(np.ascontiguousarray(made))
    kind = pa.decimal128(_DIGITS_MAX, scale)
    array = pa.Array.from_buffers(kind, count, [None, buffer])
    hidden = pc.or_(pa.array(wide), raw.is_null())
    return pc.if_else(hidden, pa.scalar(None, kind), array), pa.array(wide)


def _over(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """True for values with a high word above that of 10**38. Smaller values are checked exactly."""
    high = words[:, 1].view(np.int64)
    limit = (10**_DIGITS_MAX) >> 64
    return np.asarray((high >= limit) | (high < -limit))


def digits(raw: bytes, scale: int) -> str:
    """Format a decimal of big-endian two's complement bytes exactly, with an exponent if its scale is far from zero."""
    whole = int.from_bytes(raw, "big", signed=True)
    number = from_unscaled_value(whole, scale)
    return format(number, "f") if abs(scale) < SCALE_MAX else str(number)


_DAY_NANOS = 86_400 * 10**9
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Years 1 to 9999, the range that readers of tables support."""
_BASE64_ONLY = r"^[A-Za-z0-9+/]+={0,2}$"
_NUMBER_ONLY = r"^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?$"
"""A text of digits alone is also valid base64 if its length is a multiple of four."""
_END_OF_DAY = r"^24:00(:00(\.0+)?)?(Z|[+]00:00)?$"
_NO_TIME = (
    "a time of day is outside of a day, as 24:00:00 of PostgreSQL is, and no time column takes it: declare the column"
    " with type: string or int64 in an entry of its own for the topic"
)


@dataclass(slots=True)
class Faults:
    """Values that do not fit their kind."""

    found: list[tuple[Ints, str, str, str]] = field(default_factory=list)
    """Rows, code, reason, path."""

    def add(self, wrong: pa.BooleanArray | pa.ChunkedArray, code: str, reason: str, path: str) -> None:
        rows = np.flatnonzero(wrong.fill_null(False).to_numpy(zero_copy_only=False))
        if len(rows):
            self.found.append((rows, code, reason, path))


def convert(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """Convert values to `kind.type`; ANY stays unchanged. A value that does not fit is null and a fault."""
    if kind.wire == ANY and not (kind.name and pa.types.is_integer(array.type)):
        return array
    if array.type == kind.type and not kind.fields and kind.wire not in ("array", "map") and kind.name != DECIMAL:
        return _bounded(array, path, faults)
    if kind.name == VARIABLE_DECIMAL and pa.types.is_struct(array.type):
        return _variable_decimal(array, path, faults)
    if pa.types.is_struct(array.type) and kind.wire == "struct":
        return _struct(array, kind, path, faults)
    if pa.types.is_map(array.type) and kind.key and kind.item:
        return _map(array, kind, path, faults)
    if (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)) and kind.item:
        return _list(array, kind, path, faults)
    return _leaf(array, kind, path, faults)


def _struct(array: pa.StructArray, kind: Kind, path: str, faults: Faults) -> pa.StructArray:
    parts = []
    for name, part in kind.fields:
        at = array.type.get_field_index(name)
        if at < 0:
            parts.append(pa.nulls(len(array), part.type))
            continue
        parts.append(convert(pc.struct_field(array, [at]), part, f"{path}.{name}", faults))
    fields = [pa.field(name, made.type) for (name, _), made in zip(kind.fields, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


def _inner(array: pa.Array, parts: list[tuple[pa.Array, Kind]], path: str, faults: Faults) -> list[pa.Array]:
    """Convert the values inside lists. Their faults count for the rows that contain them."""
    inside, made = Faults(), []
    for values, kind in parts:
        made.append(convert(values, kind, path, inside))
    parents = pc.list_parent_indices(array.cast(pa.list_(parts[0][0].type)) if pa.types.is_map(array.type) else array)
    for rows, code, reason, where in inside.found:
        faults.found.append((np.unique(parents.to_numpy()[rows]).astype(np.int64), code, reason, where))
    return made


def _list(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    assert kind.item is not None
    array = _compact(array)
    (values,) = _inner(array, [(array.values, kind.item)], f"{path}[]", faults)
    return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, mask=null_mask(array))


def _map(array: pa.MapArray, kind: Kind, path: str, faults: Faults) -> pa.Array:
    assert kind.item is not None
    assert kind.key is not None
    array = _compact(array)
    inside = Faults()
    keys = convert(array.keys, kind.key, f"{path}{{}}", inside)
    items = convert(array.items, kind.item, f"{path}{{}}", inside)
    lengths = np.diff(array.offsets.to_numpy())
    parents = np.repeat(np.arange(len(array)), lengths)
    for rows, code, reason, where in inside.found:
        faults.found.append((np.unique(parents[rows]), code, reason, where))
    return pa.MapArray.from_arrays(array.offsets, keys, items, mask=null_mask(array))


def _compact(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array.take(pa.array(np.arange(len(array))))])


def _leaf(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    target, t = kind.type, pa.types
    if t.is_null(array.type):
        return pa.nulls(len(array), target)
    if t.is_decimal(target) or kind.name == DECIMAL:
        return _decimal(array, kind, path, faults)
    if t.is_binary(target) or t.is_large_binary(target) or t.is_fixed_size_binary(target):
        return _bytes(array, target, path, faults)
    if t.is_integer(array.type) and t.is_string(target) and kind.name in TIMES:
        return _text_of_time(array, TIMES[kind.name], path, faults)
    if t.is_integer(array.type) and t.is_temporal(target):
        return _time_of_number(array, kind, path, faults)
    if t.is_string(array.type) and t.is_temporal(target):
        return _time_of_text(array, kind, path, faults)
    return _cast(array, target, path, faults)


def _cast(array: pa.Array, target: pa.DataType, path: str, faults: Faults) -> pa.Array:
    made, wrong = mask(array, pa.field(path, target), ARROW)
    if wrong is not None:
        faults.add(pa.array(wrong), "wrong-type", f"a value is no {target}", path)
    return _bounded(made, path, faults)


def _bounded(array: pa.Array, path: str, faults: Faults) -> pa.Array:
    if not pa.types.is_timestamp(array.type) or array.type.unit != "us":
        return array
    micros = array.cast(pa.int64())
    wrong = pc.or_(pc.less(micros, _FIRST_US), pc.greater(micros, _LAST_US))
    if not pc.any(wrong).as_py():
        return array
    faults.add(wrong, "out-of-range", "a timestamp is outside the years 1 to 9999", path)
    return pc.if_else(wrong, pa.scalar(None, array.type), array)


def _time_of_number(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    target, t = kind.type, pa.types
    if t.is_date(target):
        return _cast(_cast(array, pa.int32(), path, faults).cast(pa.date32()), target, path, faults)
    if t.is_time(target):
        nanos = TIMES.get(kind.name, 1_000)
        wrong = pc.or_(pc.less(array, 0), pc.greater_equal(array, _DAY_NANOS // nanos))
        faults.add(wrong, "out-of-range", _NO_TIME, path)
        micros = _micros(pc.if_else(wrong, pa.scalar(None, array.type), array), nanos, path, faults)
        return _cast(micros.cast(pa.time64("us")), target, path, faults)
    nanos = TIMESTAMPS.get(kind.name, 1_000)
    micros = _micros(array, nanos, path, faults).cast(pa.timestamp("us"))
    zone = target.tz if t.is_timestamp(target) else None
    return _cast(micros.cast(pa.timestamp("us", tz=zone)), target, path, faults)


def _micros(array: pa.Array, nanos: int, path: str, faults: Faults) -> pa.Array:
    """Convert numbers of a unit to microseconds. Columns have no nanoseconds, so finer digits are cut."""
    array = array.cast(pa.int64())
    if nanos < 1_000:
        return pa.array(np.floor_divide(array.fill_null(0).to_numpy(), 1_000), mask=_nulls(array))
    factor = nanos // 1_000
    limit = (2**63 - 1) // factor
    wrong = pc.or_(pc.less(array, -limit), pc.greater(array, limit))
    faults.add(wrong, "out-of-range", "a timestamp is outside the years 1 to 9999", path)
    return pc.multiply(pc.if_else(wrong, pa.scalar(None, pa.int64()), array), factor)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _time_of_text(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    target, t = kind.type, pa.types
    text = pc.replace_substring_regex(array, r"(\.[0-9]{6})[0-9]+", r"\1")
    if t.is_timestamp(target) and (kind.name == ZONED or target.tz):
        return _cast(text, target, path, faults)
    if t.is_time(target):
        ends = pc.match_substring_regex(text, _END_OF_DAY)
        faults.add(ends, "out-of-range", _NO_TIME, path)
        text = pc.if_else(ends, pa.scalar(None, text.type), text)
    text = pc.replace_substring_regex(text, r"(Z|[+]00:00)$", "")
    if t.is_time(target):  # Arrow cannot cast text to a time of day
        moments = _cast(pc.binary_join_element_wise("1970-01-01T", text, ""), pa.timestamp("us"), path, faults)
        return moments.cast(target)
    return _cast(text, target, path, faults)


def _text_of_time(array: pa.Array, nanos: int, path: str, faults: Faults) -> pa.Array:
    """Format numeric times of day as text. A text column can also hold 24:00:00."""
    day = _DAY_NANOS // nanos
    wrong = pc.or_(pc.less(array, 0), pc.greater(array, day))
    faults.add(wrong, "out-of-range", "a time of day is outside of a day", path)
    ends = pc.equal(array, day)
    inside = pc.if_else(pc.or_(wrong, ends), pa.scalar(None, array.type), array)
    texts = _micros(inside, nanos, path, faults).cast(pa.time64("us")).cast(pa.string())
    return pc.if_else(ends, "24:00:00", pc.replace_substring_regex(texts, r"\.0+$", ""))


def _bytes(array: pa.Array, target: pa.DataType, path: str, faults: Faults) -> pa.Array:
    if not pa.types.is_string(array.type):
        return _cast(array, target, path, faults)
    made, wrong = decode_base64(array)
    faults.add(wrong, "bad-base64", "a text that stands for bytes is not base64", path)
    return _cast(made, target, path, faults)


def _decimal(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    target, t = kind.type, pa.types
    if t.is_binary(array.type) or t.is_large_binary(array.type) or t.is_fixed_size_binary(array.type):
        return _unscaled(array.cast(pa.binary()), kind, path, faults)
    if not t.is_string(array.type):
        return _cast(array, target, path, faults)
    if kind.target is None or kind.unit == "base64":
        return _of_base64(array, kind, path, faults)
    if kind.unit == "text":
        return _cast(array, target, path, faults)
    number, base64 = pc.match_substring_regex(array, _NUMBER_ONLY), pc.match_substring_regex(array, _BASE64_ONLY)
    base64 = pc.and_(base64, pc.equal(pc.bit_wise_and(pc.binary_length(array), 3), 0))
    reason = "a decimal could be digits or base64; say `unit: text` or `unit: base64` of the column"
    unsure = pc.and_(number, base64)
    faults.add(unsure, "unsure-decimal", reason, path)
    nothing = pa.scalar(None, pa.string())
    of_base64 = _of_base64(pc.if_else(pc.and_not(base64, number), array, nothing), kind, path, faults)
    of_text = pc.if_else(pc.or_(unsure, pc.and_not(base64, number)), nothing, array)
    return pc.coalesce(of_base64, _cast(of_text, target, path, faults))


def _of_base64(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    raw, wrong = decode_base64(array)
    faults.add(wrong, "bad-base64", "a decimal is not base64 of its unscaled value", path)
    return _unscaled(raw, kind, path, faults)


def _unscaled(raw: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    target = kind.type
    if pa.types.is_decimal(target) and kind.scale >= 0:
        made, wide = wide_decimals(raw, kind.scale)
        wrong = pc.and_(wide, raw.is_valid())
        if not pc.any(wrong).as_py():
            return _cast(made, target, path, faults)
    else:
        made, wrong = None, pa.array(np.ones(len(raw), bool))
    values = [None if text is None else digits(text, kind.scale) for text in raw.to_pylist()]
    return _cast(pa.array(values, pa.string()), target, path, faults)


def _variable_decimal(array: pa.StructArray, path: str, faults: Faults) -> pa.Array:
    raw = pc.struct_field(array, "value")
    if pa.types.is_string(raw.type):
        raw, wrong = decode_base64(raw)
        faults.add(wrong, "bad-base64", "a decimal is not base64 of its unscaled value", f"{path}.value")
    pairs = zip(raw.to_pylist(), pc.struct_field(array, "scale").to_pylist(), strict=True)
    made = [None if text is None else digits(text, scale or 0) for text, scale in pairs]
    return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), pa.array(made, pa.string()))

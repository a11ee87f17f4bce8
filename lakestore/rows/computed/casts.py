"""CAST of what is computed: to types that hold every value, perhaps rounded; a row never ends a read by it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.rows.computed import kinds
from lakestore.rows.computed.value import Datum, Value, made
from lakestore.rows.literals import short


def converted(value: Value, target: pa.DataType, text: str) -> Value:
    """The value in another type; `Invalid` where a row could have none in it."""
    given, t = value.type, pa.types
    if given == target:
        return value
    if t.is_string(target):
        return _text(value, text)
    if t.is_date(target) and t.is_timestamp(given):
        return made(target, [value], lambda data: data.cast(pa.timestamp("us")).cast(target, safe=False))
    if t.is_time(target) and t.is_timestamp(given):
        return made(target, [value], lambda data: data.cast(pa.timestamp("us")).cast(target))
    if t.is_timestamp(target) and (t.is_date(given) or t.is_timestamp(given)):
        return made(target, [value], lambda data: data.cast(target))
    if t.is_integer(target) and t.is_boolean(given):
        return made(target, [value], lambda data: data.cast(target))
    if t.is_boolean(target) and t.is_integer(given):
        return made(target, [value], lambda data: pc.not_equal(data, 0))
    if kinds.is_number(given) and kinds.is_number(target) and _holds(given, target):
        return kinds.in_type(value, target, text)
    if t.is_binary(target) and t.is_fixed_size_binary(given):
        return made(target, [value], lambda data: data.cast(target))
    raise Invalid(
        f"{short(text)} may fail on a row, whose {given} need not be a {target}: a condition casts only to a type that"
        " holds every value; use lake.sql for other casts"
    )


def _holds(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether each number has a place in the target, perhaps a rounded one."""
    t = pa.types
    if t.is_floating(target):
        return bool(not t.is_floating(given) or t.is_float64(target))
    if t.is_floating(given):
        return False
    if t.is_integer(given) and t.is_integer(target):
        signed, wide = t.is_signed_integer(given), t.is_signed_integer(target)
        return bool(target.bit_width >= given.bit_width + (wide and not signed)) and (wide or not signed)
    if t.is_decimal(given) and t.is_integer(target):
        small = given.precision - given.scale < kinds.digits(target)[0] - 1
        return bool(small and t.is_signed_integer(target))
    whole, scale = kinds.digits(given)
    rounded = t.is_decimal(given) and scale > target.scale
    return bool(t.is_decimal(target) and target.precision - target.scale >= whole + rounded)


def _text(value: Value, text: str) -> Value:
    kind, t = value.type, pa.types
    if t.is_timestamp(kind):
        return made(pa.string(), [value], _moment)
    if t.is_time(kind):
        return made(pa.string(), [value], lambda data: _trimmed(data.cast(pa.string())))
    return kinds.texts(value, text)


def _moment(data: Datum) -> Datum:
    """A timestamp as DuckDB writes it, without zeros behind the seconds."""
    zoned = data.type.tz is not None
    said = _trimmed(data.cast(pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(said, "+00", "") if zoned else said


def _trimmed(data: Datum) -> Datum:
    return pc.replace_substring_regex(data, pattern=r"(\.\d*?[1-9])0+$|\.0+$", replacement=r"\1")
